"""Scripted policies: what they are worth says what there is to be learned.

Four kinds for each world: one that is told what is hidden, one that remembers what it has seen (all
of it, or for so many steps), one that finds its way but remembers nothing, and uniform chance. In
Corridor none is better than whoever remembers as much (`corridor_bound`). In Portal one can be: its
walkers make no mistake on purpose, and such mistakes can pay, since rooms passed again pay again.

Shapes: B rows, V words, K rooms.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from expire_span.chance import Purpose, below, draw, fields, row_keys
from expire_span.worlds.corridor import Corridor
from expire_span.worlds.grid import COLOURS, DOOR, MOVES, OBJECT
from expire_span.worlds.portal import Portal
from expire_span.worlds.world import Game

UP, DOWN, LEFT, RIGHT = range(len(MOVES))
RED, BLUE = range(len(COLOURS))
UNKNOWN = -1
LONG_AGO = -(10**9)


@dataclass(frozen=True)
class Sight:
    """What a policy may go by at one step."""

    observation: Tensor
    """uint8 [B, 3, 3, V]."""
    fresh: Tensor
    """bool [B], whether the episode begins with this step."""
    time: int
    """Steps since the first, the same in all rows."""
    chance: Tensor
    """int64 [B], 64 random bits that differ from step to step."""
    hidden: Any
    """The world's state, for those that are told."""


class Oracle(ABC):
    """A scripted policy; what it remembers goes in and comes out."""

    @abstractmethod
    def start(self, batch: int, device: torch.device) -> Any:
        """Notes of `batch` rows at the very start."""

    @abstractmethod
    def act(self, sight: Sight, notes: Any) -> tuple[Tensor, Any]:
        """Actions int64 [B], and new notes."""


@dataclass(frozen=True)
class FirstEpisodes:
    """The first episode of each row: their end does not decide which are counted."""

    total: Tensor
    """float32 [B], sum of rewards."""
    steps: Tensor
    """int64 [B]."""
    last: Any
    """The states in which they ended."""


@torch.no_grad()
def play(game: Game, oracle: Oracle, batch: int, seed: int = 0) -> FirstEpisodes:
    """Play one whole episode in each of `batch` rows."""
    device = game.device
    key = row_keys(seed, batch, Purpose.SCRIPTED_POLICIES, device)
    state, notes = game.start(batch, seed), oracle.start(batch, device)
    fresh = torch.ones(batch, dtype=torch.bool, device=device)
    last, over = state, ~fresh
    for time in range(game.world.limit):
        sight = Sight(game.observe(state), fresh, time, draw(key, time), state)
        actions, notes = oracle.act(sight, notes)
        outcome = game.step(state, actions)
        last = last.where(over, outcome.last)
        fresh, over, state = outcome.done, over | outcome.done, outcome.state
        if bool(over.all()):
            break
    return FirstEpisodes(total=last.total, steps=last.steps, last=last)


@dataclass(frozen=True)
class Uniform(Oracle):
    """Every action as likely as any other."""

    actions: int = len(MOVES)

    def start(self, batch: int, device: torch.device) -> None:
        """Nothing to note."""

    def act(self, sight: Sight, notes: None) -> tuple[Tensor, None]:
        """Any."""
        return below(fields(sight.chance)[0], self.actions), None


# Corridor -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CorridorNotes:
    """The colour last seen on an object, and when; int64 [B]."""

    colour: Tensor
    seen: Tensor


class CorridorOracle(Oracle):
    """Walks to the right as far as it goes, then takes the door of the colour it wants."""

    def __init__(self, world: Corridor):
        if world.turning_view or world.doors != "sides" or world.width != 1:
            raise ValueError(
                "Scripted walkers know corridors of one row with doors to both sides, and no view "
                "that turns: leave out width, doors and turning_view."
            )
        self._words = world.words

    def start(self, batch: int, device: torch.device) -> CorridorNotes:
        """No colour known."""
        unknown = torch.full((batch,), UNKNOWN, device=device)
        return CorridorNotes(colour=unknown, seen=torch.full_like(unknown, LONG_AGO))

    def act(self, sight: Sight, notes: CorridorNotes) -> tuple[Tensor, CorridorNotes]:
        """Right, or at the end through a door."""
        notes = self._note(sight, notes)
        above = sight.observation[:, 0, 1]
        at_end = above[:, self._words.index(DOOR)] == 1
        door = torch.where(self._colour(above) == self._wanted(sight, notes), UP, DOWN)
        return torch.where(at_end, door, RIGHT), notes

    @abstractmethod
    def _wanted(self, sight: Sight, notes: CorridorNotes) -> Tensor:
        """The colour of the door to take, int64 [B]."""

    def _note(self, sight: Sight, notes: CorridorNotes) -> CorridorNotes:
        cells = sight.observation.flatten(1, 2)  # [B, 9, V]
        objects = cells * cells[..., self._words.index(OBJECT), None]
        seen = objects.amax(dim=1)
        there = seen[:, self._words.index(OBJECT)] == 1
        return CorridorNotes(
            colour=torch.where(there, self._colour(seen), notes.colour),
            seen=torch.where(there, sight.time, notes.seen),
        )

    def _colour(self, cell: Tensor) -> Tensor:
        """The colour of a cell [B, V] that has one."""
        return cell[:, self._words.index(COLOURS[BLUE])].long()


class CorridorPrivileged(CorridorOracle):
    """Is told the colour."""

    def _wanted(self, sight: Sight, notes: CorridorNotes) -> Tensor:
        return sight.hidden.cue


class CorridorMemory(CorridorOracle):
    """Remembers the colour, for `window` steps or for ever; without it, any colour will do."""

    def __init__(self, world: Corridor, window: int | None = None):
        super().__init__(world)
        self._window = window

    def _wanted(self, sight: Sight, notes: CorridorNotes) -> Tensor:
        if self._window is None:
            return notes.colour
        known = sight.time - notes.seen <= self._window
        return torch.where(known, notes.colour, sight.chance & 1)


class CorridorMemoryless(CorridorOracle):
    """Goes by what it sees at the moment: any colour will do."""

    def _wanted(self, sight: Sight, notes: CorridorNotes) -> Tensor:
        return sight.chance & 1


def corridor_is_bounded(world: Corridor) -> bool:
    """Whether `corridor_bound` holds: one look, one way and one try, and nothing to write on.

    Whoever sees its own last action can keep a colour in its moves, and so without memory; a view
    that turns shows it as well.
    """
    unwritten = not (world.show_action or world.turning_view)
    seen_once = world.object_place == "behind"
    return world.width == 1 and world.wrong_door == "ends" and unwritten and seen_once


def corridor_bound(world: Corridor, reach: int) -> float:
    """Success rate of the best policy that can see `reach` steps back.

    The object is seen at step 0 and the door taken at step length - 1; whoever does not know is
    right half the time. A model of two layers with M memories each can relay, so its reach is
    anything from M to 2 M.
    """
    lengths = range(world.shortest, world.longest + 1)
    known = sum(length - 1 <= reach for length in lengths)
    return (known + 0.5 * (len(lengths) - known)) / len(lengths)


# Portal -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PortalNotes:
    """What a walker through rooms has in mind; int64."""

    answer: Tensor  # [B, K], the right colour of each room, or UNKNOWN
    learned: Tensor  # [B, K], the step at which that was last seen
    wanted: Tensor  # [B], colour of the door it is walking to, or UNKNOWN: not decided
    side: Tensor  # [B], LEFT or RIGHT: where it walks
    tried: Tensor  # [B], room whose door it has just taken, or UNKNOWN


def walkers_know(world: Portal) -> bool:
    """Whether scripted walkers find their way through such rooms."""
    usual = world.size == 5 and world.spawn is None and world.doors == "sides"
    return usual and not world.turning_view


class PortalOracle(Oracle):
    """Walks to a door of the colour it wants; where sides are shuffled it looks left first."""

    def __init__(self, world: Portal):
        if not walkers_know(world):
            raise ValueError(
                "Scripted walkers know rooms of 5 x 5 cells entered in the middle, with doors to "
                "the left and right, and no view that turns: leave out size, spawn, doors and "
                "turning_view."
            )
        self._world = world
        self._words = world.words
        self._first_room = self._words.index("room1")

    def start(self, batch: int, device: torch.device) -> PortalNotes:
        """Nothing known."""
        unknown = torch.full((batch,), UNKNOWN, device=device)
        table = unknown[:, None].repeat(1, self._world.rooms)
        return PortalNotes(
            answer=table,
            learned=torch.full_like(table, LONG_AGO),
            wanted=unknown,
            side=torch.full_like(unknown, LEFT),
            tried=unknown,
        )

    def act(self, sight: Sight, notes: PortalNotes) -> tuple[Tensor, PortalNotes]:
        """One step towards the wanted door, or through it."""
        room = self._room(sight)
        notes = self._learn(sight, notes, room)
        deciding = notes.wanted == UNKNOWN
        wanted = torch.where(deciding, self._want(sight, notes, room), notes.wanted)
        side = self._side(sight, wanted, torch.where(deciding, LEFT, notes.side))
        taking = self._door_at(sight, side)
        return side, replace(
            notes, wanted=wanted, side=side, tried=torch.where(taking, room, UNKNOWN)
        )

    @abstractmethod
    def _want(self, sight: Sight, notes: PortalNotes, room: Tensor) -> Tensor:
        """The colour to try in this room, int64 [B]."""

    def _room(self, sight: Sight) -> Tensor:
        """The room it is in, by the word it carries."""
        marks = sight.observation[:, 1, 1, self._first_room : self._first_room + self._world.rooms]
        return marks.argmax(dim=1)

    def _learn(self, sight: Sight, notes: PortalNotes, room: Tensor) -> PortalNotes:
        """Whether the door just taken led on; a new episode begins with nothing known."""
        tried = (notes.tried != UNKNOWN) & ~sight.fresh
        led_on = room == notes.tried + 1
        right = torch.where(led_on, notes.wanted, 1 - notes.wanted)
        rooms = torch.arange(self._world.rooms, device=room.device)
        there = tried[:, None] & (rooms == notes.tried[:, None])
        fresh = sight.fresh[:, None]
        return replace(
            notes,
            answer=torch.where(there, right[:, None], notes.answer).masked_fill(fresh, UNKNOWN),
            learned=torch.where(there, sight.time, notes.learned).masked_fill(fresh, LONG_AGO),
            wanted=torch.where(tried | sight.fresh, UNKNOWN, notes.wanted),
        )

    def _side(self, sight: Sight, wanted: Tensor, side: Tensor) -> Tensor:
        """Where the wanted door is, or is looked for."""
        if not self._world.shuffle:
            return torch.where(wanted == RED, LEFT, RIGHT)
        left_cell = sight.observation[:, 1, 0]
        is_other = left_cell[:, self._words.index(COLOURS[BLUE])].long() != wanted
        turn = (left_cell[:, self._words.index(DOOR)] == 1) & is_other
        return torch.where(turn, RIGHT, side)

    def _door_at(self, sight: Sight, side: Tensor) -> Tensor:
        """Whether the next cell on that side is a door."""
        doors = sight.observation[:, 1, :, self._words.index(DOOR)] == 1
        return torch.where(side == LEFT, doors[:, 0], doors[:, 2])


class PortalPrivileged(PortalOracle):
    """Is told the right colour of every room."""

    def _want(self, sight: Sight, notes: PortalNotes, room: Tensor) -> Tensor:
        red_right = (sight.hidden.red_right >> room) & 1
        return torch.where(red_right == 1, RED, BLUE)


class PortalMemory(PortalOracle):
    """Remembers what it has learned, for `window` steps or for ever; else it guesses."""

    def __init__(self, world: Portal, window: int | None = None):
        super().__init__(world)
        self._window = window

    def _want(self, sight: Sight, notes: PortalNotes, room: Tensor) -> Tensor:
        answer = notes.answer.gather(1, room[:, None]).squeeze(1)
        learned = notes.learned.gather(1, room[:, None]).squeeze(1)
        known = answer != UNKNOWN
        if self._window is not None:
            known &= sight.time - learned <= self._window
        return torch.where(known, answer, sight.chance & 1)


class PortalMemoryless(PortalOracle):
    """Guesses in every room; it remembers only which door it is walking to."""

    def _want(self, sight: Sight, notes: PortalNotes, room: Tensor) -> Tensor:
        return sight.chance & 1
