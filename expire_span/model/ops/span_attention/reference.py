"""The plain truth of span attention: every pair of query and key, written out.

It forms tensors of size queries x keys and pads packed rows to the longest, so it is neither fast
nor small; every other implementation is held against it.

Shapes
    B rows, T queries, H heads, E head width, P position rows
    N keys of a row (of the longest row, where rows are packed)
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.model.ops.precision import at_least_float32
from expire_span.model.ops.ramp import NEVER, soft_weight
from expire_span.model.ops.span_attention.keys import KeySet, Visibility, rows_of


def reference_attention(
    queries: Tensor, key_sets: Sequence[KeySet], *, ramp: int, dropout: float
) -> Tensor:
    """Span attention by its definition; see `span_attention` for the arguments."""
    dense_sets = [dense(keys) if keys.seen.packed else keys for keys in key_sets]
    scores_BHTN = torch.cat([_scores(queries, keys) for keys in dense_sets], dim=-1)
    weights_BHTN = torch.cat([_weights(queries, keys, ramp) for keys in dense_sets], dim=-1)
    values_BNHE = torch.cat([keys.values for keys in dense_sets], dim=1)
    share_BHTN = _weighted_softmax(scores_BHTN, weights_BHTN)
    share_BHTN = F.dropout(share_BHTN, dropout).to(values_BNHE.dtype)
    return torch.einsum("bhtn,bnhe->bthe", share_BHTN, values_BNHE)


def _scores(queries: Tensor, keys: KeySet) -> Tensor:
    """(q . k + q . p) / sqrt(E), [B, H, T, N], in at least float32."""
    scores = torch.einsum("bthe,bnhe->bhtn", queries, keys.keys)
    if keys.positions is not None:
        scores = scores + position_scores(queries, keys.seen, keys.positions)
    return scores.to(at_least_float32(scores)) / queries.shape[-1] ** 0.5


def position_scores(queries: Tensor, seen: Visibility, positions: Tensor) -> Tensor:
    """q_t . p[(t - first) // stride], zero where the table has no such row; [B, H, T, N]."""
    by_row = torch.einsum("bthe,pe->bhtp", queries, positions)
    row = (query_times(queries) - seen.first.unsqueeze(-2)).div(seen.stride, rounding_mode="floor")
    inside = (row >= 0) & (row < len(positions))
    index = row.clamp(0, len(positions) - 1).expand(*by_row.shape[:3], -1)
    return by_row.gather(-1, index) * inside


def _weights(queries: Tensor, keys: KeySet, ramp: int) -> Tensor:
    """What is left of each key for each query, [B, H, T, N]."""
    time = query_times(queries)
    first, last = keys.seen.first.unsqueeze(-2), keys.seen.last.unsqueeze(-2)
    in_window = (first <= time) & (time <= last)
    if keys.deadline is None:
        weight = in_window.to(at_least_float32(queries))
    else:
        weight = soft_weight(keys.deadline.unsqueeze(-2), time, ramp) * in_window
    batch, length, heads, _ = queries.shape
    return weight.expand(batch, heads, length, -1)


def _weighted_softmax(scores: Tensor, weights: Tensor) -> Tensor:
    """weight * exp(score) over its sum; zeros where nothing has weight."""
    scores = scores.masked_fill(weights == 0, float("-inf"))
    largest = scores.detach().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    mass = weights * torch.exp(scores - largest)
    total = mass.sum(dim=-1, keepdim=True)
    return mass / torch.where(total > 0, total, 1)


def query_times(queries: Tensor) -> Tensor:
    """Time of each query, [T, 1]."""
    return torch.arange(queries.shape[1], device=queries.device).unsqueeze(-1)


def dense(keys: KeySet) -> KeySet:
    """A packed set with every row padded to the longest by keys that nobody sees."""
    offsets = keys.seen.offsets
    assert offsets is not None
    count = len(keys.keys)
    row = rows_of(offsets, count)
    batch, longest = len(offsets) - 1, int(offsets.diff().max())
    number = torch.arange(count, device=row.device)
    column = torch.where(number < offsets[-1], number - offsets[row], longest)

    def pad(packed: Tensor, fill: float) -> Tensor:
        # One column more, which is then left out, takes the keys that are nobody's.
        padded = packed.new_full((batch, longest + 1, *packed.shape[1:]), fill)
        return padded.index_put((row, column), packed)[:, :longest]

    def pad_times(packed: Tensor, fill: float) -> Tensor:
        return pad(packed, fill).unsqueeze(1)  # the same for all heads

    seen = Visibility(
        first=pad_times(keys.seen.first, NEVER),
        last=pad_times(keys.seen.last, -NEVER),
        stride=keys.seen.stride,
    )
    deadline = None if keys.deadline is None else pad_times(keys.deadline, -NEVER)
    return KeySet(pad(keys.keys, 0), pad(keys.values, 0), seen, deadline, keys.positions)
