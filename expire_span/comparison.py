"""A table as it stands: results of all runs so far, ours beside the paper's, printed and drawn.

Beside weights, a run leaves small files only; they and the tables can be copied elsewhere, and a
folder of copies is taken for the results themselves.
"""

import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from expire_span.analysis.figures import Outcome, save_figure
from expire_span.experiments.table import COLUMNS, Line, Table
from expire_span.training.disk import replace_text, written_whole
from expire_span.training.folder import EXPERIMENT_FILE, RESULT_FILE, read_result
from expire_span.training.log import METRICS_FILE, read_lines

CURVE = "valid_loss.json"
SMALL = (RESULT_FILE, CURVE, METRICS_FILE, EXPERIMENT_FILE)
NOT_RUN = "-"
BESIDE = " (beside others)"
TIMES = ("milliseconds", "seconds")

SMOKE = (
    "At `smoke` scale: models of a few units, after a few updates, on samples that come along. "
    "It shows that everything runs; its numbers mean nothing."
)
Result = dict[str, Any]


def compare(name: str, table: Table, root: Path) -> str:
    """The table with all results so far; it is also written and drawn, as NAME.md and NAME.png."""
    results = {line.name: found_results(line, root) for line in table.lines}
    if root.name == "smoke":
        table = replace(table, remark=SMOKE)
    text = render(table, results)
    replace_text(root / f"{name}.md", text.lstrip() + "\n")
    outcomes = [_outcome(line, table, root) for line in table.lines]
    title = f"{table.title} ({table.label}, {root.name} scale)"
    with written_whole(root / f"{name}.png") as path:
        save_figure(
            path, table.picture, outcomes, title + _subsets(results, "\n"), COLUMNS[table.metric][0]
        )
    return text


def copy_small(name: str, table: Table, root: Path, records: Path) -> None:
    """Copy all but the weights of a table's runs to `records`, and show the table of all there.

    Other machines may leave theirs in the same folder: a run that is done there is not replaced by
    one that is not, or that failed.
    """
    kept = records / root.name
    for folder in (one for line in table.lines for one in folders_of(line, root).values()):
        copies = kept / folder.relative_to(root)
        if _how_far(copies) <= _how_far(folder):
            _copy_files(folder, copies)
    compare(name, table, kept)


def _how_far(folder: Path) -> int:
    """2 for a run with a result, 1 for one that failed, 0 if it is not known yet."""
    path = folder / RESULT_FILE
    return 0 if not path.exists() else 1 if "failed" in read_result(path) else 2


def _copy_files(folder: Path, copies: Path) -> None:
    """A run's small files, and none but its own."""
    for name in SMALL:
        if (folder / name).exists():
            with written_whole(copies / name) as copy:
                shutil.copyfile(folder / name, copy)
        else:
            (copies / name).unlink(missing_ok=True)


def found_results(line: Line, root: Path) -> list[Result]:
    """Results of all seeds that have been run."""
    paths = [folder / RESULT_FILE for folder in folders_of(line, root).values()]
    return [read_result(path) for path in paths if path.exists()]


def folders_of(line: Line, root: Path) -> dict[int, Path]:
    """The runs that are there, by their seeds; folders that were given other names do not count."""
    found = {path.name.removeprefix("seed-"): path for path in (root / line.name).glob("seed-*/")}
    return {int(seed): found[seed] for seed in sorted(found) if seed.isdecimal()}


def render(table: Table, results: Mapping[str, Sequence[Result]]) -> str:
    """The table in Markdown; where the reference has a number, it stands before ours."""
    columns: list[tuple[str, bool]] = []
    for name in (table.metric, *table.columns):
        if any(name in line.paper for line in table.lines):
            columns.append((name, True))
        columns.append((name, False))
    heads = [
        f"{COLUMNS[name][0]}, {table.reference if theirs else 'ours'}" for name, theirs in columns
    ]
    rows = [["model", *heads, "runs"]]
    for line in table.lines:
        runs = results.get(line.name, [])
        cells = [
            _paper_cell(line, name) if theirs else _our_cell(runs, name, table.split)
            for name, theirs in columns
        ]
        missing = f" of {line.seeds}" if 0 < len(runs) < line.seeds else ""
        rows.append([line.label, *cells, f"{len(runs)}{missing}"])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [" | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    rule = "-|-".join("-" * width for width in widths)
    body = "\n".join(f"| {text} |" for text in (lines[0], rule, *lines[1:]))
    remark = f"\n\n{table.remark}" if table.remark else ""
    return f"\n{table.title} ({table.label}){_subsets(results)}\n\n{body}{remark}"


def _subsets(results: Mapping[str, Sequence[Result]], separator: str = "; ") -> str:
    """What the runs have read of their data sets, where that was not all, to end a title with."""
    runs = (run for found in results.values() for run in found)
    subsets = dict.fromkeys(run["subset"] for run in runs if run.get("subset"))
    return f"{separator}ours: {', '.join(subsets)}" if subsets else ""


def _values(runs: Sequence[Result], name: str, split: str) -> list[float]:
    """A number of all runs that have it; those on test data stand for themselves."""
    judged = [run.get("valid", {}) if split == "valid" else run for run in runs]
    pairs = zip(judged, runs, strict=True)
    found = (first.get(name, second.get(name)) for first, second in pairs)
    return [value for value in found if value is not None]


def _outcome(line: Line, table: Table, root: Path) -> Outcome:
    found = found_results(line, root)
    runs = [run for run in found if _values([run], table.metric, table.split)]
    folder = root / line.name / "seed-0"
    curve = folder / CURVE
    paper = line.paper.get(table.metric)
    return Outcome(
        label=line.label,
        performance=_values(runs, table.metric, table.split),
        memory=_values(runs, "live", table.split),
        paper=paper if isinstance(paper, (int, float)) else None,
        instead=_instead(line, found),
        oracle=next((run["oracle"] for run in runs if "oracle" in run), None),
        reach=next((run["reach"] for run in runs if "reach" in run), None),
        curve=read_result(curve) if curve.exists() else (),
        course=_course(read_lines(folder / METRICS_FILE), table.metric),
    )


def _instead(line: Line, runs: Sequence[Result]) -> str:
    """What is said of a model where it has no number, by the paper or by us."""
    paper = [f"paper: {told}" for told in line.paper.values() if isinstance(told, str)]
    ours = [f"ours: {run['failed']}" for run in runs if "failed" in run]
    return ", ".join(dict.fromkeys([*paper, *ours]))


def _course(lines: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[float, float]]:
    """The seconds of all updates up to each line, and the training metric there."""
    return [(seconds, line[metric]) for seconds, line in timed(lines) if metric in line]


def timed(lines: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """The lines that tell of updates, each with the seconds of all updates up to it.

    Updates just before a stop have not been timed: they count as those of the line before.
    """
    seconds, step, usual = 0.0, 0, None
    for line in lines:
        if "seconds_per_step" in line:
            made, pace = line["step"] - step, line["seconds_per_step"]
            known = min(line.get("timed_updates", made), made)
            seconds += pace * known + (usual or pace) * (made - known)
            step, usual = line["step"], pace
            yield seconds, line


def _paper_cell(line: Line, name: str) -> str:
    value = line.paper.get(name, NOT_RUN)
    return value if isinstance(value, str) else format(value, COLUMNS[name][1])


def _our_cell(runs: Sequence[Result], name: str, split: str) -> str:
    """The mean of all seeds, with its spread if there are several; times beside others' marked."""
    values = _values(runs, name, split)
    if not values:
        return next((run["failed"] for run in runs if "failed" in run), NOT_RUN)
    form = COLUMNS[name][1]
    mean = format(statistics.mean(values), form)
    spread = f" ± {statistics.stdev(values):{form}}" if len(values) > 1 else ""
    beside = name in TIMES and any(run.get("shared") for run in runs)
    return mean + spread + (BESIDE if beside else "") + _failed(runs)


def _failed(runs: Sequence[Result]) -> str:
    """How many of the runs have no number, and why, where some have one."""
    reasons = [run["failed"] for run in runs if "failed" in run]
    if not reasons:
        return ""
    return f" ({len(reasons)} of {len(runs)}: {', '.join(dict.fromkeys(reasons))})"
