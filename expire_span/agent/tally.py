"""Counts of the episodes that ended, kept on the device until they are asked for.

Shapes: B rows, M measures.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from expire_span.state import State
from expire_span.worlds import Game, Outcome


@dataclass(frozen=True)
class Tally(State):
    """Sums over the episodes that have ended."""

    sums: Tensor  # float64 [M]
    counts: Tensor  # float64 [M], episodes to which each measure applies
    episodes: int | None = None  # of each row, how many of its first are counted; None: all

    @classmethod
    def empty(cls, game: Game, episodes: int | None = None) -> "Tally":
        """No episode yet."""
        count = len(names(game))
        none = torch.zeros(count, dtype=torch.float64, device=game.device)
        return cls(none, none.clone(), episodes)

    def add(self, game: Game, outcome: Outcome) -> "Tally":
        """With the episodes that a step ended."""
        counted = outcome.done
        if self.episodes is not None:
            counted = counted & (outcome.last.episode < self.episodes)
        values, applies = [], []
        for measure in game.measure(outcome.last).values():
            here = counted if measure.applies is None else counted & measure.applies
            values.append(torch.where(here, measure.value, 0))
            applies.append(here)
        return replace(
            self,
            sums=self.sums + torch.stack(values).sum(dim=1, dtype=torch.float64),
            counts=self.counts + torch.stack(applies).sum(dim=1, dtype=torch.float64),
        )

    def read(self, game: Game) -> dict[str, float]:
        """Means over episodes, for measures that applied to any, and how many ended in all."""
        sums, counts = self.sums.tolist(), self.counts.tolist()
        means = {
            name: total / count
            for name, total, count in zip(names(game), sums, counts, strict=True)
            if count
        }
        return {**means, "episodes": max(counts)}


def names(game: Game) -> tuple[str, ...]:
    """Names of a world's measures, in their order."""
    return tuple(game.measure(game.start(1)))
