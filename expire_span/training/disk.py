"""Files that are there whole or not at all, also after a power cut; and a disk that is full.

Only what has been flushed stays: the bytes of a file, and its name in a folder.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Say in one sentence what could not be written, and why.

    Of what became of it on another rank, this one hears as a ValueError.
    """
    try:
        yield
    except (OSError, ValueError) as error:
        raise OSError(f"{what} could not be written: {reason(error)}.") from error


def reason(error: Exception) -> str:
    """Why, in a few words."""
    return os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)


def make_folder(folder: Path) -> None:
    """Make a folder that a crash of the machine does not take away again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Give a file this text; should that fail, it keeps the one it had."""
    with written_whole(path) as unfinished:
        unfinished.write_text(text)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A file to write instead of `path`, whose place it takes once it is on the disk.

    Should that fail, `path` is what it was. Other processes may read or write it meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
        flush(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file through to the disk."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Make sure that a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
