"""Acting: blocks of steps in the world, chosen one by one from memory, without gradient.

This is the plain way, by the Transformer's own call; `cached.py` has a faster one.

Shapes: B rows, T steps of a block, V words, A actions.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from expire_span.agent.ports import Decision
from expire_span.agent.tally import Tally
from expire_span.chance import draw, row_keys, unit
from expire_span.model.memory import Memory
from expire_span.model.transformer import Transformer
from expire_span.worlds import Game

_PURPOSE = 2  # sets the chance of actions apart from that of worlds and oracles


@dataclass(frozen=True)
class Situation:
    """Where every row stands between two blocks, apart from memory."""

    world: Any  # the world's state, a dataclass of tensors [B, ...]
    fresh: Tensor  # bool [B], whether the next step is the first of an episode
    key: Tensor  # int64 [B], chance of the actions
    time: Tensor  # int64 [], steps made so far: the counter of that chance

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name."""
        world = {f"world.{name}": tensor for name, tensor in self.world.tensors().items()}
        return {"fresh": self.fresh, "key": self.key, "time": self.time, **world}

    def like(self, tensors: dict[str, Tensor]) -> "Situation":
        """The situation whose `tensors()` these were, on the device of this one."""
        prefix = "world."
        world = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        device = self.fresh.device
        own = {name: tensors[name].to(device) for name in ("fresh", "key", "time")}
        return Situation(world=self.world.like(world), **own)


@dataclass(frozen=True)
class Block:
    """What was seen, done and earned in a block; what came before it is in memory."""

    observations: Tensor  # uint8 [B, T, 3, 3, V]
    starts: Tensor  # bool [B, T], where an episode begins
    actions: Tensor  # int64 [B, T]
    log_probs: Tensor  # [B, T], of those actions when they were taken
    rewards: Tensor  # float32 [B, T]
    done: Tensor  # bool [B, T], where an episode ends
    next_value: Tensor  # [B], expected after the last step, as if its episode went on


def begin(game: Game, batch: int, seed: int) -> Situation:
    """The first steps of `batch` rows are still to be made."""
    return Situation(
        world=game.start(batch, seed),
        fresh=torch.ones(batch, dtype=torch.bool, device=game.device),
        key=row_keys(seed, batch, _PURPOSE, game.device),
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


@torch.no_grad()
def act_block(
    model: Transformer,
    game: Game,
    situation: Situation,
    memory: Memory,
    tally: Tally,
    length: int,
    limit: int | None = None,
) -> tuple[Block, Situation, Tally]:
    """Make `length` steps in every row, remembering nothing beyond a distance of `limit`.

    Memory does not come out: the update reads the block again, and returns it.
    """
    world, fresh, time = situation.world, situation.fresh, situation.time
    taken: dict[str, list[Tensor]] = {name: [] for name in _RECORDED}
    for _ in range(length):
        seen = game.observe(world)
        decision, memory = _decide(model, seen, fresh, memory, limit)
        actions, log_probs = choose(decision, situation.key, time)
        outcome = game.step(world, actions)
        tally = tally.add(game, outcome)
        step = (seen, fresh, actions, log_probs, outcome.reward, outcome.done)
        for name, tensor in zip(_RECORDED, step, strict=True):
            taken[name].append(tensor)
        world, fresh, time = outcome.state, outcome.done, time + 1
    decision, _ = _decide(model, game.observe(world), fresh, memory, limit)
    stacked = {name: torch.stack(tensors, dim=1) for name, tensors in taken.items()}
    after = replace(situation, world=world, fresh=fresh, time=time)
    return Block(**stacked, next_value=decision.value), after, tally


_RECORDED = ("observations", "starts", "actions", "log_probs", "rewards", "done")


def _decide(
    model: Transformer, seen: Tensor, fresh: Tensor, memory: Memory, limit: int | None
) -> tuple[Decision, Memory]:
    """One step of every row through the model."""
    step = model(seen.unsqueeze(1), memory, starts=fresh.unsqueeze(1), limit=limit)
    return model.head(step.hidden[:, 0]), step.memory
