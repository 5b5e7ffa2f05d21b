"""Object collision: where did these two colours last meet? (the paper's tab:colliding)

Two particles move over a 16 x 16 grid (`particles.py`). Each has one of 5 colours, drawn anew with
probability 0.05 a step. Every step gives 8 entries: the cell and the colour of each particle, then
a question, two colours. The answer is the quadrant in which particles of these colours (the first
and the second, in this order) last collided, up to and including this step. It is predicted at the
last entry, and scored only where there has been such a collision.

    inputs    x  y  colour  x  y  colour  colour?  colour?
    targets   .  .  .       .  .  .       .        quadrant
    tokens    x 0 - 15, y 16 - 31, colours 32 - 36, colours asked for 37 - 41; quadrants are 0 - 3

In 40 % of the steps the question is about the colours of the latest collision, else about any two.
Who knows nothing is wrong in 75 % of the answers.

Shapes: B worlds (rows), 2 particles, S steps, P ordered pairs of colours
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.chance import below, fields, happens, hashed
from expire_span.checks import require_one_of
from expire_span.tasks.base import ErrorRate, Task
from expire_span.tasks.batch import Batch
from expire_span.tasks.particles import (
    COLOURS,
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

COLOUR_COUNT = 5
PAIRS = COLOUR_COUNT**2
CHANGE = 0.05
LATEST_SHARE = 0.4
ENTRIES = 8

FIRST_Y = GRID
FIRST_COLOUR = 2 * GRID
FIRST_ASKED = FIRST_COLOUR + COLOUR_COUNT
VOCAB = FIRST_ASKED + COLOUR_COUNT

Question = Literal["latest", "present"]
Order = Literal["particle", "kind"]
ORDERS: dict[str, list[int]] = {"particle": [0, 1, 4, 2, 3, 5, 6, 7], "kind": [*range(ENTRIES)]}


@dataclass(frozen=True)
class Collision(Task):
    """The settings."""

    ahead = 0

    question: Question = "latest"
    """What 40 % of the questions ask for: the colours of the latest collision, as the paper says,
    or the present colours, as in the data of the original release."""
    order: Order = "particle"
    """Whether each particle's colour follows its cell, or the colours follow both cells."""
    training_grids: Grids = "whole"
    """Where particles move in training: over the whole grid, or in turn from row to row in the
    middle quarter of its width, in the middle half, and over the whole. Collisions are then nearer
    in two rows of three, and looking back is learned from these first; the worlds that are judged
    have the whole grid."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Grids), training_grids=self.training_grids)
        require_one_of(get_args(Question), question=self.question)
        require_one_of(get_args(Order), order=self.order)

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return VOCAB

    def stream(self, split: Split, batch: int, seed: int) -> "CollisionStream":
        """A new endless stream; the splits differ in chance only."""
        return CollisionStream(self, self._source(), split, batch, seed)

    def score(self) -> ErrorRate:
        """Wrong answers in percent."""
        return ErrorRate()

    def oracle(self, memory: int, length: int | None = None, worlds: int = 64) -> float:
        """Error in percent of a reader that holds the last `memory` entries, found by simulation.

        It is right if the collision asked for is among them as a whole, and guesses otherwise. Its
        worlds are the first rows of the valid stream of seed 0. The longer they run, the more pairs
        have met long ago: `length` entries, 65,536 if it is left out.
        """

        def chance(frames: Frames) -> Tensor:
            reached = frames.answer // QUADRANTS > frames.time - memory // ENTRIES
            return torch.where(reached, 1.0, 1 / QUADRANTS)

        steps = (USUAL_LENGTH if length is None else length) // ENTRIES
        go_on = partial(simulate, question=self.question)
        return reader_error(beginning, go_on, chance, steps, worlds)


@dataclass(frozen=True)
class Frames:
    """What happens in some steps of B worlds, before it is spelled out as entries."""

    time: Tensor  # [S], numbers of the steps
    cells: Tensor  # [B, 2 particles, 2 axes, S]
    colours: Tensor  # [B, 2 particles, S]
    asked: Tensor  # [B, S], pairs of colours
    answer: Tensor  # [B, S], the collision asked for as 4 x step + quadrant, or NEVER

    @property
    def answered(self) -> Tensor:
        """Where there is an answer, [B, S]."""
        return self.answer != NEVER


class CollisionStream(ParticleStream):
    """The worlds, spelled out."""

    def __init__(
        self, task: Collision, source: dict[str, Any], split: Split, batch: int, seed: int
    ) -> None:
        self._task = task
        self._sides = sides_of(task.training_grids, split)
        super().__init__(source, split, batch, seed, ENTRIES)

    def beginning(self, key: Tensor) -> State:
        """Worlds in which nothing has happened yet."""
        return beginning(key, self._sides)

    def simulate(self, key: Tensor, state: State, first: int) -> tuple[Batch, State]:
        """The next steps."""
        frames, after = simulate(key, state, first, self._task.question)
        return spell(frames, self._task.order), after


def beginning(key: Tensor, sides: Sequence[int] = SIDES["whole"]) -> State:
    """Worlds in which nothing has happened yet; `met` holds the last collision of each pair."""
    colours = torch.stack(fields(hashed(key, COLOURS, -1))[:2], dim=1)
    return start(key, sides) | {
        "colour": below(colours, COLOUR_COUNT),  # [B, 2]
        "met": key.new_full((len(key), PAIRS), NEVER),
        "latest": key.new_full((len(key), 1), NEVER),  # the pair that met last
    }


def simulate(key: Tensor, state: State, first: int, question: Question) -> tuple[Frames, State]:
    """The next `STEPS_AT_A_TIME` steps from step `first` on, and the state after them."""
    where, moved = cells(key, state, first, STEPS_AT_A_TIME)
    time = first + torch.arange(STEPS_AT_A_TIME, device=key.device)
    colours = _colours(key, time, state["colour"])
    pair = COLOUR_COUNT * colours[:, 0] + colours[:, 1]
    met = collisions(where)
    latest, last_pair = latest_events(pair, met, state["latest"])
    asked = _questions(key, time, latest.squeeze(-1) if question == "latest" else pair)

    order = _by_pair(pair, met)
    event = QUADRANTS * time + quadrant(where[:, 0])
    answer = _latest_of(asked, _places(key), order, event, state["met"])
    every_pair = torch.arange(PAIRS, device=key.device).expand(len(key), -1)
    after = {
        **moved,
        "colour": colours[..., -1],
        "met": _latest_of(every_pair, _places(key)[-1:], order, event, state["met"]),
        "latest": last_pair,
    }
    return Frames(time, where, colours, asked, answer), after


def spell(frames: Frames, order: Order) -> Batch:
    """Steps as entries, [B, S * 8]."""
    x_and_y = frames.cells + torch.tensor([0, FIRST_Y], device=frames.time.device)[:, None]
    colours = frames.colours + FIRST_COLOUR
    asked = [frames.asked // COLOUR_COUNT + FIRST_ASKED, frames.asked % COLOUR_COUNT + FIRST_ASKED]
    entries = [*x_and_y.flatten(1, 2).unbind(1), *colours.unbind(1), *asked]
    inputs = torch.stack([entries[place] for place in ORDERS[order]], dim=-1)
    at_the_last = (ENTRIES - 1, 0)
    quadrants = torch.where(frames.answered, frames.answer % QUADRANTS, 0)
    return Batch(
        inputs.flatten(1),
        F.pad(quadrants[..., None], at_the_last).flatten(1),
        F.pad(frames.answered[..., None], at_the_last).flatten(1),
    )


def _colours(key: Tensor, time: Tensor, before: Tensor) -> Tensor:
    """Colours of both particles in each step, given those before: [B, 2] -> [B, 2, S]."""
    particle = torch.arange(2, device=key.device)[:, None]
    chance, which, *_ = fields(hashed(key[:, None, None], COLOURS, time, particle))
    drawn = below(which, COLOUR_COUNT)
    shape = drawn.shape
    changed = happens(chance, CHANGE).flatten(0, 1)
    found, _ = latest_events(drawn.flatten(0, 1), changed, before.flatten()[:, None])
    return found.view(shape)


def _questions(key: Tensor, time: Tensor, subject: Tensor) -> Tensor:
    """The pair asked for in each step: any, or `subject` [B, S] where it is a pair."""
    chance, one, other, _ = fields(hashed(key[:, None], QUESTION, time))
    anything = COLOUR_COUNT * below(one, COLOUR_COUNT) + below(other, COLOUR_COUNT)
    return torch.where(happens(chance, LATEST_SHARE) & (subject != NEVER), subject, anything)


def _places(key: Tensor) -> Tensor:
    """Numbers of the steps among those made together, [S]."""
    return torch.arange(STEPS_AT_A_TIME, device=key.device)


def _by_pair(pair: Tensor, met: Tensor) -> Tensor:
    """Collisions sorted by pair, then by step, as pair x S + step: [B, S], the rest at the end."""
    steps = torch.arange(STEPS_AT_A_TIME, device=pair.device)
    return torch.where(met, STEPS_AT_A_TIME * pair + steps, STEPS_AT_A_TIME * PAIRS).sort(1).values


def _latest_of(pair: Tensor, until: Tensor, order: Tensor, event: Tensor, before: Tensor) -> Tensor:
    """The latest collision of a pair up to a step, [B, Q].

    Args:
        pair: [B, Q], whose collision.
        until: [Q] or [1], the place of the last step that counts.
        order: what `_by_pair` gave.
        event: [B, S], the collision of each step.
        before: [B, P], the latest collision of each pair before the first step.
    """
    wanted = STEPS_AT_A_TIME * pair + until
    place = torch.searchsorted(order, wanted, right=True) - 1
    found = order.gather(1, place.clamp(min=0))
    here = (place >= 0) & (found // STEPS_AT_A_TIME == pair)
    return torch.where(here, event.gather(1, found % STEPS_AT_A_TIME), before.gather(1, pair))
