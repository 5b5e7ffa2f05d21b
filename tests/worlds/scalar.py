"""Both worlds once more, one row at a time and in plain Python, written from their definition."""

from dataclasses import dataclass, field
from typing import Any

from expire_span.worlds import Corridor, Portal

DELTAS = [(0, -1), (0, 1), (-1, 0), (1, 0), (0, 0)]
COLOURS = ["red", "blue"]

Cell = set[str]


@dataclass
class ScalarCorridor:
    """One row of Corridor."""

    world: Corridor
    length: int
    cue: str
    top: str
    steps: int = 0
    x: int = 1
    y: int = field(init=False)
    found: bool = False  # the right door

    def __post_init__(self) -> None:
        self.y = self.world.width // 2 if self.world.object_place == "behind" else 0

    @classmethod
    def of(cls, world: Corridor, state: Any, row: int) -> "ScalarCorridor":
        """The episode that has just begun in that row."""
        cue, top = COLOURS[int(state.cue[row])], COLOURS[int(state.top[row])]
        return cls(world, int(state.length[row]), cue, top)

    def cell(self, x: int, y: int) -> Cell:
        """What there is at a place."""
        last = self.world.width - 1
        if 1 <= x <= self.length and 0 <= y <= last:
            return set()
        behind = self.world.object_place == "behind"
        if (x, y) == ((0, self.world.width // 2) if behind else (1, -1)):
            return {"object", self.cue}
        if (x, y) == (self.length, -1):
            return {"door", self.top}
        aside = self.world.doors == "sides"
        if (x, y) == ((self.length, last + 1) if aside else (self.length + 1, 0)):
            return {"door", "blue" if self.top == "red" else "red"}
        return {"block"}

    def step(self, action: int) -> tuple[float, bool]:
        """Reward, and whether the episode came to its end."""
        dx, dy = DELTAS[action]
        self.steps += 1
        target = self.cell(self.x + dx, self.y + dy)
        if not target:
            self.x, self.y = self.x + dx, self.y + dy
        if "door" not in target:
            return 0.0, False
        right = self.found = self.cue in target
        return float(right), right or self.world.wrong_door == "ends"

    def measures(self) -> dict[str, float]:
        """What is told of an episode; of all lengths, only about its own."""
        low, high = next(ends for ends in self.world.bins if ends[0] <= self.length <= ends[1])
        return {"success": float(self.found), f"success_{low}_{high}": float(self.found)}


@dataclass
class ScalarPortal:
    """One row of Portal."""

    world: Portal
    right_colours: list[str]
    left_colours: list[str]
    steps: int = 0
    room: int = 1
    x: int = field(init=False)
    y: int = field(init=False)
    mistakes: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    twice: bool = False  # the same mistake

    def __post_init__(self) -> None:
        self.x, self.y = self.world.entrance

    @classmethod
    def of(cls, world: Portal, state: Any, row: int) -> "ScalarPortal":
        """The episode that has just begun in that row."""

        def colours(mask: int) -> list[str]:
            return ["red" if mask >> k & 1 else "blue" for k in range(world.rooms)]

        return cls(world, colours(int(state.red_right[row])), colours(int(state.red_left[row])))

    def cell(self, x: int, y: int) -> Cell:
        """What there is at a place."""
        edge = self.world.size - 1
        if 0 < x < edge and 0 < y < edge:
            return set()
        if not (0 <= x <= edge and 0 <= y <= edge):
            return set()
        first = self.left_colours[self.room - 1]
        middle = edge // 2
        places = [(0, middle), (edge, middle)]
        if self.world.doors == "ends":
            places = [(middle, 0), (middle, edge)]
        if self.room < self.world.rooms and (x, y) in places:
            other = "blue" if first == "red" else "red"
            return {"door", first if (x, y) == places[0] else other}
        return {"block"}

    def step(self, action: int) -> tuple[float, bool]:
        """Reward, and whether the episode came to its end."""
        dx, dy = DELTAS[action]
        self.steps += 1
        target = self.cell(self.x + dx, self.y + dy)
        if not target:
            self.x, self.y = self.x + dx, self.y + dy
        if "door" not in target:
            return 0.0, False
        self.x, self.y = self.world.entrance
        room = self.room
        if self.right_colours[room - 1] in target:
            self.room += 1
            paid = room not in self.passed or not self.world.first_only
            self.passed.add(room)
            arrived = self.room == self.world.rooms
            return self.world.prize * room * paid, arrived and self.world.last_room == "ends"
        self.room = 1
        self.twice = room in self.mistakes
        self.mistakes.add(room)
        return 0.0, self.twice

    def measures(self) -> dict[str, float]:
        """What is told of an episode."""
        furthest = max(self.passed, default=0) + 1
        return {"furthest_room": furthest, "second_mistakes": float(self.twice)}
