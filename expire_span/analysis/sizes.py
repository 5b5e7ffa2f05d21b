"""Performance against memory size over any set of runs (fig:corridor_result, fig:enwik8_span, ...).

Runs are compared by what they wrote about themselves: `result.json` if they have been judged on
test data, or an agent on whole episodes, else the last evaluation in `metrics.jsonl`.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from expire_span.training.folder import RESULT_FILE
from expire_span.training.log import METRICS_FILE, VALID, read_lines, under
from expire_span.training.release import EXPERIMENT_FILE as SETTINGS
from expire_span.training.release import WEIGHTS_FILE

KNOWN_METRICS = ("bpb", "bpc", "perplexity", "accuracy", "error", "success", "reward", "return")
FAILED = "failed"


@dataclass(frozen=True)
class Size:
    """One run: how much it remembers, and how well it does."""

    run: str
    policy: str
    live: float
    metric: str
    performance: float
    split: str


def find_runs(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The runs among these folders and all below them: those with an evaluation, and others.

    A run that failed, such as for want of memory, says so instead of how well it does.
    """
    if not paths:
        raise ValueError("Which runs are to be compared? Give their folders, or one above them.")
    every = dict.fromkeys(
        file.parent for path in paths for file in sorted(path.rglob(SETTINGS)) if _is_run(file)
    )
    judged = [run for run in every if _judged(run)]
    if not judged:
        named = ", ".join(map(str, paths))
        raise ValueError(f"There is no run with an evaluation in {named}: train some first.")
    return judged, [run for run in every if run not in judged]


def read_sizes(runs: Sequence[Path], metric: str | None = None) -> list[Size]:
    """What runs say of themselves; all must have been judged in the same way."""
    found = [read_size(run, metric) for run in runs]
    kinds = sorted({f"{one.metric} ({one.split})" for one in found})
    if len(kinds) > 1:
        raise ValueError(f"These runs were judged differently: {', '.join(kinds)}. Compare apart.")
    names = _short_names(runs)
    return [replace(one, run=name) for one, name in zip(found, names, strict=True)]


def read_size(run: Path, metric: str | None = None) -> Size:
    """What a run says of itself; of its metrics the first known one, if none is named."""
    settings = json.loads((run / SETTINGS).read_text())
    result = _result(run)
    if result is not None:
        split = "test" if "task" in settings else "episodes"  # agents are judged on these
        found = result
    else:
        split, found = "valid", _last_evaluation(run)
    chosen = metric or next((name for name in KNOWN_METRICS if name in found), None)
    if chosen is None or chosen not in found or "live" not in found:
        names = ", ".join(name for name in found if "/" not in name)
        raise ValueError(f"{run} has no {metric or 'metric that is known'}: choose from {names}.")
    policy = settings["model"]["memory"]["kind"]
    return Size(run.name, policy, found["live"], chosen, found[chosen], split)


def why_left_out(run: Path) -> str:
    """What there is to say of a run that cannot be drawn."""
    return f"{run} ({(_result(run) or {}).get(FAILED, 'no evaluation yet')})"


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


def _judged(run: Path) -> bool:
    result = _result(run)
    return bool(_last_evaluation(run)) if result is None else FAILED not in result


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
