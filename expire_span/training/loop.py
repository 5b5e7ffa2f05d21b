"""The run around a trainer: progress, metrics, checkpoints, evaluations, and how it may end."""

from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, NoReturn, Self

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from expire_span.training.disk import writing
from expire_span.training.distributed import ALONE, Ranks
from expire_span.training.evaluation import Bookmark, Evaluation
from expire_span.training.experiment import Experiment
from expire_span.training.folder import (
    CHECKPOINTS,
    EVALUATION,
    RESULT_FILE,
    at_work_in,
    begin_log,
    open_run,
)
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.log import VALID, MetricLog, Metrics
from expire_span.training.metrics import Pace, summary
from expire_span.training.release import keep_spelling
from expire_span.training.saver import Saver
from expire_span.training.spans import SpanWatch
from expire_span.training.trainer import Trainer

SHARES_EVERY = 1000
"""Fewest updates between two that also tell apart what pulls at spans: 0.15 s of an H200 each."""


def train(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    progress: bool = True,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Run an experiment to its end, leaving metrics and checkpoints in `folder`.

    Args:
        experiment: what to run.
        folder: the run's own folder, the same for all ranks.
        resume: go on from the newest checkpoint in it; without this, a folder with a run is
            refused.
        progress: whether to show a bar.
        ranks: the processes that train together.

    Returns:
        The metrics of the last evaluation.

    Raises:
        Stopped: on Ctrl-C or SIGTERM, once everything is saved.
        NotFinite: if a loss, gradient or weight is; no update was made with it.
        OSError: if a checkpoint cannot be written; the one before it is still there.
    """
    with ExitStack() as held:
        work = at_work_in(folder, resume) if ranks.first else nullcontext()
        ranks.together(lambda: held.enter_context(work))
        trainer = ranks.together(lambda: open_run(experiment, folder, ranks))
        with Run(trainer, folder, progress) as run:
            return run.to_the_end()


class Run:
    """A trainer at work in its folder.

    Args:
        trainer: at the step from which to go on.
        folder: the run's.
        progress: whether to show a bar.
    """

    def __init__(self, trainer: Trainer, folder: Path, progress: bool):
        experiment, ranks = trainer.experiment, trainer.ranks
        self.trainer = trainer
        self.experiment = experiment
        self.folder = folder
        self.ranks = ranks
        self.watch = SpanWatch(experiment.model.memory.longest_learned_span())
        tokens = experiment.batch * experiment.model.block
        self.pace = Pace(tokens, trainer.device, trainer.step)
        self._open = ExitStack()
        self.progress = progress and ranks.first

    def __enter__(self) -> Self:
        experiment, step = self.experiment, self.trainer.step
        self.log = self.ranks.together(self._begin_log)
        if self.log is not None:
            self._open.enter_context(self.log)
        self._open.enter_context(logging_redirect_tqdm())
        self.bar = self._open.enter_context(
            tqdm(total=experiment.steps, initial=step, unit="step", disable=not self.progress)
        )
        self.saver = self._open.enter_context(Saver(self.folder / CHECKPOINTS, self.ranks))
        self.interruption = self._open.enter_context(Interruption(patient=not self.ranks.alone))
        return self

    def __exit__(self, *failure: Any) -> None:
        self._open.__exit__(*failure)

    def _begin_log(self) -> MetricLog | None:
        """Make the folder a run's, with a log that goes on from here; one rank does it for all."""
        if not self.ranks.first:
            return None
        tracker, step = self.experiment.tracker, self.trainer.step
        log = begin_log(self.experiment, self.folder, step, tracker)
        with writing("What tokens stand for"):
            keep_spelling(self.folder, self.experiment.task)
        if step < self.experiment.steps:  # how it was judged before is true no longer
            (self.folder / RESULT_FILE).unlink(missing_ok=True)
        return log

    def to_the_end(self) -> dict[str, float]:
        """All remaining updates; returns the last evaluation."""
        with self.saver.pointing_back(NotFinite):
            while True:
                result = self._evaluate() if self._due(self.experiment.evaluation.every) else {}
                if self.trainer.step >= self.experiment.steps:
                    self.saver.wait()
                    return result
                self._update()

    def _due(self, every: int, step: int | None = None) -> bool:
        """Whether something that happens every so many updates happens after this one."""
        step = self.trainer.step if step is None else step
        return step > 0 and (step % every == 0 or step >= self.experiment.steps)

    def _update(self) -> None:
        """One update, and what is due after it."""
        experiment, coming = self.experiment, self.trainer.step + 1
        watched = self._due(max(experiment.log_every, SHARES_EVERY), coming)
        self.trainer.update(watch_spans=watched, stop=self._wants_to_stop())
        self.bar.update()
        if self.watch.due(coming):
            stats = self.trainer.take_stats()
            if self.ranks.first:
                self.watch.look(coming, stats)
        if self._due(experiment.log_every):
            self._report()
        # Ranks are told one update later, all of them in the same one.
        stop = self._wants_to_stop() if self.ranks.alone else self.trainer.guard.stop
        if self._due(experiment.save_every) or stop:
            self._save()  # which raises what became of the save before
        if stop:
            self._stop()

    def _wants_to_stop(self) -> bool:
        return self.interruption.wanted or self.saver.failed()

    def _report(self) -> None:
        metrics = self.trainer.report() | self.pace.since_last(self.trainer.step)
        if self.trainer.replay is not None:
            metrics["replayed_share"] = self.trainer.replay.share_since_last()
        self._log(metrics)
        self.bar.set_postfix(summary(metrics, self.trainer.score.metric))

    def _log(self, metrics: Metrics) -> None:
        """One line for this step, on the rank that keeps the log."""
        if self.log is None:
            return
        with self.saver.pointing_back(OSError):
            self.log.write(self.trainer.step, metrics)

    def _save(self) -> None:
        state = self.ranks.together(self.trainer.checkpoint)
        if self.log is not None:
            self.log.flush()  # what a resumed run will find in it
        self.saver.save(state, self.trainer.step)

    def _stop(self) -> NoReturn:
        self.saver.wait()
        raise self.interruption.stopped(self.trainer.step, self.folder)

    def _evaluate(self) -> dict[str, float]:
        """The evaluation after this step; not again, if it had been made before a stop."""
        step = self.trainer.step
        evaluation = Evaluation.of(
            self.experiment,
            self.trainer.model,
            "valid",
            ranks=self.ranks,
            sources=self.trainer.sources,
        )
        found = None if self.log is None else self.log.find(step, VALID)
        found = self.ranks.gather(found)[0]
        if found is not None and evaluation.extent().items() <= found.items():
            return found
        bookmark = Bookmark(self.folder / EVALUATION, self.ranks)
        result = self._run(evaluation, bookmark)
        self._log({f"{VALID}{name}": value for name, value in result.items()})
        if self.log is not None:
            self.log.flush()
        bookmark.remove()  # only now: until it is written, the result can be lost
        self.pace.restart(step)
        return result

    def _run(self, evaluation: Evaluation, bookmark: Bookmark) -> dict[str, float]:
        bookmark.find(evaluation)
        try:
            return evaluation.run(self.progress, bookmark, self.interruption)
        except Stopped:
            self._save()
            self._stop()
