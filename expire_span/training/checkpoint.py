"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is a folder of one safetensors file and one JSON file, nothing that could execute. It
is written under a temporary name and then renamed, so that a folder named `step-...` is always
whole; the one before it is kept.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

TENSORS, VALUES = "tensors.safetensors", "values.json"
KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, and plain values."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix.`, without it."""
        start = f"{prefix}."
        return {
            name.removeprefix(start): tensor
            for name, tensor in self.tensors.items()
            if name.startswith(start)
        }


def save(checkpoint: Checkpoint, folder: Path, step: int) -> Path:
    """Write a checkpoint under `folder`, then forget all but the last two."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".unfinished-{step}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, unfinished / TENSORS)
    (unfinished / VALUES).write_text(json.dumps(checkpoint.values))
    for path in unfinished.iterdir():
        _flush(path)
    finished = folder / f"step-{step:09d}"
    shutil.rmtree(finished, ignore_errors=True)
    unfinished.rename(finished)
    _flush(folder)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old)
    return finished


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    return _all(folder)[-1] if _all(folder) else None


def load(path: Path, device: str = "cpu") -> Checkpoint:
    """Read one checkpoint."""
    try:
        values = json.loads((path / VALUES).read_text())
        return Checkpoint(load_file(path / TENSORS, device=device), values)
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(
            f"The checkpoint {path} cannot be read ({error}): remove it to go on from the one "
            "before it."
        ) from error


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*"))


def _flush(path: Path) -> None:
    """Make sure that a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
