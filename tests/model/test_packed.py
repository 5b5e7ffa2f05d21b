"""Packed memory: what stays, in which order, against plain Python."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from expire_span.model.memory.packed import best_first, count_by_row, keep_first

ENTRY = st.tuples(
    st.integers(0, 3), st.floats(-1e6, 1e6, width=32), st.booleans()
)  # row, worth, whether it stays


@given(st.lists(ENTRY, max_size=40))
def test_what_stays_comes_first_row_by_row_the_worthiest_before_the_others(entries: list) -> None:
    rows, worth, stays = (
        (list(part) for part in zip(*entries, strict=True)) if entries else ([],) * 3
    )
    order = best_first(
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(worth, dtype=torch.float32),
        torch.tensor(stays, dtype=torch.bool),
    ).tolist()
    staying = [i for i in range(len(entries)) if stays[i]]
    expected = sorted(staying, key=lambda i: (rows[i], -worth[i]))
    assert [(rows[i], worth[i]) for i in order[: len(staying)]] == [
        (rows[i], worth[i]) for i in expected
    ]
    assert sorted(order) == list(range(len(entries)))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 3))
def test_a_budget_keeps_the_first_of_each_row(sizes: list[int], most: int, dropped: int) -> None:
    order = torch.arange(sum(sizes) + dropped)  # the last ones stay nowhere
    found, counts = keep_first(order, torch.tensor(sizes), most)
    assert counts.tolist() == [min(size, most) for size in sizes]
    expected = [i for part in order.split([*sizes, dropped])[:-1] for i in part[:most].tolist()]
    assert found[: counts.sum()].tolist() == expected


def test_entries_are_counted_by_row() -> None:
    marked = torch.tensor([True, False, True, True, False])
    assert count_by_row(marked, torch.tensor([0, 2, 2, 5])).tolist() == [1, 0, 2]
