"""What scripted policies are worth: every expected value, within four standard errors.

Values with a tolerance of their own (the paper gives none of them) are means over as many episodes
as stand here; each comes from an independent simulation of the same rules.
"""

import pytest
import torch

from expire_span.worlds import Corridor, Portal
from expire_span.worlds.oracles import (
    CorridorMemory,
    CorridorMemoryless,
    CorridorPrivileged,
    FirstEpisodes,
    PortalMemory,
    PortalMemoryless,
    PortalPrivileged,
    Uniform,
    corridor_bound,
    play,
)

CORRIDOR, PORTAL, SHUFFLED = Corridor(), Portal(), Portal(shuffle=True)


def assert_mean(values: torch.Tensor, expected: float, slack: float = 0.0) -> None:
    """The mean is as expected, within four standard errors and what was rounded away."""
    error = values.double().std().item() / len(values) ** 0.5
    assert values.double().mean().item() == pytest.approx(expected, abs=4 * error + slack)


# Corridor -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("oracle", [CorridorPrivileged, CorridorMemory])
def test_whoever_knows_the_colour_takes_the_right_door_in_as_many_steps_as_cells(oracle):
    played = play(CORRIDOR.play(), oracle(CORRIDOR), 1000)
    assert (played.total == 1).all()
    assert torch.equal(played.steps, played.last.length)
    assert_mean(played.steps, 101.5)


def test_without_memory_half_is_the_best_in_corridor():
    played = play(CORRIDOR.play(), CorridorMemoryless(CORRIDOR), 15_000)
    assert torch.equal(played.steps, played.last.length)
    assert_mean(played.total, 0.5)


def test_chance_seldom_reaches_a_door():
    played = play(CORRIDOR.play(), Uniform(), 1500)
    assert_mean(played.total, 0.063, slack=0.0005)
    assert_mean((played.steps < 1000).float(), 0.13, slack=0.005)
    assert_mean(played.steps, 917, slack=0.5)


@pytest.mark.parametrize(
    ("reach", "bound"),
    [(16, 0.54), (32, 0.58), (50, 0.62), (64, 0.66), (75, 0.69), (100, 0.75), (200, 1.0)],
)
def test_the_bound_of_a_window_is_what_a_window_reaches(reach, bound):
    assert corridor_bound(CORRIDOR, reach) == pytest.approx(bound, abs=0.005)
    played = play(CORRIDOR.play(), CorridorMemory(CORRIDOR, window=reach), 1000, seed=reach)
    assert_mean(played.total, corridor_bound(CORRIDOR, reach))
    far = played.last.length - 1 > reach  # the door is as many steps from the object as this
    assert (played.total[~far] == 1).all()
    assert reach == 200 or 0.3 < played.total[far].mean() < 0.7
    assert reach == 200 or reach + 1 in played.last.length


def test_a_relay_of_two_layers_sees_twice_as_far():
    for memory, bound in ((16, 0.58), (32, 0.66), (50, 0.75), (64, 0.82), (75, 0.88), (100, 1.0)):
        assert corridor_bound(CORRIDOR, 2 * memory) == pytest.approx(bound, abs=0.005)


# Portal -------------------------------------------------------------------------------------------


def furthest(played: FirstEpisodes) -> torch.Tensor:
    """The furthest room of each episode, from 1."""
    return played.last.furthest + 1


@pytest.mark.parametrize("world", [PORTAL, SHUFFLED], ids=["sides fixed", "sides shuffled"])
def test_whoever_is_told_the_doors_walks_straight_through(world):
    played = play(world.play(), PortalPrivileged(world), 1000)
    torch.testing.assert_close(played.total, torch.full((1000,), 122.5))
    assert (furthest(played) == 50).all()
    if world.shuffle:
        assert_mean(played.steps, 147)
    else:
        assert (played.steps == 98).all()


def test_memory_alone_gets_far_in_portal():
    played = play(PORTAL.play(), PortalMemory(PORTAL), 600)
    assert_mean(played.total, 709, slack=0.5)
    assert played.total.std().item() == pytest.approx(58, abs=58 * 4 / (2 * 600) ** 0.5)
    assert_mean(furthest(played), 43.0, slack=0.05)
    assert furthest(played).double().std().item() == pytest.approx(3.5, abs=0.45)
    assert_mean((furthest(played) == 50).float(), 0.05, slack=0.005)
    assert not played.last.twice.any()


@pytest.mark.slow
def test_memory_alone_makes_half_a_mistake_a_room_if_it_has_the_time():
    world = Portal(limit=4000)
    played = play(world.play(), PortalMemory(world), 400)
    mistakes = torch.tensor([mask.bit_count() for mask in played.last.mistakes.tolist()])
    assert_mean(mistakes, 24.5)
    assert_mean(played.steps, 1321, slack=0.5)


@pytest.mark.slow
def test_memory_alone_where_sides_are_shuffled():
    played = play(SHUFFLED.play(), PortalMemory(SHUFFLED), 1000)
    assert_mean(played.total, 385, slack=0.5)
    assert_mean(furthest(played), 35, slack=0.5)
    assert not played.last.twice.any()


@pytest.mark.slow
@pytest.mark.parametrize(("shuffle", "expected"), [(False, 91.0), (True, 59.8)])
def test_memory_alone_where_only_first_passages_pay(shuffle, expected):
    world = Portal(first_only=True, shuffle=shuffle)
    played = play(world.play(), PortalMemory(world), 1000)
    assert_mean(played.total, expected, slack=0.05)


@pytest.mark.parametrize(
    ("world", "value", "steps"), [(PORTAL, 0.607, 12.2), (SHUFFLED, 0.605, 18)]
)
def test_without_memory_two_mistakes_come_soon(world, value, steps):
    played = play(world.play(), PortalMemoryless(world), 5000)
    assert_mean(played.total, value, slack=0.02)
    assert_mean(played.steps, steps, slack=0.5)
    assert played.last.twice.all()


def test_chance_in_portal():
    played = play(PORTAL.play(), Uniform(), 1000)
    assert_mean(played.total, 0.62, slack=0.005)
    assert_mean(played.steps, 134, slack=0.5)


WINDOWS = {8: 4, 16: 13, 32: 60, 48: 168, 64: 362, 80: 622, 100: 709}


@pytest.mark.parametrize(
    ("window", "value"),
    [
        pytest.param(*item, marks=[pytest.mark.slow] if item[0] > 32 else [])
        for item in WINDOWS.items()
    ],
)
def test_what_a_window_of_memory_is_worth_in_portal(window, value):
    played = play(PORTAL.play(), PortalMemory(PORTAL, window), 400)
    assert_mean(played.total, value, slack=0.5)


@pytest.mark.parametrize("unknown", [{"size": 7}, {"doors": "ends"}, {"turning_view": True}])
def test_walkers_refuse_rooms_they_do_not_know(unknown):
    with pytest.raises(ValueError, match="5 x 5"):
        PortalMemory(Portal(**unknown))


@pytest.mark.parametrize("unknown", [{"width": 2}, {"doors": "corner"}, {"turning_view": True}])
def test_walkers_refuse_corridors_they_do_not_know(unknown):
    with pytest.raises(ValueError, match="one row with doors to both sides"):
        CorridorMemory(Corridor(**unknown))
