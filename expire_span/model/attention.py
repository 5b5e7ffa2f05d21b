"""Multi-head attention over a block and whatever its memory offers.

Shapes
    B rows, T steps of the block, D model width, H heads, E head width, P position rows
    N states of a row in a dense set, M states of all rows in a packed set
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import Deadlines, StateSet
from expire_span.model.ops.linear import window_linear
from expire_span.model.ops.span_attention import KeySet, span_attention


class SpanSelfAttention(nn.Module):
    """Projects states to queries, keys and values, and attends; no biases, as in the paper.

    The projection `out` is applied by the layer, together with all that follows it.
    """

    def __init__(self, config: TransformerConfig, ramp: int):
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.ramp = ramp
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = WindowLinear(config.width, config.width, bias=False)
        self.value = WindowLinear(config.width, config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(
        self,
        present: Tensor,
        sets: Sequence[StateSet],
        readable: Sequence[Tensor],
        deadlines: Deadlines,
        positions: Tensor,
        impl: str,
    ) -> Tensor:
        """What the block reads from its memory and from itself, [B, T, D], not yet projected.

        Args:
            present: [B, T, D], the block's states, from which queries are made.
            sets: what may be read, and by whom.
            readable: the states of each set as keys and values see them.
            deadlines: when each of them starts to fade.
            positions: [P, E], the table of all positions.
            impl: which implementation of span attention computes it.
        """
        key_sets = [
            KeySet(
                keys=self._split(self.key(states, _learning(states, one))),
                values=self._split(self.value(states, _learning(states, one))),
                seen=one.seen,
                deadline=deadline,
                positions=table_rows(positions, one.positions),
            )
            for one, states, deadline in zip(sets, readable, deadlines, strict=True)
        ]
        queries = self._split(self.query(present))
        dropout = self.dropout if self.training else 0.0
        attended = span_attention(queries, key_sets, ramp=self.ramp, dropout=dropout, impl=impl)
        return attended.flatten(-2)

    def projections(self) -> Tensor:
        """Query, key and value as one linear map, [3 D, D]: for a step, one product takes less."""
        return torch.cat([self.query.weight, self.key.weight, self.value.weight])

    def _split(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., H, E]"""
        return states.unflatten(-1, (self.heads, -1))


class WindowLinear(nn.Linear):
    """A linear map of a window of states, without bias."""

    def forward(self, states: Tensor, learning: Tensor | None = None) -> Tensor:
        """[..., D] -> [..., D]

        Args:
            states: the window, or any others.
            learning: the last of them, if gradients reach no others.
        """
        if states.ndim != 3:
            return super().forward(states)
        return window_linear(states, self.weight, learning)


def _learning(readable: Tensor, states: StateSet) -> Tensor | None:
    """The states of a set that gradients reach, if these are the block's own and no others.

    A norm between states and what is read of them would learn from all.
    """
    if states.parts is None or readable is not states.states:
        return None
    past, present = states.parts
    return None if past.requires_grad else present


def table_rows(table: Tensor, rows: tuple[int, int] | None) -> Tensor | None:
    """Some rows of a table, from the first and by their number; None if there are none."""
    return None if rows is None else table.narrow(0, *rows)
