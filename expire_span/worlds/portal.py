"""Portal: find the right doors through many rooms by trial and error, and remember them.

    # # # # #        every room has a red door and a blue one; one leads on, the other back to the
    # . . . #        first room. Which is which differs from room to room and is drawn anew in each
    R . A . B        episode. Two mistakes in one room end it.
    # . . . #
    # # # # #

Shapes: B rows, V words.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from expire_span.chance import draw
from expire_span.checks import require_at_least, require_finite, require_one_of
from expire_span.worlds.grid import AGENT, BLOCK, COLOURS, DOOR, Cells, view_at, walled
from expire_span.worlds.world import Game, Measure, World, WorldState

DoorWalls = Literal["sides", "ends"]
RoomWord = Literal["agent", "all"]
LastRoom = Literal["ends", "stays"]
MOST_ROOMS = 62  # a bit for each in a signed 64-bit word


@dataclass(frozen=True, kw_only=True)
class Portal(World):
    """Rooms in a row, with a right and a wrong door in each.

    Description: the agent starts in the middle of the first of many rooms. The right door leads to
        the middle of the next room, the wrong one to the middle of the first.
    Actions: up, down, left, right; a move into a wall does nothing.
    Observation: 3 x 3 cells; words agent, block, door, red, blue, room1, room2, ...
    Reward: 0.1 k for passing from room k to the next, however often.
    End: at the second mistake in the same room, in the last room (unless the agent stays there), or
        at the limit of steps.
    """

    rooms: int = 50
    """Number of rooms; the last one has no doors."""
    last_room: LastRoom = "ends"
    """Whether the last room ends the episode, or the agent stays there until the limit of steps."""
    size: int = 5
    """Cells along each side of a room, walls included; odd."""
    spawn: tuple[int, int] | None = None
    """Cell (x, y) in which the agent enters a room; the middle if None."""
    doors: DoorWalls = "sides"
    """Whether the doors are in the middle of the left and of the right wall, or of the upper and of
    the lower one."""
    shuffle: bool = False
    """Whether it is drawn for each room which door is on the left, or above; else that is the red
    one."""
    room_word: RoomWord = "agent"
    """Which of the cells in view carry the room's word: the agent's, or all."""
    prize: float = 0.1
    """Reward of passing from room k to the next, divided by k."""
    first_only: bool = False
    """Whether only the first passage of an episode from a room to the next is rewarded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.spawn, list):  # as in settings that were read from a file
            object.__setattr__(self, "spawn", tuple(self.spawn))
        require_at_least(2, rooms=self.rooms)
        require_at_least(5, size=self.size)
        if self.rooms > MOST_ROOMS:
            raise ValueError(f"There can be at most {MOST_ROOMS} rooms, but rooms is {self.rooms}.")
        if self.size % 2 == 0:
            raise ValueError(f"size must be odd, so that rooms have a middle, but is {self.size}.")
        inside = range(1, self.size - 1)
        if not (
            isinstance(self.entrance, tuple)
            and len(self.entrance) == 2
            and all(isinstance(place, int) and place in inside for place in self.entrance)
        ):
            raise ValueError(
                f"spawn must be a cell (x, y) inside the walls, whole numbers from 1 to "
                f"{self.size - 2}, but is {self.spawn}."
            )
        require_finite(prize=self.prize)
        require_one_of(get_args(DoorWalls), doors=self.doors)
        require_one_of(get_args(RoomWord), room_word=self.room_word)
        require_one_of(get_args(LastRoom), last_room=self.last_room)

    @property
    def entrance(self) -> tuple[int, int]:
        """Cell (x, y) in which the agent enters a room."""
        return (self.size // 2, self.size // 2) if self.spawn is None else self.spawn

    @property
    def things(self) -> tuple[str, ...]:
        """Words for what there is in the world."""
        rooms = (f"room{number}" for number in range(1, self.rooms + 1))
        return (AGENT, BLOCK, DOOR, *COLOURS, *rooms)

    @property
    def metric(self) -> str:
        """The return: rewards of an episode, undiscounted."""
        return "return"

    def play(self, device: torch.device | str = "cpu") -> "PortalGame":
        """The game that these settings describe, on a device."""
        return PortalGame(self, device)


@dataclass(frozen=True)
class PortalState(WorldState):
    """Where every row stands; all int64 [B]. Bit k of a mask belongs to room k, from 0."""

    x: Tensor  # from 1 to size - 2
    y: Tensor
    room: Tensor  # from 0
    furthest: Tensor  # the furthest room of this episode
    red_right: Tensor  # mask: the red door is the right one
    red_left: Tensor  # mask: the red door is on the left, or above
    mistakes: Tensor  # mask: a mistake was made there
    twice: Tensor  # bool: the episode has ended by a second mistake in one room


class PortalGame(Game[PortalState]):
    """Portal at play."""

    world: Portal

    def map(self, state: PortalState, row: int) -> Cells:
        """The cells of the room that one row's agent is in."""
        room = int(state.room[row])
        return self._draw(bool(int(state.red_left[row]) >> room & 1), room)

    def place(self, state: PortalState, row: int) -> tuple[int, int]:
        """x and y of one row's agent on that map."""
        return int(state.x[row]), int(state.y[row])

    def caption(self, state: PortalState, row: int) -> str:
        """Room, steps and reward."""
        return (
            f"room {int(state.room[row]) + 1} of {self.world.rooms}, "
            f"step {int(state.steps[row])}, reward {float(state.total[row]):.1f}"
        )

    def measure(self, last: PortalState) -> dict[str, Measure]:
        """Return, steps, furthest room, and whether a second mistake ended it."""
        return super().measure(last) | {
            "furthest_room": Measure(last.furthest.float() + 1),
            "second_mistakes": Measure(last.twice.float()),
        }

    def _begin(self, blank: WorldState) -> PortalState:
        none = torch.zeros_like(blank.episode)
        x, y = self.world.entrance
        return PortalState(
            **blank.tensors(),
            x=none + x,
            y=none + y,
            room=none,
            furthest=none,
            red_right=self._coins(blank, 0),
            red_left=self._coins(blank, 1) if self.world.shuffle else none + self._every_room(),
            mistakes=none,
            twice=none.bool(),
        )

    def _move(self, state: PortalState, actions: Tensor) -> tuple[PortalState, Tensor, Tensor]:
        world = self.world
        edge, middle = world.size - 1, world.size // 2
        enter_x, enter_y = world.entrance
        x, y = state.x + self._dx[actions], state.y + self._dy[actions]
        along, across = (x, y) if world.doors == "sides" else (y, x)
        leftwards = along <= 0
        at_door = (leftwards | (along >= edge)) & (across == middle)
        if world.last_room == "stays":
            at_door = at_door & (state.room < world.rooms - 1)
        here = 1 << state.room  # the room's bit in every mask
        took_red = leftwards == ((state.red_left & here) > 0) if world.shuffle else leftwards
        right = at_door & (took_red == ((state.red_right & here) > 0))
        wrong = at_door & ~right
        twice = wrong & ((state.mistakes & here) > 0)

        onwards = state.room + 1
        room = torch.where(right, onwards, state.room).masked_fill(wrong, 0)
        paid = right & (onwards > state.furthest) if world.first_only else right
        moved = replace(
            state,
            x=x.clamp(1, edge - 1).masked_fill(at_door, enter_x),
            y=y.clamp(1, edge - 1).masked_fill(at_door, enter_y),
            room=room,
            furthest=torch.maximum(state.furthest, room),
            mistakes=state.mistakes | (wrong * here),
            twice=twice,
        )
        reward = world.prize * (onwards * paid)
        arrived = room == world.rooms - 1
        return moved, reward, twice | arrived if world.last_room == "ends" else twice

    def _views(self) -> Tensor:
        world = self.world
        inside = range(1, world.size - 1)
        return torch.stack(
            [
                self._with_room(
                    view_at(self._draw(red_left, room), x, y, world.words, world.visible_walls),
                    room,
                )
                for red_left in (False, True)
                for y in inside
                for x in inside
                for room in range(world.rooms)
            ]
        )

    def _view(self, state: PortalState) -> Tensor:
        side = self.world.size - 2
        red_left = (state.red_left >> state.room) & 1 if self.world.shuffle else 1
        place = state.y * side + (state.x + (red_left * side * side - side - 1))
        return place * self.world.rooms + state.room

    def _with_room(self, view: Tensor, room: int) -> Tensor:
        """The view with the room's word where it is to be seen."""
        word = self.world.words.index(f"room{room + 1}")
        if self.world.room_word == "all":
            view[:, :, word] = 1
        else:
            view[1, 1, word] = 1
        return view

    def _draw(self, red_left: bool, room: int) -> Cells:
        """A room's map; the last room has no doors."""
        size = self.world.size
        cells = walled(size - 2, size - 2)
        if room < self.world.rooms - 1:
            left, right = COLOURS if red_left else COLOURS[::-1]
            cells[size // 2][0] = frozenset({DOOR, left})
            cells[size // 2][-1] = frozenset({DOOR, right})
        if self.world.doors == "ends":
            return [list(column) for column in zip(*cells, strict=True)]
        return cells

    def _coins(self, blank: WorldState, mask: int) -> Tensor:
        """A fair bit for each room, int64 [B]; the two masks of an episode are numbered."""
        return draw(blank.key, 2 * blank.episode + mask) & self._every_room()

    def _every_room(self) -> int:
        return (1 << self.world.rooms) - 1
