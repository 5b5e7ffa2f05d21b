"""Texts as pictures: every token shaded by its span, darker for longer, also in black and white.

Shapes: T tokens.
"""

from collections.abc import Sequence
from functools import cache

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from numpy.typing import NDArray

COLUMNS = 96  # characters in a line of a text that is drawn
MOST_CHARACTERS = 2400  # more cannot be read in one picture
SHADES = plt.get_cmap("YlGnBu")  # from light to dark in grey, too
CHARACTER, LINE, FONT = 0.095, 0.22, 0.135  # inches
HEAD, TITLE = 0.4, 0.32  # inches above all texts, and above each
MONOSPACE = FontProperties(family="monospace")


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
    width, height = COLUMNS * CHARACTER, HEAD + sum(lines) * LINE + TITLE * len(texts)
    figure = plt.figure(figsize=(width, height))
    figure.text(0, 1, run, fontsize=10, va="top", family="monospace")
    _draw_scale(figure, scale)
    top = height - HEAD
    for n, title in enumerate(titles):
        top -= TITLE + lines[n] * LINE
        axes = figure.add_axes((0, top / height, 1, lines[n] * LINE / height))
        _draw_text(axes, texts[n][: cuts[n]], values[n], grids[n], scale)
        for passage in frames[n] if frames else ():
            framed = [k for k in passage if k < cuts[n]]
            _frame(axes, [grids[n][k] for k in framed], [len(texts[n][k]) for k in framed])
        axes.set_title(title, loc="left", fontsize=9)
    return figure


def ink(colour: tuple[float, ...]) -> str:
    """Black or white, whichever is read more easily on it."""
    red, green, blue = colour[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def _draw_scale(figure: Figure, scale: Normalize) -> None:
    """What the shades mean, in the upper right corner."""
    width, height = figure.get_size_inches()
    axes = figure.add_axes((1 - 3 / width, 1 - 0.14 / height, 3 / width, 0.12 / height))
    bar = figure.colorbar(
        ScalarMappable(scale, SHADES), extend="max", cax=axes, orientation="horizontal"
    )
    bar.ax.tick_params(labelsize=7)
    axes.text(
        -0.03,
        0.5,
        "expire-span (steps)",
        ha="right",
        va="center",
        fontsize=8,
        transform=axes.transAxes,
    )


def _draw_text(
    axes: Axes,
    pieces: Sequence[str],
    values: NDArray[np.floating],
    grid: Sequence[tuple[int, int]],
    scale: Normalize,
) -> None:
    """Tokens as shaded boxes; all characters of one ink are one shape, which is quick to draw."""
    boxes: list[list[tuple[int, int]]] = []
    glyphs: dict[str, list[Outline]] = {"black": [], "white": []}
    colours = SHADES(scale(values[: len(pieces)]))
    for piece, colour, (line, column) in zip(pieces, colours, grid, strict=True):
        shown = "↵" if piece == "\n" else piece
        end = column + len(shown)
        boxes.append([(column, line), (end, line), (end, line + 1), (column, line + 1)])
        drawn = [(n, one) for n, one in enumerate(shown) if not one.isspace()]
        glyphs[ink(colour)] += [_glyph(one, column + n, line) for n, one in drawn]
    axes.add_collection(PolyCollection(boxes, facecolors=colours, lw=0, antialiaseds=False))
    for colour, shapes in glyphs.items():
        if shapes:
            axes.add_patch(PathPatch(Outline.make_compound_path(*shapes), color=colour, lw=0))
    axes.set_xlim(0, COLUMNS)
    axes.set_ylim(max(line for line, _ in grid) + 1, 0)
    axes.axis("off")


def _glyph(character: str, column: int, line: int) -> Outline:
    """The outline of a character in the middle of its cell."""
    wide, high = FONT / CHARACTER, FONT / LINE
    left, base = column + 0.5 - 0.3 * wide, line + 0.5 + 0.34 * high
    return _outline(character).transformed(Affine2D().scale(wide, -high).translate(left, base))


@cache
def _outline(character: str) -> Outline:
    """The outline of a character in a font of size 1; a box for what the font does not have."""
    known = character.isprintable() and get_font(findfont(MONOSPACE)).get_char_index(ord(character))
    return TextPath((0, 0), character if known else "□", size=1, prop=MONOSPACE)


def _frame(axes: Axes, places: Sequence[tuple[int, int]], lengths: Sequence[int]) -> None:
    """A box around tokens, in each line that has some, given where they begin and how long."""
    for line in {line for line, _ in places}:
        mine = [(c, c + n) for (row, c), n in zip(places, lengths, strict=True) if row == line]
        low, high = min(begin for begin, _ in mine), max(end for _, end in mine)
        axes.add_patch(Rectangle((low, line), high - low, 1, fill=False, ec="black", lw=1.2))


def _grid(pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Line and column of every token, in lines of at most `COLUMNS` characters, of whole words."""
    places: list[tuple[int, int]] = []
    line, column, word = 0, 0, 0  # where the next token stands, and the first of its word
    for n, piece in enumerate(pieces):
        if column + len(piece) > COLUMNS:
            moved = word if places[word:] and places[word][1] > 0 else n
            line, column = line + 1, 0
            for k in range(moved, n):
                places[k] = (line, column)
                column += len(pieces[k])
        places.append((line, column))
        column += len(piece)
        if piece.endswith("\n"):
            line, column = line + 1, 0
        if piece.endswith((" ", "\n")):
            word = n + 1
    return places


def _first_characters(pieces: Sequence[str]) -> int:
    """How many tokens can be shown."""
    sizes = np.cumsum([len(piece) for piece in pieces])
    return int(sizes.searchsorted(MOST_CHARACTERS, side="right"))
