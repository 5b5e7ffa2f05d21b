"""One Transformer layer: attention over memory and a feed-forward, around the residual stream.

Shapes: B rows, T steps of the block, D model width, P position rows, E head width.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expire_span.model.attention import SpanSelfAttention
from expire_span.model.config import TransformerConfig
from expire_span.model.memory import Deadlines, Kept, LayerMemory, StateSet, Window
from expire_span.model.ops.finish import LayerEnd, finish_layer
from expire_span.model.ops.norm import LayerNorm
from expire_span.model.ops.relu import dropped_relu, linear_relu
from expire_span.model.ops.span_attention import AUTOMATIC


@dataclass(frozen=True)
class LayerStep:
    """What one layer gives back for one block."""

    states: Tensor  # [B, T, D]
    kept: Kept
    penalty: Tensor  # scalar, weighted
    deadlines: Deadlines
    spans: Tensor  # any shape, without gradient
    stats: Tensor  # [3], without gradient: live, mean and longest span (see `MemoryStats`)


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.inner = nn.Linear(config.width, config.feedforward)
        self.outer = nn.Linear(config.feedforward, config.width)
        self.dropout = config.dropout

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        inner = self.inner
        if not self.training or not (self.dropout or states.is_cuda):
            return self.outer(F.relu(inner(states)))
        if not self.dropout:
            return self.outer(linear_relu(states, inner.weight, inner.bias))
        hidden = F.linear(states, inner.weight, inner.bias.detach())
        return self.outer(dropped_relu(hidden, inner.bias, self.dropout))


class Layer(nn.Module):
    """Reads its memory, attends, transforms, and says what it will remember."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.keeper = config.memory.build(config.width, config.heads, config.block)
        self.attention = SpanSelfAttention(config, self.keeper.ramp)
        self.feedforward = FeedForward(config)
        self.attention_norm = LayerNorm(config.width)
        self.feedforward_norm = LayerNorm(config.width)

    def forward(
        self,
        states: Tensor,
        memory: LayerMemory,
        window: Window,
        positions: Tensor,
        impl: str = AUTOMATIC,
        dropped: bool = False,
        attached: bool = True,
    ) -> LayerStep:
        """One block through the layer.

        Args:
            states: [B, T, D].
            memory: what this layer remembers.
            window: who may see whom.
            positions: [P, E], the table of all positions.
            impl: which implementation of span attention computes it.
            dropped: the layer passes its input on and pays no penalty, yet its memory is still
                written and still expires.
            attached: whether gradients flow from what is kept into this block.
        """
        computed = _as_computed(states)
        sets = self.keeper.read(memory, computed, window)
        with torch.no_grad() if dropped else nullcontext():
            readable = [self.readable(one.states) for one in sets]
            deadlines = self.keeper.deadlines(sets, readable)
            penalty = self.keeper.penalty(sets, deadlines, window)
        if not dropped:
            # In the type of products here, once for all three: a compiler makes no other copies.
            rounded = [one.to(computed.dtype) for one in readable]
            as_it_is = rounded[0] is sets[0].states
            present = computed if as_it_is else rounded[0][:, -window.length :]
            attended = self.attention(present, sets, rounded, deadlines, positions, impl)
        kept = self.keeper.keep(
            sets if attached else [one.detach() for one in sets], deadlines, window
        )
        spans = self.keeper.spans(sets, deadlines, window).detach().float()
        return LayerStep(
            states=states if dropped else self.after_attention(states, attended),
            kept=kept,
            penalty=torch.zeros_like(penalty) if dropped else penalty,
            deadlines=deadlines,
            spans=spans,
            stats=self._stats(sets, deadlines, window, spans),
        )

    @torch.no_grad()
    def _stats(
        self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window, spans: Tensor
    ) -> Tensor:
        live = self.keeper.live(sets, deadlines, window)
        return torch.stack([live, spans.mean(), spans.max()])

    def readable(self, states: Tensor) -> Tensor:
        """States as queries, keys, values and the span predictor see them."""
        norm = self.attention_norm
        return norm(states.to(norm.weight.dtype)) if self.pre_norm else states

    def after_attention(self, states: Tensor, attended: Tensor) -> Tensor:
        """The rest of the layer: [B, T, D] and what attention gave, [B, T, D] -> [B, T, D]."""
        states = states + self.attention.out(attended)
        if self.pre_norm:
            return states + self.feedforward(self.feedforward_norm(states))
        states = self.attention_norm(states)
        return self.feedforward_norm(states + self.feedforward(states))

    def after_attention_of_step(self, states: Tensor, attended: Tensor) -> Tensor:
        """The same for few states, without gradient or dropout, by a kernel that must fit them."""
        early, late, feed = self.attention_norm, self.feedforward_norm, self.feedforward
        end = LayerEnd(
            projection=self.attention.out.weight,
            attention_weight=early.weight,
            attention_bias=early.bias,
            feedforward_weight=late.weight,
            feedforward_bias=late.bias,
            inner_weight=feed.inner.weight,
            inner_bias=feed.inner.bias,
            outer_weight=feed.outer.weight,
            outer_bias=feed.outer.bias,
        )
        return finish_layer(states, attended, end, pre_norm=self.pre_norm, epsilon=late.eps)


def _as_computed(states: Tensor) -> Tensor:
    """States as they are remembered: in the type that keys and values are computed in.

    Spans are predicted from these too, so that a state gets the same one in every block. A copy, so
    that memory shares nothing with what passes through the layers.
    """
    device, dtype = states.device.type, states.dtype
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    return states.to(dtype, copy=True)
