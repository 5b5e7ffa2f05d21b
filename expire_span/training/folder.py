"""A run's folder: how to begin one, to go on from what is there, or to load it.

experiment.json        every setting
metrics.jsonl          metrics, one line each; TensorBoard's files lie beside it
checkpoints/           the newest two
evaluation/            where an evaluation stands that has been stopped
result.json            how a run was judged in the end, if it was
wandb-id               under which Weights & Biases knows the run, if it does
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from expire_span.model.transformer import Transformer
from expire_span.tasks import Documents
from expire_span.training import checkpoint as checkpoints
from expire_span.training.disk import make_folder
from expire_span.training.distributed import Ranks, take_device
from expire_span.training.evaluation import count_blocks
from expire_span.training.experiment import Experiment
from expire_span.training.log import tracker_library
from expire_span.training.records import load_experiment, save_experiment
from expire_span.training.release import CHECKPOINTS, EXPERIMENT_FILE, WEIGHTS_FILE, load_weights
from expire_span.training.trainer import Trainer

EVALUATION = "evaluation"
RESULT_FILE = "result.json"


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder in which no run can begin, or go on."""
    if (folder / WEIGHTS_FILE).exists():
        raise ValueError(f"{folder} holds a released model, no run: choose another folder.")
    begun = (folder / EXPERIMENT_FILE).exists()
    if resume and not begun:
        raise ValueError(f"{folder} holds no run that could be resumed: check --out.")
    if begun and not resume:
        raise ValueError(
            f"{folder} already holds a run: pass --resume to go on with it, or choose another "
            "folder with --out."
        )


def open_run(experiment: Experiment, folder: Path, resume: bool, ranks: Ranks) -> Trainer:
    """A trainer at its first step, or where the newest checkpoint left it."""
    check_folder(folder, resume)
    if experiment.tracker != "none":
        tracker_library(experiment.tracker)  # better now than when the run has begun
    newest = checkpoints.latest(folder / CHECKPOINTS)
    trainer = Trainer(experiment, ranks)
    _check_evaluation(experiment, ranks)
    if newest is not None:
        trainer.restore(checkpoints.load(newest, ranks))
    return trainer


def write_settings(experiment: Any, folder: Path) -> None:
    """Make the folder a run's."""
    make_folder(folder)
    save_experiment(experiment, folder / EXPERIMENT_FILE)


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
