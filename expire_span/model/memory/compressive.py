"""Compressive Transformer (Rae et al., 2020), mean pooling: beyond L steps, c states become one.

Slot s is the mean of the raw states of absolute times c s .. c s + c - 1. A query at t sees the
C + 1 slots that end with number floor((t - L) / c); one of them overlaps the ordinary memory, so
that no gap opens between the two.

Example: L 8, c 4, C 2. A query at time 20 sees the states 12 .. 19 and the slots 1, 2, 3, which
hold the states 4 .. 15.

Shapes
    B rows, T steps of the block, D model width, S slots, c states in a slot
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from expire_span.checks import require_at_least
from expire_span.model.memory.base import (
    Deadlines,
    Keeper,
    LayerMemory,
    MemoryPolicy,
    StateSet,
)
from expire_span.model.memory.recent import keep_recent, last_states, recent_states
from expire_span.model.memory.window import Window
from expire_span.model.ops.span_attention import Visibility


@dataclass(frozen=True)
class Compressive(MemoryPolicy):
    """Remember the last `span` states, and before them `compressed` means of `rate` states each."""

    span: int
    """Steps that every single state is kept (L)."""
    compressed: int
    """Slots kept beyond them (C)."""
    rate: int
    """States pooled into one slot (c)."""

    def __post_init__(self) -> None:
        require_at_least(1, span=self.span, compressed=self.compressed, rate=self.rate)
        if self.span % self.rate:
            raise ValueError(
                f"span must be a multiple of rate, but {self.span} is not one of {self.rate}."
            )

    def check(self, block: int) -> None:
        """Blocks hold whole slots."""
        if block % self.rate:
            raise ValueError(
                f"block must be a multiple of the compression rate, but {block} is not one of "
                f"{self.rate}."
            )

    def period(self) -> int:
        """Slots begin at multiples of the rate."""
        return self.rate

    def reach(self) -> int:
        """The window and all slots behind it."""
        return self.span + self.rate * self.compressed

    def steps_to_fill(self, block: int) -> int:
        """Until there are all of these."""
        return self.reach()

    def symbolic_sizes(self) -> bool:
        """No: the number of slots is beyond the compiler's algebra, and stays the same."""
        return False

    def stored(self) -> str:
        """Slots mean something only together with their size and place."""
        return f"Compressive({self.span}, {self.compressed}, {self.rate})"

    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""
        return CompressiveKeeper(self)

    def position_rows(self, block: int) -> int:
        """One for each distance, then one for each slot that a query sees."""
        return self.span + self.compressed + 1


@dataclass(frozen=True)
class CompressiveMemory(LayerMemory):
    """The last states of each row [B, N, D], and the slots before them [B, S, D], oldest first."""

    states: Tensor
    slots: Tensor

    def held(self) -> float:
        """States and slots physically stored, per row."""
        return self.states.shape[1] + self.slots.shape[1]

    def clear(self, rows: Tensor) -> Self:
        """Zero the marked rows; the row's origin keeps them from being seen."""
        marked = rows[:, None, None]
        return replace(
            self,
            states=self.states.masked_fill(marked, 0),
            slots=self.slots.masked_fill(marked, 0),
        )

    def select(self, rows: Tensor) -> Self:
        """The memory of the given rows."""
        return replace(self, states=self.states[rows], slots=self.slots[rows])


class CompressiveKeeper(Keeper):
    """A sliding window with coarser memory behind it; nothing is learned."""

    def __init__(self, policy: Compressive):
        super().__init__()
        self.span = policy.span
        self.reach = policy.reach()
        self.compressed = policy.compressed
        self.rate = policy.rate

    @property
    def raw(self) -> int:
        """States kept unpooled: the window, and what the slot that straddles its edge needs."""
        return self.span + self.rate - 1

    def start(self, like: Tensor, zeros: bool) -> CompressiveMemory:
        """Nothing, or zero states and zero slots."""
        batch, _, width = like.shape
        return CompressiveMemory(
            states=like.new_zeros(batch, self.raw if zeros else 0, width),
            slots=like.new_zeros(batch, self.compressed if zeros else 0, width),
        )

    def read(
        self, memory: CompressiveMemory, states: Tensor, window: Window
    ) -> tuple[StateSet, ...]:
        """The window with the block, and the slots: those stored and those that become visible."""
        recent = recent_states(memory.states, states, window, self.span, self.span)
        slots = torch.cat([memory.slots, self._pool(recent.states, window)], dim=1)
        return recent, self._slot_set(slots, window)

    def keep(
        self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window
    ) -> CompressiveMemory:
        """The last raw states, and the last slots that the next block does not pool itself."""
        recent, slots = sets
        next_time = window.clock + window.length
        pooled_again = self._newest_slot(next_time - 1) + 1 - self._newest_slot(next_time)
        stored = max(slots.states.shape[1] - pooled_again, 0)
        return CompressiveMemory(
            states=keep_recent(recent, self.raw),
            slots=last_states(slots.states[:, :stored], self.compressed),
        )

    def spans(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """The same for all: the window and the slots behind it."""
        return sets[0].times.new_full((1,), self.reach)

    def _newest_slot(self, time: int) -> int:
        """Number of the newest slot that a query at this absolute time sees."""
        return (time - self.span) // self.rate

    def _pool(self, states: Tensor, window: Window) -> Tensor:
        """Slots that some query of the block is the first to see, [B, S, D].

        Stored slots end just before the newest one that the block's first query sees; from there on
        they are pooled out of `states` [B, N, D], which end with the block. Near the beginning of a
        stream some of these would reach back before the first state; they are left out.
        """
        before = states.shape[1] - window.length
        whole = -((before - window.clock) // self.rate)  # the first slot with all its states here
        begin = max(self._newest_slot(window.clock), whole)
        end = self._newest_slot(window.clock + window.length - 1) + 1
        count = max(end - begin, 0)
        first = begin * self.rate - window.clock + before if count else 0
        members = states[:, first : first + count * self.rate]
        return members.unflatten(1, (count, self.rate)).mean(dim=2)

    def _slot_set(self, slots: Tensor, window: Window) -> StateSet:
        """Slots with their windows; the last of them is the newest that the block sees."""
        end = self._newest_slot(window.clock + window.length - 1) + 1
        numbers = torch.arange(end - slots.shape[1], end, device=slots.device)
        times = numbers * self.rate - window.clock
        first = times + self.span
        edge = first + self.rate * (self.compressed + 1) - 1
        # A slot counts as old as its oldest state, so that nothing beyond a cut and nothing of an
        # earlier episode is seen through it.
        last = torch.minimum(window.last(times, window.rows()), edge)
        seen = Visibility(first[None, None], last, stride=self.rate)
        rows = (self.span, self.compressed + 1)
        return StateSet(slots, times, seen, rows)
