"""Span attention through PyTorch's own `scaled_dot_product_attention`, for a CPU.

Stock attention adds a bias to every score before the softmax. What is left of a key enters there as
the logarithm of its weight, beside the score of its position:

    weight * exp(score) = exp(q . k / sqrt(E) + bias)
    bias                = q . p / sqrt(E) + log(weight)                minus infinity for weight 0

Only the bias has the size queries x keys. A few rows at a time are computed, so that it stays in
the cache, of dense sets from the first key that somebody sees to the last. Packed rows that are
long enough are computed one by one, so that they need no padding.

Shapes
    B rows, T queries, H heads, E head width, P position rows
    N keys of a row (of the longest row, where packed rows are computed together)
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.model.ops.precision import at_least_float32
from expire_span.model.ops.ramp import soft_weight
from expire_span.model.ops.span_attention.keys import KeySet, Visibility
from expire_span.model.ops.span_attention.reference import dense, position_scores, query_times

# How large a bias may be that is computed at once, as measured: it should stay in the cache.
AT_A_TIME = 2**19
# Numbers of keys, values and bias in a row from which it is worth its own calls, so that packed
# rows need no padding; as measured, too.
LONG_ROW = 2**18


def stock_attention(
    queries: Tensor, key_sets: Sequence[KeySet], *, ramp: int, dropout: float
) -> Tensor:
    """Span attention by stock attention; see `span_attention` for the arguments.

    Equal to the reference within rounding, on any device, with all gradients; made for a CPU, where
    it is faster but for the smallest sizes. The bias is of at least float32. Keys that nobody sees
    must be finite numbers, since their scores may be formed before they are hidden.
    """
    apart = _rows_apart(queries, key_sets)
    sets = [dense(keys) if keys.seen.packed and not apart else keys for keys in key_sets]
    sets = [
        keys if keys.seen.packed else _seen_by_somebody(keys, queries.shape[1], ramp)
        for keys in sets
    ]
    rows = _rows_at_a_time(queries, sets)
    parts = zip(queries.split(rows), *(_by_rows(keys, rows) for keys in sets), strict=True)
    attended = [_attend(asked, kept, ramp, dropout) for asked, *kept in parts]
    return attended[0] if len(attended) == 1 else torch.cat(attended)


def _attend(queries: Tensor, key_sets: Sequence[KeySet], ramp: int, dropout: float) -> Tensor:
    """Attention over dense sets, [B, T, H, E]."""
    keys_BNHE = _joined([keys.keys for keys in key_sets], dim=1)
    values_BNHE = _joined([keys.values for keys in key_sets], dim=1)
    with torch.autocast(queries.device.type, enabled=False):  # which would round the bias
        attended = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys_BNHE.transpose(1, 2),
            values_BNHE.transpose(1, 2),
            attn_mask=_joined([_bias(queries, keys, ramp) for keys in key_sets], dim=-1),
            dropout_p=dropout,
        )
    return attended.transpose(1, 2)


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors side by side along `dim`, the other axes as long as in any; one is not copied."""
    if len(parts) == 1:
        return parts[0]
    dim = dim % parts[0].ndim
    shape = [max(part.shape[axis] for part in parts) for axis in range(parts[0].ndim)]
    return torch.cat(
        [part.expand(*shape[:dim], part.shape[dim], *shape[dim + 1 :]) for part in parts], dim
    )


def _bias(queries: Tensor, keys: KeySet, ramp: int) -> Tensor:
    """What is added to the scores of a dense set, [B or 1, H or 1, T, N]."""
    bias = _log_weights(queries, keys, ramp)
    if keys.positions is None:
        return bias
    scaled = queries / queries.shape[-1] ** 0.5
    positions = keys.positions.to(queries.dtype)
    if keys.seen.begin is not None:
        return bias + _sliding_position_scores(scaled, keys.seen, positions)
    return bias + position_scores(scaled, keys.seen, positions)


def _log_weights(queries: Tensor, keys: KeySet, ramp: int) -> Tensor:
    """Logarithm of what is left of each key for each query, [B or 1, H or 1, T, N]."""
    precise = at_least_float32(queries)
    time = query_times(queries)
    first, last = keys.seen.first.unsqueeze(-2), keys.seen.last.unsqueeze(-2)
    visible = (first <= time) & (time <= last)
    nothing = torch.full((), float("-inf"), dtype=precise, device=queries.device)
    if keys.deadline is None:
        return torch.where(visible, torch.zeros_like(nothing), nothing)
    weight = soft_weight(keys.deadline.unsqueeze(-2), time, ramp).to(precise)
    visible = visible & (weight > 0)
    # The logarithm of 1 where nothing is seen: that of 0 would have no gradient but NaN.
    return torch.where(visible, weight.where(visible, 1).log(), nothing)


def _sliding_position_scores(queries: Tensor, seen: Visibility, positions: Tensor) -> Tensor:
    """q_t . p[t - first] where keys stand at consecutive times: a slanted view, [B, H, T, N].

    Key n has position row t - first[0] - n. Write for each query its scores with all rows, from the
    highest down; then the keys of each query begin one column to the left of those of the last.

    Example: T = 2, first = -1, 0, 1. The columns hold rows 2, 1, 0, -1, of which the keys have
        t = 0:     1  0 -1
        t = 1:  2  1  0
    """
    length, count = queries.shape[1], seen.first.shape[-1]
    assert seen.begin is not None
    highest = length - 1 - (seen.begin + 1)
    lowest = highest - (length + count - 2)
    top, bottom = min(highest, len(positions) - 1), max(lowest, 0)  # as far as there are positions
    if top < bottom:
        return queries.new_zeros(())
    scores = queries.transpose(1, 2) @ positions[bottom : top + 1].flip(0).T
    scores = F.pad(scores, (highest - top, bottom - lowest)).contiguous()
    size = (*scores.shape[:3], count)
    strides = (*scores.stride()[:2], scores.shape[-1] - 1, 1)
    return scores.as_strided(size, strides, length - 1)


def _rows_apart(queries: Tensor, key_sets: Sequence[KeySet]) -> bool:
    """Whether each row has enough to do for calls of its own."""
    batch, length, heads, width = queries.shape
    counts = (len(k.keys) / batch if k.seen.packed else k.keys.shape[1] for k in key_sets)
    return batch == 1 or sum(counts) * heads * (length + 2 * width) > LONG_ROW


def _rows_at_a_time(queries: Tensor, key_sets: Sequence[KeySet]) -> int:
    """How many rows are computed together: single ones where some are packed."""
    if any(keys.seen.packed for keys in key_sets):
        return 1
    batch, length, heads, _ = queries.shape
    bias = heads * length * sum(keys.keys.shape[1] for keys in key_sets)
    return max(1, min(batch, AT_A_TIME // max(1, bias)))


def _seen_by_somebody(keys: KeySet, length: int, ramp: int) -> KeySet:
    """A dense set from the first key that some query sees to the last."""
    begin, end = _range_of(_is_seen(keys, length, ramp))
    seen, count = keys.seen, end - begin

    def cut(times: Tensor) -> Tensor:
        return times.narrow(-1, begin, count)

    return KeySet(
        keys=keys.keys.narrow(1, begin, count),
        values=keys.values.narrow(1, begin, count),
        seen=replace(
            seen,
            first=cut(seen.first),
            last=cut(seen.last),
            begin=None if seen.begin is None else seen.begin + begin,
        ),
        deadline=None if keys.deadline is None else cut(keys.deadline),
        positions=keys.positions,
    )


@torch.no_grad()
def _is_seen(keys: KeySet, length: int, ramp: int) -> Tensor:
    """Whether some query sees a key, which the first in its window does; [B or 1, H or 1, N]."""
    earliest = keys.seen.first.clamp(min=0)
    seen = (earliest <= keys.seen.last) & (earliest < length)
    if keys.deadline is None:
        return seen
    return seen & (soft_weight(keys.deadline, earliest, ramp) > 0)


def _range_of(wanted: Tensor) -> tuple[int, int]:
    """From the first that is wanted anywhere to behind the last; [..., N]."""
    places = wanted.flatten(0, -2).any(dim=0).nonzero()
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)


def _by_rows(keys: KeySet, rows: int) -> list[KeySet]:
    """A set in dense parts of so many rows each, one row if it is packed."""
    batch = len(keys.keys) if keys.seen.offsets is None else len(keys.seen.offsets) - 1
    parts = -(-batch // rows)
    if keys.seen.offsets is None:

        def cut(given: Tensor) -> Sequence[Tensor]:
            return given.split(rows)

        def cut_times(times: Tensor) -> Sequence[Tensor]:
            return cut(times) if times.ndim == 3 and len(times) > 1 else [times] * parts
    else:
        counts = keys.seen.offsets.diff().tolist()
        counts.append(len(keys.keys) - sum(counts))  # nobody's

        def cut(given: Tensor) -> Sequence[Tensor]:
            return [row.unsqueeze(0) for row in given.split(counts)[:-1]]

        def cut_times(times: Tensor) -> Sequence[Tensor]:
            return [row.unsqueeze(0) for row in cut(times)]  # the same for all heads

    none = [None] * parts
    return [
        KeySet(
            keys=some,
            values=values,
            seen=replace(keys.seen, first=first, last=last, offsets=None),
            deadline=deadline,
            positions=keys.positions,
        )
        for some, values, first, last, deadline in zip(
            cut(keys.keys),
            cut(keys.values),
            cut_times(keys.seen.first),
            cut_times(keys.seen.last),
            none if keys.deadline is None else cut_times(keys.deadline),
            strict=True,
        )
    ]
