"""Saves checkpoints in the background, so that training waits only for a copy of its state."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint
from expire_span.training.distributed import Ranks


class Saver:
    """Writes one checkpoint at a time; what goes wrong is raised at the next word with it.

    Args:
        folder: where checkpoints go.
        ranks: who saves together.
    """

    def __init__(self, folder: Path, ranks: Ranks):
        self.folder = folder
        self._ranks = ranks.sibling()  # training goes on talking meanwhile
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="saver")
        self._under_way: Future[Path] | None = None

    def save(self, checkpoint: Checkpoint, step: int) -> None:
        """Copy the state now, write it by and by."""
        self.wait()
        copy = checkpoint.on_host()
        self._under_way = self._thread.submit(
            checkpoints.save, copy, self.folder, step, self._ranks
        )

    def failed(self) -> bool:
        """Whether the last save has failed, as the next word will say; waits for nothing."""
        under_way = self._under_way
        return under_way is not None and under_way.done() and under_way.exception() is not None

    def busy(self) -> bool:
        """Whether something is still being written."""
        return self._under_way is not None and not self._under_way.done()

    def wait(self) -> None:
        """Until everything is on the disk."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            under_way.result()
        except OSError as error:
            raise OSError(f"{error} {self.last_good()}") from error

    @contextmanager
    def pointing_back(self, kind: type[Exception]) -> Iterator[None]:
        """Let errors of a kind also say from where the run can go on."""
        try:
            yield
        except kind as error:
            raise kind(f"{error} {self.last_good()}") from error

    def last_good(self) -> str:
        """From where the run can go on, once what is under way has come to its end."""
        if self._under_way is not None:
            wait([self._under_way])
        newest = checkpoints.latest(self.folder)
        if newest is None:
            return "There is no checkpoint yet: start anew."
        return f"The checkpoint {newest} is still good: go on from it with --resume."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._thread.shutdown(wait=True)
