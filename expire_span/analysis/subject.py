"""What is looked at: a trained model, what it reads, and its name.

A model is opened from a run's folder, or from a released one, which holds no more than is needed to
look at it: `experiment.json` and the weights in `model.safetensors`.
"""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from expire_span.analysis.codec import Codec, codec_of
from expire_span.model.transformer import Transformer
from expire_span.training.distributed import take_device
from expire_span.training.experiment import Experiment
from expire_span.training.folder import EXPERIMENT_FILE, load_run
from expire_span.training.records import load_experiment

WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, with what it was trained on."""

    name: str
    experiment: Experiment
    model: Transformer
    codec: Codec


def open_subject(folder: Path, device: str = "cpu") -> Subject:
    """The model of a run or of a release."""
    if (folder / WEIGHTS_FILE).exists():
        experiment = replace(load_experiment(folder / EXPERIMENT_FILE), device=device)
        model = Transformer(experiment.model)
        try:
            model.load_state_dict(load_file(folder / WEIGHTS_FILE))
        except (SafetensorError, RuntimeError) as error:
            raise ValueError(
                f"{folder / WEIGHTS_FILE} does not hold the weights of this model ({error}): "
                "fetch it again."
            ) from error
        model = model.to(take_device(device)).eval()
    else:
        experiment, model, _ = load_run(folder, device)
    return Subject(folder.resolve().name, experiment, model, codec_of(experiment.task))


def release(run: Path, out: Path) -> None:
    """Keep what is needed to look at a run's model: its settings and its weights."""
    if (out / WEIGHTS_FILE).exists():
        raise ValueError(f"{out} already holds a model: remove it first, or choose another folder.")
    _, model, _ = load_run(run, "cpu")
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / EXPERIMENT_FILE, out / EXPERIMENT_FILE)
    save_file({name: t.contiguous() for name, t in model.state_dict().items()}, out / WEIGHTS_FILE)
