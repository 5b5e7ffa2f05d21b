"""Room for memory in chunks: enough, little more, and seldom another size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from expire_span.model.memory.room import agree, in_chunks

CHUNK = 8
LAYERS = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=5)


def settle(numbers: list[int], present: list[int]) -> list[int]:
    offered = [
        in_chunks(torch.tensor(n), now, CHUNK) for n, now in zip(numbers, present, strict=True)
    ]
    return agree(torch.stack(offered)).tolist()


@given(LAYERS)
def test_there_is_enough_and_little_more(layers: list[tuple[int, int]]) -> None:
    numbers, present = map(list, zip(*layers, strict=True))
    for number, size in zip(numbers, settle(numbers, present), strict=True):
        assert number <= size < number + 4 * CHUNK


@given(LAYERS)
def test_all_change_together_and_then_have_something_to_spare(
    layers: list[tuple[int, int]],
) -> None:
    numbers, present = map(list, zip(*layers, strict=True))
    sizes = settle(numbers, present)
    if sizes != present:
        assert all(
            size % CHUNK == 0 and (size >= number + CHUNK // 2 or number == size == 0)
            for number, size in zip(numbers, sizes, strict=True)
        )
    assert settle(numbers, sizes) == sizes  # what there is now will do


def test_slow_changes_of_many_layers_change_sizes_together() -> None:
    """Twelve layers, each at a pace of its own, grow to 20 chunks and shrink again.

    Each for itself they would change 108 times.
    """
    sizes, changes = [CHUNK] * 12, 0
    for time in [*range(0, 1000, 2), *range(1000, 0, -2)]:
        numbers = [1 + 20 * CHUNK * time * (1 + layer) // 12000 for layer in range(12)]
        before, sizes = sizes, settle(numbers, sizes)
        changes += before != sizes
    assert 0 < changes < 40


def test_nothing_needs_no_room() -> None:
    assert settle([0, 0], [0, 0]) == [0, 0]
    assert settle([0, 30], [0, 0]) == [0, 40]
