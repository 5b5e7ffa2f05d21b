"""Kinds of memory look the same in every picture, and names can be read."""

from itertools import combinations
from typing import get_args

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.text import Text

from expire_span.agent.sweep import Point, _draw_runs
from expire_span.analysis.figures import Outcome, draw_memory
from expire_span.analysis.plots import plot_sizes
from expire_span.analysis.sizes import Size
from expire_span.looks import LOOKS, name_points
from expire_span.model.memory import AdaptiveSpan, AnyMemory, Compressive, ExpireSpan, FixedSpan

MEMORIES = (FixedSpan(8), Compressive(8, 2, 4), AdaptiveSpan(8, ramp=2), ExpireSpan(8, ramp=2))


def shown(axes: Axes) -> dict[str, str]:
    """The colour of everything in the legend."""
    handles, labels = axes.get_legend_handles_labels()
    found = {}
    for handle, label in zip(handles, labels, strict=True):
        colour = handle.get_color() if hasattr(handle, "get_color") else handle.get_facecolor()[0]
        found[label.split(",")[0]] = to_hex(colour)
    return found


def test_every_kind_has_a_look_of_its_own() -> None:
    assert LOOKS.keys() == {kind.__name__ for kind in get_args(AnyMemory)}
    for seen in zip(*LOOKS.values(), strict=True):  # names, markers, colours
        assert len(set(seen)) == len(LOOKS)


@pytest.mark.parametrize("memory", MEMORIES, ids=lambda memory: type(memory).__name__)
def test_it_is_the_same_in_all_pictures_also_alone(memory: AnyMemory) -> None:
    kind = type(memory).__name__
    name, _, colour = LOOKS[kind]
    figure, (first, second) = plt.subplots(1, 2)
    draw_memory(first, [Outcome(f"{name} 8", [1.0], [4.0])], "accuracy")
    _draw_runs(second, [Point("one", memory, 4.0, 1.0)])
    third = plot_sizes([Size("one", "one", kind, 4.0, "accuracy", 1.0, "valid")])
    assert shown(first)[name] == colour
    assert shown(second)[name] == colour
    assert shown(third.axes[0])[name] == colour
    plt.close(figure)
    plt.close(third)


def test_names_cover_neither_one_another_nor_points_nor_the_frame() -> None:
    figure, axes = plt.subplots()
    points = [(1 + 0.01 * n, 1.0) for n in range(8)] + [(0.0, 0.0), (2.0, 0.0), (0.0, 2.0)]
    axes.plot(*zip(*points, strict=True), "o")
    names = [(f"run {n}", *place) for n, place in enumerate(points)]
    name_points(axes, names, points)
    figure.draw_without_rendering()
    assert [text.get_text() for text in axes.texts] == [name for name, *_ in names]
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    pixels = axes.transData.transform(points)
    assert not any(box.contains(*pixel) for box in boxes for pixel in pixels)
    frame = axes.get_window_extent()
    assert all(frame.contains(*box.min) and frame.contains(*box.max) for box in boxes)
    plt.close(figure)


def test_a_name_without_room_is_left_out() -> None:
    figure, axes = plt.subplots()
    axes.plot([1.0], [1.0], "o")
    name_points(axes, [("too long a name " * 20, 1.0, 1.0), ("short", 1.0, 1.0)], [(1.0, 1.0)])
    assert [text.get_text() for text in axes.texts] == ["short"]
    plt.close(figure)
