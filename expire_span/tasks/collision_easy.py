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

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.chance import below, fields, hashed
from expire_span.tasks.base import ErrorRate, Task
from expire_span.tasks.batch import Batch
from expire_span.tasks.particles import (
    GRID,
    QUADRANTS,
    QUESTION,
    STEPS_AT_A_TIME,
    ParticleStream,
    State,
    cells,
    collisions,
    latest_events,
    quadrant,
    start,
)
from expire_span.tasks.stream import Split

ENTRIES = 5
FIRST_Y = GRID
FIRST_QUESTION = 2 * GRID
NEVER = -1
REMEMBERED = 3
LAST_THREE = 1  # the kind of question; 0 asks for the last


@dataclass(frozen=True)
class CollisionEasy(Task):
    """There is nothing to set."""

    ahead = 0

    @property
    def vocab(self) -> int:
        """Number of different tokens: the answers are more than the inputs."""
        return QUADRANTS + QUADRANTS**REMEMBERED

    def stream(self, split: Split, batch: int, seed: int) -> "CollisionEasyStream":
        """A new endless stream; the splits differ in chance only."""
        return CollisionEasyStream(self._source(), split, batch, seed, ENTRIES)

    def score(self) -> ErrorRate:
        """Wrong answers in percent."""
        return ErrorRate()


class CollisionEasyStream(ParticleStream):
    """The worlds, spelled out."""

    def beginning(self, key: Tensor) -> State:
        """Worlds in which nothing has happened yet; `met` holds the last three quadrants."""
        return start(key) | {"met": key.new_full((len(key), REMEMBERED), NEVER)}

    def simulate(self, key: Tensor, state: State, first: int) -> tuple[Batch, State]:
        """The next steps."""
        where, moved = cells(key, state, first, STEPS_AT_A_TIME)
        time = first + torch.arange(STEPS_AT_A_TIME, device=key.device)
        latest, met = latest_events(quadrant(where[:, 0]), collisions(where), state["met"])
        asked = below(fields(hashed(key[:, None], QUESTION, time))[0], 2)  # [B, S]
        return _spell(where, asked, latest), {**moved, "met": met}


def _spell(where: Tensor, asked: Tensor, latest: Tensor) -> Batch:
    """Steps as entries, [B, S * 5]; `latest` [B, S, 3] are quadrants, oldest first."""
    x_and_y = where + torch.tensor([0, FIRST_Y], device=where.device)[:, None]
    entries = [*x_and_y.flatten(1, 2).unbind(1), asked + FIRST_QUESTION]
    oldest, middle, last = latest.unbind(-1)
    label = QUADRANTS + QUADRANTS**2 * oldest + QUADRANTS * middle + last
    # Collisions fill up from the last one backwards, so the oldest that is asked for decides.
    known = torch.where(asked == LAST_THREE, oldest, last) != NEVER
    answer = torch.where(asked == LAST_THREE, label, last).masked_fill(~known, 0)
    at_the_last = (ENTRIES - 1, 0)
    return Batch(
        torch.stack(entries, dim=-1).flatten(1),
        F.pad(answer[..., None], at_the_last).flatten(1),
        F.pad(known[..., None], at_the_last).flatten(1),
    )
