"""Figures of a table: beside the paper's numbers, over memory sizes, along a text or training."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan, log, nan
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from expire_span.analysis.pictures import COLOURS, memory_axis
from expire_span.looks import look_of

SMOOTH = 4  # blocks to average over in a curve
OURS, PAPER = "#1b1f24", "#a9a9a9"  # colours that no kind of memory has
WIDEST = 100  # letters in a line of a title
TICKS = (1, 1.1, 1.2, 1.3, 1.5, 2, 3, 4, 5, 7)  # of each decade


@dataclass(frozen=True)
class Outcome:
    """One model: its results from every seed, and what is to be drawn of it.

    `oracle` is what a perfect reader does with a memory of `reach` steps. `instead` is said where a
    number is missing, such as that the paper's model ran out of memory.
    """

    label: str
    performance: Sequence[float]
    memory: Sequence[float]
    paper: float | None = None
    oracle: float | None = None
    reach: float | None = None
    instead: str = ""
    curve: Sequence[float] = ()
    course: Sequence[tuple[float, float]] = ()

    @property
    def family(self) -> str:
        """The kind of memory, by which models are coloured."""
        return self.label.split(": ")[-1].replace(",", " ").split()[0]


def draw_beside(axes: Axes, outcomes: Sequence[Outcome], heading: str) -> None:
    """One model a line: runs as points, a stroke for the paper's number, and a perfect reader's."""
    rows = list(enumerate(outcomes))
    paper = [(one.paper, row) for row, one in rows if one.paper is not None]
    oracle = [(one.oracle, row) for row, one in rows if one.oracle is not None]
    ours = [(value, row) for row, one in rows for value in one.performance]
    _draw_marks(axes, paper, "|", color=PAPER, ms=22, mew=4, label="paper")
    _draw_marks(axes, oracle, "d", color=OURS, mfc="none", ms=9, label="a perfect reader")
    _draw_marks(axes, ours, "o", color=OURS, ms=5, label="ours")
    within = axes.get_yaxis_transform()  # x from 0 to 1 across the frame
    for row, one in rows:
        if one.instead:
            height = row - 0.3 if one.performance else row  # above the points
            axes.text(0.5, height, one.instead, transform=within, ha="center", va="center")
    axes.set_yticks(range(len(rows)), labels=[outcome.label for outcome in outcomes])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(heading)
    if axes.lines:
        axes.legend(
            frameon=False,
            ncols=3,
            markerscale=0.6,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.15),
        )


def _draw_marks(axes: Axes, places: Sequence[tuple[float, int]], marker: str, **look: Any) -> None:
    """A mark at each number, in the row of its model."""
    if places:
        axes.plot(*zip(*places, strict=True), marker, **look)


def draw_memory(axes: Axes, outcomes: Sequence[Outcome], heading: str) -> None:
    """Every run as a point: how much it remembers, and how well it does; and a perfect reader."""
    for family in dict.fromkeys(outcome.family for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.family == family]
        look = look_of(family)
        axes.plot(
            [memory for outcome in mine for memory in outcome.memory],
            [value for outcome in mine for value in outcome.performance],
            look.marker,
            color=look.colour,
            label=family,
        )
    perfect = sorted({(o.reach, o.oracle) for o in outcomes if o.reach and o.oracle is not None})
    if perfect:
        axes.plot(*zip(*perfect, strict=True), "k--", lw=1, label="a perfect reader")
    memory_axis(axes)
    axes.set_ylabel(heading)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def draw_stream(axes: Axes, outcomes: Sequence[Outcome], heading: str) -> None:
    """Bits along the text, averaged over a few blocks; a gap where none of them is scored."""
    for number, outcome in enumerate(outcomes):
        curve = outcome.curve
        means = [
            _mean_scored(curve[first : first + SMOOTH]) / log(2)
            for first in range(0, len(curve), SMOOTH)
        ]
        places = [100 * place * SMOOTH / max(len(curve), 1) for place in range(len(means))]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(places, means, lw=0.8, color=colour, label=outcome.label)
    axes.set_xlabel("place in the validation text, %")
    axes.set_ylabel(heading)
    axes.legend(frameon=False)


def _mean_scored(losses: Sequence[float]) -> float:
    """The mean of the losses that are there; NaN, which is not drawn, if there is none."""
    found = [loss for loss in losses if not isnan(loss)]
    return fmean(found) if found else nan


def draw_training(axes: Axes, outcomes: Sequence[Outcome], heading: str) -> None:
    """The metric over the seconds of all updates, averaged a little, and where each run ends."""
    for number, outcome in enumerate(outcomes):
        if not outcome.course and outcome.paper is None:
            continue
        colour = COLOURS[number % len(COLOURS)]
        parts = [outcome.course[n : n + SMOOTH] for n in range(0, len(outcome.course), SMOOTH)]
        seconds = [part[-1][0] for part in parts]
        means = [sum(value for _, value in part) / len(part) for part in parts]
        axes.plot(seconds, means, lw=1, color=colour, label=outcome.label)
        if seconds:
            ends = [seconds[-1]] * len(outcome.performance)
            axes.plot(ends, outcome.performance, "o", color=colour)
        if outcome.paper is not None:
            axes.axhline(outcome.paper, color=colour, ls=":", lw=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=TICKS))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("seconds of updates; points: judged at the end; dotted: the original code")
    axes.set_ylabel(f"{heading} in training")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


DRAW = {
    "beside": draw_beside,
    "memory": draw_memory,
    "stream": draw_stream,
    "training": draw_training,
}


def save_figure(
    path: Path, picture: str, outcomes: Sequence[Outcome], title: str, heading: str
) -> None:
    """Draw one figure into a file."""
    size = (9, 1.5 + max(0.45 * len(outcomes), 3))
    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches around everything
    figure, axes = plt.subplots(figsize=size, layout=layout)
    DRAW[picture](axes, outcomes, heading)
    figure.suptitle("\n".join(fill(line, WIDEST) for line in title.splitlines()), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
