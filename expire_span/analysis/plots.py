"""Plots of the analyses: PNG and SVG, with units and the run's name, legible in black and white.

Darker always means kept longer. Lines differ in dashes and markers, not in colour alone.

Shapes: T tokens, N blocks, layers.
"""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from expire_span.analysis.along import Along
from expire_span.analysis.classes import ClassSpan
from expire_span.analysis.counterfactual import Counterfactual
from expire_span.analysis.cut import Cut, Suffering
from expire_span.analysis.pictures import COLOURS, memory_axis
from expire_span.analysis.shaded import SHADES, ink
from expire_span.analysis.sizes import Size
from expire_span.looks import look_of, name_points

MOST_KINDS = 30  # of tokens in one picture, those kept longest; a table has all
MOST_WORDS = 15  # likewise, those that a cut costs most
DASHES = ("-", "--", ":", "-.")
LINES = ("#d55e00", "#0072b2", "#1b1f24", "#009e73", "#8a4f7d")  # all dark enough for a thin line


def save_plot(figure: Figure, path: Path) -> list[Path]:
    """Write PNG and SVG; `path` has neither ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for file in written:
        figure.savefig(file, dpi=150, bbox_inches="tight")
    plt.close(figure)
    return written


def plot_change(found: Counterfactual, run: str) -> Figure:
    """Spans of the replaced passage in each layer, and how those of all that follows change."""
    figure, (passages, change) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
    before, after = found.passage_spans()
    places = np.arange(len(before))
    labels = (found.replacement.old, found.replacement.new or "(nothing)")
    for side, (means, label, hatch) in enumerate(
        zip((before, after), labels, ("", "//"), strict=True)
    ):
        passages.bar(
            places + 0.4 * side - 0.2,
            means,
            width=0.38,
            color=(COLOURS[1], "white")[side],
            edgecolor=COLOURS[1],
            hatch=hatch,
            label=f"“{label}”",
        )
    passages.set_xticks(places, labels=[str(n + 1) for n in places])
    passages.set(xlabel="layer", ylabel="mean expire-span (steps)")
    passages.legend(frameon=False, fontsize=8)
    one, _ = found.same()
    change.plot(one, found.change().mean(axis=0), color="black", lw=0.6)
    change.set(xlabel="place in the text (tokens)", ylabel="change of span, mean of layers (steps)")
    change.axhline(0, color="grey", lw=0.6)
    figure.suptitle(f"{run}: {found.replacement}", fontsize=10)
    return figure


def plot_classes(found: Sequence[ClassSpan], run: str) -> Figure:
    """Mean span of every kind of token in every layer, as a table of shades with its numbers."""
    kinds = list(dict.fromkeys(one.kind for one in sorted(found, key=lambda one: -one.mean)))
    title = f"{run}: what each layer keeps"
    if len(kinds) > MOST_KINDS:
        title += f",\n{MOST_KINDS} of {len(kinds)} kinds, those kept longest"
        kinds = kinds[:MOST_KINDS]
    layers = max(one.layer for one in found)
    table = np.full((len(kinds), layers), np.nan)
    for one in (one for one in found if one.kind in kinds):
        table[kinds.index(one.kind), one.layer - 1] = one.mean
    size = (2.2 + 0.75 * layers, 1.2 + 0.34 * len(kinds))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    scale = Normalize(0, float(np.nanmax(table)))
    picture = axes.imshow(table, cmap=SHADES, norm=scale, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        colour = ink(SHADES(scale(value)))
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_yticks(range(len(kinds)), labels=kinds)
    axes.set_xticks(range(layers), labels=[str(n + 1) for n in range(layers)])
    axes.set(xlabel="layer")
    axes.set_title(title, fontsize=9)
    figure.colorbar(picture, label="mean expire-span (steps)")
    return figure


def plot_cut(found: Cut, worst: Sequence[Suffering], run: str, unit: str) -> Figure:
    """The words that a cut costs most: their loss with all memory and with less."""
    shown = list(worst)[:MOST_WORDS]
    size = (8, 1.6 + 0.3 * max(len(shown), 2))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    whole, cut = (mean / np.log(2) for mean in found.means())
    title = f"{run}:\n{whole:.3f} {unit} with all memory, {cut:.3f} cut at {found.limit} steps"
    if shown:
        _draw_words(axes, shown, found.limit)
        title += "\nwhat loses most by the cut, and how many steps earlier the same stood last"
    else:
        axes.text(0.5, 0.5, found.nothing_suffers().replace("; ", ";\n"), ha="center", va="center")
        axes.set_axis_off()
    figure.suptitle(title, fontsize=9)
    return figure


def _draw_words(axes: Axes, shown: Sequence[Suffering], limit: int) -> None:
    """A line for each word, from its loss with all memory to that with less."""
    places, whole, cut = np.arange(len(shown)), [w.whole for w in shown], [w.cut for w in shown]
    axes.hlines(places, whole, cut, color="grey", lw=1.2)
    axes.plot(whole, places, "o", mfc="white", mec=COLOURS[1], label="all memory")
    axes.plot(cut, places, "s", color=COLOURS[0], label=f"cut at {limit} steps")
    labels = [f"{_shown(w.before[-18:])}«{_shown(w.word)}»  {_ago(w)}" for w in shown]
    axes.set_yticks(places, labels=labels, family="monospace", fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set(xlabel="loss (bits, of all between « and » together)")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    axes.grid(axis="x", alpha=0.3)


def plot_along(found: Along, run: str, unit: str) -> Figure:
    """Loss along a stream, and under it the memory in use."""
    figure, (loss, live) = plt.subplots(
        2, 1, figsize=(9, 4.6), sharex=True, height_ratios=(1.3, 1), layout="constrained"
    )
    loss.plot(found.ends, found.bits, color="black", lw=0.7)
    loss.set(ylabel=f"loss ({unit})")
    loss.set_title(f"{run}: loss and memory along the stream", fontsize=10)
    for layer, values in enumerate(found.live):
        live.plot(
            found.ends,
            values,
            lw=1.0,
            color=LINES[layer % len(LINES)],
            ls=DASHES[layer % len(DASHES)],
            label=f"layer {layer + 1}",
        )
    live.set(xlabel="steps read", ylabel="live memories")
    live.legend(frameon=False, fontsize=7, ncols=6)
    for axis in (loss, live):
        axis.grid(alpha=0.3)
    return figure


def plot_sizes(found: Sequence[Size]) -> Figure:
    """Every run as a point, marked by its kind of memory; each setting named at its seeds' mean."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    means = _means(found)
    for policy in dict.fromkeys(one.policy for one in found):
        mine, look = [one for one in found if one.policy == policy], look_of(policy)
        for one in mine:
            live, performance = means[one.group]
            rays = ([one.live, live], [one.performance, performance])
            axes.plot(*rays, lw=0.6, color=look.colour, alpha=0.6)
        points = ([one.live for one in mine], [one.performance for one in mine])
        axes.plot(*points, look.marker, color=look.colour, label=look.name)
    memory_axis(axes)
    axes.margins(x=0.12, y=0.2)  # so that names have room
    axes.set_ylabel(f"{found[0].metric} ({found[0].split})")
    several = len(means) < len(found)
    joined = "; lines join seeds to their mean" if several else ""
    axes.set_title(f"Performance against memory size{joined}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    names = [(group, *place) for group, place in means.items()]
    name_points(axes, names, [(one.live, one.performance) for one in found])
    return figure


def _means(sizes: Sequence[Size]) -> dict[str, tuple[float, float]]:
    """Live memories and performance of runs of equal settings, by what they are called."""
    groups = dict.fromkeys(one.group for one in sizes)
    alike = {group: [one for one in sizes if one.group == group] for group in groups}
    return {
        group: (fmean(one.live for one in runs), fmean(one.performance for one in runs))
        for group, runs in alike.items()
    }


def _shown(text: str) -> str:
    return text.replace("\n", "↵").replace("$", r"\$")


def _ago(word: Suffering) -> str:
    return "never before" if word.last_seen is None else f"{word.last_seen} before"
