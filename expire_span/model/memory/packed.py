"""Ragged memory: each row keeps as many states as it needs, all rows packed one after another.

Shapes: B rows, M states of all rows, D model width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from expire_span.model.memory.state import State
from expire_span.model.ops.span_attention import rows_of


@dataclass(frozen=True)
class PackedStates(State):
    """States of all rows, with their times; row b owns entries offsets[b] to offsets[b + 1].

    Example: offsets [0, 2, 2, 5] is three rows with 2, 0 and 3 states.
    """

    states: Tensor  # [M, D]
    times: Tensor  # int64 [M], counted from the first query of the next block
    offsets: Tensor  # int64 [B + 1]

    @classmethod
    def empty(cls, like: Tensor) -> "PackedStates":
        """No states in any row; `like` is [B, 0, D]."""
        batch, _, width = like.shape
        times = torch.zeros(0, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(0, width), times, times.new_zeros(batch + 1))

    @classmethod
    def of(cls, states: Tensor, times: Tensor, rows: Tensor, batch: int) -> "PackedStates":
        """States that stand in order of their rows [M]."""
        bounds = torch.arange(batch + 1, device=rows.device)
        return cls(states, times, torch.searchsorted(rows, bounds))

    @property
    def rows(self) -> Tensor:
        """Row of each state, [M]."""
        return rows_of(self.offsets, len(self.states))

    def without(self, rows: Tensor) -> "PackedStates":
        """The same with the marked rows (bool [B]) emptied."""
        mine = self.rows
        index = torch.nonzero(~rows[mine]).squeeze(1)
        return PackedStates.of(self.states[index], self.times[index], mine[index], len(rows))

    def select(self, rows: Tensor) -> "PackedStates":
        """The given rows (int64) in that order; a row may be taken twice."""
        counts = self.offsets.diff()[rows]
        offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        owner = rows_of(offsets, int(offsets[-1]))
        place = torch.arange(len(owner), device=rows.device) - offsets[owner]
        index = self.offsets[rows[owner]] + place
        return PackedStates(self.states[index], self.times[index], offsets)
