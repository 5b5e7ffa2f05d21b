"""Pictures of what is kept and what it is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter


@dataclass(frozen=True)
class Bar:
    """One token in memory: when it came, how long it is meant to stay, and how it is drawn."""

    time: int
    span: float
    group: str


@dataclass(frozen=True)
class Point:
    """One model: how much it remembers, and how well it does."""

    name: str
    memory: float
    performance: float


# Colour-blind-safe, and apart from one another in grey too.
COLOURS = ("#d55e00", "#0072b2", "#bbbbbb", "#009e73", "#cc79a7")
MARKERS = ("o", "s", "^", "D", "v")


def memory_axis(axes: Axes) -> None:
    """The x-axis for live memories: few enough numbers in each decade that none touch."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("live memories per layer")


def draw_kept(axes: Axes, bars: Sequence[Bar], ramp: int, groups: Sequence[str]) -> None:
    """Each token as a line from its arrival to its deadline, and thinner on the ramp after it."""
    for group, colour in zip(groups, COLOURS, strict=False):
        mine = [bar for bar in bars if bar.group == group]
        times = [bar.time for bar in mine]
        deadlines = [bar.time + bar.span for bar in mine]
        gone = [deadline + ramp for deadline in deadlines]
        axes.hlines(times, times, deadlines, color=colour, linewidth=2.2, label=group)
        axes.hlines(times, deadlines, gone, color=colour, linewidth=0.7)
    axes.invert_yaxis()
    axes.set_xlabel("time (steps)")
    axes.set_ylabel("token, in order of arrival")
    axes.legend(loc="lower left", frameon=False)


def draw_performance(axes: Axes, points: Sequence[Point], label: str, chance: float) -> None:
    """Performance against memory size; up and to the left is better."""
    for n, point in enumerate(points):
        axes.scatter(
            point.memory,
            point.performance,
            color=COLOURS[n % len(COLOURS)],
            marker=MARKERS[n % len(MARKERS)],
            s=70,
            label=point.name,
            zorder=3,
        )
    axes.axhline(chance, color="black", linewidth=0.8, linestyle=":", label="chance")
    memory_axis(axes)
    axes.set_xlim(8, 200)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)


def picture_endings() -> tuple[str, ...]:
    """What the path of a picture may end in."""
    return tuple(f".{name}" for name in FigureCanvasBase.get_supported_filetypes())


def save_demo_picture(
    path: Path, bars: Sequence[Bar], ramp: int, points: Sequence[Point], chance: float
) -> None:
    """What Expire-Span kept, beside what each memory is worth."""
    figure, (kept, worth) = plt.subplots(
        1, 2, figsize=(12, 4.8), width_ratios=(1.5, 1), layout="constrained"
    )
    draw_kept(kept, bars, ramp, groups=("cue", "query", "filler"))
    kept.set_title("What Expire-Span keeps, and for how long")
    draw_performance(worth, points, "accuracy", chance)
    worth.set_title("Accuracy against memory")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
