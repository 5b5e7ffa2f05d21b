"""Ragged memory: each row keeps as many states as it needs, all rows packed one after another.

Shapes: B rows, M states of all rows, D model width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.model.memory.state import State
from expire_span.model.ops.span_attention import offsets_of, rows_of


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

    @property
    def rows(self) -> Tensor:
        """Row of each state, [M]."""
        return rows_of(self.offsets, len(self.states))

    def select(self, rows: Tensor, emptied: Tensor | None = None) -> "PackedStates":
        """The given rows (int64) in that order; a row may be taken twice.

        Args:
            rows: which rows.
            emptied: bool, for each of them, whether it comes without its states.
        """
        counts = self.offsets.diff()[rows]
        if emptied is not None:
            counts = counts.masked_fill(emptied, 0)
        offsets = F.pad(counts.cumsum(0), (1, 0))
        owner = rows_of(offsets, int(offsets[-1]))
        place = torch.arange(len(owner), device=rows.device) - offsets[owner]
        index = self.offsets[rows[owner]] + place
        return PackedStates(self.states[index], self.times[index], offsets)


@dataclass(frozen=True)
class Pool(State):
    """Candidates for packed memory, and on the device alone which of them stay.

    How many stay is not known on the host before it has been read; `order` puts those first, sorted
    by row, so that the number is all that `take` needs.
    """

    states: Tensor  # [M, D]
    times: Tensor  # int64 [M]
    order: Tensor  # int64 [M]
    offsets: Tensor  # int64 [B + 1]; the last is the number that stay

    @classmethod
    def sort(cls, states: Tensor, times: Tensor, rows: Tensor, worth: Tensor, batch: int) -> "Pool":
        """Those with a row below `batch` stay; within a row the worthiest come first."""
        return cls(states, times, _by_row(rows, worth), offsets_of(rows, batch))

    def take(self, count: int) -> PackedStates:
        """The `count` states that stay."""
        index = self.order[:count]
        return PackedStates(self.states[index], self.times[index], self.offsets)


def rank_in_row(rows: Tensor, worth: Tensor, batch: int) -> Tensor:
    """Place of each entry among those of its row, the worthiest first, from 0.

    Example: rows [0, 1, 0, 0], worth [5., 1., 9., 7.] give [2, 0, 0, 1].
    """
    order = _by_row(rows, worth)
    begins = offsets_of(rows, batch)[rows[order]]
    places = torch.arange(len(rows), device=rows.device) - begins
    return torch.zeros_like(places).scatter(0, order, places)


def _by_row(rows: Tensor, worth: Tensor) -> Tensor:
    """The order that brings together what belongs to one row, the worthiest first."""
    order = worth.argsort(descending=True, stable=True)
    return order[rows[order].argsort(stable=True)]
