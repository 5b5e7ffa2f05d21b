"""Performance against memory size over any set of runs (fig:corridor_result, fig:enwik8_span, ...).

Runs are compared by what they wrote about themselves: `result.json` if they have been judged on
test data, or an agent on whole episodes, else the last evaluation in `metrics.jsonl`.
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from expire_span.looks import look_of
from expire_span.training.folder import RESULT_FILE, read_result
from expire_span.training.log import METRICS_FILE, VALID, read_lines, under
from expire_span.training.records import read_record
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
FREE_IN_GROUPS = {"seed", "device", "tracker", "save_every", "log_every", "compile"}
"""Settings in which runs of one group may differ: the seed, and how they were run and watched."""


@dataclass(frozen=True)
class _Run:
    """What a run wrote about itself."""

    folder: Path
    settings: dict[str, Any]
    policy: str
    evaluations: list[tuple[str, dict[str, Any]]]
    """On what it was judged, and how; what counts first."""


@dataclass(frozen=True)
class Size:
    """One run: how much it remembers, and how well it does."""

    run: str
    group: str
    """What runs of equal settings are called together, and no others."""
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
    runs = [_read_run(folder) for folder in _find_runs(paths)]
    judged = [(run, *found) for run in runs if (found := _judged(run, metric)) is not None]
    if not judged:
        raise ValueError(_nothing_told(paths, runs, metric))
    kinds = sorted({f"{name} ({split})" for _, split, name, _ in judged})
    if len(kinds) > 1:
        raise ValueError(f"These runs were judged differently: {', '.join(kinds)}. Compare apart.")
    names = _short_names([run.folder for run, *_ in judged])
    groups = _group_names(names, [run.settings for run, *_ in judged])
    sizes = [
        Size(name, group, run.policy, told["live"], by, told[by], split)
        for name, group, (run, split, by, told) in zip(names, groups, judged, strict=True)
    ]
    left_out = (run for run in runs if _judged(run, metric) is None)
    without = (path for path in paths if not any(r.folder.is_relative_to(path) for r in runs))
    return sizes, {
        **{run.folder: _why_left_out(run, metric) for run in left_out},
        **{path: _why_no_run(path) for path in without},
    }


def _find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs among these folders and all below them."""
    if not paths:
        raise ValueError("Which runs are to be compared? Give their folders, or one above them.")
    found = (
        file.parent for path in paths for file in sorted(path.rglob(SETTINGS)) if _is_run(file)
    )
    return list(dict.fromkeys(found))


def _read_run(folder: Path) -> _Run:
    settings = read_record(folder / SETTINGS)
    policy = look_of(settings["model"]["memory"]["kind"]).name
    if not (folder / RESULT_FILE).exists():
        return _Run(folder, settings, policy, [("valid", _last_evaluation(folder))])
    result = read_result(folder / RESULT_FILE)
    split = "test" if "task" in settings else "episodes"  # agents are judged on these
    return _Run(folder, settings, policy, [(split, result), ("valid", result.get("valid", {}))])


def _judged(run: _Run, metric: str | None) -> tuple[str, str, dict[str, Any]] | None:
    """On what a run was judged, by the metric or one that is known, and all it told of that."""
    for split, told in run.evaluations:
        names = (metric,) if metric else KNOWN_METRICS
        chosen = next((name for name in names if _is_number(told, name)), None)
        if chosen is not None and _is_number(told, "live"):
            return split, chosen, told
    return None


def _is_number(told: dict[str, Any], name: str) -> bool:
    return isinstance(told.get(name), int | float)


def _why_left_out(run: _Run, metric: str | None) -> str:
    """What there is to say of a run that cannot be drawn."""
    told = [told for _, told in run.evaluations if told]
    if not told:
        return "no evaluation yet"
    return str(told[0].get(FAILED, f"tells nothing of {metric or 'how well it does'}"))


def _why_no_run(path: Path) -> str:
    """What there is to say of a folder without runs."""
    if not path.exists():
        return "is not there"
    released = any(path.rglob(WEIGHTS_FILE))
    return "released, without its evaluations" if released else "no run there"


def _nothing_told(paths: Sequence[Path], runs: Sequence[_Run], metric: str | None) -> str:
    """Why there is nothing to compare."""
    told = [told for run in runs for _, told in run.evaluations]
    choices = [name for name in KNOWN_METRICS if any(_is_number(one, name) for one in told)]
    if metric and choices:
        return f"None of these runs tells of {metric}: choose from {', '.join(choices)}."
    named = ", ".join(map(str, paths))
    return f"There is no run with an evaluation in {named}: train some first."


def _group_names(names: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """What each run is called together with those of equal settings: their names without the seed.

    Where others would be called the same, it is their whole names.
    """
    bound = ({name: one[name] for name in one.keys() - FREE_IN_GROUPS} for one in settings)
    keys = [json.dumps(one, sort_keys=True) for one in bound]
    alike = defaultdict(list)
    for key, name in zip(keys, names, strict=True):
        alike[key].append(name)
    short = {
        key: ", ".join(dict.fromkeys(SEED.sub("", name) or name for name in group))
        for key, group in alike.items()
    }
    times = Counter(short.values())
    return [short[key] if times[short[key]] == 1 else ", ".join(alike[key]) for key in keys]


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


def _last_evaluation(run: Path) -> dict[str, Any]:
    """Metrics of the last evaluation, without the name of the split."""
    for line in reversed(read_lines(run / METRICS_FILE)):
        found = under(VALID, line)
        if found:
            return found
    return {}
