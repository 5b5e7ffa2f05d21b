"""Where metrics go: to `metrics.jsonl` and TensorBoard, to an online tracker if asked for."""

import importlib
import json
import math
import threading
import uuid
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

from torch.utils.tensorboard.writer import SummaryWriter

from expire_span.training.disk import flush, replace_text, writing

METRICS_FILE, HISTOGRAM, WANDB_ID = "metrics.jsonl", "span_histogram", "wandb-id"
VALID = "valid/"  # how the names of an evaluation's metrics begin
Metrics = dict[str, Any]
"""Numbers by name; under `HISTOGRAM`, the edges of its bins and the shares of each layer."""


class Sink(Protocol):
    """Takes metrics."""

    def write(self, step: int, metrics: Metrics) -> None:
        """One line, stamped with the number of updates made."""

    def close(self) -> None:
        """Nothing more will come."""


class JsonLines:
    """One JSON object a line, in `metrics.jsonl`.

    Lines of a run that was stopped and goes on from an earlier step are dropped from there on.
    """

    def __init__(self, folder: Path, step: int):
        self._path = folder / METRICS_FILE
        if self._path.exists():
            lines = self._path.read_text().splitlines()  # the last may be without its end
            kept = [f"{line}\n" for line in lines if _step_of(line) <= step]
            replace_text(self._path, "".join(kept))

    def write(self, step: int, metrics: Metrics) -> None:
        """Append a line."""
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def lines(self) -> list[Metrics]:
        """What has been written so far."""
        return read_lines(self._path)

    def flush(self) -> None:
        """Until every line is on the disk."""
        if self._path.exists():
            flush(self._path)

    def close(self) -> None:
        """Every line is already written."""


class TensorBoard:
    """TensorBoard files in the run's folder."""

    def __init__(self, folder: Path, step: int):
        self._writer = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        self._former, threading.excepthook = threading.excepthook, self._hear

    def write(self, step: int, metrics: Metrics) -> None:
        """Scalars, and for each layer a histogram of spans."""
        for name, value in metrics.items():
            if name == HISTOGRAM:
                self._write_histogram(step, value)
            else:
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still held back."""
        try:
            self._writer.close()
        finally:
            threading.excepthook = self._former

    def _hear(self, failure: threading.ExceptHookArgs) -> None:
        """Of a full disk `write` and `close` speak; the writer's own thread need not as well."""
        if not isinstance(failure.exc_value, OSError):
            self._former(failure)

    def _write_histogram(self, step: int, histogram: dict[str, list[float]]) -> None:
        edges = histogram["edges"]
        centres = [(low + high) / 2 for low, high in pairwise(edges)]
        for layer, shares in histogram.items():
            if layer == "edges":
                continue
            moments = [sum(s * c**n for s, c in zip(shares, centres, strict=True)) for n in (1, 2)]
            self._writer.add_histogram_raw(
                f"spans/{layer}", min=edges[0], max=edges[-1], num=1, sum=moments[0],
                sum_squares=moments[1], bucket_limits=edges[1:], bucket_counts=shares,
                global_step=step,
            )  # fmt: skip


class OnlineTracker:
    """Weights & Biases, or trackio, which answers to the same calls.

    A run that goes on does so under what it had before: for trackio that is its name, for Weights &
    Biases an id, which is kept in the run's folder.
    """

    def __init__(self, name: str, folder: Path, settings: dict[str, Any]):
        self._library = tracker_library(name)
        same = {"id": _kept_id(folder / WANDB_ID)} if name == "wandb" else {}
        self._library.init(
            project="expire-span",
            name=folder.resolve().name,
            config=settings,
            resume="allow",
            **same,
        )

    def write(self, step: int, metrics: Metrics) -> None:
        """Scalars only."""
        scalars = {name: value for name, value in metrics.items() if name != HISTOGRAM}
        self._library.log(scalars, step=step)

    def close(self) -> None:
        """Tell it that the run is over."""
        self._library.finish()


def tracker_library(name: str) -> Any:
    """The module of that tracker, imported only now."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"tracker is {name}, which is not installed: `pip install {name}`, or leave the "
            "tracker out (metrics.jsonl and TensorBoard files are always written)."
        ) from None


class MetricLog:
    """Hands metrics to all sinks.

    Args:
        folder: the run's.
        step: from which the run goes on; what was written after it is dropped.
        tracker: an online tracker to tell as well.
        settings: the experiment as plain values, for the tracker.
    """

    def __init__(
        self, folder: Path, step: int, tracker: str = "none", settings: Metrics | None = None
    ):
        self._lines = JsonLines(folder, step)
        self._sinks: list[Sink] = [self._lines, TensorBoard(folder, step)]
        if tracker != "none":
            self._sinks.append(OnlineTracker(tracker, folder, settings or {}))

    def write(self, step: int, metrics: Metrics) -> None:
        """One line, stamped with the number of updates made."""
        for sink in self._sinks:
            with writing(f"The metrics of step {step}"):
                sink.write(step, metrics)

    def find(self, step: int, prefix: str) -> dict[str, float] | None:
        """What was written for this step under names with a prefix, without it; None if nothing."""
        for line in reversed(self._lines.lines()):
            found = under(prefix, line)
            if line["step"] == step and found:
                return found
        return None

    def flush(self) -> None:
        """Until every line is on the disk."""
        with writing("The metrics"):
            self._lines.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        for sink in self._sinks:
            # If something has gone wrong already, that is what must be heard.
            with suppress(OSError) if kind else writing("The last metrics"):
                sink.close()


def read_lines(path: Path) -> list[Metrics]:
    """All lines of metrics in a file, but one that was cut off when a run was killed."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if _step_of(line) < math.inf]


def under(prefix: str, line: Metrics) -> Metrics:
    """What a line has under names with a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in line.items() if name.startswith(prefix)}


def _kept_id(path: Path) -> str:
    """What the file says, a new id if there is none."""
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text().strip()


def _step_of(line: str) -> float:
    """The step of a line of metrics; infinity for one that was cut off when a run was killed."""
    try:
        return json.loads(line)["step"]
    except json.JSONDecodeError:
        return math.inf
