"""Who may see whom in one block, whatever the policy: episodes and the hard distance cut.

Times count from the first query of the block. Time runs in lockstep over the rows; what differs
between rows is only when their episodes began.

Example: a block of 4 queries, origin -2, an episode starting at time 1. Keys of times -3, -2, 0, 1
end at -3 (an earlier episode: before any query), 0, 0 (the last step of their own episode) and
NEVER.

Shapes: B rows, T queries, N keys of a row, M packed keys of all rows.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from expire_span.model.ops.ramp import NEVER


@dataclass(frozen=True)
class Window:
    """One block's queries, and the hard edges of what they may see.

    Args:
        length: number of queries T.
        clock: absolute time of the first query, less any multiple of the policy's period.
        origin: int64 [B], the earliest time each row may see at the block's begin, at most 0.
        starts: bool [B, T], where an episode begins; None if none does.
        limit: distance beyond which every key is invisible (a tensor has no axes); None for no cut.
    """

    length: int
    clock: int
    origin: Tensor
    starts: Tensor | None = None
    limit: int | Tensor | None = None
    next_start: Tensor | None = field(init=False)
    """Time of the first episode start at or after each step, [B, T + 1]; else NEVER + 1."""

    def __post_init__(self) -> None:
        # Once for all layers, and outside of what is compiled.
        object.__setattr__(self, "next_start", _next_start(self.starts))

    def times(self, before: int) -> Tensor:
        """Times of `before` states before the block and of the block's own, [before + T]."""
        return torch.arange(-before, self.length, device=self.origin.device)

    def rows(self) -> Tensor:
        """Index of each row, shaped to meet dense keys: [B, 1, 1]."""
        return torch.arange(len(self.origin), device=self.origin.device)[:, None, None]

    def episode_end(self, times: Tensor, rows: Tensor) -> Tensor:
        """Last step of the episode each key belongs to; NEVER while that episode goes on."""
        origin = self.origin[rows]
        if self.next_start is None:
            end = torch.full_like(times, NEVER)
        else:
            end = self.next_start[rows, (times + 1).clamp(min=0)] - 1
        return torch.where(times < origin, origin - 1, end)

    def last(self, times: Tensor, rows: Tensor) -> Tensor:
        """Latest query time that may see each key, by its episode and the cut."""
        end = self.episode_end(times, rows)
        return end if self.limit is None else torch.minimum(end, times + self.limit)

    def next_origin(self) -> Tensor:
        """The origin as the next block counts it, [B]."""
        origin = self.origin
        if self.starts is not None:
            steps = torch.arange(self.length, device=origin.device)
            origin = torch.maximum(origin, torch.where(self.starts, steps, -NEVER).amax(dim=1))
        # A row that never restarts would drift away for ever; beyond NEVER it makes no difference.
        return (origin - self.length).clamp(min=-NEVER)


def _next_start(starts: Tensor | None) -> Tensor | None:
    """bool [B, T] -> int64 [B, T + 1]"""
    if starts is None:
        return None
    steps = torch.arange(starts.shape[1], device=starts.device)
    marked = torch.where(starts, steps, NEVER + 1)
    marked = torch.nn.functional.pad(marked, (0, 1), value=NEVER + 1)
    return marked.flip(1).cummin(dim=1).values.flip(1)
