"""Span attention against METHOD.md section 1 in plain Python, one query and one key at a time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from expire_span.model.ops import span_attention as implementations
from expire_span.model.ops.ramp import NEVER
from expire_span.model.ops.span_attention import (
    KeySet,
    Visibility,
    choose,
    rows_of,
    span_attention,
)
from policies import assert_same

reference = partial(span_attention, impl="reference")
B, T, H, E, RAMP = 3, 5, 2, 4, 3
COUNTS = [4, 0, 7]  # packed keys of each row: one row has none beside a long one


@dataclass(frozen=True)
class PlainKey:
    """One key of one row and head, as plain numbers."""

    key: np.ndarray
    value: np.ndarray
    first: int
    last: int
    stride: int
    deadline: float
    positions: np.ndarray


def plain_attention(query: np.ndarray, time: int, keys: Sequence[PlainKey]) -> np.ndarray:
    """sum of weight * exp(score) * v  /  sum of weight * exp(score), for one query."""
    mixed, total = np.zeros(E), 0.0
    for one in keys:
        if not one.first <= time <= one.last:
            continue
        weight = min(max(1 + (one.deadline - time) / RAMP, 0), 1)
        score = float(query @ one.key)
        row = (time - one.first) // one.stride
        if row < len(one.positions):
            score += float(query @ one.positions[row])
        mass = weight * math.exp(score / math.sqrt(E))
        mixed, total = mixed + mass * one.value, total + mass
    return mixed / total if total > 0 else mixed


def plain_keys(keys: KeySet, batch: int, row: int, head: int) -> list[PlainKey]:
    """The keys of a set that belong to this row and head."""
    seen, none = keys.seen, np.zeros((0, E))
    if seen.offsets is not None:
        chosen = slice(int(seen.offsets[row]), int(seen.offsets[row + 1]))
        one_row = [keys.keys[chosen, head], keys.values[chosen, head], seen.first[chosen]]
        one_row += [seen.last[chosen], None if keys.deadline is None else keys.deadline[chosen]]
    else:
        count = keys.keys.shape[1]
        spread = lambda given: given.expand(batch, H, count)[row, head]  # noqa: E731
        one_row = [keys.keys[row, :, head], keys.values[row, :, head], spread(seen.first)]
        one_row += [spread(seen.last), None if keys.deadline is None else spread(keys.deadline)]
    key, value, first, last, deadline = one_row
    table = none if keys.positions is None else keys.positions.detach().numpy()
    return [
        PlainKey(
            key=key[n].detach().numpy(),
            value=value[n].detach().numpy(),
            first=int(first[n]),
            last=int(last[n]),
            stride=seen.stride,
            deadline=math.inf if deadline is None else float(deadline[n]),
            positions=table,
        )
        for n in range(len(key))
    ]


def by_definition(queries: Tensor, key_sets: Sequence[KeySet]) -> Tensor:
    batch, length = queries.shape[:2]
    out = np.zeros(queries.shape)
    for row, time, head in np.ndindex(batch, length, H):
        keys = [key for one in key_sets for key in plain_keys(one, batch, row, head)]
        query = queries[row, time, head].detach().numpy()
        out[row, time, head] = plain_attention(query, time, keys)
    return torch.from_numpy(out)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def queries() -> Tensor:
    return normal(B, T, H, E)


def dense(count: int = 8, *, deadline: Tensor | None = None, positions: int = 0) -> KeySet:
    """Keys of times T - count .. T - 1, as a memory and the block itself have them."""
    times = torch.arange(T - count, T)
    return KeySet(
        keys=normal(B, count, H, E),
        values=normal(B, count, H, E),
        seen=Visibility((times + 1)[None, None], torch.full((1, 1, count), NEVER)),
        deadline=deadline,
        positions=normal(positions, E) if positions else None,
    )


def packed(counts: Sequence[int] = COUNTS, *, deadline: bool = True, positions: int = 0) -> KeySet:
    """Older keys, ragged over the rows, in no order."""
    total = sum(counts)
    first = torch.randint(-20, -3, (total,))
    return KeySet(
        keys=normal(total, H, E),
        values=normal(total, H, E),
        seen=Visibility(
            first,
            torch.randint(0, 2 * T, (total,)),
            offsets=torch.tensor([0, *np.cumsum(counts)]),
        ),
        deadline=T * torch.rand(total, dtype=torch.float64) - RAMP if deadline else None,
        positions=normal(positions, E) if positions else None,
    )


def slots(count: int = 6, stride: int = 2) -> KeySet:
    """Compressed keys, whose positions change every `stride` steps."""
    first = torch.arange(count) * stride - 7
    last = (first + 3 * stride - 1).expand(B, 1, count).clone()
    last[1] = -1  # a row whose slots all belong to an earlier episode
    keys = normal(B, count, H, E)
    return KeySet(
        keys,
        normal(B, count, H, E),
        Visibility(first[None, None], last, stride),
        None,
        normal(3, E),
    )


def some_deadlines(*shape: int) -> Tensor:
    return T * torch.rand(shape, dtype=torch.float64) - RAMP / 2


CONTENTS: dict[str, Callable[[], list[KeySet]]] = {
    "dense": lambda: [dense()],
    "dense with positions": lambda: [dense(positions=3)],
    "more positions than keys": lambda: [dense(positions=30)],
    "deadlines of keys": lambda: [dense(deadline=some_deadlines(B, 1, 8), positions=8)],
    "deadlines of heads": lambda: [dense(deadline=some_deadlines(1, H, 8), positions=8)],
    "deadlines of heads, keys and rows": lambda: [dense(deadline=some_deadlines(B, H, 8))],
    "one deadline for all rows": lambda: [dense(deadline=some_deadlines(1, 1, 8))],
    "packed": lambda: [packed()],
    "packed without deadlines": lambda: [packed(deadline=False, positions=15)],
    "packed with positions": lambda: [packed(positions=15)],
    "packed with no keys at all": lambda: [packed([0, 0, 0]), dense()],
    "slots": lambda: [slots()],
    "near and far": lambda: [dense(deadline=some_deadlines(B, 1, 8), positions=5), packed()],
    "recent and slots": lambda: [dense(positions=8), slots(), slots(3, stride=5)],
}
every_content = pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS.keys())


@every_content
def test_attention_equals_its_definition(content: Callable[[], list[KeySet]]) -> None:
    asked, key_sets = queries(), content()
    found = reference(asked, key_sets, ramp=RAMP)
    assert_same(found, by_definition(asked, key_sets))


def leaves(asked: Tensor, key_sets: Sequence[KeySet]) -> list[Tensor]:
    """Everything that can have a gradient."""
    found = [asked]
    for one in key_sets:
        found += [t for t in (one.keys, one.values, one.deadline, one.positions) if t is not None]
    return [tensor.requires_grad_() for tensor in found]


def with_leaves(key_sets: Sequence[KeySet], given: Sequence[Tensor]) -> list[KeySet]:
    """The same sets with other tensors, in the order of `leaves` (less the queries)."""
    left = iter(given)
    return [
        replace(
            one,
            keys=next(left),
            values=next(left),
            deadline=None if one.deadline is None else next(left),
            positions=None if one.positions is None else next(left),
        )
        for one in key_sets
    ]


@every_content
def test_gradients_equal_finite_differences(content: Callable[[], list[KeySet]]) -> None:
    asked, key_sets = queries(), content()

    def attend(asked: Tensor, *given: Tensor) -> Tensor:
        return reference(asked, with_leaves(key_sets, given), ramp=RAMP)

    assert torch.autograd.gradcheck(attend, leaves(asked, key_sets), fast_mode=True)


def test_a_query_that_sees_nothing_gets_zeros_and_finite_gradients() -> None:
    asked = queries()
    gone = dense(deadline=torch.full((B, 1, 8), -50.0, dtype=torch.float64), positions=4)
    far = packed()
    far = replace(far, seen=replace(far.seen, last=torch.full_like(far.seen.last, -1)))
    found = leaves(asked, [gone, far])
    out = reference(asked, [gone, far], ramp=RAMP)
    assert (out == 0).all()
    out.sum().backward()
    assert all(torch.equal(leaf.grad, torch.zeros_like(leaf)) for leaf in found)


def test_the_first_query_of_an_empty_memory_gets_zeros_and_the_second_the_first_value() -> None:
    block = dense(T)
    out = reference(queries(), [block], ramp=RAMP)
    assert (out[:, 0] == 0).all()
    assert_same(out[:, 1], block.values[:, 0])


@pytest.mark.parametrize("deadline", [True, False])
def test_packed_keys_equal_the_same_keys_given_dense(deadline: bool) -> None:
    asked, even = queries(), packed([6] * B, deadline=deadline, positions=4)

    def per_row(given: Tensor) -> Tensor:
        return given.view(B, 6, *given.shape[1:])

    # A dense set has one `first` per key, so all rows take those of row 0.
    first = even.seen.first[:6].repeat(B)
    even = replace(even, seen=replace(even.seen, first=first))
    last = per_row(even.seen.last).unsqueeze(1)
    same = KeySet(
        keys=per_row(even.keys),
        values=per_row(even.values),
        seen=Visibility(first[:6][None, None], last),
        deadline=per_row(even.deadline).unsqueeze(1) if even.deadline is not None else None,
        positions=even.positions,
    )
    near = dense(positions=3)
    expected = reference(asked, [near, same], ramp=RAMP)
    assert_same(reference(asked, [near, even], ramp=RAMP), expected)


def test_the_order_of_packed_keys_within_a_row_does_not_matter() -> None:
    asked, far, near = queries(), packed(positions=15), dense()
    rows = rows_of(far.seen.offsets, len(far.keys))
    shuffle = torch.randperm(len(rows))
    shuffle = shuffle[rows[shuffle].argsort(stable=True)]
    assert not torch.equal(shuffle, torch.arange(len(rows)))
    seen = replace(far.seen, first=far.seen.first[shuffle], last=far.seen.last[shuffle])
    mixed = replace(
        far,
        keys=far.keys[shuffle],
        values=far.values[shuffle],
        seen=seen,
        deadline=far.deadline[shuffle],
    )
    expected = reference(asked, [near, far], ramp=RAMP)
    assert_same(reference(asked, [near, mixed], ramp=RAMP), expected)


def test_the_order_of_key_sets_does_not_matter() -> None:
    asked, sets = queries(), [dense(positions=3), packed(), slots()]
    expected = reference(asked, sets, ramp=RAMP)
    assert_same(reference(asked, sets[::-1], ramp=RAMP), expected)


def test_what_has_no_weight_may_hold_any_number() -> None:
    asked, far, near = queries(), packed(), dense()
    gone = torch.arange(len(far.keys)) % 2 == 0
    deadline = far.deadline.masked_fill(gone, -50)
    far = replace(far, deadline=deadline)
    wild = replace(far, keys=far.keys.masked_fill(gone[:, None, None], 1e30))
    expected = reference(asked, [near, far], ramp=RAMP)
    assert_same(reference(asked, [near, wild], ramp=RAMP), expected)


def test_large_scores_do_not_overflow() -> None:
    asked, near = 1e3 * queries(), dense()
    out = reference(asked, [replace(near, keys=1e3 * near.keys)], ramp=RAMP)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("count", [1, 8])
def test_dropout_drops_its_share_and_keeps_the_mean(count: int) -> None:
    rows = 4000
    keys = normal(1, count, H, E).expand(rows, -1, -1, -1)
    seen = Visibility(torch.zeros(1, 1, count).long(), torch.zeros(1, 1, count).long())
    one_each = KeySet(keys, torch.ones_like(keys), seen)
    out = reference(normal(1, 1, H, E).expand(rows, -1, -1, -1), [one_each], dropout=0.25)
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert out.std() > 0.05
    if count == 1:
        assert sorted(out.unique().tolist()) == pytest.approx([0, 1 / 0.75])
        assert (out == 0).double().mean().item() == pytest.approx(0.25, abs=0.02)


def test_rows_of_the_worked_example() -> None:
    assert rows_of(torch.tensor([0, 2, 2, 5]), 5).tolist() == [0, 0, 2, 2, 2]


MISTAKES: dict[str, Callable[[], tuple[Tensor, KeySet]]] = {
    r"queries must be \[rows, queries, heads, width\], but have shape \[3, 5, 2\]": lambda: (
        queries()[..., 0],
        dense(),
    ),
    r"keys must be \[3, 8, 2, 4\], but have shape \[3, 8, 2, 3\]": lambda: (
        queries(),
        replace(dense(), keys=normal(B, 8, H, 3)),
    ),
    r"values must be \[3, 8, 2, 4\], but have shape \[3, 7, 2, 4\]": lambda: (
        queries(),
        replace(dense(), values=normal(B, 7, H, E)),
    ),
    r"keys must be \[11, 2, 4\], but have shape \[11, 4\]": lambda: (
        queries(),
        replace(packed(), keys=normal(11, 4)),
    ),
    r"first must have one entry for each of the 8 keys, but has shape \[1, 1, 7\]": lambda: (
        queries(),
        replace(dense(), seen=Visibility(torch.zeros(1, 1, 7), torch.zeros(1, 1, 8))),
    ),
    r"last must have one entry for each of the 8 keys, but has shape \[3, 1, 1\]": lambda: (
        queries(),
        replace(dense(), seen=Visibility(torch.zeros(1, 1, 8), torch.zeros(3, 1, 1))),
    ),
    r"deadline must have one entry for each of the 8 keys, but has shape \[9\]": lambda: (
        queries(),
        dense(deadline=normal(9)),
    ),
    r"positions must be as wide as a head \(4\), but have shape \[6, 5\]": lambda: (
        queries(),
        replace(dense(), positions=normal(6, 5)),
    ),
    r"offsets must have 4 entries for 3 rows, but have shape \[3\]": lambda: (
        queries(),
        packed([4, 3]),
    ),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_arguments_that_do_not_fit_are_named_in_one_sentence(sentence: str) -> None:
    asked, keys = MISTAKES[sentence]()
    with pytest.raises(ValueError, match=f"^{sentence}\\.$"):
        span_attention(asked, [keys], ramp=RAMP)


def test_a_ramp_below_one_step_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^ramp must be at least 1 step, but is 0\.$"):
        span_attention(queries(), [dense()], ramp=0)


CPU, GPU = torch.device("cpu"), torch.device("cuda")
CHOICES = [
    (GPU, torch.bfloat16, 64, "fused"),
    (GPU, torch.float64, 64, "reference"),
    (GPU, torch.bfloat16, 24, "reference"),
    (CPU, torch.float32, 64, "stock"),
]


@pytest.mark.parametrize(("device", "dtype", "width", "expected"), CHOICES)
def test_auto_chooses_by_device_and_type_and_says_so_once(
    device, dtype, width, expected, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(implementations, "has_triton", lambda: True)
    implementations._say_once.cache_clear()
    with caplog.at_level("INFO"):
        chosen = {choose("auto", device, dtype, width) for _ in range(3)}
    assert chosen == {expected}
    assert caplog.messages == [f"Span attention on {device}: {expected}."]
    slow = device == GPU and expected == "reference"
    assert caplog.records[0].levelname == ("WARNING" if slow else "INFO")


def test_without_triton_nothing_is_fused(monkeypatch) -> None:
    monkeypatch.setattr(implementations, "has_triton", lambda: False)
    assert choose("auto", GPU, torch.bfloat16, 64) == "reference"


@pytest.mark.parametrize("asked", ["fused", "stock", "reference"])
@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
def test_what_was_chosen_is_never_replaced(asked, device) -> None:
    assert choose(asked, device, torch.float64, 24) == asked


def test_an_unknown_implementation_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^Unknown attention 'fast': choose one of .*reference.*\.$"
    ):
        span_attention(queries(), [dense()], impl="fast")
