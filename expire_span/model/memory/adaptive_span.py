"""Adaptive-Span (Sukhbaatar et al., 2019): each head learns how far it looks back.

Head h has one learned z in [0, 1]. A state of time i starts to fade for it at i + z L + 1, so the
span is the same for every state and differs only between heads and layers.

Shapes: B rows, H heads, N states of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from expire_span.checks import require_at_least, require_not_negative
from expire_span.model.memory.base import (
    Deadlines,
    Keeper,
    MemoryPolicy,
    StateSet,
)
from expire_span.model.memory.recent import RecentMemory, keep_recent, last_states, recent_states
from expire_span.model.memory.room import offers
from expire_span.model.memory.window import Window
from expire_span.model.ops.precision import at_least_float32
from expire_span.state import State


@dataclass(frozen=True)
class AdaptiveSpan(MemoryPolicy):
    """Learn one span per head, the same for every memory."""

    max_span: int
    """Longest possible span (the paper's L)."""
    ramp: int
    """Steps over which a memory fades after its span (R)."""
    penalty: float = 0.0
    """Weight of the mean span of a layer's heads in the loss."""
    initial: float = 0.0
    """Share of `max_span` that every head starts with."""

    def __post_init__(self) -> None:
        require_at_least(1, max_span=self.max_span, ramp=self.ramp)
        require_not_negative(penalty=self.penalty)
        if not 0 <= self.initial <= 1:
            raise ValueError(f"initial is a share between 0 and 1, but is {self.initial}.")

    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""
        return AdaptiveSpanKeeper(self, heads)

    def reach(self) -> int:
        """The longest span that a head can learn."""
        return self.max_span

    def position_rows(self, block: int) -> int:
        """One for each distance."""
        return self.max_span


@dataclass(frozen=True)
class ShrinkingMemory(State):
    """What `AdaptiveSpanKeeper.keep` returns: how many states are needed, the device knows."""

    states: Tensor  # [B, N, D]
    offer: Tensor
    """How many of the last states are needed or can be kept; see `room.offers`."""

    def held(self, number: Tensor) -> Tensor:
        """As many."""
        return number

    def settle(self, size: int) -> RecentMemory:
        """The memory with that many."""
        return RecentMemory(last_states(self.states, size))


class AdaptiveSpanKeeper(Keeper):
    """A sliding window that shrinks to the longest span among the heads."""

    def __init__(self, policy: AdaptiveSpan, heads: int):
        super().__init__()
        self.max_span = policy.max_span
        self.ramp = policy.ramp
        self.price = policy.penalty
        self.ratio = nn.Parameter(torch.full((heads,), policy.initial))  # z, [H]

    def start(self, like: Tensor, zeros: bool) -> RecentMemory:
        """Nothing, or `max_span` zero states."""
        batch, _, width = like.shape
        return RecentMemory(like.new_zeros(batch, self.max_span if zeros else 0, width))

    def read(self, memory: RecentMemory, states: Tensor, window: Window) -> tuple[StateSet, ...]:
        """The window and the block."""
        return (recent_states(memory.states, states, window, self.max_span, self.max_span),)

    def deadlines(self, sets: Sequence[StateSet], readable: Sequence[Tensor]) -> Deadlines:
        """i + z L + 1, one for each head: [1, H, N]."""
        ratio = self.ratio.to(at_least_float32(self.ratio))
        return (sets[0].times + (ratio * self.max_span + 1)[None, :, None],)

    def keep(
        self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window
    ) -> "ShrinkingMemory":
        """As many of the last states as the head that looks furthest can see."""
        furthest = torch.ceil(self.ratio.detach().double().max() * self.max_span + self.ramp)
        past = sets[0].states.shape[1] - window.length
        states = keep_recent(sets[0], self.max_span)
        needed = furthest.long().clamp(max=states.shape[1])
        # A span changes a little from update to update, so it needs little to spare.
        offer = offers(needed, past, chunk=max(window.length // 4, 1), most_spare=1)
        return ShrinkingMemory(states, offer)

    def spans(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """z L of each head."""
        return self.ratio * self.max_span

    def penalty(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """The mean span of the heads, weighted."""
        return self.price * self.max_span * self.ratio.mean()

    @torch.no_grad()
    def clamp_parameters(self) -> None:
        """Keep z between 0 and 1, where the ramp still passes gradient."""
        self.ratio.clamp_(0, 1)
