"""One process at a time: locks on files, which end with the process that holds them."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def claim(path: Path, wait: bool = True) -> Iterator[bool]:
    """Hold the lock on a file, which is made if it is not there and stays.

    Where the file system has no locks, nobody can be kept out: then everyone is let in.

    Args:
        path: the file.
        wait: until whoever holds it lets go; if not, say whether it could be had.

    Gives True while the lock is held, False if another holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        yield _lock(file.fileno(), wait)


def _lock(file: int, wait: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
    return True
