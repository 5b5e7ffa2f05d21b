"""Kinds of memory look the same in every picture."""

from typing import get_args

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from expire_span.agent.sweep import Point, _draw_runs
from expire_span.analysis.figures import Outcome, draw_memory
from expire_span.analysis.plots import plot_sizes
from expire_span.analysis.sizes import Size
from expire_span.looks import LOOKS
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
    third = plot_sizes([Size("one", kind, 4.0, "accuracy", 1.0, "valid")])
    assert shown(first)[name] == colour
    assert shown(second)[name] == colour
    assert shown(third.axes[0])[kind] == colour
    plt.close(figure)
    plt.close(third)
