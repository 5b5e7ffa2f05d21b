"""Linear maps of a window: of a block and what it remembers.

Memory learns nothing from a block that it is read in, if it was cut from its history: of the
gradient of a long window most would be computed to be thrown away.

Shapes: B rows, T steps of the block, N states of a row, D width of the states, O of the result.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def window_linear(states: Tensor, weight: Tensor, present: Tensor | None = None) -> Tensor:
    """The states [B, N, D] times the weight [O, D], which is brought to their type: [B, N, O].

    Can be differentiated once.

    Args:
        states: of a window that ends with the block's own.
        weight: as of `torch.nn.Linear`.
        present: [B, T, D], the block's own once more, if they alone are to get a gradient.
    """
    return _WindowLinear.apply(states, present, weight.to(states.dtype))


def reference_window_linear(
    states: Tensor, weight: Tensor, present: Tensor | None = None
) -> Tensor:
    """The same in plain PyTorch."""
    if present is not None:
        past = states[:, : states.shape[1] - present.shape[1]].detach()
        states = torch.cat([past, present], dim=1)
    return F.linear(states, weight.to(states.dtype))


class _WindowLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, present: Tensor | None, weight: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        ctx.length = None if present is None else present.shape[1]
        rows, count, width = states.shape
        # A view that tells a compiler to form the states first. For any other view it would form
        # them once more, to multiply them.
        flat = states.contiguous().as_strided((rows * count, width), (width, 1))
        return F.linear(flat, weight).view(rows, count, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        states, weight = ctx.saved_tensors
        for_states, for_present, for_weight = ctx.needs_input_grad
        to_states = to_present = to_weight = None
        if for_states and ctx.length is None:
            to_states = (grad.flatten(0, 1) @ weight).view_as(states)
        if for_present:
            recent = grad[:, grad.shape[1] - ctx.length :]
            # A product for each row, all with the same weight: so nothing need be copied first.
            to_present = torch.bmm(recent, weight.expand(len(recent), -1, -1))
        if for_weight:
            to_weight = grad.flatten(0, 1).T @ states.flatten(0, 1)
        return to_states, to_present, to_weight
