"""ReLU and dropout after a linear layer, with the gradient of that layer's bias in the same pass.

Both are bound by memory: what is read and written is what they cost. Without dropout the product
itself ends with the ReLU. Of the forward only the result is kept, and the backward reads it and the
gradient once.

Shapes: N states of all rows and steps, D width, E width of what a linear layer is given.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.model.ops.dropout import is_kept, odd_words
from expire_span.model.ops.found import has_triton
from expire_span.model.ops.precision import at_least_float32

ROWS_TOGETHER = 256
"""States whose gradients one program adds up; on an H200 64 take a third longer, by a profile."""


def linear_relu(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a linear layer, [.., .., E] -> [.., .., D]; can be differentiated once.

    Args:
        states: what the layer is given.
        weight: [D, E].
        bias: [D].
    """
    dtype = _type_of_products(states)
    return LinearRelu.apply(states.to(dtype), weight.to(dtype), bias)


def reference_linear_relu(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    return F.relu(F.linear(states, weight, bias))


def _type_of_products(states: Tensor) -> torch.dtype:
    device = states.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype


class LinearRelu(torch.autograd.Function):
    """What is above zero in the result was not negative: so that alone is kept of it."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """[..., E], [D, E], [D] -> [..., D]"""
        flat = states.flatten(0, -2)
        out = product_relu(flat, weight, bias.to(flat.dtype))
        ctx.save_for_backward(flat, weight, out)
        ctx.type = bias.dtype
        return out.view(*states.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., D] -> [..., E], [D, E], [D]"""
        flat, weight, out = ctx.saved_tensors
        passed, sums = relu_backward(grad.flatten(0, -2), out, 1.0)
        to_states = (passed @ weight).view(*grad.shape[:-1], weight.shape[1])
        return to_states, passed.T @ flat, sums.to(ctx.type)


# An operator, since a compiler would take it apart and write the product before its ReLU.
@torch.library.custom_op("expire_span::product_relu", mutates_args=())
def product_relu(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of [N, E] times [D, E] plus [D], one kernel if a GPU's library has it."""
    return torch._addmm_activation(bias, states, weight.T)


@product_relu.register_fake
def _(states: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return states.new_empty(states.shape[0], weight.shape[0])  # a length would be a constant


def dropped_relu(hidden: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """ReLU and dropout of [.., .., D]; can be differentiated once.

    Args:
        hidden: what a linear layer gave, its bias [D] added without a gradient.
        bias: that bias; its gradient comes from here.
        dropout: probability to be dropped.
    """
    return DroppedRelu.apply(hidden, bias, dropout)


def reference_dropped_relu(hidden: Tensor, bias: Tensor, dropout: float) -> Tensor:
    """The same in plain PyTorch."""
    return _forward(hidden + (bias - bias.detach()).to(hidden.dtype), dropout)


def _forward(hidden: Tensor, dropout: float) -> Tensor:
    if not dropout:
        return F.relu(hidden)
    words = odd_words(*hidden.shape[:-1], 1, device=hidden.device)
    kept = is_kept(words, odd_words(hidden.shape[-1], device=hidden.device), dropout)
    return torch.where(kept, F.relu(hidden) / (1 - dropout), 0)


class DroppedRelu(torch.autograd.Function):
    """What is above zero in the result was neither negative nor dropped: that says it all."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, bias: Tensor, dropout: float) -> Tensor:
        """[..., D], [D] -> [..., D]"""
        out = _forward(hidden, dropout)
        ctx.save_for_backward(out)
        ctx.kept, ctx.type = 1 - dropout, bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """[..., D] -> [..., D], [D]"""
        (out,) = ctx.saved_tensors
        passed, sums = relu_backward(grad.flatten(0, -2), out.flatten(0, -2), ctx.kept)
        return passed.view_as(grad), sums.to(ctx.type), None


# An operator, so that a compiler takes it as it is.
@torch.library.custom_op("expire_span::relu_backward", mutates_args=())
def relu_backward(grad: Tensor, out: Tensor, kept: float) -> tuple[Tensor, Tensor]:
    """What passes of the gradient [N, D], and its sum over N [D] in at least float32.

    Args:
        grad: of the result.
        out: the result.
        kept: share that dropout keeps.
    """
    fast = grad.is_cuda and grad.dtype != torch.float64 and has_triton()
    return (fused_relu_backward if fast else reference_relu_backward)(grad, out, kept)


@relu_backward.register_fake
def _(grad: Tensor, out: Tensor, kept: float) -> tuple[Tensor, Tensor]:
    return grad.new_empty(grad.shape), grad.new_empty(grad.shape[1], dtype=at_least_float32(grad))


def reference_relu_backward(grad: Tensor, out: Tensor, kept: float) -> tuple[Tensor, Tensor]:
    """The same in plain PyTorch."""
    grown = grad.to(at_least_float32(grad))
    # Where `out` is not a number, the gradient passes: it must not be hidden.
    passed = torch.ops.aten.threshold_backward(grown / kept if kept < 1 else grown, out, 0)
    return passed.to(grad.dtype).contiguous(), passed.sum(0)


def fused_relu_backward(grad: Tensor, out: Tensor, kept: float) -> tuple[Tensor, Tensor]:
    """The same by a kernel that reads everything once, always adding up in the same order."""
    from expire_span.model.ops.relu.kernels import relu_backward_kernel

    grad, out = grad.contiguous(), out.contiguous()
    count, width = grad.shape
    passed = torch.empty_like(grad)
    parts = -(-count // ROWS_TOGETHER)
    sums = grad.new_empty(parts, width, dtype=at_least_float32(grad))
    columns = 256
    if grad.numel():
        relu_backward_kernel[(parts, -(-width // columns))](
            grad, out, passed, sums, count, width, kept,
            DROPOUT=kept < 1, ROWS=ROWS_TOGETHER, BR=16, BC=columns, num_warps=8,
        )  # fmt: skip
    return passed, sums.sum(0)
