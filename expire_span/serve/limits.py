"""How much a visitor may ask for, and how many at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from expire_span.checks import require_above_zero, require_at_least

Item = TypeVar("Item")


@dataclass(frozen=True)
class Limits:
    """Bounds of the live page."""

    characters: int = 20_000
    """Longest text."""
    continuation: int = 1000
    """Most tokens to be written in one go."""
    seconds: float = 30.0
    """Longest time that one question may take."""
    at_once: int = 2
    """Questions that are worked on at once."""
    waiting: int = 8
    """Questions that may wait; others are told to come back."""

    def __post_init__(self) -> None:
        require_at_least(1, characters=self.characters, at_once=self.at_once)
        require_at_least(0, continuation=self.continuation, waiting=self.waiting)
        require_above_zero(seconds=self.seconds)

    @property
    def body(self) -> int:
        """Most bytes of a question: JSON may write a character in as many as twelve."""
        return 12 * self.characters + 4096


class Busy(Exception):
    """There are too many questions already."""

    def __init__(self) -> None:
        super().__init__("The server is busy with other questions: try again in a moment.")


class TooLong(Exception):
    """A question took too long."""


class Desk:
    """Lets in a few questions at once; some more may wait, all others are turned away."""

    def __init__(self, limits: Limits):
        self._most = limits.at_once + limits.waiting
        self._seats = asyncio.Semaphore(limits.at_once)
        self._inside = 0

    def check(self) -> None:
        """Raise Busy if there is no room."""
        if self._inside >= self._most:
            raise Busy

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """A place to be worked on, as soon as there is one."""
        self.check()
        self._inside += 1
        try:
            async with self._seats:
                yield
        finally:
            self._inside -= 1


def within(seconds: float, items: Iterable[Item]) -> Iterator[Item]:
    """The same items, until the time is up."""
    end = time.monotonic() + seconds
    for item in items:
        if time.monotonic() > end:
            raise TooLong(
                f"This took longer than {seconds:g} seconds and was given up: try a shorter text."
            )
        yield item
