"""Muon (Jordan et al., 2024): matrices move by their momentum made orthogonal, the rest by Adam.

A gradient's few large singular values drown its many small ones. With all of them set to one, every
direction that a matrix can move in is used alike. An update is scaled so that its entries are about
as large as Adam's (Liu et al., 2025), so both have the same rate.

Shapes: N matrices of the same shape, R rows, C columns.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
ENTRY = 0.2  # root mean square of Adam's usual update, before the rate
ITERATIONS = 5
# x -> a x + b x^3 + c x^5 takes all of (0, 1] close to 1 in a few rounds.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ORTHOGONAL = "orthogonal"


class Muon(torch.optim.Adam):
    """Adam, but for groups marked as `ORTHOGONAL`, which hold matrices."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Update everything, unless the device says in `found_inf` that something is unsound."""
        for group in self.param_groups:
            if group.get(ORTHOGONAL):
                for alike in _by_shape(group["params"]):
                    self._move(alike, group["lr"])
        return super().step(closure)

    def _move(self, matrices: list[nn.Parameter], rate: float) -> None:
        """Update matrices of one shape, and leave them without gradient: Adam skips such."""
        gradients = torch.stack([matrix.grad for matrix in matrices])  # type: ignore[misc]
        before = torch.stack([self._momentum(matrix) for matrix in matrices])
        momentum = torch.lerp(before, gradients, 1 - MOMENTUM)
        ahead = torch.lerp(gradients, momentum, MOMENTUM)
        entry = ENTRY * max(gradients.shape[1:]) ** 0.5
        change = -rate * entry * orthogonal(ahead).to(gradients.dtype)
        unsound = getattr(self, "found_inf", None)
        if unsound is not None:
            momentum = torch.where(unsound > 0, before, momentum)
            change = torch.where(unsound > 0, 0.0, change)
        for matrix, kept, moved in zip(matrices, momentum, change, strict=True):
            self.state[matrix]["momentum"].copy_(kept)
            matrix.add_(moved)
            matrix.grad = None

    def _momentum(self, matrix: nn.Parameter) -> Tensor:
        state = self.state[matrix]
        if not state:
            state["step"] = torch.zeros(())  # Adam looks for one when it is restored
            state["momentum"] = torch.zeros_like(matrix)
        return state["momentum"]


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest orthogonal matrices, roughly: singular values come to lie around 1.

    By Newton and Schulz' iteration, which takes products only: [N, R, C] -> [N, R, C], in bfloat16
    on a GPU.
    """
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-20)  # no singular value above 1
    x = x.bfloat16() if x.is_cuda else x
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def _by_shape(matrices: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Those with a gradient, such as are alike together."""
    found = defaultdict[torch.Size, list[nn.Parameter]](list)
    for matrix in matrices:
        if matrix.grad is not None:
            found[matrix.shape].append(matrix)
    return list(found.values())
