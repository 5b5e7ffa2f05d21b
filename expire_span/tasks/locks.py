"""One process at a time: locks on files, which end with the process that holds them."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def claim(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock on a file, which is made if it is not there and stays.

    Args:
        path: the file.
        wait: until whoever holds it lets go; if not, say whether it could be had.

    Gives True while the lock is held, False if another holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
