"""How much memory costs at each step: a constant, a schedule, or whatever meets a target.

The memory policy has a coefficient (the paper's alpha); what is decided here is the weight that
multiplies it. With a target, a controller moves the weight until live memory meets the target.

The law. Let e = log(live / target), live smoothed over some steps, and c = e cut to -CUT .. CUT:

    weight = sinh(GAIN * c + s)        s = sum of c / INTEGRAL over the steps that count

which is a PI controller. Why so:

- Under Adam a constant weight moves spans at a steady pace rather than to a place, so the error
  itself must be in the weight: by its sum alone, live memory would swing around its target.
- sinh is proportional near 0 and exponential far from it, on either side. A weight can thus be
  found over orders of magnitude, and can change its sign: a penalty only ever shortens spans, so a
  run whose spans had become too short while its task was satisfied could not come back otherwise.
- A step counts in the sum unless live memory is far from its target and on its way there. The sum
  would otherwise go on growing on the way, and carry the spans past the target.
- The error is cut because more of it says nothing new, and a huge penalty would, where all
  gradients are clipped together, leave nothing of the task's.
- The weight is 0 until the stream is longer than the longest span: memory is still filling.

All of it stays on the device, so that no step waits for it.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from expire_span.model.memory import MemoryPolicy
from expire_span.training.schedule import PenaltySchedule

GAIN = 10.0
CUT = 0.4
INTEGRAL = 15.0  # steps in which an error of 1 would add 1 to the sum
SMOOTHING = 20.0  # steps, of live memory
PACE = 100.0  # steps, of the change of the error
NEAR = 0.25  # the error below which every step counts
ARRIVAL = 10_000.0  # steps in which the present pace would have to reach the target
LARGEST = 8.0  # of the sum


@dataclass(frozen=True)
class Standing:
    """Where a run stands before an update."""

    step: int  # updates made so far
    metric: float | None  # the task's, as last reported
    higher_is_better: bool = True  # how to read it


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
        self._filled = -(-getattr(memory, "max_span", 0) // block)
        self.opened: int | None = None  # the first update that had a penalty
        self.closed: int | None = None  # the first that left spans at rest
        # The weight's argument, the sum, the log of live memory, the error's pace, the steps seen.
        self._state = torch.zeros(5, dtype=torch.float64, device=device)
        if schedule.target_live is not None:
            _check_target(schedule.target_live, memory)

    def weight(self, now: Standing) -> Tensor:
        """What multiplies the penalty in the coming update, a scalar on the device."""
        begun = None if self._resting(now) is not None else self._begun(now)
        factor = self._schedule.factor(now.step, begun)
        consent = self._schedule.consent(now.metric, now.higher_is_better)
        if self._schedule.target_live is None:
            signed = factor * consent if factor else 0.0
            return torch.full((), signed, device=self._state.device)
        return factor * max(consent, 0.0) * torch.sinh(self._state[0]).float()

    def spans_learn(self, now: Standing) -> bool:
        """Whether the coming update may move spans."""
        if self._resting(now) is not None:
            return False
        return self._begun(now) is not None or not self._schedule.spans_wait

    def observe(self, now: Standing, live: Tensor) -> None:
        """The update had so many live memories, mean over layers, rows and ranks."""
        self.opened, self.closed = self._begun(now), self._resting(now)
        if self.closed is not None:
            return
        target = self._schedule.target_live
        if target is None or self.opened is None or now.step < max(self.opened, self._filled):
            return
        if self._schedule.consent(now.metric, now.higher_is_better) <= 0:
            return  # what live memory does now is not the controller's doing
        _, total, before, pace, seen = self._state.unbind()
        log_live = live.detach().double().clamp(min=1e-3).log()
        # Smoothing starts as a plain mean, and the first value is no change.
        smoothed = before + (log_live - before) / (seen + 1).clamp(max=SMOOTHING)
        pace = pace + torch.where(seen > 0, smoothed - before - pace, 0) / PACE
        error = smoothed - math.log(target)
        arriving = (error * pace < 0) & (pace.abs() > error.abs() / ARRIVAL)
        counts = ~arriving | (error.abs() < NEAR)
        cut = error.clamp(-CUT, CUT)
        total = (total + torch.where(counts, cut / INTEGRAL, 0)).clamp(-LARGEST, LARGEST)
        state = torch.stack([GAIN * cut + total, total, smoothed, pace, seen + 1])
        # A fault is for the guard to name; it must not stay here.
        self._state = torch.where(torch.isfinite(log_live), state, self._state)

    def _begun(self, now: Standing) -> int | None:
        """The first update that has a penalty, if the coming one or any before it does."""
        if self.opened is not None:
            return self.opened
        opens = self._schedule.opens(now.step, now.metric, now.higher_is_better)
        return now.step if opens else None

    def _resting(self, now: Standing) -> int | None:
        """The first update that leaves spans at rest, if the coming one or any before it does.

        They have had a price by then.
        """
        if self.closed is not None or self.opened is None:
            return self.closed
        closes = self._schedule.closes(now.step, now.metric, now.higher_is_better)
        return now.step if closes else None

    def tensors(self) -> dict[str, Tensor]:
        """The controller's state."""
        return {"state": self._state}

    def values(self) -> dict[str, Any]:
        """When the penalty began, and when it ended."""
        return {"opened": self.opened, "closed": self.closed}

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Go on from what `tensors` and `values` returned."""
        self._state = tensors["state"].to(self._state.device)
        self.opened = values["opened"]
        self.closed = values.get("closed")  # older checkpoints know of no rest


def _check_target(target: float, memory: MemoryPolicy) -> None:
    """Refuse a target that nothing can be done about."""
    if not getattr(memory, "penalty", 0) > 0:
        raise ValueError(
            f"target_live needs a memory with a penalty above 0, the coefficient to begin with, "
            f"but {type(memory).__name__} has none: set model.memory.penalty."
        )
    ramp = getattr(memory, "ramp", 1)
    if target < ramp:
        raise ValueError(
            f"target_live is {target}, but memories that fade over {ramp} steps are never fewer "
            f"than that: choose more, or a shorter model.memory.ramp."
        )
