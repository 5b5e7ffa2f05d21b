"""What a run says about itself: lines of metrics, and a watch on its spans.

Shapes: B rows, T steps, N keys of a row.
"""

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.utils.tensorboard.writer import SummaryWriter

from expire_span.model.transformer import MemoryStats, Step


class MetricLog:
    """Appends metrics to `metrics.jsonl` and to TensorBoard files in the same folder.

    Lines of a run that was stopped and goes on from an earlier step are dropped from there on.
    """

    def __init__(self, folder: Path, step: int):
        self._path = folder / "metrics.jsonl"
        if self._path.exists():
            lines = self._path.read_text().splitlines(keepends=True)
            fresh = self._path.with_suffix(".new")
            fresh.write_text("".join(line for line in lines if _step_of(line) <= step))
            fresh.replace(self._path)
        self._board = SummaryWriter(str(folder), purge_step=step + 1 if step else None)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        """One line, stamped with the number of updates made."""
        with self._path.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
        for name, value in metrics.items():
            self._board.add_scalar(name, value, step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._board.close()


def _step_of(line: str) -> float:
    """The step of a line of metrics; infinity for one that was cut off when a run was killed."""
    try:
        return json.loads(line)["step"]
    except json.JSONDecodeError:
        return math.inf


class Means:
    """Running means of tensors, kept on their device until they are asked for."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, **values: Tensor) -> None:
        """Add one observation of each."""
        for name, value in values.items():
            value = value.detach().double()
            self._sums[name] = value if name not in self._sums else self._sums[name] + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, Tensor]:
        """The means so far, on the host; then begin again."""
        means = {name: (sum_ / self._counts[name]).cpu() for name, sum_ in self._sums.items()}
        self._sums, self._counts = {}, {}
        return means


def memory_metrics(means: dict[str, Tensor]) -> dict[str, float]:
    """Means of the fields of `MemoryStats` ([layers] each), over layers and for each layer."""
    metrics = {}
    for name in MemoryStats.__dataclass_fields__:
        by_layer = means[name]
        metrics[name] = by_layer.mean().item()
        metrics |= {f"{name}/layer_{n}": value.item() for n, value in enumerate(by_layer)}
    return metrics


@dataclass
class SpanGradients:
    """How much of the pull on spans comes from the task, and how much from the penalty.

    Watch a step before its backward pass, and ask for the share after it.
    """

    deadlines: Sequence[Tensor]
    from_penalty: Sequence[Tensor]

    @classmethod
    def watch(cls, step: Step, weight: float) -> "SpanGradients | None":
        """None where the penalty does not act through deadlines, or has no weight."""
        deadlines = [
            deadline
            for layer in step.deadlines
            for deadline in layer
            if deadline is not None and deadline.requires_grad
        ]
        if not deadlines or not weight or not step.penalty.requires_grad:
            return None
        priced = torch.autograd.grad(
            weight * step.penalty, deadlines, retain_graph=True, allow_unused=True
        )
        if all(gradient is None for gradient in priced):
            return None
        for deadline in deadlines:
            deadline.retain_grad()
        zeroed = [
            torch.zeros_like(d) if g is None else g for d, g in zip(deadlines, priced, strict=True)
        ]
        return cls(deadlines, zeroed)

    def task_share(self) -> Tensor:
        """|task| / (|task| + |penalty|), the absolute gradients summed over all memories."""
        task = penalty = self.from_penalty[0].new_zeros(())
        for deadline, priced in zip(self.deadlines, self.from_penalty, strict=True):
            total = torch.zeros_like(priced) if deadline.grad is None else deadline.grad
            task = task + (total - priced).abs().sum()
            penalty = penalty + priced.abs().sum()
        return task / (task + penalty).clamp(min=torch.finfo(task.dtype).tiny)


class SpanWatch:
    """Warns, once each, when all spans have collapsed to nothing or grown to the maximum."""

    def __init__(self, longest: int | None):
        self._longest = longest
        self._warned: set[str] = set()

    def look(self, step: int, metrics: dict[str, float]) -> None:
        """Compare the spans of all layers with what is possible."""
        if self._longest is None:
            return
        longest = max(value for name, value in metrics.items() if name.startswith("max_span/"))
        shortest = min(value for name, value in metrics.items() if name.startswith("mean_span/"))
        if longest < max(1.0, 0.005 * self._longest):
            self._warn(
                "collapsed",
                f"Step {step}: all spans have collapsed (the longest of a block is {longest:.1f} "
                f"of {self._longest} steps) and expired memories get no gradient to come back: "
                "start with a larger `initial`, lower the penalty, or let it wait (penalty.delay, "
                "penalty.after_metric).",
            )
        if shortest > 0.99 * self._longest:
            self._warn(
                "saturated",
                f"Step {step}: all spans are at their maximum of {self._longest} steps, so nothing "
                "is forgotten: raise the penalty or lower `initial`.",
            )

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, stacklevel=3)
