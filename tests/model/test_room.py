"""Room for memory in chunks: enough, not far too much, and seldom another size."""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from expire_span.model.memory import AdaptiveSpan
from expire_span.model.memory.room import agree, in_chunks
from policies import CASES, make_model, random_tokens, room_as_on_a_gpu

CHUNK, MOST_SPARE = 8, 6
LAYERS = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), min_size=1, max_size=5)


def settle(numbers: list[int], present: list[int]) -> list[int]:
    offered = [
        in_chunks(torch.tensor(n), now, CHUNK, MOST_SPARE)
        for n, now in zip(numbers, present, strict=True)
    ]
    return agree(torch.stack(offered)).tolist()


def changes(along: Iterable[list[int]], sizes: list[int]) -> int:
    count = 0
    for numbers in along:
        before, sizes = sizes, settle(numbers, sizes)
        count += before != sizes
    return count


@given(LAYERS)
def test_there_is_enough_for_each_and_not_far_too_much_for_all(
    layers: list[tuple[int, int]],
) -> None:
    numbers, present = map(list, zip(*layers, strict=True))
    sizes = settle(numbers, present)
    assert all(number <= size for number, size in zip(numbers, sizes, strict=True))
    assert sum(sizes) <= sum(n + min(n, 2 * MOST_SPARE * CHUNK) + 4 * CHUNK for n in numbers)


@given(LAYERS)
def test_whoever_changes_has_something_to_spare_and_need_not_change_again(
    layers: list[tuple[int, int]],
) -> None:
    numbers, present = map(list, zip(*layers, strict=True))
    sizes = settle(numbers, present)
    for number, before, size in zip(numbers, present, sizes, strict=True):
        if size != before:
            assert size % CHUNK == 0
            assert size >= number + CHUNK // 2
    assert settle(numbers, sizes) == sizes


def test_the_first_size_has_little_to_spare_and_the_second_much() -> None:
    assert settle([100], [0]) == [104]
    assert settle([105], [104]) == [160]


def test_a_layer_that_needs_less_keeps_its_room_while_others_need_theirs() -> None:
    assert settle([100, 3], [152, 32]) == [152, 32]
    assert settle([3, 3], [152, 32]) == [8, 8]


def test_slow_changes_of_many_layers_change_sizes_together() -> None:
    """Twelve layers, each at a pace of its own, grow to 20 chunks and shrink again."""
    along = [
        [1 + 20 * CHUNK * time * (1 + layer) // 12000 for layer in range(12)]
        for time in [*range(0, 1000, 2), *range(1000, 0, -2)]
    ]
    assert 0 < changes(along, [CHUNK] * 12) < 30


@pytest.mark.parametrize("chunks", [1, 3, 6, 12])
def test_what_comes_and_goes_by_a_tenth_seldom_changes_sizes(chunks: int) -> None:
    """Twelve layers whose numbers wander about their means, seldom more than 30 % off."""
    draw, drift, along = random.Random(chunks), [0.0] * 12, []
    for _ in range(1000):
        drift = [0.95 * each + draw.gauss(0, 0.03) for each in drift]
        along.append([round(chunks * CHUNK * 2.718**each) for each in drift])
    assert 0 < changes(along, [0] * 12) < 10


def test_nothing_needs_no_room_until_some_layer_has_something() -> None:
    assert settle([0, 0], [0, 0]) == [0, 0]
    assert settle([0, 30], [0, 0]) == [8, 40]
    assert settle([0, 30], [8, 40]) == [8, 40]


def test_whoever_needs_all_there_is_does_not_outgrow_it(monkeypatch) -> None:
    """An Adaptive-Span that reaches as far as it can, and its ramp beyond."""
    room_as_on_a_gpu(monkeypatch)
    case = replace(CASES["adaptive"], memory=AdaptiveSpan(64, ramp=8, initial=1.0))
    model, memory = make_model(case), None
    for part in random_tokens(2, 12 * case.block).split(case.block, dim=1):
        step = model(part, memory or model.start(2))
        memory = step.memory
        assert step.stats.held.tolist() == [layer.held() for layer in memory.layers]
    assert step.stats.held.tolist() == [64.0] * len(memory.layers)
