"""What a run measures of itself, kept on the device until it is asked for.

Shapes: E edges of a histogram.
"""

import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from expire_span.model.transformer import MemoryStats
from expire_span.training.distributed import ALONE, Ranks

LARGEST = frozenset({"max_span", "log_prob_drift"})  # the largest counts; of others, the mean


class Means:
    """Running means of tensors; of what `LARGEST` names, the largest so far."""

    def __init__(self) -> None:
        self._totals: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, **values: Tensor) -> None:
        """Add one observation of each."""
        for name, value in values.items():
            value = value.detach().double()
            before = self._totals.get(name)
            if before is not None:
                value = torch.maximum(before, value) if name in LARGEST else before + value
            self._totals[name] = value
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self, ranks: Ranks = ALONE) -> dict[str, Tensor]:
        """The means so far, over all ranks, on the host; then begin again."""
        means = {name: self._mean(name).cpu() for name in self._totals}
        self._totals, self._counts = {}, {}
        if ranks.alone:
            return means
        by_rank = ranks.gather(means)
        return {name: _over_ranks(name, [found[name] for found in by_rank]) for name in means}

    def tensors(self) -> dict[str, Tensor]:
        """What has been added up, by name."""
        return dict(self._totals)

    def counts(self) -> dict[str, int]:
        """How many observations of each."""
        return dict(self._counts)

    def restore(
        self, tensors: dict[str, Tensor], counts: dict[str, int], device: torch.device
    ) -> None:
        """Go on from what `tensors` and `counts` returned."""
        self._totals = {name: tensor.to(device) for name, tensor in tensors.items()}
        self._counts = dict(counts)

    def _mean(self, name: str) -> Tensor:
        total = self._totals[name]
        return total if name in LARGEST else total / self._counts[name]


def _over_ranks(name: str, found: Sequence[Tensor]) -> Tensor:
    stacked = torch.stack(list(found))
    return stacked.amax(dim=0) if name in LARGEST else stacked.mean(dim=0)


def combine(stats: Sequence[MemoryStats]) -> MemoryStats:
    """The statistics of several parts with equally many rows as those of one."""
    if len(stats) == 1:
        return stats[0]
    names = MemoryStats.__dataclass_fields__
    return MemoryStats(
        **{name: _over_ranks(name, [vars(s)[name] for s in stats]) for name in names}
    )


def memory_metrics(means: dict[str, Tensor]) -> dict[str, float]:
    """Means of the fields of `MemoryStats` ([layers] each), over layers and for each layer."""
    metrics = {}
    for name in MemoryStats.__dataclass_fields__:
        by_layer = means[name]
        overall = by_layer.amax() if name in LARGEST else by_layer.mean()
        metrics[name] = overall.item()
        metrics |= {f"{name}/layer_{n}": value.item() for n, value in enumerate(by_layer)}
    return metrics


def span_edges(longest: int) -> list[float]:
    """Edges of the bins that spans are counted in: 0, 1, 2, 4, ... up to the longest, [E].

    Example: 0, 1, 2, 4, 8, 10 for a longest span of 10.
    """
    powers = [2.0**n for n in range(64) if 2**n < longest]
    return [0.0, *powers, float(longest)]


def span_histogram(spans: Sequence[Tensor], longest: int) -> Tensor:
    """Share of the spans in each bin, for each layer: [layers, E - 1].

    A bin holds spans from its lower edge to below its upper one; the last holds the longest too.
    """
    lower = torch.tensor(span_edges(longest)[:-1], device=spans[0].device)
    at_least = torch.stack(
        [(s.flatten()[:, None] >= lower).double().mean(dim=0) for s in spans]
    )  # [layers, E - 1], from 1 down
    beyond = torch.nn.functional.pad(at_least[:, 1:], (0, 1))
    return at_least - beyond


class Pace:
    """Time and memory since the last look; without a GPU, the most memory so far.

    Args:
        tokens: tokens of one update, of all ranks together.
        device: whose memory counts.
        step: updates made so far.
    """

    def __init__(self, tokens: int, device: torch.device, step: int):
        self._tokens = tokens
        self._device = device
        self.restart(step)

    def restart(self, step: int) -> None:
        """Count from here."""
        self._step, self._time = step, time.perf_counter()
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def since_last(self, step: int) -> dict[str, float]:
        """Seconds per step, tokens per second and peak memory; then count from here.

        A run that was stopped between two lines tells of the updates since it went on.
        """
        updates = step - self._step
        seconds = (time.perf_counter() - self._time) / max(updates, 1)
        peak = peak_memory(self._device)
        self.restart(step)
        return {
            "seconds_per_step": seconds,
            "tokens_per_second": self._tokens / seconds,
            "peak_memory_gb": peak / 1e9,
            "timed_updates": updates,
        }


def peak_memory(device: torch.device) -> float:
    """Most bytes held: on a GPU by PyTorch since its last reset, else ever by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def summary(metrics: dict[str, Any], metric: str) -> dict[str, str]:
    """What matters most, for the progress bar."""
    names = (
        "loss",
        metric,
        "live",
        "held",
        "penalty_weight",
        "tokens_per_second",
        "peak_memory_gb",
    )
    short = {"penalty_weight": "weight", "tokens_per_second": "tok/s", "peak_memory_gb": "GB"}
    return {short.get(n, n): f"{metrics[n]:.4g}" for n in names if n in metrics}
