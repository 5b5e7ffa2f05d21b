"""A run's folder: how to begin one, to go on from what is there, or to load it.

experiment.json        every setting
metrics.jsonl          metrics, one line each; TensorBoard's files lie beside it
checkpoints/           the newest two
vocabulary.json, or tokenizer.json: what tokens stand for, if only the data say it
evaluation/            where an evaluation stands that has been stopped
evaluation-SPLIT/      the same for one after training
result.json            how a run was judged in the end, if it was
beside-others          there if `reproduce` saw others on the same GPU
wandb-id               under which Weights & Biases knows the run, if it does
.lock                  held by the process that is at work here
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from expire_span.locks import claim
from expire_span.model.transformer import Transformer
from expire_span.tasks import Documents
from expire_span.training import checkpoint as checkpoints
from expire_span.training.disk import make_folder, reason
from expire_span.training.distributed import Ranks, take_device
from expire_span.training.evaluation import count_blocks
from expire_span.training.experiment import Experiment
from expire_span.training.log import METRICS_FILE, MetricLog, tracker_library
from expire_span.training.records import (
    KNOWN,
    changed_settings,
    check_same,
    load_experiment,
    read_record,
    save_experiment,
    to_record,
)
from expire_span.training.release import CHECKPOINTS, EXPERIMENT_FILE, WEIGHTS_FILE, load_weights
from expire_span.training.trainer import FREE_ON_RESUME, Trainer

EVALUATION = "evaluation"
RESULT_FILE = "result.json"
LOCK = ".lock"


def read_result(path: Path) -> Any:
    """What a run has left as JSON."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}): remove it, and the same command makes it again."
        ) from error


@contextmanager
def at_work_in(folder: Path, resume: bool) -> Iterator[None]:
    """Hold a run's folder against other processes, if a run can begin there, or go on."""
    check_folder(folder, resume)
    with ExitStack() as held:
        with _writable(folder):
            make_folder(folder)
            mine = held.enter_context(claim(folder / LOCK, wait=False))
        if not mine:
            raise ValueError(
                f"Another process is at work in {folder}: wait for it, or choose another folder "
                "with --out."
            )
        check_folder(folder, resume)  # it may have been begun since
        yield


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    """Say in one sentence that nothing can be written there, and what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The folder {folder} cannot be written to ({reason(error)}): mend that, or choose "
            "another with --out."
        ) from error


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder in which no run can begin, or go on."""
    if (folder / WEIGHTS_FILE).exists():
        raise ValueError(f"{folder} holds a released model, no run: choose another folder.")
    begun = (folder / EXPERIMENT_FILE).exists() or checkpoints.latest(folder / CHECKPOINTS)
    if resume and not begun:
        raise ValueError(f"{folder} holds no run that could be resumed: check --out.")
    if begun and not resume:
        raise ValueError(
            f"{folder} already holds a run: pass --resume to go on with it, or choose another "
            "folder with --out."
        )
    others = [name for name in (METRICS_FILE, RESULT_FILE) if (folder / name).exists()]
    if others and not begun:
        raise ValueError(
            f"{folder} holds no run, but a {others[0]}, over which one would write: move it away, "
            "or choose another folder with --out."
        )


def check_resumed(
    experiment: Any, folder: Path, free: tuple[str, ...], known: dict[str, type] = KNOWN
) -> None:
    """Refuse to go on with what was begun with other settings, of which those in `free` may differ.

    Its checkpoints say the same of themselves, but a run need not have come to its first.
    """
    if (folder / EXPERIMENT_FILE).exists():
        check_same(read_record(folder / EXPERIMENT_FILE), experiment, free, known)


def check_result(
    experiment: Any, folder: Path, free: tuple[str, ...], known: dict[str, type] = KNOWN
) -> None:
    """Refuse what was run with other settings: it would be shown under a wrong name."""
    if not (folder / EXPERIMENT_FILE).exists():
        return
    saved = read_record(folder / EXPERIMENT_FILE)
    changed = changed_settings(saved, experiment, free, known)
    if changed:
        raise ValueError(
            f"{folder} was run with other settings; these differ: {', '.join(changed)}. Move it "
            "away, or choose another folder."
        )


def open_run(experiment: Experiment, folder: Path, ranks: Ranks) -> Trainer:
    """A trainer at its first step, or where the newest checkpoint left it."""
    check_resumed(experiment, folder, FREE_ON_RESUME)
    if experiment.tracker != "none":
        tracker_library(experiment.tracker)  # better now than when the run has begun
    newest = checkpoints.latest(folder / CHECKPOINTS)
    trainer = Trainer(experiment, ranks)
    _check_evaluation(experiment, ranks)
    if newest is not None:
        trainer.restore(checkpoints.load(newest, ranks))
    return trainer


def begin_log(experiment: Any, folder: Path, step: int, tracker: str = "none") -> MetricLog:
    """Make the folder a run's, with a log that goes on from this step."""
    with _writable(folder):
        save_experiment(experiment, folder / EXPERIMENT_FILE)
        return MetricLog(folder, step, tracker, to_record(experiment))


def load_run(folder: Path, device: str = "auto") -> tuple[Experiment, Transformer, int | None]:
    """The experiment of a run or a release, its model, and the step at which that was saved.

    A release may not know its step: then that is None.
    """
    experiment = replace(load_experiment(folder / EXPERIMENT_FILE), device=device)
    if isinstance(experiment.task, Documents):
        experiment = replace(experiment, task=experiment.task.with_spelling(folder))
    model = Transformer(experiment.model)
    step = load_weights(folder, model)
    return experiment, model.to(take_device(device)).eval(), step


def _check_evaluation(experiment: Experiment, ranks: Ranks) -> None:
    """Find out now, not at the first evaluation, whether there is something to evaluate on."""
    settings = experiment.evaluation
    ranks.rows(settings.batch, "evaluation.batch")
    stream = experiment.task.stream("valid", settings.batch, experiment.seed)
    count_blocks(stream, experiment.model.block, settings.blocks)
