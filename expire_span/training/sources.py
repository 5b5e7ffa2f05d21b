"""The files that a run reads its data from: they must stay what they were."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

Signature = tuple[int, int, int]


class SourceFiles:
    """Notices when a file changes under a run, or between two parts of one.

    Every file is read once at the start. A look costs one question to the file system; only a file
    that seems touched is read again.
    """

    def __init__(self, paths: Sequence[Path]):
        self._seen = {path: _signature(path) for path in paths}
        self._sums = {path: _sum(path) for path in paths}

    def look(self) -> None:
        """Raise ValueError if a file is no longer what it was."""
        for path, before in self._seen.items():
            now = _signature(path) if path.exists() else None
            if now == before:
                continue
            if now is None or _sum(path) != self._sums[path]:
                raise ValueError(
                    f"The file {path} has changed under the run: bring back the file as it was and "
                    "go on with --resume, or start anew."
                )
            self._seen[path] = now

    def sums(self) -> list[str]:
        """SHA-256 of every file."""
        return list(self._sums.values())

    def compare(self, saved: Sequence[str]) -> None:
        """Raise ValueError if the files are not those whose sums were saved."""
        if len(self._sums) != len(saved):
            raise ValueError(
                f"The task reads {len(self._sums)} files, but {len(saved)} when the checkpoint was "
                "saved: give it the same files with task.path, or start anew."
            )
        for (path, ours), theirs in zip(self._sums.items(), saved, strict=True):
            if ours != theirs:
                raise ValueError(
                    f"The file {path} has changed since the checkpoint was saved: bring back the "
                    "file as it was, or start anew."
                )


def _signature(path: Path) -> Signature:
    if not path.exists():
        raise FileNotFoundError(f"There is no file {path}: check the path or fetch the data first.")
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
