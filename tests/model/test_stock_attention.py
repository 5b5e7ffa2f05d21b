"""Stock attention against the reference: the same layouts, values and gradients, every precision.

Shapes: B rows, T queries, H heads, E head width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from model.test_span_attention import (
    CONTENTS,
    RAMP,
    B,
    E,
    H,
    T,
    dense,
    leaves,
    normal,
    packed,
    queries,
    some_deadlines,
)
from torch import Tensor

from expire_span.model.ops.span_attention import IMPLEMENTATIONS, KeySet, Visibility, stock
from expire_span.model.ops.span_attention.reference import reference_attention
from expire_span.model.ops.span_attention.stock import stock_attention
from policies import CASES as POLICIES
from policies import assert_same, hidden_of, make_model, random_tokens, read


def ordered(count: int = 8, **settings: int | Tensor) -> KeySet:
    """Dense keys that are known to stand at consecutive times."""
    keys = dense(count, **settings)
    return replace(keys, seen=replace(keys.seen, begin=T - count))


LAYOUTS: dict[str, Callable[[], list[KeySet]]] = CONTENTS | {
    "ordered": lambda: [ordered()],
    "ordered with positions": lambda: [ordered(positions=3)],
    "ordered with more positions than keys": lambda: [ordered(positions=30)],
    "ordered, fading": lambda: [ordered(deadline=some_deadlines(B, H, 8), positions=8)],
    "ordered, near and far": lambda: [ordered(positions=5), packed(), ordered(positions=2)],
    "ordered, the block alone": lambda: [ordered(T, positions=2)],
    "one ordered key": lambda: [ordered(1, positions=2)],
    "ordered, too old for any position": lambda: [far_away(), ordered(positions=1)],
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


def far_away() -> KeySet:
    """Consecutive keys of times -20 .. -15, with two position rows that none of them has."""
    first = torch.arange(-19, -13)[None, None]
    seen = Visibility(first, torch.full_like(first, T), begin=-20)
    return KeySet(normal(B, 6, H, E), normal(B, 6, H, E), seen, None, normal(2, E))


ROWS_AT_A_TIME = stock._rows_at_a_time  # which tests do without


@pytest.fixture(params=[None, 2, 1], ids=["together", "in twos", "apart"], autouse=True)
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int | None:
    """Every test computes rows together, two at a time with one left over, and one at a time."""
    together = request.param
    monkeypatch.setattr(stock, "LONG_ROW", 0 if together == 1 else 2**62)
    at_a_time = {None: lambda *_: 2**62, 2: lambda *_: 2, 1: lambda *_: 1}[together]
    monkeypatch.setattr(stock, "_rows_at_a_time", at_a_time)
    return together


def test_rows_are_computed_in_groups(rows: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    attend = stock._attend

    def noted(asked: Tensor, *given: object) -> Tensor:
        sizes.append(len(asked))
        return attend(asked, *given)

    monkeypatch.setattr(stock, "_attend", noted)
    found, expected = both(queries(), [ordered()])
    assert_same(found, expected)
    assert sizes == {None: [B], 2: [2] * (B // 2) + [1] * (B % 2), 1: [1] * B}[rows]


@pytest.mark.parametrize(("room", "wanted"), [(79, 1), (2 * 80, 2), (3 * 80 - 1, 2), (10**9, B)])
def test_as_many_rows_as_have_room_for_their_bias(
    room: int, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stock, "AT_A_TIME", room)
    assert H * T * 8 == 80
    assert ROWS_AT_A_TIME(queries(), [ordered(3), ordered(5)]) == wanted
    assert ROWS_AT_A_TIME(queries(), [ordered(3), packed()]) == 1


def both(asked: Tensor, key_sets: Sequence[KeySet]) -> tuple[Tensor, Tensor]:
    return tuple(
        attention(asked, key_sets, ramp=RAMP, dropout=0.0)
        for attention in (stock_attention, reference_attention)
    )


def cast(keys: KeySet, dtype: torch.dtype) -> KeySet:
    """The same keys in another precision; deadlines are never in less than float32."""
    deadline = None if keys.deadline is None else keys.deadline.float()
    positions = None if keys.positions is None else keys.positions.to(dtype)
    return replace(
        keys,
        keys=keys.keys.to(dtype),
        values=keys.values.to(dtype),
        deadline=deadline,
        positions=positions,
    )


@every_layout
def test_stock_attention_equals_the_reference(layout: Callable[[], list[KeySet]]) -> None:
    found, expected = both(queries(), layout())
    assert_same(found, expected)


@every_layout
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_stock_attention_equals_the_reference_in_other_precisions(
    layout: Callable[[], list[KeySet]], dtype: torch.dtype, tolerance: float
) -> None:
    asked, key_sets = queries().to(dtype), [cast(keys, dtype) for keys in layout()]
    found, _ = both(asked, key_sets)
    _, expected = both(asked.double(), [cast(keys, torch.float64) for keys in key_sets])
    assert found.dtype == dtype
    assert_same(found, expected, tolerance)


@every_layout
def test_gradients_equal_those_of_the_reference(layout: Callable[[], list[KeySet]]) -> None:
    asked, key_sets = queries(), layout()
    given = leaves(asked, key_sets)
    pull = normal(B, T, H, E)
    got, expected = (
        torch.autograd.grad((out * pull).sum(), given, materialize_grads=True, allow_unused=True)
        for out in both(asked, key_sets)
    )
    for ours, theirs in zip(got, expected, strict=True):
        assert_same(ours, theirs)


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients() -> None:
    asked = queries()
    gone = ordered(deadline=torch.full((B, 1, 8), -50.0, dtype=torch.float64), positions=4)
    far = packed()
    far = replace(far, seen=replace(far.seen, last=torch.full_like(far.seen.last, -1)))
    given = leaves(asked, [gone, far])
    out, _ = both(asked, [gone, far])
    assert (out == 0).all()
    out.sum().backward()
    assert all(leaf.grad is None or (leaf.grad == 0).all() for leaf in given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_first_query_of_an_empty_memory_gets_zeros(dtype: torch.dtype) -> None:
    block = cast(ordered(T), dtype)
    with torch.inference_mode():
        out, _ = both(queries().to(dtype), [block])
    assert (out[:, 0] == 0).all()
    assert_same(out[:, 1], block.values[:, 0])


def unseen_at_both_ends() -> dict[str, KeySet]:
    """Sets of nine keys, of which no query sees the first three and the last two."""
    keys = ordered(9)
    never = torch.tensor([1, 1, 1, 0, 0, 0, 0, 1, 1]).bool()
    seen, first, last = keys.seen, keys.seen.first, keys.seen.last
    dead = torch.where(never, first.clamp(min=0) - RAMP, 2).double()
    return {
        "expired": replace(keys, deadline=dead.expand(B, H, 9).contiguous()),
        "of the future": replace(keys, seen=replace(seen, first=first.masked_fill(never, T))),
        "of the past": replace(keys, seen=replace(seen, last=last.masked_fill(never, -1))),
    }


@pytest.mark.parametrize("why", unseen_at_both_ends())
def test_keys_before_the_first_that_is_seen_and_behind_the_last_are_not_read(why: str) -> None:
    keys = unseen_at_both_ends()[why]
    broken = replace(keys, keys=keys.keys.clone(), values=keys.values.clone())
    for given in (broken.keys, broken.values):
        given[:, :3] = given[:, -2:] = torch.nan
    asked = queries()
    _, expected = both(asked, [keys])
    found = stock_attention(asked, [broken], ramp=RAMP, dropout=0.0)
    assert_same(found, expected)


def test_no_keys_at_all_give_zeros() -> None:
    nobody = packed([0] * B)
    assert (stock_attention(queries(), [nobody], ramp=RAMP, dropout=0.0) == 0).all()


def test_autocast_does_not_round_the_weights() -> None:
    asked, keys = queries().bfloat16(), [cast(ordered(positions=3), torch.bfloat16), packed()]
    keys[1] = cast(keys[1], torch.bfloat16)
    plain, _ = both(asked, keys)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = both(asked, keys)
    assert torch.equal(found, plain)


def test_dropout_keeps_the_mean() -> None:
    seen = Visibility(torch.zeros(1, 1, 8).long(), torch.zeros(1, 1, 8).long())
    keys = normal(1, 8, H, E).expand(500, -1, -1, -1)
    out = stock_attention(
        normal(1, 1, H, E).expand(500, -1, -1, -1),
        [KeySet(keys, torch.ones_like(keys), seen)],
        ramp=1,
        dropout=0.25,
    )
    assert out.mean().item() == pytest.approx(1, abs=0.05)
    assert out.std() > 0.05


@pytest.mark.parametrize("name", ["expire", "fixed-over-block", "adaptive", "compressive"])
def test_a_stream_read_by_stock_attention_equals_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = make_model(POLICIES[name]), random_tokens(3, 40)
    with torch.no_grad():
        expected = read(model, tokens)
        monkeypatch.setitem(IMPLEMENTATIONS, "reference", stock_attention)
        found = read(model, tokens)
    assert_same(hidden_of(found), hidden_of(expected))
