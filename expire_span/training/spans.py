"""A watch on spans: what pulls at them, and whether they have all gone to one end.

Shapes: B rows, T steps, N keys of a row.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from expire_span.model.transformer import MemoryStats, Step

LOOK_EVERY = 50
"""Updates between two looks at the spans, whatever is logged. A look sees all since the one before,
so that spans which collapse after one are found at the second one after it."""
NOTHING, EVERYTHING = 0.005, 0.99
"""Shares of the longest span below and above which all spans have collapsed or saturated."""
EARLY = 1000
"""Updates in which little can have been learned: a layer that forgets all by then does so by
chance; later it may well have found that it needs nothing."""


def task_share(step: Step, loss: Tensor, penalty: Tensor) -> Tensor | None:
    """How much of the pull on spans comes from the task: |task| / (|task| + |penalty|).

    The absolute gradients on deadlines are summed over all memories. None where the penalty does
    not act through deadlines, or there is nothing to pull at.

    Args:
        step: what the model gave back, its graph still whole.
        loss: of the task.
        penalty: weighted price of memory.
    """
    deadlines = [
        deadline
        for layer in step.deadlines
        for deadline in layer
        if deadline is not None and deadline.requires_grad
    ]
    if not deadlines or not penalty.requires_grad:
        return None
    task, price = (
        torch.autograd.grad(part, deadlines, retain_graph=True, allow_unused=True)
        for part in (loss, penalty)
    )
    if all(gradient is None for gradient in price):
        return None
    by_task, by_price = (_absolute(gradients) for gradients in (task, price))
    return by_task / (by_task + by_price).clamp(min=torch.finfo(by_price.dtype).tiny)


def _absolute(gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.stack([g.abs().sum() for g in gradients if g is not None]).sum()


class SpanWatch:
    """Warns when spans have collapsed to nothing or grown to the maximum, once each time."""

    def __init__(self, longest: int | None):
        self._longest = longest
        self._state: str | None = None

    def due(self, step: int) -> bool:
        """Whether it is time to look."""
        return self._longest is not None and step % LOOK_EVERY == 0

    def look(self, step: int, stats: MemoryStats) -> None:
        """Compare the spans of all layers with what is possible.

        Args:
            step: updates made.
            stats: of all updates since the last look.
        """
        if self._longest is None:
            return
        longest, shortest = stats.max_span.max().item(), stats.mean_span.min().item()
        nothing = max(1.0, NOTHING * self._longest)
        layers, without = len(stats.max_span), int((stats.max_span < nothing).sum())
        if without == layers:
            self._enter(
                "collapsed",
                f"Step {step}: all spans have collapsed (the longest since the last look is "
                f"{longest:.1f} of {self._longest} steps) and expired memories get no gradient to "
                "come back: start with a larger `initial`, lower the penalty, or let it wait "
                "(penalty.delay, penalty.after_metric).",
            )
        elif 2 * without > layers and step <= EARLY:
            self._enter(
                "mostly collapsed",
                f"Step {step}: spans have collapsed in {without} of {layers} layers (to less than "
                f"{nothing:.0f} of {self._longest} steps) before much can have been learned, and "
                "expired memories get no gradient to come back: lower optimizer.span_rate, or "
                "start with a larger `initial`.",
            )
        elif shortest > EVERYTHING * self._longest:
            self._enter(
                "saturated",
                f"Step {step}: all spans are at their maximum of {self._longest} steps, so nothing "
                "is forgotten: raise the penalty or lower `initial`.",
            )
        else:
            self._state = None

    def _enter(self, state: str, message: str) -> None:
        if state != self._state:
            warnings.warn(message, stacklevel=3)
        self._state = state
