"""What a layer does after attention, for single steps: one kernel in place of eight.

A step of acting is a few hundred states, of which products by a library take longer to begin and to
end than to compute. So one program takes a few states through all of it. There is no gradient.

The plain way is `Layer.after_attention`, with which a test compares this.

Shapes: N states of all rows, D width, F width of the feed-forward.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from expire_span.model.ops.found import has_triton
from expire_span.model.ops.norm import WIDTHS

STATES_TOGETHER = 16
"""States of one program, which is as few as matrix units take."""
UNITS_TOGETHER = 64
"""Inner units of the feed-forward that a program takes at a time."""


class LayerEnd(NamedTuple):
    """The weights of a layer from its output projection on."""

    projection: Tensor  # [D, D], of what attention gave
    attention_weight: Tensor  # [D], of the norm after it, if norms come after sublayers
    attention_bias: Tensor  # [D]
    feedforward_weight: Tensor  # [D], of the norm before or after the feed-forward
    feedforward_bias: Tensor  # [D]
    inner_weight: Tensor  # [F, D]
    inner_bias: Tensor  # [F]
    outer_weight: Tensor  # [D, F]
    outer_bias: Tensor  # [D]


def can_finish(like: Tensor, width: int) -> bool:
    """Whether the kernel is made for states of that width, of the type and on the device of one."""
    return like.is_cuda and like.dtype == torch.float32 and width in WIDTHS and has_triton()


def finish_layer(
    states: Tensor, attended: Tensor, end: LayerEnd, *, pre_norm: bool, epsilon: float
) -> Tensor:
    """The layer's output, [..., D], of its input and what attention gave, both [..., D].

    Args:
        states: float32, the layer's input.
        attended: float32, not yet projected.
        end: the weights, float32.
        pre_norm: whether norms come before sublayers.
        epsilon: of both norms.
    """
    flat = states.flatten(0, -2), attended.flatten(0, -2)
    return _finish(*flat, *end, pre_norm, epsilon).view_as(states)


# An operator, so that a compiler takes it as it is.
@torch.library.custom_op("expire_span::finish_layer", mutates_args=())
def _finish(
    states: Tensor,
    attended: Tensor,
    projection: Tensor,
    attention_weight: Tensor,
    attention_bias: Tensor,
    feedforward_weight: Tensor,
    feedforward_bias: Tensor,
    inner_weight: Tensor,
    inner_bias: Tensor,
    outer_weight: Tensor,
    outer_bias: Tensor,
    pre_norm: bool,
    epsilon: float,
) -> Tensor:
    from expire_span.model.ops.finish.kernels import finish_kernel

    count, width = states.shape
    result = torch.empty_like(states, memory_format=torch.contiguous_format)
    if count:
        finish_kernel[(-(-count // STATES_TOGETHER),)](
            states.contiguous(), attended.contiguous(), result,
            projection, attention_weight, attention_bias, feedforward_weight, feedforward_bias,
            inner_weight, inner_bias, outer_weight, outer_bias, count, len(inner_bias), epsilon,
            D=width, PRE_NORM=pre_norm, BR=STATES_TOGETHER, BF=UNITS_TOGETHER,
        )  # fmt: skip
    return result


@_finish.register_fake
def _(states: Tensor, attended: Tensor, *rest: object) -> Tensor:
    return torch.empty_like(states, memory_format=torch.contiguous_format)
