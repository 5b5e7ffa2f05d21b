"""Performance against memory size over any set of runs (fig:corridor_result, fig:enwik8_span, ...).

Runs are compared by what they wrote about themselves: `result.json` if they have been judged on
test data, else the last evaluation in `metrics.jsonl`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT, METRICS, SETTINGS = "result.json", "metrics.jsonl", "experiment.json"
KNOWN_METRICS = ("bpb", "bpc", "perplexity", "accuracy", "error", "success", "reward", "return")


@dataclass(frozen=True)
class Size:
    """One run: how much it remembers, and how well it does."""

    run: str
    policy: str
    live: float
    metric: str
    performance: float
    split: str


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs among these folders and all below them."""
    found = [
        file.parent
        for path in paths
        for file in sorted(path.rglob(SETTINGS))
        if _judged(file.parent)
    ]
    if not found:
        named = ", ".join(map(str, paths))
        raise ValueError(f"There is no run with an evaluation in {named}: train some first.")
    return list(dict.fromkeys(found))


def read_size(run: Path, metric: str | None = None) -> Size:
    """What a run says of itself; of its metrics the first known one, if none is named."""
    if (run / RESULT).exists():
        split, found = "test", json.loads((run / RESULT).read_text())
    else:
        split, found = "valid", _last_evaluation(run)
    chosen = metric or next((name for name in KNOWN_METRICS if name in found), None)
    if chosen is None or chosen not in found or "live" not in found:
        names = ", ".join(name for name in found if "/" not in name)
        raise ValueError(f"{run} has no {metric or 'metric that is known'}: choose from {names}.")
    settings = json.loads((run / SETTINGS).read_text())
    policy = settings["model"]["memory"]["kind"]
    return Size(run.name, policy, found["live"], chosen, found[chosen], split)


def _judged(run: Path) -> bool:
    return (run / RESULT).exists() or bool(_last_evaluation(run))


def _last_evaluation(run: Path) -> dict[str, Any]:
    """Metrics of the last evaluation, without the name of the split."""
    path = run / METRICS
    lines = path.read_text().splitlines() if path.exists() else []
    for line in reversed(lines):
        found = {
            name.removeprefix("valid/"): value
            for name, value in json.loads(line).items()
            if name.startswith("valid/")
        }
        if found:
            return found
    return {}
