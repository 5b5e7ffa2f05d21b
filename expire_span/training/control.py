"""How much memory costs at each step: a constant, a schedule, or whatever meets a target.

The memory policy has a coefficient (the paper's alpha); what is decided here is the weight that
multiplies it. With a target, a controller moves the weight until live memory meets the target.

The law. Let e = log(live / target), live smoothed over some steps. The weight is sinh(u), and

    u <- u + GAIN * (change of e + e / INTEGRAL)

which is a PI controller: u is GAIN times the error and its sum over time. Why so:

- Under Adam a constant weight moves spans at a steady pace rather than to a place, so the error
  itself must be in u: with the sum alone, live memory would swing around its target for ever.
- sinh is proportional for small u and exponential for large u of either sign. A weight can thus be
  found over orders of magnitude, and can change its sign: a penalty only ever shortens spans, so a
  run that had become too short while its task was satisfied could not come back otherwise.
- e counts for at most 1 in the sum. While spans are still far away and on their way, the sum would
  otherwise go on growing and carry them past the target.
- Nothing happens until the stream is longer than the longest span: memory is still filling.

All of it stays on the device, so that no step waits for it.
"""

import math
from typing import Any

import torch
from torch import Tensor

from expire_span.model.memory import MemoryPolicy
from expire_span.training.schedule import PenaltySchedule

GAIN = 2.0
INTEGRAL = 100.0  # steps in which an error of 1 adds as much to u as its coming did
SMOOTHING = 20.0  # steps
LARGEST = 6.0  # of |u|: weights up to 200 times the policy's own coefficient


class PenaltyControl:
    """The weight of the penalty from step to step.

    Args:
        schedule: when it begins, and what it aims for.
        memory: the policy whose penalty it weighs.
        block: steps of the stream in one update.
        device: where the live memory is counted.
    """

    def __init__(
        self, schedule: PenaltySchedule, memory: MemoryPolicy, block: int, device: torch.device
    ):
        self._schedule = schedule
        self._filled = -(-(memory.longest_learned_span() or 0) // block)
        self.opened: int | None = None
        start = [math.asinh(1.0), 0.0, 0.0, 0.0]  # u, log of live memory, error before, steps seen
        self._state = torch.tensor(start, dtype=torch.float64, device=device)
        if schedule.target_live is not None and not getattr(memory, "penalty", 0) > 0:
            raise ValueError(
                f"target_live needs a memory with a penalty above 0, the coefficient to begin "
                f"with, but {type(memory).__name__} has none: set model.memory.penalty."
            )

    def weight(self, step: int, metric: float | None, higher_is_better: bool) -> float | Tensor:
        """What multiplies the penalty in update `step`, which may be the first to have one.

        Args:
            step: updates made so far.
            metric: the task's metric as last reported.
            higher_is_better: how to read it.
        """
        if self.opened is None and self._schedule.opens(step, metric, higher_is_better):
            self.opened = step
        factor = self._schedule.factor(step, self.opened)
        if self._schedule.target_live is None:
            return factor
        return factor * torch.sinh(self._state[0]).float()

    def observe(self, step: int, live: Tensor) -> None:
        """Update `step` had so many live memories, mean over layers, rows and ranks."""
        target = self._schedule.target_live
        if target is None or self.opened is None or step < max(self.opened, self._filled):
            return
        u, smoothed, before, seen = self._state.unbind()
        now = live.detach().double().clamp(min=1e-3).log()
        # Smoothing starts as a plain mean, and an error that was not there before is no change.
        smoothed = smoothed + (now - smoothed) / (seen + 1).clamp(max=SMOOTHING)
        error = smoothed - math.log(target)
        change = torch.where(seen > 0, error - before, 0)
        u = (u + GAIN * (change + error.clamp(-1, 1) / INTEGRAL)).clamp(-LARGEST, LARGEST)
        # A fault is for the guard to name; it must not stay here.
        state = torch.stack([u, smoothed, error, seen + 1])
        self._state = torch.where(torch.isfinite(now), state, self._state)

    def tensors(self) -> dict[str, Tensor]:
        """The controller's state."""
        return {"state": self._state}

    def values(self) -> dict[str, Any]:
        """When the penalty began."""
        return {"opened": self.opened}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Go on from what `tensors` and `values` returned."""
        self._state = tensors["state"].to(self._state.device)
        self.opened = values["opened"]
