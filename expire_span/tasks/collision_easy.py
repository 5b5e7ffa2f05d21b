"""Object collision without colours, the easy version (the paper's tab:colliding_easy).

Two particles move over a 16 x 16 grid (`particles.py`). Every step gives 5 entries: the cell of
each particle, then a question. One kind asks for the quadrant of the last collision, the other for
the last three together, as one label out of 64. The answer is predicted at the last entry, and
scored only where there have been as many collisions.

    inputs    x  y  x  y  question
    targets   .  .  .  .  quadrant, or 4 + label
    tokens    x 0 - 15, y 16 - 31, questions 32 (last) and 33 (last three)

The paper leaves the label open; ours is 16 a + 4 b + c for the quadrants a, b, c of the last three
collisions, oldest first. Who knows nothing is wrong in 75 % of the answers to the first kind. Of
the second kind it is 90 %: particles often stay together for some steps, so that a label of three
equal quadrants comes up in one of ten answers. Of all answers together, that is 82 %.

Shapes: B worlds (rows), S steps
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.chance import below, fields, hashed
from expire_span.checks import require_one_of
from expire_span.tasks.base import ErrorRate, Task
from expire_span.tasks.batch import Batch
from expire_span.tasks.particles import (
    GRID,
    NEVER,
    QUADRANTS,
    QUESTION,
    SIDES,
    STEPS_AT_A_TIME,
    USUAL_LENGTH,
    Grids,
    ParticleStream,
    State,
    cells,
    collisions,
    latest_events,
    quadrant,
    reader_error,
    sides_of,
    start,
)
from expire_span.tasks.stream import Split

ENTRIES = 5
FIRST_Y = GRID
FIRST_QUESTION = 2 * GRID
REMEMBERED = 3
LAST_THREE = 1  # the kind of question; 0 asks for the last


@dataclass(frozen=True)
class CollisionEasy(Task):
    """The settings."""

    ahead = 0

    training_grids: Grids = "whole"
    """Where particles move in training, as in `Collision`; those judged have the whole grid."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Grids), training_grids=self.training_grids)

    @property
    def vocab(self) -> int:
        """Number of different tokens: the answers are more than the inputs."""
        return QUADRANTS + QUADRANTS**REMEMBERED

    def stream(self, split: Split, batch: int, seed: int) -> "CollisionEasyStream":
        """A new endless stream; the splits differ in chance only."""
        return CollisionEasyStream(self, self._source(), split, batch, seed)

    def _source(self) -> dict[str, Any]:
        """Whole grids are not told: there was no choice when older positions were saved."""
        source = super()._source()
        if self.training_grids == "whole":
            del source["training_grids"]
        return source

    def score(self) -> ErrorRate:
        """Wrong answers in percent."""
        return ErrorRate()

    def oracle(self, memory: int, length: int | None = None, worlds: int = 64) -> float:
        """Error in percent of a reader that holds the last `memory` entries, found by simulation.

        It knows those of the collisions asked for that are among them as a whole. The others it
        supposes where the oldest of these was, since particles often stay together; if it knows
        none, it guesses one quadrant for all. By where particles are at the edge of its memory one
        could guess a little better, by 1 to 2 points. Its worlds are the first rows of the valid
        stream of seed 0, `length` entries long, 65,536 if it is left out.
        """
        steps = (USUAL_LENGTH if length is None else length) // ENTRIES
        chance = partial(_chance_of_reader, steps=memory // ENTRIES)
        return reader_error(_beginning, _simulate, chance, steps, worlds)


@dataclass(frozen=True)
class Frames:
    """What happens in some steps of B worlds, before it is spelled out as entries."""

    time: Tensor  # [S], numbers of the steps
    cells: Tensor  # [B, 2 particles, 2 axes, S]
    asked: Tensor  # [B, S], the kind of question
    latest: Tensor  # [B, S, 3], the last collisions, oldest first: 4 x step + quadrant, or NEVER

    @property
    def wanted(self) -> Tensor:
        """Which of the three are asked for, [B, S, 3]."""
        last_one = torch.arange(REMEMBERED, device=self.time.device) == REMEMBERED - 1
        return last_one | (self.asked == LAST_THREE)[..., None]

    @property
    def answered(self) -> Tensor:
        """Where there is an answer, [B, S]."""
        return ((self.latest != NEVER) | ~self.wanted).all(dim=-1)


class CollisionEasyStream(ParticleStream):
    """The worlds, spelled out."""

    def __init__(
        self, task: CollisionEasy, source: dict[str, Any], split: Split, batch: int, seed: int
    ) -> None:
        self._sides = sides_of(task.training_grids, split)
        super().__init__(source, split, batch, seed, ENTRIES)

    def beginning(self, key: Tensor) -> State:
        """Worlds in which nothing has happened yet."""
        return _beginning(key, self._sides)

    def simulate(self, key: Tensor, state: State, first: int) -> tuple[Batch, State]:
        """The next steps."""
        frames, after = _simulate(key, state, first)
        return _spell(frames), after


def _beginning(key: Tensor, sides: Sequence[int] = SIDES["whole"]) -> State:
    """`met` holds the last three collisions, in older positions only their quadrants."""
    return start(key, sides) | {"met": key.new_full((len(key), REMEMBERED), NEVER)}


def _simulate(key: Tensor, state: State, first: int) -> tuple[Frames, State]:
    """The next `STEPS_AT_A_TIME` steps from step `first` on, and the state after them."""
    where, moved = cells(key, state, first, STEPS_AT_A_TIME)
    time = first + torch.arange(STEPS_AT_A_TIME, device=key.device)
    event = QUADRANTS * time + quadrant(where[:, 0])
    latest, met = latest_events(event, collisions(where), state["met"])
    asked = below(fields(hashed(key[:, None], QUESTION, time))[0], 2)
    return Frames(time, where, asked, latest), {**moved, "met": met}


def _spell(frames: Frames) -> Batch:
    """Steps as entries, [B, S * 5]."""
    x_and_y = frames.cells + torch.tensor([0, FIRST_Y], device=frames.time.device)[:, None]
    entries = [*x_and_y.flatten(1, 2).unbind(1), frames.asked + FIRST_QUESTION]
    oldest, middle, last = (frames.latest % QUADRANTS).unbind(-1)
    label = QUADRANTS + QUADRANTS**2 * oldest + QUADRANTS * middle + last
    answer = torch.where(frames.asked == LAST_THREE, label, last).masked_fill(~frames.answered, 0)
    at_the_last = (ENTRIES - 1, 0)
    return Batch(
        torch.stack(entries, dim=-1).flatten(1),
        F.pad(answer[..., None], at_the_last).flatten(1),
        F.pad(frames.answered[..., None], at_the_last).flatten(1),
    )


def _chance_of_reader(frames: Frames, steps: int) -> Tensor:
    """That the answer is right of one who holds the last steps, [B, S]; see `oracle`."""
    known = frames.latest // QUADRANTS > (frames.time - steps)[:, None]
    quadrants = frames.latest % QUADRANTS
    oldest_known = (REMEMBERED - known.sum(dim=-1)).clamp(max=REMEMBERED - 1)
    supposed = quadrants.gather(-1, oldest_known[..., None])
    right = (known | (quadrants == supposed) | ~frames.wanted).all(dim=-1)
    return right * torch.where(known.any(dim=-1), 1.0, 1 / QUADRANTS)
