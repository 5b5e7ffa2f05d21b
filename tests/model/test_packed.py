"""Packed memory: what stays, in which order, against plain Python."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from expire_span.model.memory import packed
from expire_span.model.memory.packed import (
    about_best_first,
    best_first,
    count_by_row,
    keep_first,
)
from expire_span.model.memory.room import in_chunks
from expire_span.model.ops.rows import fused_take_rows, reference_take_rows
from expire_span.model.transformer import Step
from policies import CASES, make_model, random_tokens

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


@given(st.lists(ENTRY, max_size=40), st.sampled_from([5, 64, 10_000]))
def test_about_the_same_order_brings_the_same_together(entries: list, batch: int) -> None:
    rows, worth, stays = (
        torch.tensor(part, dtype=dtype)
        for part, dtype in zip(
            zip(*entries, strict=True) if entries else ([],) * 3,
            (torch.int64, torch.float32, torch.bool),
            strict=True,
        )
    )
    order = about_best_first(rows, worth, stays, batch)
    staying = order[: int(stays.sum())]
    assert stays[staying].all()
    assert rows[staying].tolist() == sorted(rows[stays].tolist())
    for row in range(5):
        found = worth[staying][rows[staying] == row].double()
        assert (found.diff() <= 0.02 * found[:-1].abs()).all()
    assert sorted(order.tolist()) == list(range(len(entries)))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 4), st.integers(0, 3))
def test_a_budget_keeps_the_first_of_each_row(sizes: list[int], most: int, dropped: int) -> None:
    order = torch.arange(sum(sizes) + dropped)  # the last ones stay nowhere
    found, counts = keep_first(order, torch.tensor(sizes), most)
    assert counts.tolist() == [min(size, most) for size in sizes]
    expected = [i for part in order.split([*sizes, dropped])[:-1] for i in part[:most].tolist()]
    assert found[: counts.sum()].tolist() == expected


@pytest.mark.parametrize(("packed_rows", "leaving"), [(5, 3), (0, 3), (5, 0)])
def test_rows_of_two_tables_by_kernel_and_by_joining(packed_rows: int, leaving: int) -> None:
    first = torch.randn(packed_rows, 24, device=DEVICE)
    second = torch.randn(4, 7, 24, device=DEVICE)[:, :leaving]  # a view, as of a longer tier
    index = torch.randperm(packed_rows + 4 * leaving, device=DEVICE)[:-2]
    expected = reference_take_rows(first, second, index)
    assert torch.equal(fused_take_rows(first, second, index), expected)
    assert fused_take_rows(first, second, index[:0]).shape == (0, 24)


def test_entries_are_counted_by_row() -> None:
    marked = torch.tensor([True, False, True, True, False])
    assert count_by_row(marked, torch.tensor([0, 2, 2, 5])).tolist() == [1, 0, 2]


def stored(step: Step) -> float:
    return sum(layer.held() for layer in step.memory.layers)


def beyond_all_candidates(pool: packed.Pool, chunk: int, most: int | None = None) -> Tensor:
    number = pool.offsets[-1]
    room = number * 0 + (len(pool.order) + 3 * chunk + 2 if len(pool.order) else 0)
    return torch.stack([number, room, room, room])


@pytest.mark.parametrize("name", ["expire", "expire-odd", "expire-short", "expire-budget"])
@pytest.mark.parametrize("attention", ["reference", "stock"])
@pytest.mark.parametrize("room", ["as on a gpu", "beyond all candidates"])
def test_spare_room_that_is_kept_changes_no_result(
    monkeypatch, name: str, attention: str, room: str
) -> None:
    """Dead states are kept where there is room for them, and play no part."""
    case = CASES[name]
    tokens = random_tokens(3, 8 * case.block)
    starts = torch.zeros_like(tokens, dtype=torch.bool)
    starts[1, 5 * case.block + 2] = True

    def run() -> tuple[list[Step], list[Tensor]]:
        model = make_model(case, attention=attention)
        memory, steps = model.start(3), []
        for n, part in enumerate(tokens.split(case.block, 1)):
            steps.append(model(part, memory, starts=starts.split(case.block, 1)[n]))
            memory = steps[-1].memory
            if n == 3:
                memory = memory.select([2, 0, 1]).reset([1])
        loss = sum(step.hidden.sin().sum() + step.penalty for step in steps)
        learned = [p for p in model.parameters() if p.requires_grad]
        found = torch.autograd.grad(loss, learned, allow_unused=True)
        return steps, [gradient for gradient in found if gradient is not None]

    exact, exact_gradients = run()
    if room == "as on a gpu":
        monkeypatch.setattr(packed, "offers", in_chunks)
    else:
        monkeypatch.setattr(packed.Pool, "offer", beyond_all_candidates)
    roomy, roomy_gradients = run()
    more = sum(stored(a) > stored(b) for a, b in zip(roomy, exact, strict=True))
    if room == "beyond all candidates":
        assert more > 3
    elif name in ("expire", "expire-odd"):  # the others have hardly anything to make room for
        assert more > 0
    for one, other in zip(roomy, exact, strict=True):
        torch.testing.assert_close(one.hidden, other.hidden)
        torch.testing.assert_close(one.penalty, other.penalty)
        assert torch.equal(one.stats.live, other.stats.live)
        assert torch.equal(one.stats.held, other.stats.held)
        for mine, theirs in zip(one.memory.layers, other.memory.layers, strict=True):
            alive = len(theirs.far.times)
            assert torch.equal(mine.far.times[:alive], theirs.far.times)
            assert torch.equal(mine.far.offsets, theirs.far.offsets)
    torch.testing.assert_close(roomy_gradients, exact_gradients)


@pytest.mark.parametrize("name", ["expire", "expire-budget", "fixed-over-block", "compressive"])
def test_spare_room_changes_no_result(name: str) -> None:
    case = CASES[name]
    model, tokens = make_model(case), random_tokens(3, 4 * case.block)
    memory = model.start(3)
    for part in tokens.split(case.block, 1):
        exact, roomy = (model(part, each) for each in (memory, memory.with_room(2 * case.block)))
        torch.testing.assert_close(roomy.hidden, exact.hidden)
        torch.testing.assert_close(roomy.penalty, exact.penalty)
        assert torch.equal(roomy.stats.live, exact.stats.live)
        assert torch.equal(roomy.stats.held, exact.stats.held)
        memory = exact.memory
