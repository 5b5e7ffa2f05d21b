"""Hashed chance against plain arithmetic, and against what chance should look like."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from expire_span.tasks.chance import below, fields, happens, hashed
from plain_chance import plain_hash, sixteens

ANY = st.integers(-(2**62), 2**62)


def test_the_first_numbers_are_those_of_splitmix64() -> None:
    """The generator's published outputs for the seed 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    found = hashed(torch.arange(3))
    assert [number % 2**64 for number in found.tolist()] == expected


@given(place=st.lists(ANY, min_size=1, max_size=4))
def test_numbers_and_tensors_hash_as_plain_arithmetic_does(place: list[int]) -> None:
    expected = plain_hash(*place)
    assert int(hashed(*place)) % 2**64 == expected
    assert int(hashed(*map(torch.tensor, place))) % 2**64 == expected
    assert [int(field) for field in fields(hashed(*place))] == sixteens(expected)


def test_places_broadcast() -> None:
    grid = hashed(7, torch.arange(3)[:, None], torch.arange(4))
    assert grid.shape == (3, 4)
    assert grid[2, 3] == hashed(7, 2, 3)
    assert len(grid.unique()) == 12


@pytest.mark.parametrize("count", [2, 5, 25])
def test_fields_are_uniform_and_independent(count: int) -> None:
    drawn = [below(field, count) for field in fields(hashed(3, torch.arange(100_000)))]
    for one in drawn:
        assert (one.bincount(minlength=count) / 1e5 - 1 / count).abs().max() < 0.006
    for place, one in enumerate(drawn):
        for other in (*drawn[:place], one.roll(1)):
            joint = (count * one + other).bincount(minlength=count**2) / 1e5
            assert (joint - count**-2).abs().max() < 0.006


def test_events_have_their_probability() -> None:
    field = fields(hashed(torch.arange(200_000)))[1]
    assert happens(field, 0.05).double().mean() == pytest.approx(0.05, abs=0.002)
    assert not happens(field, 0).any()
    assert happens(field, 1).all()
