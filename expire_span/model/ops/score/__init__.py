"""One number for each state: its product with a learned vector, in full precision.

The gradient of that vector is a sum over all states, each times a number. Where states are stored
in half precision it is one pass over them, on a GPU by a kernel. Others are computed anew from what
is stored, and their sum along with them: as argument of a kernel they would have to be kept.

Shapes: M states of all rows, D width.
"""

from typing import Any

import torch
from torch import Tensor

from expire_span.model.ops.found import has_triton
from expire_span.model.ops.precision import at_least_float32

ROWS_TOGETHER = 128
"""States that one program adds up."""


def score(states: Tensor, weight: Tensor) -> Tensor:
    """w . h of each state, never in less than float32; can be differentiated once.

    [.., D], [D] -> [..]
    """
    stored = states.dtype != at_least_float32(states)
    return _Score.apply(states, weight) if stored else reference_score(states, weight)


def reference_score(states: Tensor, weight: Tensor) -> Tensor:
    """The same in plain PyTorch.

    A sum, not a matrix product: so a compiler need not form a precise copy of all states.
    """
    precise = at_least_float32(weight)
    return (states.to(precise) * weight.to(precise)).sum(dim=-1)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return reference_score(states, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        states, weight = ctx.saved_tensors
        to_states = to_weight = None
        if ctx.needs_input_grad[0]:
            to_states = (grad.unsqueeze(-1) * weight.to(grad.dtype)).to(states.dtype)
        if ctx.needs_input_grad[1]:
            to_weight = weighted_sum(states.flatten(0, -2), grad.flatten()).to(weight.dtype)
        return to_states, to_weight


# An operator, so that a compiler takes it as it is.
@torch.library.custom_op("expire_span::weighted_sum", mutates_args=())
def weighted_sum(states: Tensor, weights: Tensor) -> Tensor:
    """The sum of all states [M, D], each times its weight [M], in the type of these: [D]."""
    fast = states.is_cuda and weights.dtype == torch.float32 and has_triton()
    return (fused_weighted_sum if fast else reference_weighted_sum)(states, weights)


@weighted_sum.register_fake
def _(states: Tensor, weights: Tensor) -> Tensor:
    return weights.new_empty(states.shape[1])


def reference_weighted_sum(states: Tensor, weights: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    return (states.to(weights.dtype) * weights[:, None]).sum(dim=0)


def fused_weighted_sum(states: Tensor, weights: Tensor) -> Tensor:
    """The same by a kernel, always adding up in the same order."""
    from expire_span.model.ops.score.kernels import weighted_sum_kernel

    states, weights = states.contiguous(), weights.contiguous()
    count, width = states.shape
    parts, columns = -(-count // ROWS_TOGETHER), 256
    sums = weights.new_empty(parts, width)
    if states.numel():
        weighted_sum_kernel[(parts, -(-width // columns))](
            states, weights, sums, count, width, ROWS=ROWS_TOGETHER, BR=16, BC=columns
        )
    return sums.sum(dim=0)
