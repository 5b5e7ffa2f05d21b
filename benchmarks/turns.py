"""Turns at one GPU: benchmarks started by `together.py` prepare side by side and are timed alone.

A benchmark calls `my_turn` when it is ready to be timed. What is agreed on lies in a folder: a
benchmark leaves NAME.ready there, and goes on when it finds NAME.go.
"""

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

FOLDER, NAME = "EXPIRE_SPAN_TURNS", "EXPIRE_SPAN_TURN"
PAUSE = 0.1  # seconds between two looks


def my_turn() -> None:
    """Wait until nothing else runs; at once, if this benchmark was started by itself."""
    if FOLDER not in os.environ:
        return
    folder, name = Path(os.environ[FOLDER]), os.environ[NAME]
    (folder / f"{name}.ready").touch()
    while not (folder / f"{name}.go").exists():
        time.sleep(PAUSE)


def take_turns(commands: Mapping[str, list[str]], folder: Path, out: Path) -> dict[str, int]:
    """Start all commands, let each go on in its turn; their exit statuses.

    Args:
        commands: by name, which must be fit for a file.
        folder: an empty one, to agree in.
        out: where the output of each is left, as NAME.txt.
    """
    running = {name: _start(name, command, folder, out) for name, command in commands.items()}
    while any(
        process.poll() is None and not (folder / f"{name}.ready").exists()
        for name, process in running.items()
    ):
        time.sleep(PAUSE)
    exits = {}
    for name, process in running.items():
        (folder / f"{name}.go").touch()
        exits[name] = process.wait()
    return exits


def _start(name: str, command: list[str], folder: Path, out: Path) -> subprocess.Popen:
    environment = {**os.environ, FOLDER: str(folder), NAME: name}
    with (out / f"{name}.txt").open("w") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, text=True
        )
