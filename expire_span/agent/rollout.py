"""Acting: blocks of steps in the world, chosen one by one from memory, without gradient.

This is the plain way, by the Transformer's own call; `cached.py` has a faster one.

Shapes: B rows, T steps of a block, V words, A actions.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from expire_span.agent.ports import Decision
from expire_span.agent.tally import Tally
from expire_span.chance import Purpose, draw, row_keys, unit
from expire_span.model.memory import Memory
from expire_span.model.transformer import Transformer
from expire_span.state import State
from expire_span.worlds import Game, WorldState


@dataclass(frozen=True)
class Situation(State):
    """Where every row stands between two blocks, apart from memory."""

    world: WorldState
    fresh: Tensor  # bool [B], whether the next step is the first of an episode
    key: Tensor  # int64 [B], chance of the actions
    time: Tensor  # int64 [], steps made so far: the counter of that chance


@dataclass(frozen=True)
class Block(State):
    """What was seen, done and earned in a block; what came before it is in memory."""

    observations: Tensor  # uint8 [B, T, 3, 3, V]
    starts: Tensor  # bool [B, T], where an episode begins
    actions: Tensor  # int64 [B, T]
    log_probs: Tensor  # [B, T], of those actions when they were taken
    rewards: Tensor  # float32 [B, T]
    done: Tensor  # bool [B, T], where an episode ends
    cut: Tensor  # bool [B, T], where it ends because it was cut off
    next_value: Tensor  # [B], expected after the last step, as if its episode went on


def begin(game: Game, batch: int, seed: int) -> Situation:
    """The first steps of `batch` rows are still to be made."""
    return Situation(
        world=game.start(batch, seed),
        fresh=torch.ones(batch, dtype=torch.bool, device=game.device),
        key=row_keys(seed, batch, Purpose.ACTIONS, game.device),
        time=torch.zeros((), dtype=torch.int64, device=game.device),
    )


def choose(decision: Decision, key: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
    """Actions [B] by chance, and their log-probabilities [B]."""
    log_probs = decision.logits.log_softmax(dim=-1)
    edges = log_probs.exp().cumsum(dim=-1)[:, :-1]
    chance = unit(draw(key, time))
    actions = (chance[:, None] >= edges).sum(dim=-1)
    return actions, log_prob_of(log_probs, actions)


def log_prob_of(log_probs: Tensor, actions: Tensor) -> Tensor:
    """[..., A], [...] -> [...]"""
    return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def take_step(
    game: Game, situation: Situation, seen: Tensor, decision: Decision, tally: Tally
) -> tuple[dict[str, Tensor], Situation, Tally]:
    """Do what was decided on; what a block records of it by name, and what it led to."""
    actions, log_probs = choose(decision, situation.key, situation.time)
    outcome = game.step(situation.world, actions)
    taken = {
        "observations": seen,
        "starts": situation.fresh,
        "actions": actions,
        "log_probs": log_probs,
        "rewards": outcome.reward,
        "done": outcome.done,
        "cut": outcome.truncated,
    }
    after = replace(situation, world=outcome.state, fresh=outcome.done, time=situation.time + 1)
    return taken, after, tally.add(game, outcome)


class Actor(ABC):
    """Acts block by block; memory does not come out: the update reads the block again."""

    @abstractmethod
    def act_block(
        self, situation: Situation, memory: Memory, tally: Tally
    ) -> tuple[Block, Situation, Tally]:
        """Make a block of steps in every row; the block's tensors are good until the next call."""


class PlainActor(Actor):
    """Acts by the Transformer's own call, whatever its memory.

    Args:
        model: the agent.
        game: the world to act in, on the model's device.
        limit: distance beyond which nothing is remembered, if not as far as the memory reaches.
    """

    def __init__(self, model: Transformer, game: Game, limit: int | None = None):
        self._model = model
        self._game = game
        self._limit = limit

    @torch.no_grad()
    def act_block(
        self, situation: Situation, memory: Memory, tally: Tally
    ) -> tuple[Block, Situation, Tally]:
        """Make a block of steps in every row."""
        steps = []
        for _ in range(self._model.config.block):
            seen, decision, memory = self._decide(situation, memory)
            taken, situation, tally = take_step(self._game, situation, seen, decision, tally)
            steps.append(taken)
        _, decision, _ = self._decide(situation, memory)
        stacked = {name: torch.stack([step[name] for step in steps], dim=1) for name in steps[0]}
        return Block(**stacked, next_value=decision.value), situation, tally

    def _decide(self, situation: Situation, memory: Memory) -> tuple[Tensor, Decision, Memory]:
        """One step of every row through the model: what is seen, what is made of it, and memory."""
        seen, starts = self._game.observe(situation.world), situation.fresh.unsqueeze(1)
        step = self._model(seen.unsqueeze(1), memory, starts=starts, limit=self._limit)
        return seen, self._model.head(step.hidden[:, 0]), step.memory
