"""The training loop: stream -> block -> loss + penalty -> Adam, with memory carried along.

Everything that a step depends on is a field of `Trainer` and part of its checkpoint, so that a run
that was stopped and resumed makes the same updates as one that never stopped, bit for bit.
"""

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from expire_span.model.memory import Memory
from expire_span.model.transformer import Transformer
from expire_span.tasks import Batch
from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint
from expire_span.training.evaluation import autocast, count_blocks, evaluate
from expire_span.training.experiment import Experiment
from expire_span.training.metrics import Means, MetricLog, SpanWatch, memory_metrics
from expire_span.training.optim import build_optimizer, load_optimizer, optimizer_tensors, set_rates
from expire_span.training.records import differences, load_experiment, save_experiment, to_record
from expire_span.training.replay import Pass, Replay

EXPERIMENT_FILE, CHECKPOINTS = "experiment.json", "checkpoints"
# Settings that say how a run is watched and where things are, not what its next update is. (How
# often it is logged is not one: the penalty may wait for a logged metric.)
FREE_ON_RESUME = ("save_every", "device", "compile", "evaluation.", "task.path")


class Trainer:
    """A run at some step: model, optimiser, memory, stream position and random state."""

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self.device = choose_device(experiment.device)
        torch.manual_seed(experiment.seed)  # governs initial weights and dropout
        self.model = Transformer(experiment.model).to(self.device)
        if experiment.compile and self.device.type == "cuda":
            torch.compiler.reset()  # graphs of earlier models count against a limit for all
            self.model.compile_layers()
        self.replay: Replay | None = None
        if experiment.compile and self.device.type == "cuda" and not self.model.rolls_dice():
            self.replay = Replay(self.model, self._read)
        self.optimizer = build_optimizer(self.model, experiment.optimizer)
        self.draws = torch.Generator().manual_seed(experiment.seed)  # draws that shape memory
        self.stream = experiment.task.stream("train", experiment.batch, experiment.seed)
        self.memory = self.model.start(experiment.batch)
        self.step = 0
        self.penalty_opened: int | None = None
        self.metric: float | None = None  # the task's metric, as last reported
        self.score = experiment.task.score()
        self.means = Means()

    def update(self, watch_spans: bool = False) -> None:
        """Read one block and update the weights.

        Args:
            watch_spans: also note the task's share in the gradient on spans, where there is one.
        """
        batch = self.stream.read(self.experiment.model.block).to(self.device)
        self.model.train()
        weight = torch.full((), self._penalty_weight(), device=self.device)
        scored = batch.scored.sum().clamp(min=1)
        if self.replay is not None and not watch_spans:
            done = self.replay(batch, self.memory, scored, weight)
        else:
            done = self._read(batch, self.memory, scored, weight)
            done.objective.backward()
        norm = self._apply()
        self.memory = done.memory()
        self.step += 1
        self.score.update(batch, done.nll, done.predictions)
        self.means.add(loss=done.loss, penalty=done.penalty, gradient_norm=norm, **vars(done.stats))

    def _read(self, batch: Batch, memory: Memory, scored: Tensor, weight: Tensor) -> Pass:
        head = self.model.sequence_head()
        with autocast(self.device, self.experiment.precision):
            step = self.model(
                batch.inputs, memory, batch.starts, generator=self.draws, attached=False
            )
            nll = torch.where(batch.scored, head.nll(step.hidden, batch.targets), 0)
            with torch.no_grad():
                predictions = head.predict(step.hidden) if self.score.needs_predictions else None
        loss = nll.sum() / scored
        return Pass(
            objective=loss + weight * step.penalty,
            loss=loss.detach(),
            penalty=step.penalty.detach(),
            nll=nll.detach(),
            predictions=predictions,
            stats=step.stats,
            spans=step.spans,
            settling=step.settling,
            frame=step.frame,
        )

    def report(self) -> dict[str, float]:
        """Metrics since the last report; then begin to count anew."""
        means = self.means.take()
        scored = self.score.result()
        self.score.restart()
        self.metric = scored.get(self.score.metric, self.metric)
        layered = memory_metrics(means)
        scalars = {name: mean.item() for name, mean in means.items() if mean.ndim == 0}
        return scalars | scored | layered | {"penalty_weight": self._penalty_weight()}

    def checkpoint(self) -> Checkpoint:
        """All of the run's state."""
        parts = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            "memory": self.memory.tensors(),
            "random": {"cpu": torch.get_rng_state(), "draws": self.draws.get_state()},
        }
        if self.device.type == "cuda":
            parts["random"]["cuda"] = torch.cuda.get_rng_state(self.device)
        values = {
            "experiment": to_record(self.experiment),
            "step": self.step,
            "penalty_opened": self.penalty_opened,
            "metric": self.metric,
            "score": self.score.state(),
            "stream": self.stream.state(),
            "memory": self.memory.about(),
        }
        tensors = {f"{part}.{n}": t for part, named in parts.items() for n, t in named.items()}
        return Checkpoint(tensors, values)

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint, as if there had been no stop."""
        self._check_same(saved.values["experiment"])
        self.model.load_state_dict(saved.part("model"))
        load_optimizer(self.optimizer, self.model, saved.part("optimizer"))
        self.memory = self.model.restore_memory(saved.part("memory"), saved.values["memory"])
        self.stream.restore(saved.values["stream"])
        self.score.restore(saved.values["score"])
        self.step = saved.values["step"]
        self.penalty_opened = saved.values["penalty_opened"]
        self.metric = saved.values["metric"]
        random = saved.part("random")
        torch.set_rng_state(random["cpu"])
        self.draws.set_state(random["draws"])
        if self.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.device)

    def _penalty_weight(self) -> float:
        """Share of the full penalty in the coming update, which may be the first to have one."""
        schedule = self.experiment.penalty
        if self.penalty_opened is None and schedule.opens(
            self.step, self.metric, self.score.higher_is_better
        ):
            self.penalty_opened = self.step
        return schedule.factor(self.step, self.penalty_opened)

    def _apply(self) -> Tensor:
        """Clip the gradients and update the weights; returns the norm before clipping."""
        config = self.experiment.optimizer
        clip = float("inf") if config.clip is None else config.clip
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        factor = config.schedule.factor(self.step, self.experiment.steps)
        set_rates(self.optimizer, config.rate * factor)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.model.clamp_parameters()
        return norm

    def _check_same(self, saved: dict[str, object]) -> None:
        free: tuple[str, ...] = FREE_ON_RESUME
        if self.experiment.optimizer.schedule.decay == "constant":
            free = (*free, "steps")  # a cosine would change its course
        names = differences(saved, to_record(self.experiment))
        changed = [name for name in names if not name.startswith(free)]
        if changed:
            why = " (a cosine decay depends on the number of steps)" if "steps" in changed else ""
            raise ValueError(
                f"The checkpoint is of another experiment: resume it with its own settings; these "
                f"differ: {', '.join(changed)}{why}."
            )


def train(
    experiment: Experiment, folder: Path, *, resume: bool = False, progress: bool = True
) -> dict[str, float]:
    """Run an experiment to its end, leaving metrics and checkpoints in `folder`.

    Args:
        experiment: what to run.
        folder: the run's own folder.
        resume: go on from the newest checkpoint in it; without this, a folder with one is refused.
        progress: whether to show a bar.

    Returns:
        The metrics of the last evaluation.
    """
    trainer = _open(experiment, folder, resume)
    log = MetricLog(folder, trainer.step)
    watch = SpanWatch(experiment.model.memory.longest_learned_span())
    pace = Pace(experiment, trainer.step)
    result: dict[str, float] = {}
    bar = tqdm(total=experiment.steps, initial=trainer.step, unit="step", disable=not progress)
    with bar, log, logging_redirect_tqdm(), Interruption() as interruption:
        while trainer.step < experiment.steps:
            step = trainer.step + 1

            def due(every: int, step: int = step) -> bool:
                return step % every == 0 or step == experiment.steps

            trainer.update(watch_spans=due(experiment.log_every))
            bar.update()
            if due(experiment.log_every):
                metrics = trainer.report() | pace.since_last(step)
                log.write(step, metrics)
                watch.look(step, metrics)
                bar.set_postfix(_summary(metrics, trainer.score.metric))
            if due(experiment.save_every) or interruption.wanted:
                checkpoints.save(trainer.checkpoint(), folder / CHECKPOINTS, step)
            if interruption.wanted:
                raise KeyboardInterrupt
            if due(experiment.evaluation.every):
                result = _evaluate(trainer)
                log.write(step, {f"valid/{name}": value for name, value in result.items()})
                pace.restart(step)
    return result or _evaluate(trainer)


def load_run(folder: Path, device: str = "auto") -> tuple[Experiment, Transformer, int]:
    """The experiment of a run, its model as last saved, and the step at which that was."""
    experiment = replace(load_experiment(folder / EXPERIMENT_FILE), device=device)
    newest = checkpoints.latest(folder / CHECKPOINTS)
    if newest is None:
        raise ValueError(f"{folder} has no checkpoint yet: train it first.")
    saved = checkpoints.load(newest)
    model = Transformer(experiment.model)
    model.load_state_dict(saved.part("model"))
    return experiment, model.to(choose_device(device)).eval(), saved.values["step"]


def choose_device(name: str) -> torch.device:
    """The device of that name; auto is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"There is no GPU here to run on {name!r}: choose cpu or auto.")
    return torch.device(name)


class Interruption:
    """While it lasts, the first Ctrl-C is noted instead of striking in the middle of an update."""

    def __enter__(self) -> Self:
        self.wanted = False
        self._former: Any = None
        if threading.current_thread() is threading.main_thread():  # no other may set handlers
            self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *failure: object) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)

    def _note(self, *_: object) -> None:
        if self.wanted:  # a second one means: now
            raise KeyboardInterrupt
        self.wanted = True


class Pace:
    """Speed since the last look."""

    def __init__(self, experiment: Experiment, step: int):
        self._tokens = experiment.batch * experiment.model.block
        self.restart(step)

    def restart(self, step: int) -> None:
        """Count from here."""
        self._step, self._time = step, time.perf_counter()

    def since_last(self, step: int) -> dict[str, float]:
        """Seconds per step and tokens per second; then count from here."""
        seconds = (time.perf_counter() - self._time) / max(step - self._step, 1)
        self.restart(step)
        return {"seconds_per_step": seconds, "tokens_per_second": self._tokens / seconds}


def _open(experiment: Experiment, folder: Path, resume: bool) -> Trainer:
    """A trainer at its first step, or where the newest checkpoint left it."""
    newest = checkpoints.latest(folder / CHECKPOINTS)
    begun = (folder / EXPERIMENT_FILE).exists()
    if resume and not begun:
        raise ValueError(f"{folder} holds no run that could be resumed: check --out.")
    if begun and not resume:
        raise ValueError(
            f"{folder} already holds a run: pass --resume to go on with it, or choose another "
            "folder with --out."
        )
    trainer = Trainer(experiment)
    _check_evaluation(experiment)
    if newest is not None:
        trainer.restore(checkpoints.load(newest))
    folder.mkdir(parents=True, exist_ok=True)
    save_experiment(experiment, folder / EXPERIMENT_FILE)
    return trainer


def _check_evaluation(experiment: Experiment) -> None:
    """Find out now, not at the first evaluation, whether there is something to evaluate on."""
    settings = experiment.evaluation
    stream = experiment.task.stream("valid", settings.batch, experiment.seed)
    count_blocks(stream, experiment.model.block, settings.blocks)


def _evaluate(trainer: Trainer) -> dict[str, float]:
    experiment = trainer.experiment
    return evaluate(
        trainer.model,
        experiment.task,
        "valid",
        batch=experiment.evaluation.batch,
        blocks=experiment.evaluation.blocks,
        seed=experiment.seed,
        precision=experiment.precision,
    )


def _summary(metrics: dict[str, float], metric: str) -> dict[str, str]:
    """What matters most, for the progress bar."""
    names = ("loss", metric, "live", "held")
    return {name: f"{metrics[name]:.4g}" for name in names if name in metrics}
