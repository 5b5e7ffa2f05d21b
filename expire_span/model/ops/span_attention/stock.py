"""Span attention through PyTorch's own `scaled_dot_product_attention`, for inference on a CPU.

Stock attention adds a bias to every score before the softmax. What is left of a key enters there as
the logarithm of its weight, beside the score of its position:

    weight * exp(score) = exp(q . k / sqrt(E) + bias)
    bias                = q . p / sqrt(E) + log(weight)                minus infinity for weight 0

Only the bias has the size queries x keys. Rows that are long enough are computed one at a time, so
that packed rows need no padding and the bias stays in the cache.

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

# Numbers of keys, values and bias in a row from which it is worth its own calls, as measured.
LONG_ROW = 2**18


def stock_attention(
    queries: Tensor, key_sets: Sequence[KeySet], *, ramp: int, dropout: float
) -> Tensor:
    """Span attention by stock attention; see `span_attention` for the arguments.

    Equal to the reference within rounding, on any device, with all gradients; made for inference on
    a CPU, where it is faster (`faster_than_reference`). The bias is of at least float32. Keys that
    nobody sees must be finite numbers, since their scores are formed before they are hidden.
    """
    if not _rows_apart(queries, key_sets):
        padded = [dense(keys) if keys.seen.packed else keys for keys in key_sets]
        return _attend(queries, padded, ramp, dropout)
    attended = [
        _attend(queries[row : row + 1], [_one_row(keys, row) for keys in key_sets], ramp, dropout)
        for row in range(len(queries))
    ]
    return torch.cat(attended)


def faster_than_reference(device: torch.device) -> bool:
    """Whether a call made now would better go this way: on a CPU, without gradient."""
    return device.type == "cpu" and not torch.is_grad_enabled()


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


def _one_row(keys: KeySet, row: int) -> KeySet:
    """What a set holds for one row, as a dense set of one row."""
    seen = keys.seen
    if seen.offsets is not None:
        begin, end = seen.offsets[row : row + 2].tolist()

        def cut(given: Tensor) -> Tensor:
            return given[begin:end].unsqueeze(0)

        def cut_times(given: Tensor) -> Tensor:
            return cut(given).unsqueeze(0)  # the same for all heads
    else:

        def cut(given: Tensor) -> Tensor:
            return given[row : row + 1]

        def cut_times(given: Tensor) -> Tensor:
            return given[row : row + 1] if given.ndim == 3 and len(given) > 1 else given

    return KeySet(
        keys=cut(keys.keys),
        values=cut(keys.values),
        seen=replace(seen, first=cut_times(seen.first), last=cut_times(seen.last), offsets=None),
        deadline=None if keys.deadline is None else cut_times(keys.deadline),
        positions=keys.positions,
    )
