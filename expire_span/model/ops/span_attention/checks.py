"""Arguments of span attention that cannot be right, each said in one sentence."""

from collections.abc import Sequence

from torch import Tensor

from expire_span.model.ops.span_attention.keys import KeySet


def check(queries: Tensor, key_sets: Sequence[KeySet], ramp: int) -> None:
    """Raise ValueError if the shapes do not fit together."""
    if queries.ndim != 4:
        raise ValueError(
            f"queries must be [rows, queries, heads, width], but have shape {[*queries.shape]}."
        )
    if ramp < 1:
        raise ValueError(f"ramp must be at least 1 step, but is {ramp}.")
    for keys in key_sets:
        _check_set(queries, keys)


def _check_set(queries: Tensor, keys: KeySet) -> None:
    batch, _, heads, width = queries.shape
    count = keys.keys.shape[0] if keys.seen.packed else keys.keys.shape[1]
    expected = (count, heads, width) if keys.seen.packed else (batch, count, heads, width)
    for name, tensor in (("keys", keys.keys), ("values", keys.values)):
        if tensor.shape != expected:
            raise ValueError(f"{name} must be {[*expected]}, but have shape {[*tensor.shape]}.")
    windows = {"first": keys.seen.first, "last": keys.seen.last, "deadline": keys.deadline}
    for name, window in windows.items():
        if window is not None and window.shape[-1] != count:
            raise ValueError(
                f"{name} must have one entry for each of the {count} keys, "
                f"but has shape {[*window.shape]}."
            )
    if keys.positions is not None and keys.positions.shape[-1] != width:
        raise ValueError(
            f"positions must be as wide as a head ({width}), "
            f"but have shape {[*keys.positions.shape]}."
        )
    if keys.seen.offsets is not None and keys.seen.offsets.shape != (batch + 1,):
        raise ValueError(
            f"offsets must have {batch + 1} entries for {batch} rows, "
            f"but have shape {[*keys.seen.offsets.shape]}."
        )
