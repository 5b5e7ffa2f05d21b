"""Reproduce a table or figure of the paper: train its models in turn, then show ours beside theirs.

Every run has a folder of its own, `OUT/SCALE/TABLE/MODEL/seed-N`, with a `result.json` once it is
judged on the test data. What is there is not run again, and what was begun goes on; a run that
stands in several tables is made once.
"""

import gc
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from expire_span.analysis.figures import Outcome, save_figure
from expire_span.analysis.loss import loss_along
from expire_span.experiments import TABLES
from expire_span.experiments.scale import Scale
from expire_span.experiments.table import COLUMNS, Line, Table
from expire_span.model.memory import AdaptiveSpan, AnyMemory, Compressive, ExpireSpan, FixedSpan
from expire_span.tasks import PG19, Enwik8, Instruction, WikiText
from expire_span.training.distributed import take_device
from expire_span.training.evaluation import evaluate
from expire_span.training.experiment import Experiment
from expire_span.training.folder import EXPERIMENT_FILE, load_run
from expire_span.training.interruption import Stopped
from expire_span.training.loop import train
from expire_span.training.records import load_experiment

RESULT, CURVE, METRICS = "result.json", "valid_loss.json", "metrics.jsonl"
CURVE_ROWS = 8
NOT_RUN = "-"

Result = dict[str, Any]


def reproduce(
    table: Annotated[str, tyro.conf.Positional],
    scale: Scale = "single",
    out: Path = Path("runs/reproduce"),
    data: str | None = None,
    seeds: int | None = None,
    only: str | None = None,
    device: str | None = None,
) -> None:
    """Train all models of one table, print it with the paper's numbers, and draw it.

    Stop it at any time: the same command goes on.

    Args:
        table: which one, such as colliding; a wrong name lists them all.
        scale: smoke (seconds on a CPU), single (minutes a model on one GPU) or paper.
        out: folder for all runs and pictures.
        data: where the data set is; if left out, the folder in EXPIRE_SPAN_DATA, or data/.
        seeds: runs of each model; as many as the table has if left out.
        only: run just the models with this in their name; the others are shown if they are there.
        device: cpu, cuda ...; if left out, a GPU if there is one, and for smoke the CPU.
    """
    if table not in TABLES:
        raise ValueError(f"There is no table {table!r}: choose one of {', '.join(TABLES)}.")
    chosen, root = TABLES[table], out / scale
    for line in chosen.lines:
        if only is None or only in line.name:
            for seed in range(line.seeds if seeds is None else seeds):
                result = run_line(line, scale, seed, root, data=data, device=device)
                if chosen.picture == "stream" and "failed" not in result:
                    add_curve(folder_of(line, seed, root))
    results = {line.name: found_results(line, root) for line in chosen.lines}
    print(render(chosen, results))
    picture = root / f"{table}.png"
    outcomes = [_outcome(line, chosen, root) for line in chosen.lines]
    title = f"{chosen.title} ({chosen.label}, {scale} scale)"
    save_figure(picture, chosen.picture, outcomes, title, COLUMNS[chosen.metric][0])
    print(f"\nDrawn: {picture}")


def folder_of(line: Line, seed: int, root: Path) -> Path:
    """Where a run is kept."""
    return root / line.name / f"seed-{seed}"


def run_line(
    line: Line,
    scale: Scale,
    seed: int,
    root: Path,
    *,
    data: str | None = None,
    device: str | None = None,
) -> Result:
    """Train one model from one seed and judge it on the test data, or take what is there."""
    folder = folder_of(line, seed, root)
    if (folder / RESULT).exists():
        return json.loads((folder / RESULT).read_text())
    experiment = replace(line.experiment(scale), seed=seed)
    if device is not None:
        experiment = replace(experiment, device=device)
    if data is not None and isinstance(experiment.task, Enwik8 | PG19 | WikiText | Instruction):
        experiment = replace(experiment, task=replace(experiment.task, path=data))
    print(f"{line.label}, seed {seed}: {folder}", flush=True)
    try:
        result = _train_and_judge(experiment, folder)
    except torch.OutOfMemoryError:
        result = {"failed": "out of memory"}
    except Stopped as stop:
        message = f"stopped during {line.label}; everything is saved, the same command goes on"
        raise Stopped(message, stop.exit_status - 128) from None
    _write(folder / RESULT, result)
    return result


def add_curve(folder: Path) -> None:
    """Leave the loss along the validation text beside a run's result."""
    if (folder / CURVE).exists():
        return
    device = load_experiment(folder / EXPERIMENT_FILE).device
    experiment, model, _ = load_run(folder, device)
    curve = loss_along(
        model,
        experiment.task,
        "valid",
        batch=min(CURVE_ROWS, experiment.evaluation.batch),
        blocks=experiment.evaluation.blocks,
        precision=experiment.precision,
        progress=True,
    )
    _write(folder / CURVE, curve)


def found_results(line: Line, root: Path) -> list[Result]:
    """Results of all seeds that have been run."""
    paths = sorted((root / line.name).glob(f"seed-*/{RESULT}"))
    return [json.loads(path.read_text()) for path in paths]


def render(table: Table, results: Mapping[str, Sequence[Result]]) -> str:
    """The table in Markdown; where the paper has a number, it stands before ours."""
    columns: list[tuple[str, bool]] = []
    for name in (table.metric, *table.columns):
        if any(name in line.paper for line in table.lines):
            columns.append((name, True))
        columns.append((name, False))
    heads = [f"{COLUMNS[name][0]}, {'paper' if theirs else 'ours'}" for name, theirs in columns]
    rows = [["model", *heads, "runs"]]
    for line in table.lines:
        runs = results.get(line.name, [])
        cells = [
            _paper_cell(line, name) if theirs else _our_cell(runs, name, table.split)
            for name, theirs in columns
        ]
        rows.append([line.label, *cells, str(len(runs))])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [" | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    rule = "-|-".join("-" * width for width in widths)
    body = "\n".join(f"| {text} |" for text in (lines[0], rule, *lines[1:]))
    remark = f"\n\n{table.remark}" if table.remark else ""
    return f"\n{table.title} ({table.label})\n\n{body}{remark}"


def _train_and_judge(experiment: Experiment, folder: Path) -> Result:
    if take_device(experiment.device).type == "cuda":
        gc.collect()  # so that nothing of the model before is counted
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    valid = train(experiment, folder, resume=(folder / EXPERIMENT_FILE).exists())
    _, model, step = load_run(folder, experiment.device)
    assert step is not None  # it was saved by the line above
    settings = experiment.evaluation
    test = evaluate(
        model,
        experiment.task,
        "test",
        batch=settings.batch,
        blocks=settings.blocks,
        seed=experiment.seed,
        precision=experiment.precision,
        progress=True,
    )
    return {
        "steps": step,
        "tokens": step * experiment.batch * experiment.model.block,
        "parameters": sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        **_oracle(experiment),
        **_pace(folder / METRICS),
        **_plain(test),
        "valid": _plain(valid),
    }


def _oracle(experiment: Experiment) -> dict[str, float]:
    """How a perfect reader would do with as long a memory, if the task knows."""
    found = experiment.task.oracle(_reach(experiment.model.memory))
    return {} if found is None else {"oracle": found}


def _reach(memory: AnyMemory) -> int:
    """How many steps back a memory can reach in one layer."""
    match memory:
        case FixedSpan():
            return memory.span
        case Compressive():
            return memory.span + memory.compressed * memory.rate
        case ExpireSpan() | AdaptiveSpan():
            return memory.max_span


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what is said of single layers."""
    return {name: value for name, value in metrics.items() if "/" not in name}


def _pace(path: Path) -> dict[str, float]:
    """What a run says of its time and memory: the usual update, and the most memory."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    seconds = [line["seconds_per_step"] for line in lines if "seconds_per_step" in line]
    memory = [line["peak_memory_gb"] for line in lines if "peak_memory_gb" in line]
    return {"milliseconds": 1000 * statistics.median(seconds), "peak_gb": max(memory)}


def _write(path: Path, value: object) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(value, indent=2) + "\n")
    unfinished.replace(path)


def _values(runs: Sequence[Result], name: str, split: str) -> list[float]:
    """A number of all runs that have it; those on test data stand for themselves."""
    judged = [run.get("valid", {}) if split == "valid" else run for run in runs]
    pairs = zip(judged, runs, strict=True)
    found = (first.get(name, second.get(name)) for first, second in pairs)
    return [value for value in found if value is not None]


def _outcome(line: Line, table: Table, root: Path) -> Outcome:
    found = found_results(line, root)
    runs = [run for run in found if _values([run], table.metric, table.split)]
    curve = root / line.name / "seed-0" / CURVE
    paper = line.paper.get(table.metric)
    return Outcome(
        label=line.label,
        performance=_values(runs, table.metric, table.split),
        memory=_values(runs, "live", table.split),
        paper=paper if isinstance(paper, (int, float)) else None,
        oracle=next((run["oracle"] for run in runs if "oracle" in run), None),
        curve=json.loads(curve.read_text()) if curve.exists() else (),
    )


def _paper_cell(line: Line, name: str) -> str:
    value = line.paper.get(name, NOT_RUN)
    return value if isinstance(value, str) else format(value, COLUMNS[name][1])


def _our_cell(runs: Sequence[Result], name: str, split: str) -> str:
    """The mean of all seeds, with its spread if there are several."""
    values = _values(runs, name, split)
    if not values:
        return next((run["failed"] for run in runs if "failed" in run), NOT_RUN)
    form = COLUMNS[name][1]
    mean = format(statistics.mean(values), form)
    return f"{mean} ± {statistics.stdev(values):{form}}" if len(values) > 1 else mean
