"""A run of an agent at some step: act a block, learn from it, go on.

Everything that a step depends on is a field of `AgentTrainer` and part of what it saves. Chance
comes from counters, so a resumed run equals one that never stopped, bit for bit on a CPU.
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from expire_span.agent.cached import make_actor
from expire_span.agent.dense import dense, start_full
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.learner import Learner
from expire_span.agent.ports import build_agent
from expire_span.agent.rollout import begin
from expire_span.agent.tally import Tally
from expire_span.model.transformer import MemoryStats
from expire_span.training.control import PenaltyControl, Standing
from expire_span.training.guard import NotFinite
from expire_span.training.metrics import Means, memory_metrics
from expire_span.training.optim import load_optimizer, optimizer_tensors, set_rates

ROUNDING = 1e-3
"""Largest difference between log-probabilities acted with and read again that is thought to be
nothing else, but for single decisions of many millions, on a GPU: `docs/method.md`."""


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
        self.actor = make_actor(self.model, self.game, experiment.batch, experiment.compile)
        self.tally = Tally.empty(self.game)
        self.means = Means()
        self.step = 0
        self.metric: float | None = None  # the world's metric, as last reported
        memory, block = experiment.model.memory, experiment.model.block
        self.control = PenaltyControl(experiment.penalty, memory, block, device)
        self.lately = Means()  # how much was remembered since the last look at that
        self._drifts = 0  # reports in a row with more than rounding

    def update(self) -> None:
        """Act a block in every row, and update the weights."""
        block, self.situation, self.tally = self.actor.act_block(
            self.situation, self.memory, self.tally
        )
        config = self.experiment.optimizer
        factor = config.schedule.factor(self.step, self.experiment.steps)
        spans_learn = self.control.spans_learn(self._standing())
        set_rates(self.learner.optimizer, config.rate * factor, spans_learn)
        lesson = self.learner.learn(block, self.memory, self._penalty_weight())
        self.control.observe(self._standing(), lesson.parts["live"].mean())
        self.memory = lesson.memory
        self.step += 1
        self.means.add(**lesson.parts)
        self.lately.add(**{name: lesson.parts[name] for name in MemoryStats.__dataclass_fields__})

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
        self._look_at_drift(scalars["log_prob_drift"])
        steps = self.step * self.experiment.batch * self.experiment.model.block
        about = {"world_steps": float(steps), "penalty_weight": float(self._penalty_weight())}
        return scalars | played | memory_metrics(means) | about

    def take_stats(self) -> MemoryStats:
        """How much was remembered since this was last asked; then begin again."""
        return MemoryStats(**self.lately.take())

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """All tensors of the run's state, by part."""
        return {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.learner.optimizer, self.model),
            "memory": self.memory.tensors(),
            "situation": self.situation.tensors(),
            "tally": self.tally.tensors(),
            "control": self.control.tensors(),
            "means": self.means.tensors(),
            "lately": self.lately.tensors(),
        }

    def values(self) -> dict[str, Any]:
        """All plain values of it."""
        return {
            "step": self.step,
            "metric": self.metric,
            "control": self.control.values(),
            "means": self.means.counts(),
            "lately": self.lately.counts(),
            "memory": self.memory.about(),
        }

    def restore(self, tensors: dict[str, dict[str, Tensor]], values: dict[str, Any]) -> None:
        """Go on from what `tensors` and `values` returned, as if there had been no stop."""
        self.model.load_state_dict(tensors["model"])
        load_optimizer(self.learner.optimizer, self.model, tensors["optimizer"])
        self.memory = self.model.restore_memory(tensors["memory"], values["memory"])
        self.situation = self.situation.like(tensors["situation"])
        self.tally = self.tally.like(tensors["tally"])
        self.step = values["step"]
        self.metric = values["metric"]
        self.control.restore(tensors["control"], values["control"])
        self.means.restore(tensors["means"], values["means"], self.device)
        lately = values.get("lately", {})  # older checkpoints do not tell
        self.lately.restore(tensors["lately"], lately, self.device)

    def _look_at_drift(self, drift: float) -> None:
        """Warn if what is learned from is not what was acted with, report after report."""
        if self._drifts == 2:  # it has been told
            return
        self._drifts = self._drifts + 1 if drift > ROUNDING else 0
        if self._drifts == 2:
            warnings.warn(
                f"Step {self.step}: log-probabilities read again are off by up to {drift:.1e} from "
                "those acted with, which is more than rounding: the gradient is not that of what "
                "the agent did. Compute in float32, or try --model.attention reference.",
                stacklevel=2,
            )

    def _penalty_weight(self) -> Tensor:
        """What multiplies the penalty in the coming update, which may be the first to have one."""
        return self.control.weight(self._standing())

    def _standing(self) -> Standing:
        return Standing(self.step, self.metric)
