"""Plots of the analyses: PNG and SVG, with units and the run's name, legible in black and white.

Darker always means kept longer. Lines differ in dashes and markers, not in colour alone.

Shapes: T tokens, N blocks, layers.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import StrMethodFormatter
from numpy.typing import NDArray

from expire_span.analysis.along import Along
from expire_span.analysis.classes import ClassSpan
from expire_span.analysis.counterfactual import Counterfactual
from expire_span.analysis.cut import Cut, Suffering
from expire_span.analysis.pictures import COLOURS, MARKERS
from expire_span.analysis.sizes import Size

COLUMNS = 96  # characters in a line of a text that is drawn
MOST_CHARACTERS = 2400  # more cannot be read in one picture
SHADES = plt.get_cmap("YlGnBu")  # from light to dark in grey, too
DASHES = ("-", "--", ":", "-.")
CHARACTER, LINE = 0.105, 0.22  # inches


def save_plot(figure: Figure, path: Path) -> list[Path]:
    """Write PNG and SVG; `path` has neither ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for file in written:
        figure.savefig(file, dpi=150, bbox_inches="tight")
    plt.close(figure)
    return written


def plot_texts(
    titles: Sequence[str],
    texts: Sequence[Sequence[str]],
    values: Sequence[NDArray[np.floating]],
    *,
    run: str,
    frames: Sequence[Sequence[range]] = (),
) -> Figure:
    """Texts with each token shaded by its span, one above the other, all by the same scale.

    Args:
        titles: one for each text.
        texts: pieces of the tokens.
        values: spans of the tokens.
        run: its name.
        frames: passages of each text to be framed.
    """
    cuts = [_first_characters(text) for text in texts]
    grids = [_grid(text[:cut]) for text, cut in zip(texts, cuts, strict=True)]
    lines = [max(line for line, _ in grid) + 1 for grid in grids]
    shown = np.concatenate([value[:cut] for value, cut in zip(values, cuts, strict=True)])
    scale = Normalize(0, max(float(np.percentile(shown, 96)), 1.0))
    figure, axes = plt.subplots(
        len(texts),
        1,
        figsize=(COLUMNS * CHARACTER, sum(lines) * LINE + 0.45 * len(texts)),
        height_ratios=lines,
        squeeze=False,
        layout="constrained",
    )
    for n, (axis, title) in enumerate(zip(axes[:, 0], titles, strict=True)):
        _draw_text(axis, texts[n][: cuts[n]], values[n], grids[n], scale)
        for passage in frames[n] if frames else ():
            _frame(axis, [grids[n][k] for k in passage if k < cuts[n]])
        axis.set_title(title, loc="left", fontsize=9)
    bar = figure.colorbar(
        ScalarMappable(scale, SHADES), extend="max", ax=axes[:, 0].tolist(), fraction=0.02, pad=0.01
    )
    bar.set_label("expire-span (steps)", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    figure.suptitle(run, fontsize=9, x=0.01, ha="left", family="monospace")
    return figure


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
    layers = max(one.layer for one in found) + 1
    table = np.full((len(kinds), layers), np.nan)
    for one in found:
        table[kinds.index(one.kind), one.layer] = one.mean
    size = (2.2 + 0.75 * layers, 1.2 + 0.34 * len(kinds))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    scale = Normalize(0, float(np.nanmax(table)))
    picture = axes.imshow(table, cmap=SHADES, norm=scale, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        colour = _ink(SHADES(scale(value)))
        axes.text(column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set_yticks(range(len(kinds)), labels=kinds)
    axes.set_xticks(range(layers), labels=[str(n + 1) for n in range(layers)])
    axes.set(xlabel="layer")
    axes.set_title(f"{run}: what each layer keeps", fontsize=9)
    figure.colorbar(picture, label="mean expire-span (steps)")
    return figure


def plot_cut(found: Cut, worst: Sequence[Suffering], run: str) -> Figure:
    """The words that a cut costs most: their loss with all memory and with less."""
    shown = list(worst)[:15]
    figure, axes = plt.subplots(figsize=(8, 1.3 + 0.3 * len(shown)), layout="constrained")
    places = np.arange(len(shown))
    axes.hlines(places, [w.whole for w in shown], [w.cut for w in shown], color="grey", lw=1.2)
    whole, cut = ([w.whole for w in shown], [w.cut for w in shown])
    axes.plot(whole, places, "o", mfc="white", mec=COLOURS[1], label="all memory")
    axes.plot(cut, places, "s", color=COLOURS[0], label=f"cut at {found.limit} steps")
    labels = [f"{_shown(w.before[-18:])}[{_shown(w.word)}]  {_ago(w)}" for w in shown]
    axes.set_yticks(places, labels=labels, family="monospace", fontsize=7)
    axes.invert_yaxis()
    axes.set(xlabel="loss of the word (bits)")
    axes.legend(frameon=False, fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    means = " to ".join(f"{mean / np.log(2):.3f}" for mean in found.means())
    axes.set_title(f"{run}: mean loss {means} bits a token", fontsize=9)
    return figure


def plot_along(found: Along, run: str) -> Figure:
    """Loss along a stream, and under it the memory in use."""
    figure, (loss, live) = plt.subplots(
        2, 1, figsize=(9, 4.6), sharex=True, height_ratios=(1.3, 1), layout="constrained"
    )
    loss.plot(found.ends, found.bits, color="black", lw=0.7)
    loss.set(ylabel="loss (bits a token)")
    loss.set_title(f"{run}: loss and memory along the stream", fontsize=10)
    for layer, values in enumerate(found.live):
        live.plot(
            found.ends,
            values,
            lw=1.0,
            color=COLOURS[layer % len(COLOURS)],
            ls=DASHES[layer % len(DASHES)],
            label=f"layer {layer + 1}",
        )
    live.set(xlabel="steps read", ylabel="live memories")
    live.legend(frameon=False, fontsize=7, ncols=6)
    for axis in (loss, live):
        axis.grid(alpha=0.3)
    return figure


def plot_sizes(found: Sequence[Size]) -> Figure:
    """Every run as a point, marked by its kind of memory."""
    figure, axes = plt.subplots(figsize=(7, 4.4), layout="constrained")
    for n, policy in enumerate(dict.fromkeys(one.policy for one in found)):
        mine = sorted((one for one in found if one.policy == policy), key=lambda one: one.live)
        axes.plot(
            [one.live for one in mine],
            [one.performance for one in mine],
            marker=MARKERS[n % len(MARKERS)],
            ls=DASHES[n % len(DASHES)],
            color=COLOURS[n % len(COLOURS)],
            label=policy,
        )
        for one in mine:
            place = (one.live, one.performance)
            axes.annotate(one.run, place, (4, 4), textcoords="offset points", fontsize=6)
    axes.set_xscale("log")
    for formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        formatter(StrMethodFormatter("{x:g}"))
    axes.tick_params(axis="x", which="both", labelsize=7)
    axes.set(xlabel="live memories per layer", ylabel=f"{found[0].metric} ({found[0].split})")
    axes.set_title("Performance against memory size", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _draw_text(
    axes: Axes,
    pieces: Sequence[str],
    values: NDArray[np.floating],
    grid: Sequence[tuple[int, int]],
    scale: Normalize,
) -> None:
    for piece, value, (line, column) in zip(pieces, values, grid, strict=False):
        shown = "↵" if piece == "\n" else piece
        colour = SHADES(scale(value))
        axes.add_patch(Rectangle((column, line), len(shown), 1, color=colour, lw=0))
        for offset, character in enumerate(shown):
            axes.text(
                column + offset + 0.5,
                line + 0.52,
                character if character.isprintable() and character != "$" else _plain(character),
                ha="center",
                va="center",
                family="monospace",
                fontsize=7.5,
                color=_ink(colour),
            )
    axes.set_xlim(0, COLUMNS)
    axes.set_ylim(max(line for line, _ in grid) + 1, 0)
    axes.axis("off")


def _frame(axes: Axes, places: Sequence[tuple[int, int]]) -> None:
    for line in {line for line, _ in places}:
        columns = [column for row, column in places if row == line]
        low, high = min(columns), max(columns) + 1
        axes.add_patch(Rectangle((low, line), high - low, 1, fill=False, ec="black", lw=1.2))


def _grid(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Line and column of every token, in lines of at most `COLUMNS` characters."""
    places, line, column = [], 0, 0
    for piece in pieces:
        if column + len(piece) > COLUMNS:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(piece)
        if piece.endswith("\n"):
            line, column = line + 1, 0
    return places


def _first_characters(pieces: Sequence[str]) -> int:
    """How many tokens can be shown."""
    sizes = np.cumsum([len(piece) for piece in pieces])
    return int(sizes.searchsorted(MOST_CHARACTERS, side="right"))


def _ink(colour: tuple[float, ...]) -> str:
    """Black or white, whichever is read more easily on it."""
    red, green, blue = colour[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _plain(character: str) -> str:
    return r"\$" if character == "$" else "·"


def _shown(text: str) -> str:
    return text.replace("\n", "↵").replace("$", r"\$")


def _ago(word: Suffering) -> str:
    return "never before" if word.last_seen is None else f"{word.last_seen} before"
