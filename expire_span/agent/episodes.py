"""Whole episodes, played side by side: what was seen, done and earned in each.

Shapes: B rows, T steps, V words.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from expire_span.agent.evaluation import play_first_episodes
from expire_span.model.transformer import Transformer
from expire_span.state import State
from expire_span.worlds import World


@dataclass(frozen=True)
class Episodes(State):
    """One episode after another in each row, at least the first of each from beginning to end."""

    observations: Tensor  # uint8 [B, T, 3, 3, V]
    starts: Tensor  # bool [B, T], where an episode begins
    actions: Tensor  # int64 [B, T]
    rewards: Tensor  # float32 [B, T]
    done: Tensor  # bool [B, T], where an episode ends

    @property
    def steps(self) -> int:
        """Steps of each row (T)."""
        return self.actions.shape[1]

    def lengths(self) -> Tensor:
        """Steps of the first episode of each row, [B]; all, if it was not played to its end."""
        return torch.where(self.done.any(dim=1), self.done.float().argmax(dim=1) + 1, self.steps)

    def best(self) -> int:
        """The row whose first episode earned most; of several, the longest."""
        lengths = self.lengths()
        within = torch.arange(self.steps, device=lengths.device) < lengths[:, None]
        earned = (self.rewards * within).sum(dim=1)
        return int(torch.where(earned == earned.max(), lengths, 0).argmax())

    def first_of(self, row: int) -> Self:
        """The first episode of a row, alone."""
        length = int(self.lengths()[row])
        return self.map(lambda field: field[row : row + 1, :length])

    def blocks(self, length: int) -> Iterator[Self]:
        """The same steps in parts of at most so many."""
        return (self._cut(first, first + length) for first in range(0, self.steps, length))

    def _cut(self, first: int, last: int) -> Self:
        return self.map(lambda field: field[:, first:last])


@torch.no_grad()
def play_episodes(model: Transformer, world: World, *, rows: int, seed: int = 0) -> Episodes:
    """Play in each of some rows until all have finished their first episode."""
    game = world.play(model.positions.device)
    taken: dict[str, list[Tensor]] = {field.name: [] for field in fields(Episodes)}
    for played in play_first_episodes(model, game, rows=rows, seed=seed):
        for name, parts in taken.items():
            parts.append(getattr(played.block, name).clone())  # the next block is written over it
    return Episodes(**{name: torch.cat(parts, dim=1) for name, parts in taken.items()})
