"""What is looked at: a trained model, what it reads, and its name."""

from dataclasses import dataclass
from pathlib import Path

from expire_span.analysis.codec import Codec, codec_of
from expire_span.model.transformer import Transformer
from expire_span.training.experiment import Experiment
from expire_span.training.folder import load_run


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, with what it was trained on."""

    name: str
    experiment: Experiment
    model: Transformer
    codec: Codec


def open_subject(folder: Path, device: str = "cpu") -> Subject:
    """The model of a run or of a release."""
    experiment, model, _ = load_run(folder, device)
    return Subject(folder.resolve().name, experiment, model, codec_of(experiment.task))
