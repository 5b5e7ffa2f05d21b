"""All that a model remembers: the memories of its layers, and where each row's episode began.

Shapes: B rows.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from expire_span.model.memory.base import LayerMemory
from expire_span.state import State
from expire_span.tensors import save_tensors


@dataclass(frozen=True)
class Memory(State):
    """All that a model remembers of the streams it reads; made by `Transformer.start`.

    Time runs in lockstep: `clock` counts the steps every row has read. `origin` says for each row
    what is the earliest time it may still see, counted from the next step, so that an episode's end
    hides all that came before.
    """

    layers: tuple[LayerMemory, ...]
    origin: Tensor  # int64 [B]
    clock: int
    fresh_origin: int  # the origin of a row that has just begun
    made_for: str  # the kind of model that can read it

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.origin)

    def reset(self, rows: Tensor | Sequence[int]) -> "Memory":
        """The same memory with the given rows as at the very start.

        The clock goes on for all rows alike, so compressed slots stay aligned to it.

        Args:
            rows: bool [B], or indices of rows.
        """
        marked = torch.zeros_like(self.origin, dtype=torch.bool)
        marked = marked.index_fill(0, self._indices(rows), True)
        return replace(
            self,
            layers=tuple(layer.clear(marked) for layer in self.layers),
            origin=self.origin.masked_fill(marked, self.fresh_origin),
        )

    def select(self, rows: Tensor | Sequence[int]) -> "Memory":
        """The memory of the given rows (indices, or bool [B]), in that order."""
        rows = self._indices(rows)
        return replace(
            self,
            layers=tuple(layer.select(rows) for layer in self.layers),
            origin=self.origin[rows],
        )

    def with_room(self, states: int) -> "Memory":
        """The same, where rows share a store with room for so many states in each of them."""
        return replace(self, layers=tuple(layer.with_room(states) for layer in self.layers))

    def save(self, path: str | Path) -> None:
        """Write a safetensors file that `Transformer.load_memory` reads."""
        save_tensors(self.tensors(), Path(path), {"memory": json.dumps(self.about())})

    def about(self) -> dict[str, Any]:
        """What is not in the tensors, JSON-able, for `Transformer.restore_memory`."""
        return {"clock": self.clock, "batch": self.batch, "made_for": self.made_for}

    def _indices(self, rows: Tensor | Sequence[int]) -> Tensor:
        """Rows by number, from 0."""
        rows = torch.as_tensor(rows, device=self.origin.device)
        if rows.dtype == torch.bool:
            if rows.shape != self.origin.shape:
                raise ValueError(
                    f"A mask of rows must have {self.batch} entries, but has shape {[*rows.shape]}."
                )
            return torch.nonzero(rows).squeeze(1)
        if rows.is_floating_point() and rows.numel():
            raise ValueError(f"Rows are whole numbers or a mask, but are {rows.tolist()}.")
        rows = rows.long()
        if rows.numel() and not -self.batch <= int(rows.min()) <= int(rows.max()) < self.batch:
            raise ValueError(
                f"Rows are numbered 0 to {self.batch - 1}, but {rows.tolist()} were asked for."
            )
        return torch.where(rows < 0, rows + self.batch, rows)
