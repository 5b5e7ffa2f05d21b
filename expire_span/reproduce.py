"""Reproduce a table or figure of the paper: train its models in turn, then show ours beside theirs.

Every run has a folder of its own, `OUT/SCALE/TABLE/MODEL/seed-N`, with a `result.json` once it is
judged on the test data. What is there is not run again, and what was begun goes on; a run that
stands in several tables is made once. Each run is claimed by the process that makes it, so the same
command may be given several times side by side: each takes what is left.
"""

import gc
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import torch
import tyro

from expire_span.analysis.loss import loss_along
from expire_span.checks import require_at_least
from expire_span.comparison import (
    CURVE,
    Result,
    compare,
    copy_small,
    folders_of,
    timed,
)
from expire_span.experiments import TABLES
from expire_span.experiments.scale import Scale
from expire_span.experiments.table import Line, Table
from expire_span.locks import claim
from expire_span.model.transformer import Transformer
from expire_span.tasks import SPLITS, Task
from expire_span.training import checkpoint as checkpoints
from expire_span.training.disk import make_folder, replace_text
from expire_span.training.distributed import take_device
from expire_span.training.evaluation import Evaluation, bookmark_in
from expire_span.training.experiment import Experiment
from expire_span.training.folder import (
    CHECKPOINTS,
    EVALUATION,
    EXPERIMENT_FILE,
    RESULT_FILE,
    check_result,
    load_run,
    read_result,
)
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.log import METRICS_FILE, VALID, read_lines, under
from expire_span.training.loop import train
from expire_span.training.sources import SourceFiles

TEST = f"{EVALUATION}-test"
SHARED = "beside-others"
"""Left in a run's folder once others were seen on the same GPU; a run that goes on remembers it."""
FREE_IN_RESULTS = (
    "save_every",
    "device",
    "compile",
    "tracker",
    "evaluation.every",
    "task.path",
    "task.edition",
    "task.tokenizer",
)
"""Settings that a result does not depend on: how the run was watched, and where things lie."""
CURVE_ROWS = 8
CONTEXT_GB = 3.0
"""What a process may have on a GPU besides its tensors: code, and graphs of kernels."""


def reproduce(
    table: Annotated[str, tyro.conf.Positional],
    scale: Scale = "single",
    out: Path = Path("runs/reproduce"),
    data: str | None = None,
    seeds: int | None = None,
    only: str | None = None,
    records: Path | None = None,
    device: str | None = None,
) -> None:
    """Train all models of one table, print it with the paper's numbers, and draw it.

    Stop it at any time: the same command goes on. Given again while it runs, it takes other models
    of the table, side by side with the first.

    Args:
        table: which one, such as colliding; a wrong name lists them all.
        scale: smoke (seconds on a CPU), single (minutes a model on one GPU) or paper.
        out: folder for all runs, tables and pictures.
        data: where the data set is; if left out, the folder in EXPIRE_SPAN_DATA, or data/. Smoke
            needs none.
        seeds: runs of each model; as many as the table has if left out.
        only: run just the models with this in their name; the others are shown if they are there.
        records: a second folder, for copies of all but the weights: tables, pictures, results,
            metrics and settings. As --out it stands for the first.
        device: cpu, cuda ...; if left out, a GPU if there is one, and for smoke the CPU.
    """
    if table not in TABLES:
        raise ValueError(f"There is no table {table!r}: choose one of {', '.join(TABLES)}.")
    chosen, root = TABLES[table], out / scale
    wanted = [line for line in chosen.lines if _is_named(line, only)]
    if not wanted:
        names = ", ".join(line.name for line in chosen.lines)
        raise ValueError(f"No model of {table} has {only!r} in its name: they are {names}.")
    require_at_least(1, seeds=seeds)
    if scale == "smoke" and data is not None:
        print("At smoke scale all data come along: --data is not looked at.")
        data = None
    if scale != "smoke" and take_device(device or "auto").type == "cpu":
        print(f"No GPU is used: at {scale} scale a model may take days on a CPU.", flush=True)
    _refuse_others(chosen, scale, root, data)
    if records is not None:
        _refuse_others(chosen, scale, records / scale, data)
    most = {line.name: line.seeds if seeds is None else seeds for line in wanted}
    _look_for_data(wanted, most, scale, root, data)
    try:
        for seed in range(max(most[line.name] for line in wanted)):
            for line in (one for one in wanted if seed < most[one.name]):
                known = (folder_of(line, seed, root) / RESULT_FILE).exists()
                curve = chosen.picture == "stream"
                result = run_line(line, scale, seed, root, data=data, device=device, curve=curve)
                if result is None:
                    print(f"{line.label}, seed {seed}: another process is at it", flush=True)
                if not known:  # whatever happens to the next one, this one is there to be seen
                    _show(table, root, records)
    finally:
        text = _show(table, root, records)
    print(f"{text}\n\nDrawn: {root / f'{table}.png'}")


def _look_for_data(
    lines: Sequence[Line], most: Mapping[str, int], scale: Scale, root: Path, data: str | None
) -> None:
    """Say what is missing before anything is made, unless all that is wanted is there."""
    for line in lines:
        if len(folders_of(line, root)) < most[line.name]:
            _experiment_of(line, scale, 0, data).task.files()


def _is_named(line: Line, part: str | None) -> bool:
    """Whether this is part of a model's name, by its folder or in its table, in whatever case."""
    names = f"{line.name}\n{line.label}".lower()
    return part is None or part.lower() in names


def _show(table: str, root: Path, records: Path | None) -> str:
    """The table as it stands, drawn, and copied if that is wanted."""
    text = compare(table, TABLES[table], root)
    if records is not None:
        copy_small(table, TABLES[table], root, records)
    return text


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
    curve: bool = False,
) -> Result | None:
    """Train one model from one seed and judge it on the test data, or take what is there.

    With `curve`, also leave the loss along the validation text. None if another process is doing
    that at this moment.
    """
    folder = folder_of(line, seed, root)
    experiment = _experiment_of(line, scale, seed, data)
    if device is not None:
        experiment = replace(experiment, device=device)
    with claim(folder.with_suffix(".lock"), wait=False) as mine:
        if not mine:
            return None
        check_result(experiment, folder, FREE_IN_RESULTS)
        result = _found_result(line, experiment, folder)
        if result is None:
            print(f"{line.label}, seed {seed}: {folder}", flush=True)
            result = _made_result(line, experiment, folder)
            _write(folder / RESULT_FILE, result)
            _forget_bookmark(folder)
        if curve and "failed" not in result:
            with _asking_for_room(line):
                add_curve(experiment, folder)
        return result


def _experiment_of(line: Line, scale: Scale, seed: int, data: str | None) -> Experiment:
    experiment = replace(line.experiment(scale), seed=seed)
    if data is not None and experiment.task.has_data():
        experiment = replace(experiment, task=experiment.task.with_data(data))
    return experiment


def _refuse_others(table: Table, scale: Scale, root: Path, data: str | None) -> None:
    """Refuse a folder with results that would stand in the table, but are of something else.

    Before anything is trained, and whichever models were asked for: all that are there are shown.
    """
    for line in table.lines:
        for seed, folder in folders_of(line, root).items():
            if (folder / RESULT_FILE).exists():
                experiment = _experiment_of(line, scale, seed, data)
                check_result(experiment, folder, FREE_IN_RESULTS)
                _check_data(experiment.task, folder)


def _made_result(line: Line, experiment: Experiment, folder: Path) -> Result:
    """Train and judge a model; one that cannot be trained has a result that says so."""
    beside_others = _gpu_is_shared(experiment.device)
    try:
        with _asking_for_room(line):
            return _train_and_judge(experiment, folder)
    except TooLarge:
        if beside_others or _gpu_is_shared(experiment.device):
            raise ValueError(
                f"{line.label} ran out of memory beside other work on the same GPU: give the same "
                "command again when there is room."
            ) from None
        return {"failed": "out of memory"}
    except NotFinite as error:
        print(f"{line.label} has diverged. {error}", flush=True)
        return {"failed": "diverged", "because": str(error)}
    except Stopped as stop:
        message = f"stopped during {line.label}; everything is saved, the same command goes on"
        raise stop.saying(message) from None


class TooLarge(Exception):
    """A model did not fit on the GPU in training."""


@contextmanager
def _asking_for_room(line: Line) -> Iterator[None]:
    """What was trained has once fitted: if it does not now, that says nothing of the model."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise ValueError(
            f"{line.label} is trained, but the GPU has no memory left to judge it: give the same "
            "command again when there is room."
        ) from None


def _found_result(line: Line, experiment: Experiment, folder: Path) -> Result | None:
    """What came of a run that is done, on the same data."""
    path = folder / RESULT_FILE
    if not path.exists():
        return None
    result = read_result(path)
    if "failed" in result:
        print(f"{line.label} failed before ({result['failed']}): remove {folder} to try again.")
    _check_data(experiment.task, folder)
    return result


def _check_data(task: Task, folder: Path) -> None:
    """Refuse a result on other data than those at hand."""
    theirs = read_result(folder / RESULT_FILE).get("data")  # older results do not tell
    ours = _data_at_hand(task) if theirs else None
    if ours not in (None, theirs):
        raise ValueError(
            f"{folder} was run on other data than those at hand: name the same by --data, move it "
            "away, or choose another folder."
        )


@cache  # data may have to be prepared first, and lines of a table share them
def _data_at_hand(task: Task) -> dict[str, str] | None:
    """Fingerprints of the data, by split; None if the data are made up, or cannot be read here."""
    if not task.has_data():
        return None
    try:
        return {split: task.stream(split, batch=1, seed=0).contents for split in SPLITS}
    except (FileNotFoundError, ValueError):
        return None


def add_curve(experiment: Experiment, folder: Path) -> None:
    """Leave the loss along the validation text beside a run's result, if its weights are here."""
    if (folder / CURVE).exists():
        return
    if checkpoints.latest(folder / CHECKPOINTS) is None:
        print(f"{folder}: no curve: the weights are not here", flush=True)
        return
    _, model, _ = load_run(folder, experiment.device)
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


def _train_and_judge(experiment: Experiment, folder: Path) -> Result:
    _note_sharing(experiment, folder)
    valid = _last_evaluation(experiment, folder)
    if valid is None:
        try:
            valid = train(experiment, folder, resume=(folder / EXPERIMENT_FILE).exists())
        except torch.OutOfMemoryError as error:
            raise TooLarge from error
    _note_sharing(experiment, folder)
    _, model, step = load_run(folder, experiment.device)
    assert step is not None  # it was saved by the line above
    return {
        "steps": step,
        "tokens": step * experiment.batch * experiment.model.block,
        "parameters": sum(parameter.numel() for parameter in model.parameters()) / 1e6,
        "shared": (folder / SHARED).exists(),
        "data": _data_at_hand(experiment.task),
        "subset": experiment.task.subset(),
        **_oracle(experiment),
        **_pace(folder / METRICS_FILE),
        **_plain(_judge(experiment, model, folder)),
        "valid": _plain(valid),
    }


def _last_evaluation(experiment: Experiment, folder: Path) -> dict[str, float] | None:
    """The evaluation with which training ended, if it has: then only the test data are left."""
    newest = checkpoints.latest(folder / CHECKPOINTS)
    if newest is None or int(newest.name.split("-")[-1]) != experiment.steps:
        return None
    saved = checkpoints.load_shared(newest).values["sources"]
    SourceFiles(experiment.task.files()).compare(saved)  # or it would be judged on other data
    for line in read_lines(folder / METRICS_FILE):
        found = under(VALID, line)
        if found and line["step"] == experiment.steps:
            return found
    return None


def _judge(experiment: Experiment, model: Transformer, folder: Path) -> dict[str, float]:
    """The metrics on the test data; stopped, it goes on where it was."""
    evaluation = Evaluation.of(experiment, model, "test")
    with bookmark_in(folder / TEST) as bookmark, Interruption() as interruption:
        if bookmark is not None:
            bookmark.find(evaluation)
        return evaluation.run(progress=True, bookmark=bookmark, interruption=interruption)


def _forget_bookmark(folder: Path) -> None:
    """Where judging stood is of no use once its result is written."""
    with bookmark_in(folder / TEST) as bookmark:
        if bookmark is not None:
            bookmark.remove()


def _note_sharing(experiment: Experiment, folder: Path) -> None:
    """Leave word in the folder if others are on the same GPU."""
    if _gpu_is_shared(experiment.device):
        make_folder(folder)
        (folder / SHARED).touch()


def _gpu_is_shared(device: str) -> bool:
    """Whether others have something on the same GPU: then times are not a model's own.

    Frees what this process holds for later, so that nothing of the model before is counted.
    """
    if take_device(device).type != "cuda":
        return False
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() > CONTEXT_GB * 1e9


def _oracle(experiment: Experiment) -> dict[str, float]:
    """How a perfect reader would do with as long a memory on as much, if the task knows."""
    reach, blocks = experiment.model.memory.reach(), experiment.evaluation.blocks
    length = None if blocks is None else blocks * experiment.model.block
    found = experiment.task.oracle(reach, length)
    return {} if found is None else {"reach": reach, "oracle": found}


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Without what is said of single layers."""
    return {name: value for name, value in metrics.items() if "/" not in name}


def _pace(path: Path) -> dict[str, float]:
    """What a run says of its time and memory: the usual update, all of them, the most memory."""
    found = list(timed(read_lines(path)))
    if not found:  # its metrics were lost
        return {}
    totals, lines = zip(*found, strict=True)
    return {
        "milliseconds": 1000 * statistics.median(line["seconds_per_step"] for line in lines),
        "seconds": totals[-1],
        "peak_gb": max(line["peak_memory_gb"] for line in lines),
    }


def _write(path: Path, value: object) -> None:
    replace_text(path, json.dumps(value, indent=2) + "\n")
