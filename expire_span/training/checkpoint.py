"""Checkpoints: all that a run needs to go on as if it had never stopped.

A checkpoint is a folder of safetensors and JSON files, nothing that could execute, and a manifest
of their SHA-256 sums, in the format of `sha256sum --check`:

    step-000001000/
        shared.safetensors, shared.json            what all ranks have in common
        rank-00000.safetensors, rank-00000.json    rows of one rank: memory, random state, position
        manifest.sha256

It is written under a temporary name, flushed to the disk and then renamed, so that a folder named
`step-...` is always whole, whenever the process or the machine may die. The one before it is kept.
"""

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from expire_span.tensors import save_tensors
from expire_span.training.disk import flush, make_folder, write_text, writing
from expire_span.training.distributed import ALONE, Ranks

SHARED, MANIFEST = "shared", "manifest.sha256"
TENSORS, VALUES = ".safetensors", ".json"
WHOLE, UNFINISHED, OUTDATED = "step-", ".unfinished-", ".outdated-"
FORMAT = 2
KEPT = 2


@dataclass(frozen=True)
class Shard:
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

    def on_host(self) -> "Shard":
        """A copy that later updates do not touch."""
        copied = {name: _on_its_way(tensor.detach()) for name, tensor in self.tensors.items()}
        if any(tensor.is_cuda for tensor in self.tensors.values()):
            torch.cuda.synchronize()
        return Shard(copied, self.values)


@dataclass(frozen=True)
class Checkpoint:
    """What all ranks have in common (None where another rank saves it), and what is this rank's."""

    shared: Shard | None
    own: Shard

    def on_host(self) -> "Checkpoint":
        """A copy that later updates do not touch."""
        return Checkpoint(
            None if self.shared is None else self.shared.on_host(), self.own.on_host()
        )


def _on_its_way(tensor: Tensor) -> Tensor:
    """A copy on the host; from a GPU it has yet to arrive, in pages that stay where they are."""
    copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return copy.copy_(tensor, non_blocking=True)


def join(parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Named parts as one dictionary of dotted names; `Shard.part` takes them apart."""
    return {f"{part}.{name}": t for part, named in parts.items() for name, t in named.items()}


def save(checkpoint: Checkpoint, folder: Path, step: int, ranks: Ranks = ALONE) -> Path:
    """Write a checkpoint under `folder`, then forget all but the last two.

    All ranks write into one folder, which must be on a disk that all of them see. Raises OSError,
    and leaves what was there before, if it cannot be written.
    """
    finished = folder / f"{WHOLE}{step:09d}"
    unfinished = folder / f"{UNFINISHED}{step:09d}"

    def begin() -> bool:
        if not ranks.first:
            return False
        make_folder(folder)
        clear_leftovers(folder)
        if is_whole(finished, ranks.count):
            return True
        unfinished.mkdir()
        return False

    def write() -> dict[str, str]:
        shards = {rank_name(ranks.rank): checkpoint.own}
        if ranks.first:
            if checkpoint.shared is None:
                raise ValueError("The first rank saves what all have in common, but has nothing.")
            about = {"format": FORMAT, "ranks": ranks.count}
            shared = Shard(checkpoint.shared.tensors, {**about, **checkpoint.shared.values})
            shards[SHARED] = shared
        return {k: v for name, shard in shards.items() for k, v in _write(shard, unfinished, name)}

    def finish() -> None:
        if ranks.first:
            write_text(unfinished / MANIFEST, render_manifest(sums))
            flush(unfinished)
            if finished.exists():
                finished.rename(folder / f"{OUTDATED}{step:09d}")
            unfinished.rename(finished)
            flush(folder)
            forget(folder)

    with writing(f"The checkpoint of step {step}"):
        try:
            if ranks.gather(ranks.together(begin))[0]:  # the very step from which this run went on
                return finished
            sums = {k: v for found in ranks.gather(ranks.together(write)) for k, v in found.items()}
            ranks.together(finish)
        except Exception:
            if ranks.first:
                shutil.rmtree(unfinished, ignore_errors=True)  # a full disk needs every byte
            raise
    return finished


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None."""
    return all_in(folder)[-1] if all_in(folder) else None


def all_in(folder: Path) -> list[Path]:
    """All whole checkpoints, oldest first."""
    return sorted(folder.glob(f"{WHOLE}*"))


def load(path: Path, ranks: Ranks = ALONE) -> Checkpoint:
    """Read what is shared and what belongs to this rank, once their sums have been checked."""
    if not path.is_dir():
        raise _unreadable(path, "it is not a folder that this library wrote; nothing was read")
    sums = _read_manifest(path)
    shared = _load(path, SHARED, sums)
    if shared.values.get("format") != FORMAT:
        raise _unreadable(path, f"its format is {shared.values.get('format')}, not {FORMAT}")
    saved_by = shared.values["ranks"]
    if saved_by != ranks.count:
        raise ValueError(
            f"The checkpoint {path} was saved by {saved_by} ranks, but {ranks.count} want to go on "
            f"from it: start {saved_by} again, for the memory of every row belongs to its rank."
        )
    return Checkpoint(shared, _load(path, rank_name(ranks.rank), sums))


def load_shared(path: Path) -> Shard:
    """What is shared by all ranks, such as the model; the files of every rank are checked too."""
    sums = _read_manifest(path)
    for name in sums:
        _check(path, name, sums)
    return _load(path, SHARED, sums)


def is_whole(path: Path, ranks: int) -> bool:
    """Whether there is an undamaged checkpoint of so many ranks."""
    if not path.exists():
        return False
    try:
        return load_shared(path).values["ranks"] == ranks
    except ValueError:
        return False


def rank_name(rank: int) -> str:
    """Name of the files of one rank, without what tells them apart."""
    return f"rank-{rank:05d}"


def render_manifest(sums: dict[str, str]) -> str:
    """The manifest's text, one file a line, by name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def forget(folder: Path) -> None:
    """Remove all but the newest checkpoints; each first loses the name of a whole one."""
    for old in all_in(folder)[:-KEPT]:
        old.rename(folder / f"{OUTDATED}{old.name.removeprefix(WHOLE)}")
    clear_leftovers(folder)


def clear_leftovers(folder: Path) -> None:
    """Remove what a process that was killed left half written or half removed."""
    for pattern in (UNFINISHED, OUTDATED):
        for path in folder.glob(f"{pattern}*"):
            shutil.rmtree(path)


def _write(shard: Shard, folder: Path, name: str) -> list[tuple[str, str]]:
    """Write one shard's files, and give their sums."""
    save_tensors(shard.tensors, folder / f"{name}{TENSORS}")
    flush(folder / f"{name}{TENSORS}")
    write_text(folder / f"{name}{VALUES}", json.dumps(shard.values))
    return [(file, _digest(folder / file)) for file in (f"{name}{TENSORS}", f"{name}{VALUES}")]


def _read_manifest(path: Path) -> dict[str, str]:
    """The sums by name; the text must be exactly as it was written."""
    try:
        text = (path / MANIFEST).read_bytes().decode("ascii")
        sums = {name: digest for digest, name in (row.split("  ") for row in text.splitlines())}
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"its manifest is missing or damaged: {error}") from error
    if render_manifest(sums) != text:
        raise _unreadable(path, f"{MANIFEST} has been altered since it was written")
    if set(sums) != {file.name for file in path.iterdir()} - {MANIFEST}:
        raise _unreadable(path, "its files are not those that were written")
    return sums


def _load(path: Path, name: str, sums: dict[str, str]) -> Shard:
    """One shard, whose bytes are checked before anything makes sense of them."""
    for kind in (TENSORS, VALUES):
        _check(path, f"{name}{kind}", sums)
    try:
        values = json.loads((path / f"{name}{VALUES}").read_text())
        tensors = load_file(path / f"{name}{TENSORS}")
    except (OSError, ValueError, SafetensorError) as error:
        raise _unreadable(path, str(error)) from error
    # Copied to where PyTorch puts tensors, for the reason given in `Transformer.load_memory`.
    return Shard({key: tensor.clone() for key, tensor in tensors.items()}, values)


def _check(path: Path, file: str, sums: dict[str, str]) -> None:
    try:
        same = _digest(path / file) == sums[file]
    except OSError as error:
        raise _unreadable(path, str(error)) from error
    if not same:
        raise _unreadable(path, f"{file} has been altered or cut off since it was written")


def _unreadable(path: Path, why: str) -> ValueError:
    return ValueError(
        f"The checkpoint {path} cannot be read ({why}): remove it to go on from the one before it."
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
