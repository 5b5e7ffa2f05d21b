"""Copy: say how many A's came, after any number of B's (the paper's tab:copy).

An episode is n times A, d times B, a question mark, the answer and a full stop:

    inputs    A  A  B  B  B  ?  A  A  .        n = 2, d = 3
    targets   A  B  B  B  ?  A  A  .  A        the next token
    scored    -  -  -  -  -  x  x  x  -        the answer: n times A, then the full stop

n is uniform from 1 to `max_count`; d runs from 0 to `max_distance`. Episodes follow one another in
one stream. Whoever sees nothing gets one answer in `max_count` right.

An episode may have a million steps, so it is held as the lengths of its runs and spelled out only
where it is read.

Shapes: E episodes of a piece, T steps.
"""

from dataclasses import dataclass
from math import log
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from expire_span.checks import require_at_least, require_one_of
from expire_span.tasks.base import ExactMatch, Task
from expire_span.tasks.stream import PieceStream, Split, Steps

SYMBOLS = "AB?."
A, B, QUERY, END = range(len(SYMBOLS))

# The runs of an episode: its first token, the other A's, the B's, ?, the answer, the full stop.
TOKEN = np.array([A, A, B, QUERY, A, END])
SCORED = np.array([False, False, False, True, True, False])
STARTS = np.array([True, False, False, False, False, False])
EPISODES_OF_A_PIECE = 256

Distances = Literal["uniform", "log"]


@dataclass(frozen=True)
class Copy(Task):
    """The settings; chance is 1 / max_count."""

    max_distance: int
    """The largest number of B's."""
    max_count: int = 8
    """The largest number of A's."""
    distances: Distances = "uniform"
    """How d is drawn; "log" favours short ones: d + 1 is log-uniform, rounded down."""
    restart: bool = False
    """Whether to mark where episodes begin, so that a model may clear its memory there."""

    def __post_init__(self) -> None:
        require_at_least(0, max_distance=self.max_distance)
        require_at_least(1, max_count=self.max_count)
        require_one_of(get_args(Distances), distances=self.distances)

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return len(SYMBOLS)

    def stream(self, split: Split, batch: int, seed: int) -> "CopyStream":
        """A new endless stream; the splits differ in chance only."""
        return CopyStream(self, self._source(), split, batch, seed)

    def score(self) -> ExactMatch:
        """Share of the answers that are right as a whole."""
        return ExactMatch(end=END)

    def oracle(self, memory: int, length: int | None = None) -> float:
        """Expected accuracy of a reader that holds `memory` tokens when the question comes.

        It knows the answer if all n A's are among them, d + n <= memory, and guesses otherwise.
        """
        counts = range(1, self.max_count + 1)
        seen = sum(self._share_up_to(memory - count) for count in counts) / self.max_count
        return seen + (1 - seen) / self.max_count

    def draw_distances(self, random: np.random.Generator, size: int) -> NDArray[np.int64]:
        """So many distances d."""
        if self.distances == "uniform":
            return random.integers(self.max_distance + 1, size=size)
        logs = random.random(size) * log(self.max_distance + 2)
        # Rounding may reach the open end of the interval.
        return np.minimum(np.exp(logs).astype(np.int64) - 1, self.max_distance)

    def _share_up_to(self, distance: int) -> float:
        """P(d <= distance)."""
        if distance < 0:
            return 0.0
        distance = min(distance, self.max_distance)
        if self.distances == "uniform":
            return (distance + 1) / (self.max_distance + 1)
        return log(distance + 2) / log(self.max_distance + 2)


class CopyStream(PieceStream):
    """Pieces of a few hundred episodes, whatever their length."""

    def __init__(
        self, task: Copy, source: dict[str, Any], split: Split, batch: int, seed: int
    ) -> None:
        self._task = task
        super().__init__(source, split, batch, seed)

    def piece(self, row: int, index: int) -> "Episodes":
        """The next episodes of a row."""
        random = self.random(row, index)
        counts = random.integers(1, self._task.max_count + 1, size=EPISODES_OF_A_PIECE)
        distances = self._task.draw_distances(random, EPISODES_OF_A_PIECE)
        return Episodes(counts, distances, self._task.restart)


class Episodes:
    """A piece in run-length form: where each run ends.

    Args:
        counts: n of every episode, [E].
        distances: d of every episode, [E].
        restart: whether to mark where episodes begin.
    """

    def __init__(
        self, counts: NDArray[np.int64], distances: NDArray[np.int64], restart: bool
    ) -> None:
        one = np.ones_like(counts)
        runs = np.stack([one, counts - 1, distances, one, counts, one], axis=1)
        self._ends = runs.cumsum()
        self._restart = restart

    def __len__(self) -> int:
        return int(self._ends[-1])

    def cut(self, first: int, last: int) -> Steps:
        """Its steps first, ..., last - 1, spelled out."""
        # One step more, for the last target: past the end, run 0 stands for the next episode's A.
        steps = np.arange(first, last + 1)
        run = self._ends.searchsorted(steps, side="right") % len(TOKEN)
        tokens, run = TOKEN[run], run[:-1]
        starts = STARTS[run] if self._restart else None
        return Steps(tokens[:-1], tokens[1:], SCORED[run], starts)
