"""Schedules: pure functions of the number of updates made so far."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from expire_span.checks import (
    require_above_zero,
    require_at_least,
    require_not_negative,
    require_one_of,
)

Decay = Literal["constant", "cosine", "linear", "drop"]


@dataclass(frozen=True, kw_only=True)
class RateSchedule:
    """Linear warm-up, then constant, or down until the end of the run."""

    warmup: int = 0
    """Updates until the full rate is reached."""
    decay: Decay = "constant"
    """What follows; a drop is constant but for the `last` updates."""
    final: float = 0.0
    """Share of the rate that a decay ends with."""
    last: int = 0
    """Updates that a drop makes at that share."""

    def __post_init__(self) -> None:
        require_at_least(0, warmup=self.warmup, last=self.last)
        require_one_of(get_args(Decay), decay=self.decay)
        if not 0 <= self.final <= 1:
            raise ValueError(f"final is a share between 0 and 1, but is {self.final}.")

    def factor(self, step: int, steps: int) -> float:
        """Share of the peak rate for update number `step` (from 0) of `steps`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        done = (step - self.warmup) / max(steps - self.warmup, 1)
        match self.decay:
            case "constant":
                left = 1.0
            case "drop":
                left = 1.0 if step < steps - self.last else 0.0
            case "linear":
                left = 1 - done
            case "cosine":
                left = (1 + math.cos(math.pi * done)) / 2
        return self.final + (1 - self.final) * left


@dataclass(frozen=True, kw_only=True)
class PenaltySchedule:
    """When memory begins to cost something, and how much of it is wanted.

    Spans can collapse before the task is learned: optimisers that normalise gradients turn even a
    tiny penalty into a steady pull, nothing pulls against it yet, and an expired memory gets no
    gradient to come back. So the penalty can wait.
    """

    delay: int = 0
    """Updates without any penalty."""
    warmup: int = 0
    """Updates over which it then rises to its full weight."""
    after_metric: float | None = None
    """Wait, too, until the task's training metric has once been at least this good."""
    spans_wait: bool = False
    """Leave spans as they are at first until the penalty begins. Before the task is learned, what
    moves them is chance, which may shorten them below all that will be asked for."""
    while_metric: float | None = None
    """Once begun, turn round whenever the metric is worse than this: memory is paid for until the
    task is done well enough, so it shrinks as far as the task allows. A pause would not do:
    attention hardly feels that a memory fades before it is gone, so the task alone does not bring
    spans back. With a target the penalty only pauses. To begin only when the metric has once been
    as good, give it as `after_metric` as well."""
    while_band: float = 0.0
    """How much better than that it must be for the full weight, and worse to be turned round whole;
    in between the weight is in proportion. Without a band spans swing: what is reported of the
    metric is late, and by then the penalty has gone too far."""
    rest_after: int | None = None
    """Updates after which spans come to rest, if the penalty has begun, as soon as the metric is as
    good as `while_metric`: what predicts them stays as it is, memory costs nothing more, and the
    task is learned with what is left of it. While they shrink as far as the task allows, the task
    is always on the brink."""
    target_live: float | None = None
    """Live memories a layer to aim for: the weight is then adjusted until their mean is this."""

    def __post_init__(self) -> None:
        require_at_least(0, delay=self.delay, warmup=self.warmup)
        if self.rest_after is not None:
            require_at_least(0, rest_after=self.rest_after)
        require_not_negative(while_band=self.while_band)
        if self.while_band and self.while_metric is None:
            raise ValueError(
                f"while_band lies around a while_metric, but is {self.while_band} without one: "
                "give that, or a band of 0."
            )
        require_above_zero(target_live=self.target_live)

    def opens(self, step: int, metric: float | None, higher_is_better: bool) -> bool:
        """Whether the penalty may begin after update `step`, the metric standing where it does."""
        return step >= self.delay and _good_enough(metric, self.after_metric, higher_is_better)

    def closes(self, step: int, metric: float | None, higher_is_better: bool) -> bool:
        """Whether spans may come to rest after update `step`, the metric standing where it does."""
        due = self.rest_after is not None and step >= self.rest_after
        return due and _good_enough(metric, self.while_metric, higher_is_better)

    def consent(self, metric: float | None, higher_is_better: bool) -> float:
        """What a penalty that has begun is multiplied with, from 1 to -1, by where the metric
        stands; nothing is asked of memory while that is not known."""
        if self.while_metric is None:
            return 1.0
        if metric is None:
            return 0.0
        ahead = metric - self.while_metric if higher_is_better else self.while_metric - metric
        if self.while_band == 0:
            return 1.0 if ahead >= 0 else -1.0
        return max(-1.0, min(1.0, ahead / self.while_band))

    def factor(self, step: int, opened: int | None) -> float:
        """Share of the full penalty for update `step`; `opened` is when it began, None if not."""
        if opened is None or step < opened:
            return 0.0
        return min(1.0, (step - opened + 1) / self.warmup) if self.warmup else 1.0


def _good_enough(metric: float | None, wanted: float | None, higher_is_better: bool) -> bool:
    """Whether a metric, if known, is what is wanted, if anything is."""
    if wanted is None or metric is None:
        return wanted is None
    return metric >= wanted if higher_is_better else metric <= wanted
