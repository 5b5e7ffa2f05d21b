"""Layer norm of narrow states, each way in one pass.

PyTorch's kernels are made for wide ones. A window of an agent's memory is hundreds of thousands of
states of 64 numbers, and reading and writing them is all that a norm should cost.

Shapes: N states of all rows and steps, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from expire_span.model.ops.found import has_triton

WIDTHS = (16, 32, 64, 128)
ROWS_TOGETHER = 256
"""States whose gradients one program adds up."""
ROWS_AT_ONCE = 32
"""States of which it holds all numbers."""


class LayerNorm(nn.LayerNorm):
    """The same as PyTorch's, quicker for narrow states on a GPU; a compiler has its own way.

    There it can be differentiated once.
    """

    def forward(self, states: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        learned = self.weight is not None and self.bias is not None
        if torch.compiler.is_compiling() or not learned or not _fits(states):
            return super().forward(states)
        return FusedNorm.apply(states, self.weight, self.bias, self.eps)


def _fits(states: Tensor) -> bool:
    fits = states.is_cuda and states.dtype == torch.float32 and states.shape[-1] in WIDTHS
    return fits and has_triton()


class FusedNorm(torch.autograd.Function):
    """Mean and deviation are found again in the backward, from what was given."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """[..., D], [D], [D] -> [..., D]"""
        from expire_span.model.ops.norm.kernels import norm_kernel

        states = states.contiguous()
        width, out = len(weight), torch.empty_like(states)
        count = states.numel() // width
        if count:
            norm_kernel[(-(-count // ROWS_AT_ONCE),)](
                states, weight, bias, out, count, epsilon, D=width, BR=ROWS_AT_ONCE
            )
        ctx.save_for_backward(states, weight)
        ctx.epsilon = epsilon
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """[..., D] -> [..., D], [D], [D]"""
        from expire_span.model.ops.norm.kernels import norm_backward_kernel

        states, weight = ctx.saved_tensors
        width, to_states = len(weight), torch.empty_like(states)
        count = states.numel() // width
        parts = -(-count // ROWS_TOGETHER)
        sums = states.new_empty(parts, 2, width)
        if count:
            norm_backward_kernel[(parts,)](
                grad.contiguous(), states, weight, to_states, sums, count, ctx.epsilon,
                D=width, ROWS=ROWS_TOGETHER, BR=ROWS_AT_ONCE,
            )  # fmt: skip
        to_weight, to_bias = sums.sum(0)
        return to_states, to_weight, to_bias, None
