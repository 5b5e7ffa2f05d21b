"""The simplest layer memory: the last states in order, the same number in every row.

Shapes: B rows, T steps of the block, N states of a row, D model width.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from expire_span.model.memory.base import LayerMemory, StateSet
from expire_span.model.memory.window import Window
from expire_span.model.ops.span_attention import Visibility


@dataclass(frozen=True)
class RecentMemory(LayerMemory):
    """The last N states of each row, oldest first: `states` [B, N, D]."""

    states: Tensor

    def held(self) -> float:
        """States physically stored, per row."""
        return self.states.shape[1]

    def growing(self) -> list[tuple[Tensor, int]]:
        """Until the window is full."""
        return [(self.states, 1)]

    def clear(self, rows: Tensor) -> Self:
        """Zero the marked rows; the row's origin keeps them from being seen."""
        return replace(self, states=self.states.masked_fill(rows[:, None, None], 0))

    def select(self, rows: Tensor) -> Self:
        """The memory of the given rows."""
        return replace(self, states=self.states[rows])


def recent_states(
    past: Tensor, present: Tensor, window: Window, span: int | None, positions: int
) -> StateSet:
    """Past and present states as one ordered set, each seen for `span` steps (None: no edge).

    Args:
        past: [B, N, D], the states just before the block.
        present: [B, T, D], the states of the block.
        window: the block.
        span: distance beyond which a state is invisible.
        positions: distances 1 .. positions have a position row.
    """
    times = window.times(before=past.shape[1])
    last = window.last(times, window.rows())
    if span is not None:
        last = torch.minimum(last, times + span)
    seen = Visibility(first=(times + 1)[None, None], last=last, begin=-past.shape[1])
    past = past.to(present.dtype)
    states = torch.cat([past, present], dim=1)
    # No more rows than there are distances: each costs a product with every query.
    rows = (0, min(positions, states.shape[1]))
    return StateSet(states, times, seen, rows, parts=(past, present))


def keep_recent(recent: StateSet, count: int) -> Tensor:
    """The last `count` states of what `recent_states` joined, or all if there are fewer.

    Taken from its parts: so the block's own states, where these are all that stays, are not copied.
    """
    assert recent.parts is not None
    past, present = recent.parts
    older = count - present.shape[1]
    if older <= 0:
        return last_states(present, count)
    return torch.cat([past[:, max(past.shape[1] - older, 0) :], present], dim=1)


def last_states(states: Tensor, count: int) -> Tensor:
    """The last `count` of [B, N, D] along time, or all if there are fewer; without the others."""
    return states[:, max(states.shape[1] - count, 0) :].contiguous()
