"""What a world is: settings, and the game that they describe, played in many rows at once.

A `World` is a frozen dataclass of settings. `world.play(device)` gives the `Game`: tensor programs
for a whole batch. Its state goes in and comes out, every tensor has a fixed shape, and nothing ever
waits for the device, so that a step can be compiled or captured as a CUDA graph.

Episodes follow one another in each row. The step that ends one already returns the state in which
the next one begins (Gymnasium calls this SAME_STEP), and the last state beside it.

Shapes: B rows, V words.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from expire_span.chance import Purpose, row_keys
from expire_span.checks import (
    require_at_least,
    require_finite,
    require_not_negative,
    require_yes_or_no,
)
from expire_span.state import State
from expire_span.worlds.grid import DX, DY, MOVES, STAY, Cells, turned

REWARDED = "rewarded"


@dataclass(frozen=True)
class WorldState(State):
    """Where every row stands; each field is a tensor [B], and worlds add their own."""

    key: Tensor  # int64 [B]: all that chance decides in a row follows from it and the counters
    episode: Tensor  # int64 [B], number of the episode in its row, from 0
    steps: Tensor  # int64 [B], made in this episode
    total: Tensor  # float32 [B], reward of this episode so far
    heading: Tensor  # int64 [B], the last move; it matters only to a view that turns
    action: Tensor  # int64 [B], the last action, -1 at first; only if it is shown
    rewarded: Tensor  # bool [B], whether the last step was; only if it is shown

    @property
    def batch(self) -> int:
        """Number of rows."""
        return len(self.key)

    def select(self, rows: Tensor) -> Self:
        """The states of the given rows, in that order."""
        return self.map(lambda tensor: tensor[rows])

    def where(self, mask: Tensor, other: Self) -> Self:
        """This state in the rows that are marked (bool [B]), the other one elsewhere."""
        others = other.tensors()
        return self.map_named(lambda name, mine: _where(mask, mine, others[name]))


S = TypeVar("S", bound=WorldState)


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """What a step led to."""

    state: S
    """The next state; where an episode ended, the first one of the next episode."""
    reward: Tensor
    """float32 [B]."""
    terminated: Tensor
    """bool [B], the episode came to its end."""
    truncated: Tensor
    """bool [B], it was cut off at the limit of steps."""
    last: S
    """The state before any new episode began: where one ended, its last."""

    @property
    def done(self) -> Tensor:
        """bool [B], an episode ended either way."""
        return self.terminated | self.truncated


@dataclass(frozen=True)
class Measure:
    """A number about the episode that ended in each row."""

    value: Tensor
    """float32 [B]."""
    applies: Tensor | None = None
    """bool [B], the rows in which it means something; None for all."""


@dataclass(frozen=True, kw_only=True)
class World(ABC):
    """Settings that all worlds share, each a choice where the paper is silent."""

    limit: int = 1000
    """Steps after which an episode is cut off."""
    step_cost: float = 0.0
    """What every step takes off the reward."""
    stay_action: bool = False
    """Whether there is a fifth action that does nothing."""
    turning_view: bool = False
    """Whether the view turns so that the last move points up; moves stay as they are named."""
    visible_walls: bool = True
    """Whether walls are seen as `block`, or as nothing."""
    show_action: bool = False
    """Whether the agent's cell carries the name of the last action."""
    show_reward: bool = False
    """Whether the agent's cell carries the word `rewarded` if the last step was."""

    def __post_init__(self) -> None:
        require_at_least(1, limit=self.limit)
        require_finite(step_cost=self.step_cost)
        require_not_negative(step_cost=self.step_cost)
        require_yes_or_no(**{f.name: getattr(self, f.name) for f in fields(self) if f.type is bool})

    @property
    @abstractmethod
    def things(self) -> tuple[str, ...]:
        """Words for what there is in the world."""

    @property
    @abstractmethod
    def metric(self) -> str:
        """The measure by which one says how good a policy is; more is better."""

    @abstractmethod
    def play(self, device: torch.device | str = "cpu") -> "Game[Any]":
        """The game that these settings describe, on a device."""

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions, in their order."""
        return (*MOVES, STAY) if self.stay_action else MOVES

    @property
    def words(self) -> tuple[str, ...]:
        """All words that a cell can carry, in the order of the observation's last axis."""
        shown_actions = self.actions if self.show_action else ()
        return (*self.things, *shown_actions, *((REWARDED,) if self.show_reward else ()))


class Game(ABC, Generic[S]):
    """A world at play: it holds settings and constants, the course of play is all in the state."""

    def __init__(self, world: World, device: torch.device | str):
        self.world = world
        self.device = torch.device(device)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"There is no GPU here to play on {str(device)!r}: choose cpu.")
        count = len(world.actions)  # what is no action leads nowhere, not to one that is left out
        self._dx = torch.tensor(DX[:count], device=self.device)
        self._dy = torch.tensor(DY[:count], device=self.device)
        views = self._views()  # [N, 3, 3, V]
        if world.turning_view:
            views = torch.stack([turned(view) for view in views]).flatten(0, 1)
        self._table = views.flatten(1).to(self.device)  # every view there is, [N, 9 V]

    def start(self, batch: int, seed: int = 0) -> S:
        """The first states of `batch` rows; row b is the same whatever the batch."""
        require_at_least(1, batch=batch)
        return self.start_keys(row_keys(seed, batch, Purpose.WORLDS, self.device))

    def start_keys(self, key: Tensor) -> S:
        """The first states of rows with these keys, int64 [B]."""
        none = torch.zeros(len(key), dtype=torch.int64, device=key.device)
        blank = WorldState(
            key=key,
            episode=none,
            steps=none,
            total=none.float(),
            heading=none,
            action=none - 1,
            rewarded=none.bool(),
        )
        return self._begin(blank)

    def next_episode(self, state: S) -> S:
        """Every row at the beginning of its next episode."""
        none = torch.zeros_like(state.steps)
        world = self.world
        blank = WorldState(
            key=state.key,
            episode=state.episode + 1,
            steps=none,
            total=torch.zeros_like(state.total),
            heading=none if world.turning_view else state.heading,
            action=none - 1 if world.show_action else state.action,
            rewarded=torch.zeros_like(state.rewarded) if world.show_reward else state.rewarded,
        )
        return self._begin(blank)

    def step(self, state: S, actions: Tensor) -> Outcome[S]:
        """One step in every row: actions int64 [B], in the order of `world.actions`.

        Whether they lie in that range is asked on a CPU alone, and not in compiled code: elsewhere
        the answer would have to be waited for.
        """
        self._check(state, actions)
        world = self.world
        moved, reward, terminated = self._move(state, actions)
        if world.step_cost:
            reward = reward - world.step_cost
        steps = state.steps + 1
        last = replace(
            moved,
            steps=steps,
            total=state.total + reward,
            heading=self._turn(state.heading, actions) if world.turning_view else state.heading,
            action=actions if world.show_action else state.action,
            rewarded=reward > 0 if world.show_reward else state.rewarded,
        )
        truncated = (steps >= world.limit) & ~terminated
        done = terminated | truncated
        return Outcome(
            state=self.next_episode(state).where(done, last),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            last=last,
        )

    def observe(self, state: S) -> Tensor:
        """What every row sees, uint8 [B, 3, 3, V]."""
        index = self._view(state)
        if self.world.turning_view:
            index = index * len(MOVES) + state.heading
        seen = self._table.index_select(0, index).unflatten(1, (3, 3, -1))
        return self._with_feedback(seen, state)

    def measure(self, last: S) -> dict[str, Measure]:
        """What is worth knowing about episodes that ended in these states."""
        return {"return": Measure(last.total), "episode_steps": Measure(last.steps.float())}

    @abstractmethod
    def map(self, state: S, row: int) -> Cells:
        """All cells of one row's world without its agent, of the same size in every state."""

    @abstractmethod
    def place(self, state: S, row: int) -> tuple[int, int]:
        """x and y of one row's agent on that map."""

    @abstractmethod
    def caption(self, state: S, row: int) -> str:
        """What a picture of one row should say, on one line."""

    @abstractmethod
    def _begin(self, blank: WorldState) -> S:
        """The first state of each row's episode, all that chance decides in it drawn."""

    @abstractmethod
    def _move(self, state: S, actions: Tensor) -> tuple[S, Tensor, Tensor]:
        """Where the actions lead: state, reward (float32 [B]), terminated (bool [B])."""

    @abstractmethod
    def _views(self) -> Tensor:
        """Every different view that there is, uint8 [N, 3, 3, V]."""

    @abstractmethod
    def _view(self, state: S) -> Tensor:
        """Which of them each row has, int64 [B]."""

    def _turn(self, heading: Tensor, actions: Tensor) -> Tensor:
        return torch.where(actions < len(MOVES), actions, heading)

    def _with_feedback(self, seen: Tensor, state: S) -> Tensor:
        """Mark on the agent's cell what was done and whether it paid, if that is shown."""
        world = self.world
        if world.show_action:
            begin = len(world.things)
            names = torch.arange(len(world.actions), device=self.device)
            done = (state.action[:, None] == names).to(torch.uint8)
            seen[:, 1, 1, begin : begin + len(world.actions)] = done
        if world.show_reward:
            seen[:, 1, 1, -1] = state.rewarded.to(torch.uint8)
        return seen

    def _check(self, state: S, actions: Tensor) -> None:
        """Refuse wrong actions; their range where that is free, on a CPU and not compiled."""
        if actions.shape != (state.batch,) or actions.dtype != torch.int64:
            raise ValueError(
                f"Actions must be one int64 for each of the {state.batch} rows, but are "
                f"{actions.dtype} of shape {[*actions.shape]}."
            )
        if actions.device.type != "cpu" or torch.compiler.is_compiling():
            return
        low, high = (int(bound) for bound in actions.aminmax())
        if low < 0 or high >= len(self.world.actions):
            raise ValueError(
                f"Actions are 0 to {len(self.world.actions) - 1} "
                f"({', '.join(self.world.actions)}), but range from {low} to {high}."
            )


def _where(mask: Tensor, mine: Tensor, other: Tensor) -> Tensor:
    if mine is other:
        return mine
    return torch.where(mask, mine, other)
