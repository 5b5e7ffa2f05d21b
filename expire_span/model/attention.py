"""Multi-head attention over a block and whatever its memory offers.

Shapes
    B rows, T steps of the block, D model width, H heads, E head width, P position rows
    N states of a row in a dense set, M states of all rows in a packed set
"""

from collections.abc import Sequence

from torch import Tensor, nn

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import Deadlines, StateSet
from expire_span.model.ops.linear import recent_linear
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
        self.key = nn.Linear(config.width, config.width, bias=False)
        self.value = nn.Linear(config.width, config.width, bias=False)
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
                keys=self._split(project(self.key, states, one)),
                values=self._split(project(self.value, states, one)),
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

    def _split(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., H, E]"""
        return states.unflatten(-1, (self.heads, -1))


def project(linear: nn.Linear, readable: Tensor, states: StateSet) -> Tensor:
    """A linear map, without bias, of the states as they are read.

    Where nothing but the block's own states can have a gradient, only theirs is computed; a norm
    in between would learn from all of them.
    """
    if states.parts is None or readable is not states.states or states.parts[0].requires_grad:
        return linear(readable)
    return recent_linear(readable, states.parts[1], linear.weight)


def table_rows(table: Tensor, rows: tuple[int, int] | None) -> Tensor | None:
    """Some rows of a table, from the first and by their number; None if there are none."""
    return None if rows is None else table.narrow(0, *rows)
