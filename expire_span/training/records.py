"""Settings as JSON and back: nested dataclasses, each under its class's name.

Only the classes listed here can come out of a file, and they hold nothing but plain values.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import POLICIES
from expire_span.tasks import TASKS
from expire_span.training.disk import replace_text
from expire_span.training.experiment import EvaluationConfig, Experiment, OptimizerConfig
from expire_span.training.schedule import PenaltySchedule, RateSchedule

KNOWN: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        Experiment,
        EvaluationConfig,
        OptimizerConfig,
        PenaltySchedule,
        RateSchedule,
        TransformerConfig,
        *POLICIES.values(),
        *TASKS.values(),
    )
}


Kind = TypeVar("Kind")
KINDS = {"Experiment": "a sequence model", "AgentExperiment": "an agent"}
"""What a folder with settings of this kind holds, in words."""


def to_record(value: Any) -> Any:
    """A dataclass as a plain dictionary with its class under `kind`; other values as in JSON."""
    if not is_dataclass(value):
        return list(value) if isinstance(value, tuple) else value
    named = {f.name: to_record(getattr(value, f.name)) for f in fields(value)}
    return {"kind": type(value).__name__, **named}


def from_record(record: Any, known: dict[str, type] = KNOWN) -> Any:
    """What `to_record` was given; only classes that are known by name can come out."""
    if not isinstance(record, dict):
        return record
    values = {name: from_record(value, known) for name, value in record.items() if name != "kind"}
    kind = record.get("kind")
    if kind not in known:
        raise ValueError(f"There are no settings of the kind {kind!r}: bring back what was there.")
    return known[kind](**values)


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Names of the fields in which two records differ, such as `model.memory.span`."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [name]
    keys = [*one, *(key for key in other if key not in one)]
    prefix = f"{name}." if name else ""
    return [
        found for key in keys for found in differences(one.get(key), other.get(key), prefix + key)
    ]


def check_same(
    saved: dict[str, Any], experiment: Any, free: tuple[str, ...], known: dict[str, type] = KNOWN
) -> None:
    """Refuse to go on with a run of another experiment.

    Args:
        saved: the record of the run's experiment.
        experiment: of any kind that has an optimiser with a schedule.
        free: how the names of fields begin that may differ.
        known: classes that may be in the record.
    """
    if experiment.optimizer.schedule.decay == "constant":
        free = (*free, "steps")  # a cosine would change its course
    changed = changed_settings(saved, experiment, free, known)
    if changed:
        why = " (a rate that decays depends on the number of steps)" if "steps" in changed else ""
        raise ValueError(
            f"The run to go on with is of another experiment: resume it with its own settings; "
            f"these differ: {', '.join(changed)}{why}."
        )


def changed_settings(
    saved: dict[str, Any], experiment: Any, free: tuple[str, ...], known: dict[str, type] = KNOWN
) -> list[str]:
    """Names of the fields that differ from a record, but those that begin as one of `free` does."""
    names = differences(_completed(saved, known), to_record(experiment))
    return [name for name in names if not name.startswith(free)]


def _completed(record: dict[str, Any], known: dict[str, type]) -> dict[str, Any]:
    """A record with defaults for the settings that there were not when it was written.

    If it has settings that there are no longer, it is left as it is, and differs by these.
    """
    try:
        return to_record(from_record(record, known))
    except (TypeError, ValueError):
        return record


def save_experiment(experiment: Any, path: Path) -> None:
    """Write an experiment as readable JSON, whole or not at all."""
    replace_text(path, json.dumps(to_record(experiment), indent=2) + "\n")


def load_experiment(path: Path) -> Experiment:
    """Read what `save_experiment` wrote."""
    return read_experiment(path, Experiment, KNOWN)


def read_experiment(path: Path, kind: type[Kind], known: dict[str, type]) -> Kind:
    """Read what `save_experiment` wrote, if that was an experiment of this kind."""
    record = read_record(path)
    try:
        experiment = from_record(record, known)
    except TypeError as error:
        raise _unreadable(path, error) from error
    if not isinstance(experiment, kind):
        found = type(experiment).__name__
        raise ValueError(
            f"{path.parent} holds {KINDS.get(found, found)}, but this needs "
            f"{KINDS.get(kind.__name__, kind.__name__)}: give the folder of one."
        )
    return experiment


def read_record(path: Path) -> dict[str, Any]:
    """Read what `save_experiment` wrote, as plain values."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{path.parent} is not a run: it has no {path.name}.") from None
    except json.JSONDecodeError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} cannot be read as an experiment ({error}): bring it back as it was; the "
        "shared.json of a checkpoint has the same settings under `experiment`."
    )
