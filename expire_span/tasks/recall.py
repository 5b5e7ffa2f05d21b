"""Recall: remember the latest cue through a stretch of noise, the smallest task that needs memory.

A stream is cut into periods of equal length. Each opens with a cue that gives a colour to a key;
every other token is a query, which asks for the colour that its key was given last, or a filler.
The answer is never fed in, so a reader has to look back at the cue itself.

Tokens, in this order: the cues (key 0 in each colour, key 1 in each colour, ...), one query for
each key, the fillers. The target of a query is the latest cue of its key. Only queries are scored.

Example: period 6, 4 colours, 6 fillers, 1 fact, so the query is token 4 and fillers are 5 to 10:
    inputs    2  7  4  9  4  5    0  4  8  8  5  6
    targets   .  .  2  .  2  .    .  0  .  .  .  .

Shapes: P periods of a piece, T tokens of a period, F facts (keys).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from expire_span.checks import require_at_least
from expire_span.tasks.base import Task, TokenAccuracy
from expire_span.tasks.stream import PieceStream, Split, Steps

# Enough that the cost of starting a piece does not show.
TOKENS_OF_A_PIECE = 8192
NOT_YET_CUED = -1


@dataclass(frozen=True)
class Recall(Task):
    """The settings; chance is 1 / colours."""

    ahead = 0

    period: int = 128
    """Tokens from one cue to the next."""
    colours: int = 4
    """Values that a cue can give to its key."""
    fillers: int = 6
    """Different tokens that mean nothing."""
    query_probability: float = 0.2
    """Share of queries among the tokens that are not cues."""
    facts: int = 1
    """Keys to remember; each cue is about a random one of them, and so is each query."""

    def __post_init__(self) -> None:
        require_at_least(2, period=self.period, colours=self.colours)
        require_at_least(1, fillers=self.fillers, facts=self.facts)
        if not 0 < self.query_probability <= 1:
            raise ValueError(
                f"query_probability must lie above 0 and at most at 1, "
                f"not at {self.query_probability}."
            )

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return self.first_filler + self.fillers

    @property
    def first_query(self) -> int:
        """The query for key 0; the smaller tokens are the cues."""
        return self.facts * self.colours

    @property
    def first_filler(self) -> int:
        """The first filler; the remaining tokens are fillers too."""
        return self.first_query + self.facts

    def is_cue(self, tokens: Tensor) -> Tensor:
        """Which tokens give a colour to a key."""
        return tokens < self.first_query

    def is_query(self, tokens: Tensor) -> Tensor:
        """Which tokens ask for a colour."""
        return (tokens >= self.first_query) & (tokens < self.first_filler)

    def is_filler(self, tokens: Tensor) -> Tensor:
        """Which tokens mean nothing."""
        return tokens >= self.first_filler

    def stream(self, split: Split, batch: int, seed: int) -> "RecallStream":
        """A new endless stream; the splits differ in chance only."""
        return RecallStream(self, self._source(), split, batch, seed)

    def score(self) -> TokenAccuracy:
        """Share of the queries answered right."""
        return TokenAccuracy()

    def oracle(self, memory: int, length: int | None = None) -> float:
        """Expected accuracy of a perfect reader that looks back `memory` tokens from a query.

        A query stands 1 to period - 1 tokens after the latest cue. The reader sees that cue and all
        others in reach, and knows the answer unless every one of them is about other keys.
        """
        distance = np.arange(1, self.period)
        cues_in_reach = np.maximum((memory - distance) // self.period + 1, 0)
        unseen = float(np.mean((1 - 1 / self.facts) ** cues_in_reach))
        return 1 - unseen + unseen / self.colours


class RecallStream(PieceStream):
    """Pieces of whole periods. Which colours hold at the start of one follows from those before."""

    def __init__(
        self, task: Recall, source: dict[str, Any], split: Split, batch: int, seed: int
    ) -> None:
        self._task = task
        self._periods = max(1, TOKENS_OF_A_PIECE // task.period)
        super().__init__(source, split, batch, seed)

    def piece(self, row: int, index: int) -> Steps:
        """The next periods of a row, all drawn at once."""
        task = self._task
        shape = (self._periods, task.period)
        random = self.random(row, index)
        cues = self._draw_cues(random)
        keys = random.integers(task.facts, size=shape)
        fillers = random.integers(task.first_filler, task.vocab, size=shape)
        scored = random.random(shape) < task.query_probability
        scored[:, 0] = False

        answers = np.take_along_axis(self._latest(cues, self._known(row, index)), keys, axis=1)
        # Nobody asks for a key that has no colour yet: a filler stands there instead.
        scored &= answers != NOT_YET_CUED
        inputs = np.where(scored, task.first_query + keys, fillers)
        inputs[:, 0] = cues
        return Steps(inputs.ravel(), np.where(scored, answers, 0).ravel(), scored.ravel())

    def _draw_cues(self, random: np.random.Generator) -> NDArray[np.int64]:
        """The cue of each period, [P]: the first thing drawn, so that it can be had alone."""
        return random.integers(self._task.first_query, size=self._periods)

    def _latest(self, cues: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.int64]:
        """The latest cue of every key in every period, [P, F], given those known before."""
        periods = np.arange(self._periods)[:, None]
        about = cues[:, None] // self._task.colours == np.arange(self._task.facts)
        latest = np.maximum.accumulate(np.where(about, periods, -1), axis=0)
        return np.where(latest >= 0, cues[latest], known)

    def _known(self, row: int, index: int) -> NDArray[np.int64]:
        """The latest cue of every key before a piece, [F]: back piece by piece until all are found.

        This takes one piece nearly always, and keeps a piece independent of what has been read.
        """
        known = np.full(self._task.facts, NOT_YET_CUED)
        while index > 0 and (known == NOT_YET_CUED).any():
            index -= 1
            earlier = self._latest(self._draw_cues(self.random(row, index)), known)[-1]
            known = np.where(known == NOT_YET_CUED, earlier, known)
        return known
