"""Signals: Ctrl-C and SIGTERM are noted, and the run stops where it can go on from."""

import signal
import threading
from pathlib import Path
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run has stopped because a signal asked for it; all that it had is saved."""

    def __init__(self, message: str, number: int = signal.SIGINT):
        super().__init__(message)
        self.number = number
        self.exit_status = 128 + number

    def saying(self, message: str) -> "Stopped":
        """The same, in other words."""
        return Stopped(message, self.number)


class Interruption:
    """While it lasts, the first signal is noted instead of striking in the middle of an update.

    Args:
        patient: note further Ctrl-C too. Of a single process the second one means: now. Several
            ranks are each told by the terminal and again by torchrun, which in the end kills them.
            SIGTERM is sent by programs, some of which send it twice: it never means: now.
    """

    def __init__(self, patient: bool = False):
        self.wanted = False
        self.number: int = signal.SIGINT
        self._patient = patient
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self._former = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def stopped(self, step: int, folder: Path) -> Stopped:
        """What to raise once everything is saved."""
        return Stopped(
            f"stopped at step {step}; everything is saved in {folder}, and the same command goes "
            "on with --resume",
            self.number,
        )

    def _note(self, number: int, _: object) -> None:
        if self.wanted and number == signal.SIGINT and not self._patient:
            raise KeyboardInterrupt
        self.wanted, self.number = True, number
