"""Performance against memory size over any set of runs (fig:corridor_result, fig:enwik8_span, ...).

Runs are compared by what they wrote about themselves: `result.json` if they have been judged on
test data, or an agent on whole episodes, else the last evaluation in `metrics.jsonl`.
"""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expire_span.looks import look_of
from expire_span.training.folder import RESULT_FILE
from expire_span.training.log import METRICS_FILE, VALID, read_lines, under
from expire_span.training.release import EXPERIMENT_FILE as SETTINGS
from expire_span.training.release import WEIGHTS_FILE

KNOWN_METRICS = (
    "bpb",
    "bpc",
    "perplexity",
    "accuracy",
    "error",
    "success",
    "reward",
    "return",
    "token_accuracy",
    "nll",
)
FAILED = "failed"
SEED = re.compile(r"[-_/]?seed[-_]?\d+$")


@dataclass(frozen=True)
class Size:
    """One run: how much it remembers, and how well it does."""

    run: str
    group: str
    """What runs are called that differ by their seed alone."""
    policy: str
    live: float
    metric: str
    performance: float
    split: str


def read_sizes(
    paths: Sequence[Path], metric: str | None = None
) -> tuple[list[Size], dict[Path, str]]:
    """All runs among these folders and below them, and why some are left out.

    Args:
        paths: folders of runs, or folders above them.
        metric: what they are judged by; of each the first known one if left out.
    """
    runs = _find_runs(paths)
    told = {run: size for run in runs if (size := _read_size(run, metric)) is not None}
    if not told:
        raise ValueError(_nothing_told(paths, runs, metric))
    kinds = sorted({f"{one.metric} ({one.split})" for one in told.values()})
    if len(kinds) > 1:
        raise ValueError(f"These runs were judged differently: {', '.join(kinds)}. Compare apart.")
    names = dict(zip(told, _short_names(list(told)), strict=True))
    groups = _group_names(names)
    sizes = [replace(one, run=names[run], group=groups[run]) for run, one in told.items()]
    return sizes, {run: _why_left_out(run, metric) for run in runs if run not in told}


def _find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs among these folders and all below them."""
    if not paths:
        raise ValueError("Which runs are to be compared? Give their folders, or one above them.")
    found = (
        file.parent for path in paths for file in sorted(path.rglob(SETTINGS)) if _is_run(file)
    )
    return list(dict.fromkeys(found))


def _read_size(run: Path, metric: str | None) -> Size | None:
    """What a run says of itself, if it tells of the metric, or of one that is known."""
    for split, told in _evaluations(run):
        names = (
            name for name in ((metric,) if metric else KNOWN_METRICS) if _is_number(told, name)
        )
        chosen = next(names, None)
        if chosen is not None and _is_number(told, "live"):
            policy = look_of(_settings(run)["model"]["memory"]["kind"]).name
            return Size(run.name, run.name, policy, told["live"], chosen, told[chosen], split)
    return None


def _evaluations(run: Path) -> list[tuple[str, dict[str, Any]]]:
    """How a run was judged, and on what; what counts first."""
    result = _result(run)
    if result is None:
        return [("valid", _last_evaluation(run))]
    split = "test" if "task" in _settings(run) else "episodes"  # agents are judged on these
    return [(split, result), ("valid", result.get("valid", {}))]


def _is_number(told: dict[str, Any], name: str) -> bool:
    return isinstance(told.get(name), int | float)


def _why_left_out(run: Path, metric: str | None) -> str:
    """What there is to say of a run that cannot be drawn."""
    if FAILED in (result := _result(run) or {}):
        return str(result[FAILED])
    if any(told for _, told in _evaluations(run)):
        return f"tells nothing of {metric or 'how well it does'}"
    return "no evaluation yet"


def _nothing_told(paths: Sequence[Path], runs: Sequence[Path], metric: str | None) -> str:
    """Why there is nothing to compare."""
    told = [told for run in runs for _, told in _evaluations(run)]
    choices = [name for name in KNOWN_METRICS if any(_is_number(one, name) for one in told)]
    if metric and choices:
        return f"None of these runs tells of {metric}: choose from {', '.join(choices)}."
    named = ", ".join(map(str, paths))
    return f"There is no run with an evaluation in {named}: train some first."


def _group_names(names: dict[Path, str]) -> dict[Path, str]:
    """What runs of equal settings are called together: by their names without the seed."""
    settings = {run: json.dumps(_settings(run) | {"seed": None}) for run in names}
    found = {}
    for run in names:
        alike = [names[other] for other in names if settings[other] == settings[run]]
        found[run] = ", ".join(dict.fromkeys(SEED.sub("", name) or name for name in alike))
    return found


def _short_names(runs: Sequence[Path]) -> list[str]:
    """Paths of runs without what they have in common in front; of one run its name."""
    if len(runs) == 1:
        return [runs[0].name]
    paths = [run.resolve() for run in runs]
    shared = os.path.commonpath(paths)
    return [str(path.relative_to(shared)) for path in paths]


def _is_run(settings: Path) -> bool:
    """A folder with settings is a run, unless it was released: then it has weights alone."""
    return not (settings.parent / WEIGHTS_FILE).exists()


def _settings(run: Path) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads((run / SETTINGS).read_text())
    return settings


def _result(run: Path) -> dict[str, Any] | None:
    """How a run was judged in the end, if it was."""
    path = run / RESULT_FILE
    return json.loads(path.read_text()) if path.exists() else None


def _last_evaluation(run: Path) -> dict[str, Any]:
    """Metrics of the last evaluation, without the name of the split."""
    for line in reversed(read_lines(run / METRICS_FILE)):
        found = under(VALID, line)
        if found:
            return found
    return {}
