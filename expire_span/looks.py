"""How kinds of memory look in every picture: safe for the colour-blind, with markers as well.

And how points are named, so that every name can be read.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox


class Look(NamedTuple):
    """What a kind is called, and its points."""

    name: str
    marker: str
    colour: str


# By the names of the policies' classes, a line each.
LOOKS = {
    "ExpireSpan": Look("Expire-Span", "o", "#d55e00"),
    "FixedSpan": Look("Transformer-XL", "s", "#0072b2"),
    "AdaptiveSpan": Look("Adaptive-Span", "^", "#009e73"),
    "Compressive": Look("Compressive", "D", "#cc79a7"),
}
# Where a name may stand: on which side of its point, and how far from it (typographic points).
SIDES = ((1, -1), (1, 1), (-1, -1), (-1, 1), (0, -1), (0, 1), (1, 0), (-1, 0))
GAPS = (3, 9, 16, 24, 34, 46, 60)
LETTERS = 7  # size of names
POINT = 4  # half the side of a point that no name may cover


def look_of(kind: str) -> Look:
    """Of a policy, by the name of its class or what it is called; of any other one for all."""
    named = {look.name: look for look in LOOKS.values()}
    return LOOKS.get(kind) or named.get(kind) or Look(kind, "v", "#1b1f24")


def name_points(
    axes: Axes,
    names: Sequence[tuple[str, float, float]],
    points: Sequence[tuple[float, float]],
) -> None:
    """Write names beside places, none over another, over a point or over the frame.

    A name for which there is no room is left out. The axes must have their final limits.

    Args:
        axes: where the points have been drawn.
        names: each with its place.
        points: all that has been drawn.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # by which it is known how large everything is
    pixel = figure.dpi / 72
    taken = [
        Bbox.from_extents(*(place - POINT * pixel), *(place + POINT * pixel))
        for place in axes.transData.transform(points)
    ]
    frame = axes.get_window_extent()
    for name, *place in names:
        note = _note(axes, name, place)
        x, y = axes.transData.transform(place)
        found = _boxes_beside(x, y, note.get_window_extent(), pixel)
        free = (box for box in found if _lies_in(frame, box) and not box.count_overlaps(taken))
        box = next(free, None)
        if box is None:
            note.remove()
            continue
        note.set_position((((box.x0 + box.x1) / 2 - x) / pixel, (box.y0 - y) / pixel))
        taken.append(box.padded(pixel))


def _note(axes: Axes, name: str, place: Sequence[float]) -> Annotation:
    """A name at its place, with a fine line to the point."""
    line = {"arrowstyle": "-", "lw": 0.4, "color": "grey", "shrinkA": 0, "shrinkB": 3}
    return axes.annotate(
        name,
        (place[0], place[1]),
        (0, 0),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=LETTERS,
        arrowprops=line,
    )


def _boxes_beside(x: float, y: float, name: Bbox, pixel: float) -> Iterator[Bbox]:
    """Where a name of this size may stand, the nearest first."""
    for gap, (right, up) in product(GAPS, SIDES):
        middle = x + right * (name.width / 2 + gap * pixel)
        bottom = y + up * (name.height / 2 + gap * pixel) - name.height / 2
        yield Bbox.from_bounds(middle - name.width / 2, bottom, name.width, name.height)


def _lies_in(frame: Bbox, box: Bbox) -> bool:
    return frame.contains(*box.min) and frame.contains(*box.max)
