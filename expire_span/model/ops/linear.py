"""A linear map of a block and what it remembers, whose gradient reaches the block alone.

Memory learns nothing from a block that it was read in: of the gradient of a long window most would
be computed to be thrown away.

Shapes: B rows, T steps of the block, N states of a row, D width of the states, O of the result.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def recent_linear(states: Tensor, present: Tensor, weight: Tensor) -> Tensor:
    """The states [B, N, D] times the weight [O, D], which is brought to their type: [B, N, O].

    Can be differentiated once.

    Args:
        states: of a window that ends with the block's own; they get no gradient.
        present: [B, T, D], the block's own once more, which get one.
        weight: as of `torch.nn.Linear`.
    """
    return _RecentLinear.apply(states, present, weight.to(states.dtype))


def reference_recent_linear(states: Tensor, present: Tensor, weight: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    past = states[:, : states.shape[1] - present.shape[1]].detach()
    return F.linear(torch.cat([past, present], dim=1), weight.to(states.dtype))


class _RecentLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, present: Tensor, weight: Tensor) -> Tensor:
        flat = states.flatten(0, 1)
        ctx.save_for_backward(flat, weight)
        ctx.length = present.shape[1]
        return F.linear(flat, weight).view(*states.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        flat, weight = ctx.saved_tensors
        to_present = to_weight = None
        if ctx.needs_input_grad[1]:
            recent = grad[:, grad.shape[1] - ctx.length :]
            # A product for each row, all with the same weight: so nothing need be copied first.
            to_present = torch.bmm(recent, weight.expand(len(recent), -1, -1))
        if ctx.needs_input_grad[2]:
            to_weight = grad.flatten(0, 1).T @ flat
        return None, to_present, to_weight
