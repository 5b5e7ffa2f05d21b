"""Adaptive-Span's shrinking window, and Compressive's slots against plain arithmetic on times."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from expire_span import AdaptiveSpan, Compressive, FixedSpan, Transformer
from expire_span.model.memory import StateSet, Window
from expire_span.model.memory.compressive import CompressiveKeeper, CompressiveMemory
from expire_span.model.ops.ramp import NEVER
from policies import Case, assert_same, gradients, make_model, ragged_calls, random_tokens, read


def adaptive_model(ratios: Sequence[float], layers: int = 1) -> Transformer:
    """Span 20, ramp 4, price 0.3, blocks of 6; the two heads of every layer have these ratios."""
    model = make_model(Case(AdaptiveSpan(20, 4, penalty=0.3), block=6), layers=layers)
    set_ratios(model, ratios)
    return model


@torch.no_grad()
def set_ratios(model: Transformer, ratios: Sequence[float]) -> None:
    for layer in model.layers:
        layer.keeper.ratio.copy_(torch.tensor(ratios))


@pytest.mark.parametrize(
    ("ratios", "kept"),
    [((0, 0), 4), ((0, 0.5), 14), ((0.3125, 0), 11), ((0.8125, 0.5), 20), ((1, 0.25), 20)],
)
@torch.no_grad()
def test_adaptive_keeps_what_the_furthest_head_can_see(
    ratios: tuple[float, float], kept: int
) -> None:
    assert kept == min(20, math.ceil(max(ratios) * 20 + 4))
    step = read(adaptive_model(ratios), random_tokens(2, 36))[-1]
    assert step.stats.held == kept


@torch.no_grad()
def test_adaptive_memory_shrinks_and_grows_with_the_ratios() -> None:
    model = adaptive_model((1, 0))
    memory = model.start(2)
    held = []
    for ratio in (1, 1, 1, 1, 0.25, 0.25, 0, 0.5, 0.5):
        set_ratios(model, (ratio, 0.0))
        step = model(random_tokens(2, 6), memory)
        memory = step.memory
        held.append(int(step.stats.held))
    assert held == [6, 12, 18, 20, 9, 9, 4, 10, 14]


@torch.no_grad()
def test_adaptive_heads_count_their_own_memories() -> None:
    ratios = (0.125, 0.5625)
    step = read(adaptive_model(ratios), random_tokens(2, 36))[-1]
    each = [math.ceil(ratio * 20 + 4) for ratio in ratios]  # distances with weight
    assert step.stats.live == sum(each) / 2
    assert step.stats.mean_span.item() == 20 * sum(ratios) / 2
    assert step.stats.max_span.item() == 20 * max(ratios)


def test_adaptive_penalty_is_the_mean_span_of_each_layer() -> None:
    model = adaptive_model((0.25, 0.75), layers=3)
    penalty = model(random_tokens(2, 4), model.start(2)).penalty
    assert_same(penalty, torch.tensor(0.3 * 20 * 0.5 * 3))
    found = gradients(penalty, model)
    for layer in range(3):
        expected = torch.full((2,), 0.3 * 20 / 2)
        assert_same(found[f"layers.{layer}.keeper.ratio"], expected, tolerance=1e-6)


def test_clamping_brings_ratios_back_between_0_and_1() -> None:
    model = adaptive_model((-0.5, 1.5), layers=2)
    model.clamp_parameters()
    for layer in model.layers:
        assert layer.keeper.ratio.tolist() == [0, 1]
    set_ratios(model, (0.25, 1.0))
    model.clamp_parameters()
    assert model.layers[0].keeper.ratio.tolist() == [0.25, 1]


def test_a_closed_head_can_learn_to_open() -> None:
    model = adaptive_model((0.0, 0.0))
    hidden = read(model, random_tokens(2, 12))[-1].hidden
    assert (gradients(hidden.sin().sum(), model)["layers.0.keeper.ratio"] != 0).all()


# Compressive: states of width 1 that hold their own time, so that a slot's mean tells its members.


def times_as_states(begin: int, length: int, rows: int = 1) -> Tensor:
    return torch.arange(begin, begin + length).double()[None, :, None].expand(rows, -1, -1)


def visible(one: StateSet, query: int, row: int = 0) -> dict[float, int]:
    """Content of each state that this query sees, and the row of its position."""
    first, last = (
        edge.expand(len(one.states), 1, -1)[row, 0] for edge in (one.seen.first, one.seen.last)
    )
    assert one.positions is not None
    return {
        one.states[row, n].item(): one.positions[0] + (query - first[n].item()) // one.seen.stride
        for n in range(one.states.shape[1])
        if first[n] <= query <= last[n]
    }


def expected_slots(policy: Compressive, time: int) -> dict[float, int]:
    """Mean and position row of the slots a query at this time sees, if time never began."""
    newest = (time - policy.span) // policy.rate
    return {
        policy.rate * slot + (policy.rate - 1) / 2: policy.span + newest - slot
        for slot in range(newest - policy.compressed, newest + 1)
    }


POLICIES = [Compressive(8, 2, 4), Compressive(6, 3, 3), Compressive(4, 5, 1), Compressive(2, 1, 2)]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_compressive_queries_see_these_states_and_slots(
    policy: Compressive, seed: int | None
) -> None:
    block = 4 * policy.rate
    keeper = CompressiveKeeper(policy)
    memory = keeper.start(torch.zeros(1, 0, 1).double(), zeros=False)
    lengths = [block] * 6 if seed is None else ragged_calls(6 * block, block, seed=seed)
    clock = 0
    for length in lengths:
        window = Window(length, clock, torch.tensor([-clock]))
        sets = keeper.read(memory, times_as_states(clock, length), window)
        for query in range(length):
            time = clock + query
            states = {i: time - i - 1 for i in range(max(time - policy.span, 0), time)}
            slots = expected_slots(policy, time)
            assert visible(sets[0], query) == states
            oldest = (policy.rate - 1) / 2  # the mean of slot 0, the first that exists
            assert visible(sets[1], query) == {m: p for m, p in slots.items() if m >= oldest}
        memory = keeper.keep(sets, (None, None), window)
        clock += length
        assert memory.states.shape[1] == min(clock, policy.span + policy.rate - 1)
        assert memory.slots.shape[1] <= policy.compressed


def test_compressive_worked_example_holds() -> None:
    assert expected_slots(Compressive(8, 2, 4), 20) == {5.5: 10, 9.5: 9, 13.5: 8}


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_compressive_starts_with_zero_states_and_slots_if_asked(policy: Compressive) -> None:
    keeper = CompressiveKeeper(policy)
    memory = keeper.start(torch.zeros(2, 0, 1).double(), zeros=True)
    assert memory.states.shape == (2, policy.span + policy.rate - 1, 1)
    assert memory.slots.shape == (2, policy.compressed, 1)
    block = 4 * policy.rate
    window = Window(block, 0, torch.full((2,), -NEVER))
    recent, slots = keeper.read(memory, times_as_states(1, block, rows=2), window)
    for query in range(block):
        seen = slots.seen
        count = ((seen.first <= query) & (query <= seen.last)).sum(dim=-1)
        assert (count == policy.compressed + 1).all()
        seen = recent.seen
        count = ((seen.first <= query) & (query <= seen.last)).sum(dim=-1)
        assert (count == policy.span).all()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("began", [1, 5, 8, 11])
def test_a_slot_with_a_state_of_an_earlier_episode_is_invisible(
    policy: Compressive, began: int
) -> None:
    block = 4 * policy.rate
    keeper = CompressiveKeeper(policy)
    memory: CompressiveMemory = keeper.start(torch.zeros(2, 0, 1).double(), zeros=False)
    origin = torch.zeros(2, dtype=torch.int64)
    for clock in range(0, 6 * block, block):
        starts = torch.zeros(2, block, dtype=torch.bool)
        if clock <= began < clock + block:
            starts[0, began - clock] = True
        window = Window(block, clock, origin, starts)
        sets = keeper.read(memory, times_as_states(clock, block, rows=2), window)
        for query in range(block):
            time = clock + query
            oldest = {0: began if time >= began else 0, 1: 0}
            for row in (0, 1):
                whole = oldest[row] + (policy.rate - 1) / 2  # mean of a slot that begins there
                slots = expected_slots(policy, time)
                assert visible(sets[1], query, row) == {
                    m: p for m, p in slots.items() if m >= whole
                }
        memory, origin = keeper.keep(sets, (None, None), window), window.next_origin()


@torch.no_grad()
def test_compressive_slots_are_normed_after_pooling() -> None:
    model = make_model(Case(Compressive(4, 2, 4), block=4), layers=1, norm="pre")
    tokens = random_tokens(1, 12)
    pooled = model.inputs(tokens)[:, 4:8].mean(dim=1)
    keys: list[Tensor] = []
    layer = model.layers[0]
    layer.attention.key.register_forward_hook(lambda *call: keys.append(call[2]))
    read(model, tokens)
    expected = layer.attention.key(layer.attention_norm(pooled))
    assert any(torch.allclose(expected, slot) for slot in keys[-2][0])


@pytest.mark.parametrize(
    ("memory", "span"),
    [(FixedSpan(819), 819), (Compressive(600, 73, 3), 819)],
)
@torch.no_grad()
def test_bf16_autocast_does_not_round_the_span_that_is_told(memory, span) -> None:
    # In bfloat16, 819 and 820 are the same.
    model = make_model(Case(memory, block=3)).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stats = model(random_tokens(1, 3), model.start(1)).stats
    assert stats.mean_span.tolist() == stats.max_span.tolist() == [span, span]


def test_a_long_window_that_is_nearly_empty_needs_few_positions() -> None:
    model = make_model(Case(AdaptiveSpan(1000, 5), block=8))
    set_ratios(model, [0.02, 0.01])
    memory = model.start(2)
    window = Window(length=8, clock=0, origin=memory.origin)
    keeper = model.stack()[0].keeper
    (first,) = keeper.read(memory.layers[0], torch.zeros(2, 8, 8), window)
    assert first.positions == (0, 8)
    for part in random_tokens(2, 80).split(8, dim=1):
        memory = model(part, memory).memory
    (later,) = keeper.read(memory.layers[0], torch.zeros(2, 8, 8), window)
    assert later.positions == (0, 8 + memory.layers[0].states.shape[1])
    assert later.positions[1] < 40
