"""Experiments: functions that return a full configuration; each is registered by one line."""

from collections.abc import Callable

from expire_span.experiments.copy import copy
from expire_span.experiments.recall import recall
from expire_span.experiments.text import text
from expire_span.training.experiment import Experiment

EXPERIMENTS: dict[str, Callable[[], Experiment]] = {
    "recall": recall,
    "copy": copy,
    "text": text,
}
