"""What a table or a figure of the paper consists of: lines, each with the experiment behind it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from expire_span.experiments.scale import Scale
from expire_span.training.experiment import Experiment

COLUMNS: dict[str, tuple[str, str]] = {
    "accuracy": ("accuracy", ".3f"),
    "token_accuracy": ("words right", ".3f"),
    "error": ("error %", ".1f"),
    "bpb": ("bits/byte", ".3f"),
    "bpc": ("bits/char", ".3f"),
    "perplexity": ("perplexity", ".1f"),
    "oracle": ("perfect reader", ".3g"),
    "live": ("live memories", ",.0f"),
    "parameters": ("M parameters", ".1f"),
    "peak_gb": ("peak GB", ".1f"),
    "milliseconds": ("ms/update", ".0f"),
    "seconds": ("s of updates", ".0f"),
}
"""Heading and format of all that is said of a model. A perfect reader holds as many steps as the
memory reaches back in one layer; layers can hand on what they saw, so a window may see more."""

Picture = Literal["beside", "memory", "stream", "training"]


@dataclass(frozen=True)
class Line:
    """One model of a table.

    The same run may stand in several tables: it is known by `name`.
    """

    name: str
    """Folder of its runs, such as `colliding/expire-span-16k`."""
    label: str
    """As it is called in the table."""
    experiment: Callable[[Scale], Experiment]
    """What is run, at each scale."""
    paper: Mapping[str, float | str] = field(default_factory=dict)
    """The paper's numbers by column."""
    seeds: int = 1
    """Runs from different seeds, whose mean is shown."""


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper."""

    label: str
    """The paper's name for it, such as tab:colliding."""
    title: str
    """What it shows."""
    metric: str
    """What its models are judged by."""
    lines: tuple[Line, ...]
    """Its models."""
    split: Literal["test", "valid"] = "test"
    """The part of the data they are judged on."""
    columns: tuple[str, ...] = ("live", "peak_gb", "milliseconds")
    """What else is shown of each."""
    picture: Picture = "beside"
    """How it is drawn: beside the paper's numbers, performance against memory size, the loss along
    the validation text, or the course of training."""
    reference: str = "paper"
    """Whose numbers stand beside ours."""
    remark: str = ""
    """What one has to know to compare the two."""
