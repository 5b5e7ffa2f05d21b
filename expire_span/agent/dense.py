"""Memory in tensors of fixed shape: what has expired is hidden instead of deleted.

A world's memories are few, so that deleting them saves nothing; what counts is that no shape ever
changes and nothing is asked of the device, as CUDA graphs need. While weights stay the same, hidden
and deleted memories give the same numbers. Across an update spans are predicted anew, and a hidden
memory may come back that a deleted one could not.

The states held are then always the last L + R; what is alive of them is in the statistics.

Shapes: B rows, T steps of the block, N states of a row, D model width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from torch import Tensor

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import AdaptiveSpan, Deadlines, ExpireSpan, Keeper, StateSet, Window
from expire_span.model.memory.adaptive_span import AdaptiveSpanKeeper
from expire_span.model.memory.expire_span import ExpireSpanKeeper
from expire_span.model.memory.memory import Memory
from expire_span.model.memory.recent import RecentMemory, keep_recent, recent_states
from expire_span.model.transformer import Transformer


@dataclass(frozen=True)
class DenseExpireSpan(ExpireSpan):
    """Expire-Span that hides what has expired."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None:
            raise ValueError("An agent's memory deletes nothing, so it cannot have a budget.")

    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""
        return DenseExpireSpanKeeper(self, width, block)


class DenseExpireSpanKeeper(ExpireSpanKeeper):
    """Predicts spans and charges for them; holds every state for as long as it can be alive."""

    @property
    def held(self) -> int:
        """Steps after which the longest memory is gone."""
        return self.policy.max_span + self.ramp

    def start(self, like: Tensor, zeros: bool) -> RecentMemory:  # type: ignore[override]
        """Nothing, or zero states."""
        batch, _, width = like.shape
        return RecentMemory(like.new_zeros(batch, self.held if zeros else 0, width))

    def read(  # type: ignore[override]
        self, memory: RecentMemory, states: Tensor, window: Window
    ) -> tuple[StateSet, ...]:
        """The states held with the block."""
        rows = self.policy.position_rows(self.block)
        return (recent_states(memory.states, states, window, None, rows),)

    def deadlines(self, sets: Sequence[StateSet], readable: Sequence[Tensor]) -> Deadlines:
        """i + e_i, [B, 1, N]."""
        return ((sets[0].times + self._predict(readable[0])).unsqueeze(1),)

    def keep(  # type: ignore[override]
        self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window
    ) -> RecentMemory:
        """The last states."""
        return RecentMemory(keep_recent(sets[0], self.held))


@dataclass(frozen=True)
class DenseAdaptiveSpan(AdaptiveSpan):
    """Adaptive-Span that holds states for the longest span there can be."""

    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""
        return DenseAdaptiveSpanKeeper(self, heads)


class DenseAdaptiveSpanKeeper(AdaptiveSpanKeeper):
    """A sliding window that does not shrink."""

    def keep(  # type: ignore[override]
        self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window
    ) -> RecentMemory:
        """The last states."""
        return RecentMemory(keep_recent(sets[0], self.max_span))


_DENSE: dict[type, type] = {ExpireSpan: DenseExpireSpan, AdaptiveSpan: DenseAdaptiveSpan}


def dense(config: TransformerConfig) -> TransformerConfig:
    """The same model with memory of fixed shape; its parameters have the same names."""
    policy = config.memory
    kind = _DENSE.get(type(policy), type(policy))
    settings = {field.name: getattr(policy, field.name) for field in fields(policy)}
    return replace(config, memory=kind(**settings))


def start_full(model: Transformer, batch: int) -> Memory:
    """Memory at the very start, at its full size, all of it hidden."""
    empty = model.start(batch)
    like = model.positions.detach().new_zeros(batch, 0, model.config.width)
    layers = tuple(layer.keeper.start(like, zeros=True) for layer in model.stack())
    return replace(empty, layers=layers)
