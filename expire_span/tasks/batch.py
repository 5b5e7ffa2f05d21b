"""What a stream hands out: the next steps of every row, in named fields.

Shapes: B rows, T steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from expire_span.state import State


@dataclass(frozen=True)
class Batch(State):
    """The next T steps of B rows that run side by side.

    Args:
        inputs: int64 [B, T], the tokens to read.
        targets: int64 [B, T], the token to predict at each step; any valid token where not scored.
        scored: bool [B, T], the steps that count in the loss and in the metric.
        starts: bool [B, T], where an episode begins; None when nothing ever restarts.
        in_metric: bool [B, T], the steps that count in the metric, if not all that are scored do.
    """

    inputs: Tensor
    targets: Tensor
    scored: Tensor
    starts: Tensor | None = None
    in_metric: Tensor | None = None

    def __post_init__(self) -> None:
        optional = [field for field in (self.starts, self.in_metric) if field is not None]
        others = [self.targets, self.scored, *optional]
        if any(field.shape != self.inputs.shape for field in others):
            raise ValueError(
                f"All fields of a batch must have the shape of inputs, {tuple(self.inputs.shape)}, "
                f"not {[tuple(field.shape) for field in others]}."
            )

    @property
    def judged(self) -> Tensor:
        """bool [B, T], the steps that count in the metric."""
        return self.scored if self.in_metric is None else self.in_metric

    @staticmethod
    def joined(parts: Sequence["Batch"]) -> "Batch":
        """Consecutive steps of the same rows as one batch."""
        names = [field.name for field in fields(Batch) if getattr(parts[0], field.name) is not None]
        columns = {name: [getattr(part, name) for part in parts] for name in names}
        return Batch(**{name: torch.cat(column, dim=1) for name, column in columns.items()})

    def cut(self, first: int, last: int) -> "Batch":
        """Its steps first, ..., last - 1, or as many of them as there are."""
        return self.map(lambda field: field[:, first:last])

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        # Only copies out of pinned memory go on while the host does something else. A copy to the
        # host must not: it could be read before it has arrived.
        to_gpu = torch.device(device).type == "cuda"

        def moved(field: Tensor) -> Tensor:
            if to_gpu and not field.is_cuda:
                return field.pin_memory().to(device, non_blocking=True)
            return field.to(device)

        return self.map(moved)

    def split(self, rows: int) -> list["Batch"]:
        """The same batch in parts of so many rows."""

        def part(first: int) -> "Batch":
            return self.map(lambda field: field[first : first + rows])

        return [part(first) for first in range(0, len(self.inputs), rows)]
