"""Two particles that move over a grid and meet: the worlds of both collision tasks.

A particle has a place in the grid and a velocity. Each step it moves by its velocity; if that would
leave the grid it stays where it is and draws another velocity instead. Two particles in the same
cell are a collision, which changes nothing. A world may be confined to a square in the middle of
the grid (`side`, in cells), where collisions are more frequent.

Worlds run side by side, one a row, and never end. Everything is a tensor of whole numbers (places
are in units of a 4096th of a cell), so a world is the same to the bit on every device. Chance is a
hash of (seed, split, row, step), so it does not matter how many steps are made at a time.

Between two draws of its velocity a particle runs straight, so whole runs are made at once, not
steps: a loop over some tens of runs replaces one over hundreds of steps.

Shapes: B worlds (rows), 2 particles, 2 axes (x, y), S steps, R runs, E entries of a step
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.chance import BITS, fields, hashed
from expire_span.tasks.batch import Batch
from expire_span.tasks.stream import Split, Stream, split_number

GRID = 16
UNIT_BITS = 12
UNITS = 2**UNIT_BITS  # of length in a cell
QUADRANTS = 4
SPEED = 0.5  # standard deviation of a velocity along one axis, in cells a step
STEPS_AT_A_TIME = 1024
USUAL_LENGTH = 65_536  # entries of a row, by which a perfect reader is judged unless it is said
NEVER = -1  # stands for a collision that has not been yet
RUNS_BETWEEN_LOOKS = 8  # asking a GPU whether all runs are made stops its stream of work

# Purposes of chance, so that no two draws share a hash.
PLACE, VELOCITY, COLOURS, QUESTION = range(4)

State = dict[str, Tensor]
Grids = Literal["whole", "mixed"]
SIDES: dict[Grids, tuple[int, ...]] = {"whole": (GRID,), "mixed": (GRID // 4, GRID // 2, GRID)}


class ParticleStream(Stream):
    """Worlds that run side by side for ever; each step gives E entries of the row.

    Args:
        source, split, batch, seed: as for every stream.
        entries: entries of a step.
    """

    def __init__(
        self, source: dict[str, Any], split: Split, batch: int, seed: int, entries: int
    ) -> None:
        super().__init__(source, split, batch, seed)
        self._entries = entries
        self._made: Batch | None = None  # the steps from `_first` on, once simulated
        self._after: State = {}  # the state after them
        self._key = hashed(seed, split_number(split), torch.arange(batch))
        self._restart(first=0, state=self.beginning(self._key))
        self._offset = 0

    def to(self, device: torch.device | str) -> Self:
        """Simulate there from now on; the numbers are the same."""
        self._key = self._key.to(device)
        self._restart(self._first, {name: x.to(device) for name, x in self._state.items()})
        return self

    def only(self, rows: range) -> Self:
        """This stream, from now on reading only some of its rows; call it before the first read."""
        super().only(rows)
        part = slice(rows.start, rows.stop)
        self._key = self._key[part]
        self._restart(self._first, {name: x[part] for name, x in self._state.items()})
        return self

    @abstractmethod
    def beginning(self, key: Tensor) -> State:
        """Worlds in which nothing has happened yet, one for each key [B]."""

    @abstractmethod
    def simulate(self, key: Tensor, state: State, first: int) -> tuple[Batch, State]:
        """The next `STEPS_AT_A_TIME` steps from step `first` on, and the state after them."""

    def _next(self, steps: int) -> Batch:
        parts = []
        while steps > 0:
            if self._made is None:
                self._made, self._after = self.simulate(self._key, self._state, self._first)
            part = self._made.cut(self._offset, self._offset + steps)
            parts.append(part)
            steps -= part.inputs.shape[1]
            self._offset += part.inputs.shape[1]
            if self._offset == STEPS_AT_A_TIME * self._entries:
                self._restart(self._first + STEPS_AT_A_TIME, self._after)
                self._offset = 0
        return Batch.joined(parts)

    def _restart(self, first: int, state: State) -> None:
        """Stand where step `first` is the next to be simulated."""
        self._first, self._state = first, state
        self._made, self._after = None, {}

    def _position(self) -> dict[str, Any]:
        state = {name: tensor.tolist() for name, tensor in self._state.items()}
        return {"first": self._first, "state": state, "offset": self._offset}

    def _seek(self, position: dict[str, Any]) -> None:
        device = self._key.device
        state = {name: torch.tensor(x, device=device) for name, x in position["state"].items()}
        self._restart(position["first"], state)
        self._offset = position["offset"]


def sides_of(training_grids: Grids, split: Split) -> tuple[int, ...]:
    """The sides that rows have in turn; worlds that are judged have the whole grid."""
    return SIDES[training_grids if split == "train" else "whole"]


class Answers(Protocol):
    """What of some steps an oracle must know."""

    @property
    def time(self) -> Tensor:
        """[S], numbers of the steps."""

    @property
    def answered(self) -> Tensor:
        """[B, S], where there is an answer."""


A = TypeVar("A", bound=Answers)


def reader_error(
    begin: Callable[[Tensor], State],
    simulate: Callable[[Tensor, State, int], tuple[A, State]],
    chance: Callable[[A], Tensor],
    steps: int,
    worlds: int,
) -> float:
    """Error in percent of a reader in the first rows of the valid stream of seed 0.

    Args:
        begin: worlds in which nothing has happened yet, one for each key [B].
        simulate: the next `STEPS_AT_A_TIME` steps of worlds with these keys.
        chance: that its answers are right, [B, S].
        steps: of each world.
        worlds: rows (B).
    """
    key = hashed(0, split_number("valid"), torch.arange(worlds))
    state, right, asked = begin(key), 0.0, 0
    for first in range(0, steps, STEPS_AT_A_TIME):
        frames, state = simulate(key, state, first)
        judged = frames.answered & (frames.time < steps)
        right += float((chance(frames) * judged).sum())
        asked += int(judged.sum())
    return 100 * (1 - right / max(asked, 1))


def start(key: Tensor, sides: Sequence[int] = SIDES["whole"]) -> State:
    """Places and velocities at the beginning, int64 [B, 2, 2]; rows have these sides in turn."""
    side = torch.tensor(sides, device=key.device)[torch.arange(len(key)) % len(sides)]  # [B]
    begin, end = edges(side)
    share = torch.stack(fields(hashed(key, PLACE)), dim=-1).view(-1, 2, 2)
    velocity = draw_velocities(key, torch.tensor([-1], device=key.device)).squeeze(-1)
    place = begin + (share * (end - begin) >> BITS)
    return {"place": place, "velocity": velocity, "side": side}


def edges(side: Tensor) -> tuple[Tensor, Tensor]:
    """Where squares of these sides [B] begin and end along both axes, in units, [B, 1, 1]."""
    begin = (GRID - side)[:, None, None] * UNITS // 2
    return begin, begin + side[:, None, None] * UNITS


def draw_velocities(key: Tensor, step: Tensor) -> Tensor:
    """The velocities that both particles would draw in some steps, in units: [B, 2, 2, S]."""
    particle = torch.arange(2, device=key.device)[:, None]
    bits = hashed(hashed(key, VELOCITY)[:, None, None], 2 * step + particle)
    along_x, along_y, *_ = fields(bits)
    return _normal_quantiles().to(key.device)[torch.stack([along_x, along_y], dim=2)]


def cells(key: Tensor, state: State, first: int, steps: int) -> tuple[Tensor, State]:
    """Cells of the particles in each of the next steps, [B, 2, 2, S], and the state after them."""
    # One step more, so that a run which ends with the last one finds something to ignore.
    drawn = draw_velocities(key, first + torch.arange(steps + 1, device=key.device))
    place, pace = state["place"], state["velocity"]  # [B, 2, 2]
    square = edges(state["side"])
    time = torch.zeros_like(place[..., :1])  # the next step of each particle, [B, 2, 1]
    begins: list[Tensor] = []
    ends: list[Tensor] = []
    places: list[Tensor] = []
    paces: list[Tensor] = []
    while len(begins) % RUNS_BETWEEN_LOOKS or bool((time < steps).any()):
        moves = moves_before_leaving(place, pace, square).minimum(steps - time)
        end = time + moves  # the step in which the next move would leave the square
        begins.append(time)
        ends.append(end)
        places.append(place)
        paces.append(pace)
        place = place + moves * pace
        pace = torch.where(end < steps, _at(drawn, end).squeeze(-1), pace)
        time = (end + 1).clamp(max=steps)

    begin, end = torch.cat(begins, dim=-1), torch.cat(ends, dim=-1)  # [B, 2, R]
    run = _run_of_each_step(begin, steps)  # [B, 2, S]
    # A particle moves in all steps of a run but the last, in which it is blocked.
    last_move = (end - 1).gather(-1, run)
    moved_until = torch.arange(steps, device=key.device).minimum(last_move)
    pace_of_run = torch.stack(paces, dim=-1)  # [B, 2, 2, R]
    from_step_0 = torch.stack(places, dim=-1) - pace_of_run * (begin - 1)[:, :, None]
    path = _at(pace_of_run, run) * moved_until[:, :, None] + _at(from_step_0, run)
    return path >> UNIT_BITS, {"place": place, "velocity": pace, "side": state["side"]}


def moves_before_leaving(place: Tensor, velocity: Tensor, square: tuple[Tensor, Tensor]) -> Tensor:
    """How many moves of this velocity stay inside the square; [..., 2 axes] -> [..., 1]."""
    begin, end = square
    room = torch.where(velocity > 0, end - 1 - place, place - begin)
    moves = room // velocity.abs()
    return moves[..., :1].minimum(moves[..., 1:])


def collisions(cells: Tensor) -> Tensor:
    """Where both particles are in the same cell, [B, 2, 2, S] -> bool [B, S]."""
    return (cells[:, 0] == cells[:, 1]).all(dim=1)


def quadrant(cells: Tensor) -> Tensor:
    """Which quarter of the grid a cell is in, [B, 2 axes, S] -> 0 .. 3, [B, S]."""
    half = cells // (GRID // 2)
    return 2 * half[:, 0] + half[:, 1]


def latest_events(events: Tensor, happened: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """The latest C events at each step, and after the last step.

    Args:
        events: int64 [B, S], what happens in a step, where something does.
        happened: bool [B, S], where something does.
        before: [B, C], the latest before the first step, oldest first.

    Returns:
        [B, S, C], oldest first, with those of the step itself; and [B, C].

    Example: C 1, before [9], events [5, 6, 7] of which the second happens: [9, 6, 6].
    """
    batch, steps = events.shape
    wanted = before.shape[1]
    count = happened.cumsum(dim=1)
    in_order = F.pad(before, (0, steps + 1))  # the last entry takes what does not happen
    slot = torch.where(happened, wanted + count - 1, wanted + steps)
    in_order = in_order.scatter(1, slot, events)
    latest = count[..., None] + torch.arange(wanted, device=events.device)
    found = in_order.gather(1, latest.flatten(1)).view(batch, steps, wanted)
    return found, found[:, -1]


def _at(values: Tensor, index: Tensor) -> Tensor:
    """Values [B, 2, 2, N] of both axes at an index [B, 2, M] that they share: [B, 2, 2, M]."""
    chosen = index[:, :, None].expand(-1, -1, 2, -1)
    return values.gather(-1, chosen)


def _run_of_each_step(begins: Tensor, steps: int) -> Tensor:
    """Number of the run that each step belongs to: begins [..., R] in order -> [..., S].

    Example: runs that begin at 0, 3 and 4 give 0, 0, 0, 1, 2, 2. Runs that begin at S are empty.
    """
    marks = begins.new_zeros(*begins.shape[:-1], steps + 1)
    marks = marks.scatter_add(-1, begins, torch.ones_like(begins))
    return marks[..., :steps].cumsum(dim=-1) - 1


@lru_cache(maxsize=1)
def _normal_quantiles() -> Tensor:
    """Velocities in units, as likely as each other; never 0, or a particle could stand for ever."""
    share = (torch.arange(2**BITS, dtype=torch.float64) + 0.5) / 2**BITS
    drawn = torch.special.ndtri(share) * SPEED * UNITS
    return (drawn.sign() * drawn.abs().round().clamp(min=1)).long()
