"""Runs of agents in their folders: metrics, checkpoints, resume, and many runs side by side."""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from expire_span.agent.dense import dense
from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.learner import AgentOptimizer
from expire_span.agent.loss import ActorCritic
from expire_span.agent.ports import build_agent
from expire_span.agent.trainer import AgentTrainer
from expire_span.model.transformer import Transformer
from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint, Shard, join
from expire_span.training.disk import replace_text
from expire_span.training.distributed import ALONE, take_device
from expire_span.training.folder import (
    CHECKPOINTS,
    EXPERIMENT_FILE,
    RESULT_FILE,
    at_work_in,
    begin_log,
    check_resumed,
    read_result,
)
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.records import KNOWN, check_same, read_experiment, to_record
from expire_span.training.release import load_weights
from expire_span.training.saver import Saver
from expire_span.training.spans import SpanWatch
from expire_span.worlds import WORLDS

AGENT_KINDS: dict[str, type] = {
    **KNOWN,
    **WORLDS,
    **{kind.__name__: kind for kind in (AgentExperiment, AgentOptimizer, ActorCritic)},
}
# Settings that say how a run is watched and where it runs, not what its next update is.
FREE_IN_RESULTS = ("save_every", "device", "compile")
FREE_ON_RESUME = (*FREE_IN_RESULTS, "evaluation_rows")
SHARED = ("model", "optimizer", "control")
OWN = ("memory", "situation", "tally", "means", "lately")


def train_agent(
    experiment: AgentExperiment, folder: Path, *, resume: bool = False, progress: bool = True
) -> dict[str, float]:
    """Run an experiment to its end; returns what the agent was judged by then."""
    (result,) = train_side_by_side([(experiment, folder)], resume=resume, progress=progress)
    return result


def train_side_by_side(
    wanted: Sequence[tuple[AgentExperiment, Path]],
    *,
    resume: bool = False,
    progress: bool = True,
    title: str | None = None,
    interruption: Interruption | None = None,
) -> list[dict[str, float]]:
    """Run several experiments in turn, an update each; on a GPU they share it, each in a stream.

    A block of one run fills a small part of a GPU, so that several take little longer than one.

    Args:
        wanted: experiments, each with its run's own folder.
        resume: go on from the newest checkpoints; without this, folders with a run are refused.
        progress: whether to show a bar.
        title: what the bar says of it all.
        interruption: whether to stop; signals are noted while this lasts if left out.

    Raises:
        Stopped: on Ctrl-C or SIGTERM, once everything is saved.
        NotFinite: if a gradient of some run is, once the others are done; it names those runs. No
            update was made with it.
        OSError: if a checkpoint cannot be written; the one before it is still there.
    """
    with ExitStack() as opened:
        for _, folder in wanted:
            opened.enter_context(at_work_in(folder, resume))
        runs = [AgentRun(experiment, folder) for experiment, folder in wanted]
        left = sum(run.left for run in runs)
        bar = tqdm(total=left, unit="update", desc=title, disable=not progress)
        opened.enter_context(bar)
        if interruption is None:
            interruption = opened.enter_context(Interruption())
        for run in runs:
            opened.enter_context(run)
        while any(run.left for run in runs):
            for run in runs:
                if run.left:
                    run.advance()
                    bar.update()
                    bar.set_postfix(run.told, refresh=False)
            if interruption.wanted or any(run.saver.failed() for run in runs):
                _save_all(runs)
                raise _stopped(runs, interruption)
        # To judge is to record graphs. That failed once on a GPU, while a checkpoint was written:
        # copies that are given back meanwhile leave their mark in a graph of the same stream.
        for run in runs:
            run.saver.wait()
        try:  # those that are not judged yet will be when they are resumed
            sound = [run for run in runs if run.fault is None]
            results = [run.judge(interruption, progress) for run in sound]
        except Stopped:
            raise _stopped(runs, interruption) from None
    faults = _faults(runs)
    if faults:
        raise NotFinite("\n".join(faults))
    return results


def _faults(runs: Sequence["AgentRun"]) -> list[str]:
    """Why some of them cannot go on."""
    return [run.fault for run in runs if run.fault is not None]


def _stopped(runs: Sequence["AgentRun"], interruption: Interruption) -> Stopped:
    """What to raise once everything is saved; it also tells of runs that had diverged before."""
    sound = next((run for run in runs if run.fault is None), runs[0])
    stop = interruption.stopped(sound.trainer.step, sound.folder)
    return stop.saying("\n".join([str(stop), *_faults(runs)]))


def _save_all(runs: Sequence["AgentRun"]) -> None:
    """Save every run; one whose last save has failed comes after the others, and raises that."""
    for run in sorted(runs, key=lambda run: run.saver.failed()):
        run.save()
    for run in runs:
        run.saver.wait()


class AgentRun:
    """An agent in training, in its folder."""

    def __init__(self, experiment: AgentExperiment, folder: Path):
        self.folder = folder
        self.trainer = _open(experiment, folder)
        self.told: dict[str, str] = {}
        self.fault: str | None = None  # why it cannot go on, if so
        self._watch = SpanWatch(experiment.model.memory.longest_learned_span())
        self._since = (self.trainer.step, time.perf_counter())
        on_gpu = self.trainer.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.trainer.device) if on_gpu else None
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.trainer.device))

    def __enter__(self) -> "AgentRun":
        self._opened = ExitStack()
        log = begin_log(self.trainer.experiment, self.folder, self.trainer.step)
        self._log = self._opened.enter_context(log)
        self.saver = self._opened.enter_context(Saver(self.folder / CHECKPOINTS, ALONE))
        if self.left:  # how it was judged before is true no longer
            (self.folder / RESULT_FILE).unlink(missing_ok=True)
        return self

    def __exit__(self, *failure: Any) -> None:
        self._opened.__exit__(*failure)

    @property
    def left(self) -> int:
        """Updates still to be made; none if there was a fault."""
        updates = max(self.trainer.experiment.steps - self.trainer.step, 0)
        return updates if self.fault is None else 0

    def advance(self) -> None:
        """One update, and what is due after it."""
        experiment = self.trainer.experiment
        with self._own_stream(), self._noting_faults():
            self.trainer.update()
            if self._due(experiment.log_every):
                self._report()
            if self._due(experiment.save_every):
                self.save()

    def save(self) -> None:
        """Write a checkpoint, by and by."""
        trainer = self.trainer
        with self._own_stream(), self._noting_faults():
            trainer.check()
            parts = trainer.tensors()
            values = {"experiment": to_record(trainer.experiment), **trainer.values()}
            shared = Shard(join({part: parts[part] for part in SHARED}), values)
            own = Shard(join({part: parts[part] for part in OWN}), {})
            self._log.flush()  # what a resumed run will find in it
            self.saver.save(Checkpoint(shared, own), trainer.step)

    def judge(self, interruption: Interruption, progress: bool) -> dict[str, float]:
        """What the agent is worth on whole episodes; also left in the folder.

        If it is there already, made of as many of them, it is not made again.
        """
        experiment, path = self.trainer.experiment, self.folder / RESULT_FILE
        if path.exists():
            result: dict[str, float] = read_result(path)
            if result.get("episodes") == experiment.evaluation_rows:
                return result
        with self._own_stream():
            result = evaluate_agent(
                self.trainer.model,
                experiment.world,
                rows=experiment.evaluation_rows,
                seed=experiment.seed + 1,
                progress=progress,
                interruption=interruption,
            )
        replace_text(path, json.dumps(result, indent=2) + "\n")
        return result

    def _report(self) -> None:
        trainer = self.trainer
        metrics = trainer.report()
        step, now = trainer.step, time.perf_counter()
        updates, seconds = step - self._since[0], now - self._since[1]
        self._since = (step, now)
        experiment = trainer.experiment
        steps = updates * experiment.batch * experiment.model.block
        metrics["world_steps_per_second"] = steps / seconds
        with self.saver.pointing_back(OSError):
            self._log.write(step, metrics)
        self._watch.look(step, trainer.take_stats())
        shown = (experiment.world.metric, "live", "world_steps_per_second")
        self.told = {name: f"{metrics[name]:.4g}" for name in shown if name in metrics}

    def _due(self, every: int) -> bool:
        step = self.trainer.step
        return step % every == 0 or step == self.trainer.experiment.steps

    @contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """What is not finite ends this run, not those beside it."""
        try:
            with self.saver.pointing_back(NotFinite):
                yield
        except NotFinite as error:
            self.fault = f"{self.folder}: {error}"

    def _own_stream(self) -> AbstractContextManager:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def is_agent(folder: Path) -> bool:
    """Whether a folder holds an agent."""
    try:
        return (
            json.loads((folder / EXPERIMENT_FILE).read_text())["kind"] == AgentExperiment.__name__
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load_agent(folder: Path, device: str = "auto") -> tuple[AgentExperiment, Transformer]:
    """The experiment of a run or a release, and its agent as last saved."""
    experiment = replace(load_agent_experiment(folder), device=device)
    model = build_agent(experiment.world, dense(experiment.model))
    load_weights(folder, model)
    return experiment, model.to(take_device(device)).eval()


def load_agent_experiment(folder: Path) -> AgentExperiment:
    """The experiment of a run."""
    return read_experiment(folder / EXPERIMENT_FILE, AgentExperiment, AGENT_KINDS)


def _open(experiment: AgentExperiment, folder: Path) -> AgentTrainer:
    """A trainer at its first step, or where the newest checkpoint left it."""
    check_resumed(experiment, folder, FREE_ON_RESUME, AGENT_KINDS)
    trainer = AgentTrainer(experiment, take_device(experiment.device))
    newest = checkpoints.latest(folder / CHECKPOINTS)
    if newest is not None:
        saved = checkpoints.load(newest)
        assert saved.shared is not None
        check_same(saved.shared.values["experiment"], experiment, FREE_ON_RESUME, AGENT_KINDS)
        parts = {part: saved.shared.part(part) for part in SHARED}
        parts |= {part: saved.own.part(part) for part in OWN}
        trainer.restore(parts, saved.shared.values)
    return trainer
