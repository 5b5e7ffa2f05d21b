"""Corridor: remember the colour of an object all along the way to a door of that colour.

    # # # # # # R #        the object (o, red or blue) is seen from the first cell only, the doors
    o A . . . . . #        from the last two; red may be above or below. (By default: object and
    # # # # # # B #        doors can be elsewhere.)

Shapes: B rows, V words.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from expire_span.chance import below, draw, fields
from expire_span.checks import require_at_least, require_one_of
from expire_span.worlds.grid import AGENT, BLOCK, COLOURS, DOOR, OBJECT, Cells, view_at, walled
from expire_span.worlds.world import Game, Measure, World, WorldState

ObjectPlace = Literal["behind", "above"]
DoorPlaces = Literal["sides", "corner"]
DoorSides = Literal["random", "fixed"]
WrongDoor = Literal["ends", "stays"]

BIN = 50  # lengths that are reported together

# Views differ only by what is near: the object, the object one cell back (which can be seen if it
# is above), nothing, the doors one cell ahead, the doors.
_NOTHING = 2
_DRAWN_LENGTH = 6  # a corridor in which each of these views occurs
_DRAWN_AT = (1, 2, 3, _DRAWN_LENGTH - 1, _DRAWN_LENGTH)


@dataclass(frozen=True, kw_only=True)
class Corridor(World):
    """A corridor with an object at one end and two doors at the other.

    Description: the agent starts beside an object that is red or blue and has to leave by the door
        of the same colour at the other end.
    Actions: up, down, left, right; a move into a wall or the object does nothing.
    Observation: 3 x 3 cells; words agent, block, object, door, red, blue.
    Reward: 1 for the right door, 0 for the wrong one.
    End: at either door, or at the limit of steps.
    """

    shortest: int = 3
    """Least number of cells from the first to the last; an oracle takes as many steps."""
    longest: int = 200
    """Largest number; lengths are drawn uniformly, both ends included."""
    width: int = 1
    """Rows of cells. In more than one an agent without memory can note the colour by its row."""
    object_place: ObjectPlace = "behind"
    """Whether the object stands behind the first cell, or in the wall above it (in a wider
    corridor, above the first cell of its upper row, where the agent then starts)."""
    doors: DoorPlaces = "sides"
    """Whether the doors are above and below the last cell, or above and straight ahead of it (in a
    wider corridor, of the last cell of its upper row)."""
    door_sides: DoorSides = "random"
    """Whether the red door is above or in the other place at random, or always above."""
    wrong_door: WrongDoor = "ends"
    """Whether the wrong door ends the episode, or is closed like a wall."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(get_args(ObjectPlace), object_place=self.object_place)
        # Object and doors are never in one view.
        require_at_least(3 if self.object_place == "behind" else 4, shortest=self.shortest)
        require_at_least(self.shortest, longest=self.longest)
        require_at_least(1, width=self.width)
        require_one_of(get_args(DoorPlaces), doors=self.doors)
        require_one_of(get_args(DoorSides), door_sides=self.door_sides)
        require_one_of(get_args(WrongDoor), wrong_door=self.wrong_door)

    @property
    def things(self) -> tuple[str, ...]:
        """Words for what there is in the world."""
        return (AGENT, BLOCK, OBJECT, DOOR, *COLOURS)

    @property
    def first_row(self) -> int:
        """Row of the first cell, from 0: beside the object."""
        return self.width // 2 if self.object_place == "behind" else 0

    @property
    def metric(self) -> str:
        """Share of the episodes that end at the right door."""
        return "success"

    @property
    def bins(self) -> tuple[tuple[int, int], ...]:
        """Ranges of lengths, both ends included, by which success is told apart."""
        tops = [*range((self.shortest - 1) // BIN * BIN + BIN, self.longest, BIN), self.longest]
        return tuple(zip([self.shortest, *(top + 1 for top in tops[:-1])], tops, strict=True))

    def play(self, device: torch.device | str = "cpu") -> "CorridorGame":
        """The game that these settings describe, on a device."""
        return CorridorGame(self, device)


@dataclass(frozen=True)
class CorridorState(WorldState):
    """Where every row stands; all int64 [B]."""

    length: Tensor  # cells from first to last
    cue: Tensor  # colour of the object, 0 red, 1 blue
    top: Tensor  # colour of the upper door
    x: Tensor  # from 1 to length
    y: Tensor  # from 0 to width - 1


class CorridorGame(Game[CorridorState]):
    """Corridor at play."""

    world: Corridor

    def map(self, state: CorridorState, row: int) -> Cells:
        """All cells of one row's world, walls filling up to the longest corridor."""
        length, cue, top = (int(t[row]) for t in (state.length, state.cue, state.top))
        return self._draw(length, cue, top, columns=self.world.longest)

    def place(self, state: CorridorState, row: int) -> tuple[int, int]:
        """x and y of one row's agent on that map."""
        return int(state.x[row]), int(state.y[row]) + 1

    def caption(self, state: CorridorState, row: int) -> str:
        """Length and steps."""
        return f"length {int(state.length[row])}, step {int(state.steps[row])}"

    def measure(self, last: CorridorState) -> dict[str, Measure]:
        """Return, steps, and success, also by the length of the corridor."""
        earned = last.total + self.world.step_cost * last.steps
        success = (earned > 0.5).float()
        return (
            super().measure(last)
            | {"success": Measure(success)}
            | {
                f"success_{low}_{high}": Measure(
                    success, (last.length >= low) & (last.length <= high)
                )
                for low, high in self.world.bins
            }
        )

    def _begin(self, blank: WorldState) -> CorridorState:
        world = self.world
        coins, chance = fields(draw(blank.key, blank.episode), 32)
        top = (coins >> 1) & 1 if world.door_sides == "random" else torch.zeros_like(coins)
        return CorridorState(
            **blank.tensors(),
            length=world.shortest + below(chance, world.longest - world.shortest + 1, 32),
            cue=coins & 1,
            top=top,
            x=torch.ones_like(coins),
            y=torch.full_like(coins, world.first_row),
        )

    def _move(self, state: CorridorState, actions: Tensor) -> tuple[CorridorState, Tensor, Tensor]:
        lowest = self.world.width - 1
        dx, dy = self._dx[actions], self._dy[actions]
        y = state.y + dy
        at_upper = y < 0
        at_other = y > lowest if self.world.doors == "sides" else (dx > 0) & (y == 0)
        at_door = (state.x == state.length) & (at_upper | at_other)
        right = at_door & ((state.top ^ at_other) == state.cue)
        x = torch.minimum((state.x + dx).clamp(min=1), state.length)
        moved = replace(state, x=x, y=y.clamp(0, lowest))
        return moved, right.float(), at_door if self.world.wrong_door == "ends" else right

    def _views(self) -> Tensor:
        world = self.world
        return torch.stack(
            [
                view_at(
                    self._draw(_DRAWN_LENGTH, cue, top), x, y + 1, world.words, world.visible_walls
                )
                for cue in range(2)
                for top in range(2)
                for x in _DRAWN_AT
                for y in range(world.width)
            ]
        )

    def _view(self, state: CorridorState) -> Tensor:
        to_end = (2 - (state.length - state.x)).clamp(min=0)  # 2 at the end
        from_start = (3 - state.x).clamp(min=0)  # 2 at the start
        near = _NOTHING + torch.where(to_end > 0, to_end, -from_start)
        index = (state.cue * 2 + state.top) * len(_DRAWN_AT) + near
        return index if self.world.width == 1 else index * self.world.width + state.y

    def _draw(self, length: int, cue: int, top: int, columns: int = _DRAWN_LENGTH) -> Cells:
        """The map of a corridor, filled up with walls to so many columns."""
        width = self.world.width
        cells = [
            row[: length + 1] + row[-1:] * (columns - length + 1) for row in walled(length, width)
        ]
        first = 1 + self.world.first_row
        y, x = (first, 0) if self.world.object_place == "behind" else (first - 1, 1)
        cells[y][x] = frozenset({OBJECT, COLOURS[cue]})
        cells[0][length] = frozenset({DOOR, COLOURS[top]})
        y, x = (-1, length) if self.world.doors == "sides" else (1, length + 1)
        cells[y][x] = frozenset({DOOR, COLOURS[1 - top]})
        return cells
