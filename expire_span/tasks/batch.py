"""What a stream hands out: the next steps of every row, in named fields.

Shapes: B rows, T steps.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """The next T steps of B rows that run side by side.

    Args:
        inputs: int64 [B, T], the tokens to read.
        targets: int64 [B, T], the token to predict at each step; any valid token where not scored.
        scored: bool [B, T], the steps that count in the loss and in the metric.
        starts: bool [B, T], where an episode begins; None when nothing ever restarts.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    starts: Tensor | None = None

    def __post_init__(self) -> None:
        fields = [self.targets, self.scored]
        if self.starts is not None:
            fields.append(self.starts)
        if any(field.shape != self.inputs.shape for field in fields):
            raise ValueError(
                f"All fields of a batch must have the shape of inputs, {tuple(self.inputs.shape)}, "
                f"not {[tuple(field.shape) for field in fields]}."
            )

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        # Only copies out of pinned memory go on while the host does something else. A copy to the
        # host must not: it could be read before it has arrived.
        to_gpu = torch.device(device).type == "cuda"

        def moved(field: Tensor) -> Tensor:
            if to_gpu and not field.is_cuda:
                return field.pin_memory().to(device, non_blocking=True)
            return field.to(device)

        starts = None if self.starts is None else moved(self.starts)
        return Batch(moved(self.inputs), moved(self.targets), moved(self.scored), starts)

    def split(self, rows: int) -> list["Batch"]:
        """The same batch in parts of so many rows."""

        def part(rows: slice) -> "Batch":
            starts = None if self.starts is None else self.starts[rows]
            return Batch(self.inputs[rows], self.targets[rows], self.scored[rows], starts)

        return [part(slice(first, first + rows)) for first in range(0, len(self.inputs), rows)]
