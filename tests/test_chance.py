"""Hashed chance against plain arithmetic, and against what chance should look like."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from expire_span.chance import Purpose, below, draw, fields, happens, hashed, row_keys, unit
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


def test_a_key_and_a_counter_are_a_place() -> None:
    key, counter = hashed(5, torch.arange(3)[:, None]), torch.arange(4)
    assert torch.equal(draw(key, counter), hashed(5, torch.arange(3)[:, None], counter))
    assert torch.equal(draw(key, 2), draw(key, torch.tensor(2)))


def test_keys_of_rows_seeds_and_purposes_are_all_different() -> None:
    cpu = torch.device("cpu")
    keys = [row_keys(seed, 1000, use, cpu) for seed in (0, 1, 2**62) for use in Purpose]
    assert len(torch.cat(keys).unique()) == 9000
    one = Purpose.WORLDS
    assert torch.equal(row_keys(1, 10, one, cpu), row_keys(1, 1000, one, cpu)[:10])
    with pytest.raises(ValueError, match="A seed is a whole number"):
        row_keys(-1, 1, one, cpu)


def test_the_unit_interval_is_filled_evenly_up_to_but_without_1() -> None:
    numbers = unit(hashed(torch.arange(100_000)))
    assert numbers.dtype == torch.float32
    assert ((numbers * 20).long().bincount(minlength=20) / 1e5 - 0.05).abs().max() < 0.005
    assert unit(torch.tensor([-1])) == 1 - 2**-24  # all bits set
    assert unit(torch.tensor([0])) == 0


def test_wide_fields_reach_every_number_below_a_count() -> None:
    low, high = fields(hashed(torch.arange(10_000)), 32)
    assert not torch.equal(low, high)
    assert below(torch.tensor([0, 2**32 - 1]), 198, 32).tolist() == [0, 197]
    assert len(below(high, 198, 32).unique()) == 198


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
