"""What is looked at: a trained model, what it reads, and its name."""

from dataclasses import dataclass, replace
from pathlib import Path

from expire_span.agent.run import is_agent
from expire_span.analysis.codec import Codec, codec_of
from expire_span.model.transformer import Transformer
from expire_span.training.experiment import Experiment
from expire_span.training.folder import load_run


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, and how its tokens are written."""

    name: str
    model: Transformer
    codec: Codec

    @property
    def ahead(self) -> int:
        """Which token a step's prediction is of: the next one, unless its task says otherwise."""
        return 1

    @property
    def loss_unit(self) -> str:
        """What mean losses are told in, such as bits a byte."""
        return f"bits a {self.codec.unit}"


@dataclass(frozen=True)
class Reader(Subject):
    """A model that reads text or the data of a task, and what it was trained on."""

    experiment: Experiment
    folder: Path

    @property
    def ahead(self) -> int:
        """As its task has it."""
        return self.experiment.task.ahead


def open_reader(folder: Path, device: str = "cpu", data: str | None = None) -> Reader:
    """The model of a run or of a release; its data may lie elsewhere than in training."""
    if is_agent(folder):
        raise ValueError(
            f"{folder} holds an agent, which sees a world and reads no text: look at its episodes "
            "with watch, inspect or analyse."
        )
    experiment, model, _ = load_run(folder, device)
    if data is not None:
        experiment = replace(experiment, task=experiment.task.with_data(data))
    codec = codec_of(experiment.task, folder)
    return Reader(folder.resolve().name, model, codec, experiment, folder)
