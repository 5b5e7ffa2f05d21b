"""Streams: long rows of steps, read in consecutive blocks, restartable from a saved position.

What a stream gives depends on the position alone, never on the block lengths it is read in.

Shapes: B rows, T steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from expire_span.checks import require_at_least
from expire_span.tasks.batch import Batch

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


def split_number(split: Split) -> int:
    """0 for train, 1 for valid, 2 for test."""
    if split not in SPLITS:
        raise ValueError(f"There is no split {split!r}: choose one of {', '.join(SPLITS)}.")
    return SPLITS.index(split)


class Stream(ABC):
    """B rows of steps, read side by side.

    Args:
        source: what the steps are made of, JSON-able; with split, batch and seed it tells streams
            apart, so that a position is only ever restored into the stream it came from.
        split: which part of the data.
        batch: number of rows B.
        seed: 0 to 2**32 - 1.
        length: steps of each row; None for an endless stream.
    """

    contents: str = ""
    """Fingerprint of the data that are read; empty where they are made up."""

    def __init__(
        self, source: dict[str, Any], split: Split, batch: int, seed: int, length: int | None = None
    ) -> None:
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to 2**32 - 1, not {seed}.")
        require_at_least(1, batch=batch)
        self.batch = batch
        self.rows = range(batch)
        self.length = length
        self._entropy = (seed, split_number(split))
        self._identity = {**source, "split": split, "batch": batch, "seed": seed}
        self._steps_read = 0

    def to(self, device: torch.device | str) -> Self:
        """Make the steps on this device from now on, if this kind of stream can.

        Most are made on the host, whatever the device, and their batches are to be moved.
        """
        return self

    @property
    def remaining(self) -> int | None:
        """Steps of each row still to be read; None for an endless stream."""
        return None if self.length is None else self.length - self._steps_read

    @property
    def steps_read(self) -> int:
        """Steps of each row read so far."""
        return self._steps_read

    def only(self, rows: range) -> Self:
        """This stream, from now on reading only some of its rows; call it before the first read."""
        whole = range(self.batch)
        if self._steps_read or not rows or rows != whole[rows[0] : rows[-1] + 1]:
            raise ValueError(
                f"Rows can be chosen before the first read, from 0 to {self.batch - 1} and one "
                f"after another, but {rows} were asked for after {self._steps_read} steps."
            )
        self.rows = rows
        return self

    def read(self, steps: int) -> Batch:
        """The next `steps` steps of every row; fewer at the end of a finite stream."""
        require_at_least(1, steps=steps)
        if self.remaining == 0:
            raise EOFError(
                f"This stream has ended after {self.length} steps: ask its task for a new one."
            )
        if self.remaining is not None:
            steps = min(steps, self.remaining)
        batch = self._next(steps)
        self._steps_read += steps
        return batch

    def state(self) -> dict[str, Any]:
        """Where the stream stands, JSON-able."""
        return {
            "stream": self._identified(),
            "steps_read": self._steps_read,
            "position": self._position(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position that `state` returned."""
        saved, ours = state.get("stream", {}), self._identified()
        for name in ours | saved:
            if saved.get(name) != ours.get(name):
                raise ValueError(self._refusal(name, saved.get(name), ours.get(name)))
        self._steps_read = state["steps_read"]
        self._seek(state["position"])

    def _identified(self) -> dict[str, Any]:
        """What tells this stream, and the rows it reads, from others."""
        return {**self._identity, "rows": [self.rows.start, self.rows.stop]}

    def _refusal(self, name: str, saved: Any, ours: Any) -> str:
        return (
            f"This position was saved by another stream, with {name} {saved!r} where this one has "
            f"{ours!r}: restore it into a stream like the one it came from."
        )

    @abstractmethod
    def _next(self, steps: int) -> Batch:
        """Exactly `steps` further steps of `self.rows`."""

    @abstractmethod
    def _position(self) -> Any:
        """What `_seek` needs besides the number of steps read, JSON-able."""

    @abstractmethod
    def _seek(self, position: Any) -> None:
        """Continue at a position; `_steps_read` is already restored."""


class Piece(Protocol):
    """A finite stretch of one row. It need not hold its steps as long as it can spell them out."""

    def __len__(self) -> int: ...

    def cut(self, first: int, last: int) -> "Steps":
        """Its steps first, ..., last - 1."""


@dataclass(frozen=True)
class Steps:
    """Consecutive steps of one row as arrays [T], the fields of a `Batch`: the plainest piece."""

    inputs: NDArray[np.integer]
    targets: NDArray[np.integer]
    scored: NDArray[np.bool_]
    starts: NDArray[np.bool_] | None = None
    in_metric: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def cut(self, first: int, last: int) -> "Steps":
        """Its steps first, ..., last - 1."""
        return Steps(**{name: column[first:last] for name, column in self.columns().items()})

    def columns(self) -> dict[str, NDArray[Any]]:
        """The fields that there are, by name."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in given.items() if column is not None}


class PieceStream(Stream):
    """An endless stream of made-up data: every row is a concatenation of pieces.

    Piece n of row r is a function of (seed, split, r, n) and nothing else. So the piece and the
    offset at which each row stands are the whole state, and a row is the same in any batch.

    Example: pieces of 5, 3 and 4 steps; after reading 6 steps the row stands at offset 1 of
    piece 1, after 8 steps at offset 0 of piece 2.
    """

    def __init__(self, source: dict[str, Any], split: Split, batch: int, seed: int) -> None:
        super().__init__(source, split, batch, seed)
        self._seek({"piece": [0] * batch, "offset": [0] * batch})

    @abstractmethod
    def piece(self, row: int, index: int) -> Piece:
        """Piece `index` of a row, drawn from `self.random(row, index)`."""

    def random(self, row: int, index: int) -> np.random.Generator:
        """The source of chance of one piece, fresh at every call."""
        return np.random.default_rng([*self._entropy, row, index])

    def _next(self, steps: int) -> Batch:
        cuts = [cut.columns() for row in self.rows for cut in self._advance(row, steps)]
        joined = {name: np.concatenate([cut[name] for cut in cuts]) for name in cuts[0]}
        tokens = {name: joined[name].astype(np.int64) for name in ("inputs", "targets")}
        shape = (len(self.rows), steps)
        found = {name: torch.from_numpy(column) for name, column in {**joined, **tokens}.items()}
        return Batch(**{name: column.view(shape) for name, column in found.items()})

    def _advance(self, row: int, steps: int) -> Iterator[Steps]:
        """Move one row on, giving what lies on the way."""
        while steps > 0:
            piece = self._open[row]
            if piece is None:
                piece = self.piece(row, self._index[row])
            first = self._offset[row]
            last = min(first + steps, len(piece))
            yield piece.cut(first, last)
            steps -= last - first
            if last < len(piece):
                self._open[row], self._offset[row] = piece, last
            else:
                self._open[row], self._offset[row] = None, 0
                self._index[row] += 1

    def _position(self) -> dict[str, list[int]]:
        return {"piece": list(self._index), "offset": list(self._offset)}

    def _seek(self, position: dict[str, list[int]]) -> None:
        self._index = list(position["piece"])
        self._offset = list(position["offset"])
        # The piece each row is in, once it has been read from; made anew after a jump.
        self._open: list[Piece | None] = [None] * self.batch
