"""Transformer-XL (Dai et al., 2019): the last L states, each seen for exactly L steps."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from expire_span.checks import require_at_least
from expire_span.model.memory.base import Deadlines, Keeper, MemoryPolicy, StateSet
from expire_span.model.memory.recent import RecentMemory, keep_recent, recent_states
from expire_span.model.memory.window import Window


@dataclass(frozen=True)
class FixedSpan(MemoryPolicy):
    """Remember the last `span` states, as Transformer-XL does."""

    span: int
    """Steps that every memory is kept (the paper's L)."""

    def __post_init__(self) -> None:
        require_at_least(1, span=self.span)

    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""
        return FixedSpanKeeper(self)

    def reach(self) -> int:
        """The window."""
        return self.span

    def position_rows(self, block: int) -> int:
        """One for each distance."""
        return self.span


class FixedSpanKeeper(Keeper):
    """A sliding window; nothing is learned."""

    def __init__(self, policy: FixedSpan):
        super().__init__()
        self.span = policy.span

    def start(self, like: Tensor, zeros: bool) -> RecentMemory:
        """Nothing, or `span` zero states."""
        batch, _, width = like.shape
        return RecentMemory(like.new_zeros(batch, self.span if zeros else 0, width))

    def read(self, memory: RecentMemory, states: Tensor, window: Window) -> tuple[StateSet, ...]:
        """The window and the block."""
        return (recent_states(memory.states, states, window, self.span, self.span),)

    def keep(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> RecentMemory:
        """The last `span` states."""
        return RecentMemory(keep_recent(sets[0], self.span))

    def spans(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """The same for all."""
        return sets[0].times.new_full((1,), self.span)
