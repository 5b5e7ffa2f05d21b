"""A run of an agent at some step: act a block, learn from it, go on.

Everything that a step depends on is a field of `AgentTrainer` and part of what it saves. Chance
comes from counters, so a resumed run equals one that never stopped, bit for bit on a CPU.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from expire_span.agent.cached import CachedActor, can_cache
from expire_span.agent.dense import dense, start_full
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.learner import Learner
from expire_span.agent.ports import build_agent
from expire_span.agent.rollout import Block, Situation, act_block, begin
from expire_span.agent.tally import Tally
from expire_span.model.memory import Memory
from expire_span.model.transformer import MemoryStats, Step, Transformer
from expire_span.training.control import PenaltyControl, Standing
from expire_span.training.guard import NotFinite
from expire_span.training.metrics import Means, memory_metrics
from expire_span.training.optim import load_optimizer, optimizer_tensors, set_rates
from expire_span.worlds import Game, World


class AgentTrainer:
    """Model, optimiser, memory, worlds and counters of a run, and how it moves on."""

    def __init__(self, experiment: AgentExperiment, device: torch.device):
        self.experiment = experiment
        self.device = device
        torch.manual_seed(experiment.seed)  # governs initial weights
        self.model = build_agent(experiment.world, dense(experiment.model)).to(device)
        self.game = experiment.world.play(device)
        self.learner = Learner(self.model, experiment.learning, experiment.optimizer)
        self.situation = begin(self.game, experiment.batch, experiment.seed)
        self.memory = start_full(self.model, experiment.batch)
        self.actor = Actor(self.model, self.game, experiment.batch, experiment.compile)
        self.tally = Tally.empty(self.game)
        self.means = Means()
        self.step = 0
        self.metric: float | None = None  # the world's metric, as last reported
        memory, block = experiment.model.memory, experiment.model.block
        self.control = PenaltyControl(experiment.penalty, memory, block, device)
        self.latest: dict[str, Tensor] = {}  # numbers of the last update

    def update(self) -> None:
        """Act a block in every row, and update the weights."""
        block, self.situation, self.tally = self.actor.act_block(
            self.situation, self.memory, self.tally
        )
        config = self.experiment.optimizer
        factor = config.schedule.factor(self.step, self.experiment.steps)
        set_rates(self.learner.optimizer, config.rate * factor)
        lesson = self.learner.learn(block, self.memory, self._penalty_weight())
        self.control.observe(Standing(self.step, self.metric), lesson.parts["live"].mean())
        self.memory = lesson.memory
        self.latest = lesson.parts
        self.step += 1
        self.means.add(**lesson.parts)

    def check(self) -> None:
        """Raise `NotFinite` if some gradient since the last report was not finite."""
        norm = self.means.tensors().get("gradient_norm")
        if norm is not None and not torch.isfinite(norm):
            raise NotFinite(
                f"A gradient was not finite in one of the updates before step {self.step}; no "
                "weight was changed by it."
            )

    def report(self) -> dict[str, float]:
        """Metrics since the last report; then begin to count anew."""
        self.check()
        means = self.means.take()
        played = self.tally.read(self.game)
        self.tally = Tally.empty(self.game)
        self.metric = played.get(self.experiment.world.metric, self.metric)
        scalars = {name: mean.item() for name, mean in means.items() if mean.ndim == 0}
        steps = self.step * self.experiment.batch * self.experiment.model.block
        about = {"world_steps": float(steps), "penalty_weight": float(self._penalty_weight())}
        return scalars | played | memory_metrics(means) | about

    def stats(self) -> MemoryStats:
        """How much was remembered in the last update."""
        names = MemoryStats.__dataclass_fields__
        return MemoryStats(**{name: self.latest[name].cpu() for name in names})

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All tensors of the run's state, by part."""
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.learner.optimizer, self.model),
            "memory": self.memory.tensors(),
            "situation": self.situation.tensors(),
            "tally": {"sums": self.tally.sums, "counts": self.tally.counts},
            "control": self.control.tensors(),
            "means": self.means.tensors(),
        }

    def values(self) -> dict[str, Any]:
        """All plain values of it."""
        return {
            "step": self.step,
            "metric": self.metric,
            "control": self.control.values(),
            "means": self.means.counts(),
            "memory": self.memory.about(),
        }

    def restore(self, tensors: dict[str, dict[str, Tensor]], values: dict[str, Any]) -> None:
        """Go on from what `tensors` and `values` returned, as if there had been no stop."""
        self.model.load_state_dict(tensors["model"])
        load_optimizer(self.learner.optimizer, self.model, tensors["optimizer"])
        self.memory = self.model.restore_memory(tensors["memory"], values["memory"])
        self.situation = self.situation.like(tensors["situation"])
        counted = {name: tensor.to(self.device) for name, tensor in tensors["tally"].items()}
        self.tally = Tally(counted["sums"], counted["counts"])
        self.step = values["step"]
        self.metric = values["metric"]
        self.control.restore(tensors["control"], values["control"])
        self.means.restore(tensors["means"], values["means"], self.device)

    def _penalty_weight(self) -> Tensor:
        """What multiplies the penalty in the coming update, which may be the first to have one."""
        return self.control.weight(Standing(self.step, self.metric))


class Actor:
    """Acts with cached keys and values where the memory allows it, and plainly where not."""

    def __init__(
        self,
        model: Transformer,
        game: Game,
        batch: int,
        compiled: bool = False,
        limit: int | None = None,
    ):
        self._model, self._game, self._limit = model, game, limit
        self._cached = None
        if can_cache(model.start(1)):
            self._cached = CachedActor(model, game, batch, model.config.block, compiled, limit)

    def act_block(
        self, situation: Situation, memory: Memory, tally: Tally
    ) -> tuple[Block, Situation, Tally]:
        """Make a block of steps in every row."""
        if self._cached is not None:
            return self._cached.act_block(situation, memory, tally)
        length = self._model.config.block
        return act_block(self._model, self._game, situation, memory, tally, length, self._limit)


@torch.no_grad()
def evaluate_agent(
    model: Transformer, world: World, *, rows: int, seed: int = 0, limit: int | None = None
) -> dict[str, float]:
    """The world's measures over one whole episode in each row, and the memory used meanwhile.

    Args:
        model: the agent.
        world: where it acts.
        rows: episodes.
        seed: which ones.
        limit: distance beyond which it remembers nothing, if not as far as its memory reaches.
    """
    game, means = world.play(model.positions.device), Means()
    played = Tally.empty(game, episodes=1)
    for _, step, tally in play_first_episodes(model, game, rows=rows, seed=seed, limit=limit):
        means.add(**vars(step.stats))
        played = tally
    return played.read(game) | memory_metrics(means.take())


@torch.no_grad()
def play_first_episodes(
    model: Transformer, game: Game, *, rows: int, seed: int, limit: int | None = None
) -> Iterator[tuple[Block, Step, Tally]]:
    """Blocks of steps until every row has finished its first episode, as `evaluate_agent` says.

    Yields what was done in each, what the model made of it, and the tally of first episodes so far.
    The next block is written over the one before.
    """
    situation, memory = begin(game, rows, seed), start_full(model, rows)
    actor, tally = Actor(model, game, rows, limit=limit), Tally.empty(game, episodes=1)
    for _ in range(-(-game.world.limit // model.config.block)):
        block, situation, tally = actor.act_block(situation, memory, tally)
        step = model(block.observations, memory, starts=block.starts, limit=limit)
        memory = step.memory
        yield block, step, tally
        if tally.counts.max() == rows:
            return
