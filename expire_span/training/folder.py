"""A run's folder: how to begin one, to go on from what is there, or to load it.

experiment.json        every setting
metrics.jsonl          metrics, one line each; TensorBoard's files lie beside it
checkpoints/           the newest two
evaluation/            where an evaluation stands that has been stopped
wandb-id               under which Weights & Biases knows the run, if it does
"""

from dataclasses import replace
from pathlib import Path

from expire_span.model.transformer import Transformer
from expire_span.training import checkpoint as checkpoints
from expire_span.training.disk import make_folder
from expire_span.training.distributed import Ranks, take_device
from expire_span.training.evaluation import count_blocks
from expire_span.training.experiment import Experiment
from expire_span.training.log import tracker_library
from expire_span.training.records import load_experiment, save_experiment
from expire_span.training.trainer import Trainer

EXPERIMENT_FILE, CHECKPOINTS, EVALUATION = "experiment.json", "checkpoints", "evaluation"


def open_run(experiment: Experiment, folder: Path, resume: bool, ranks: Ranks) -> Trainer:
    """A trainer at its first step, or where the newest checkpoint left it."""
    begun = (folder / EXPERIMENT_FILE).exists()
    if resume and not begun:
        raise ValueError(f"{folder} holds no run that could be resumed: check --out.")
    if begun and not resume:
        raise ValueError(
            f"{folder} already holds a run: pass --resume to go on with it, or choose another "
            "folder with --out."
        )
    if experiment.tracker != "none":
        tracker_library(experiment.tracker)  # better now than when the run has begun
    newest = checkpoints.latest(folder / CHECKPOINTS)
    trainer = Trainer(experiment, ranks)
    _check_evaluation(experiment, ranks)
    if newest is not None:
        trainer.restore(checkpoints.load(newest, ranks))
    return trainer


def write_settings(experiment: Experiment, folder: Path) -> None:
    """Make the folder a run's."""
    make_folder(folder)
    save_experiment(experiment, folder / EXPERIMENT_FILE)


def load_run(folder: Path, device: str = "auto") -> tuple[Experiment, Transformer, int]:
    """The experiment of a run, its model as last saved, and the step at which that was."""
    experiment = replace(load_experiment(folder / EXPERIMENT_FILE), device=device)
    newest = checkpoints.latest(folder / CHECKPOINTS)
    if newest is None:
        raise ValueError(f"{folder} has no checkpoint yet: train it first.")
    saved = checkpoints.load_shared(newest)
    model = Transformer(experiment.model)
    model.load_state_dict(saved.part("model"))
    return experiment, model.to(take_device(device)).eval(), saved.values["step"]


def _check_evaluation(experiment: Experiment, ranks: Ranks) -> None:
    """Find out now, not at the first evaluation, whether there is something to evaluate on."""
    settings = experiment.evaluation
    ranks.rows(settings.batch, "evaluation.batch")
    stream = experiment.task.stream("valid", settings.batch, experiment.seed)
    count_blocks(stream, experiment.model.block, settings.blocks)
