"""The soft ramp: how a memory fades, and what can be counted about it without forming every pair.

A memory with deadline d is whole until time d, then fades linearly over R steps and is gone:

    weight(t) = clamp(1 + (d - t) / R, 0, 1)

Times count from the first query of the block: its queries stand at 0 .. T-1, memories at negative
times, deadlines anywhere. A window [first, last] bounds the query times that may see a key at all.
All counts below are closed forms in the deadline, one number per key, so that nothing of size
queries x keys is ever needed for them.

Shapes: every function is elementwise over tensors that broadcast together.
Letters: T queries in the block, R ramp.
"""

import torch
from torch import Tensor

# A time no stream reaches: the hard edge of a key that has none. It fits 32-bit integers.
NEVER = 2**31 - 1


def soft_weight(deadline: Tensor, time: Tensor, ramp: int) -> Tensor:
    """Share of a memory that is left at `time`: 1 before its deadline, 0 from `ramp` steps after.

    The gradient is 1 / ramp strictly inside the ramp and zero elsewhere, also exactly at its two
    ends (where `clamp` would pass it on), so a memory that is gone gets the same gradient as one
    that was deleted: none.
    """
    height = 1 + (deadline - time) / ramp
    whole = (height >= 1).to(height.dtype)
    return torch.where((height > 0) & (height < 1), height, whole)


def is_alive(deadline: Tensor, time: int, ramp: int) -> Tensor:
    """Whether any weight is left at `time`, by the very formula that gives the weight."""
    return soft_weight(deadline, torch.full_like(deadline, time), ramp) > 0


def steps_seen(
    first: Tensor, last: Tensor, deadline: Tensor | None, ramp: int, length: int
) -> Tensor:
    """How many of the block's `length` queries see each key with weight above 0."""
    begin, end = first.clamp(min=0), last.clamp(max=length - 1)
    if deadline is not None:
        end = torch.minimum(end, _whole(torch.ceil(deadline + ramp)) - 1)
    return (end - begin + 1).clamp(min=0)


def ramp_charge(first: Tensor, last: Tensor, deadline: Tensor, ramp: int, length: int) -> Tensor:
    """Sum over the queries that see a key on its ramp of (deadline - t), one number per key.

    On the ramp means 0 < weight < 1, hence deadline < t < deadline + ramp. Those t are consecutive,
    so the sum is n * deadline - (t_first + t_last) * n / 2, and its gradient by the deadline is n.

    Example: deadline 2.5, ramp 4, ten queries, no window: t = 3, 4, 5, 6 are on the ramp, n = 4 and
    the charge is 4 * 2.5 - 18 = -8.
    """
    begin = torch.maximum(first.clamp(min=0), _whole(torch.floor(deadline)) + 1)
    end = torch.minimum(last.clamp(max=length - 1), _whole(torch.ceil(deadline + ramp)) - 1)
    count = (end - begin + 1).clamp(min=0).to(deadline.dtype)
    middle = (begin + end).to(deadline.dtype) / 2
    return count * (deadline - middle)


def _whole(time: Tensor) -> Tensor:
    return time.detach().long()
