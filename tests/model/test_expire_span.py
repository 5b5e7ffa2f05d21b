"""Expire-Span against METHOD.md section 2, point by point; the numbers in the names are its own.

A model of one post-norm layer remembers its token embeddings, so the span of a memory depends on
its token alone, and what should be kept can be told by plain arithmetic on whole streams.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from model.oracle import whole_stream
from torch import Tensor

from expire_span import ExpireSpan, Memory, Transformer
from expire_span.model.memory import Window
from expire_span.model.memory.expire_span import ExpireSpanKeeper, ExpiringMemory
from expire_span.model.memory.packed import PackedStates
from expire_span.model.ops.ramp import NEVER
from policies import (
    CASES,
    UNBUDGETED,
    Case,
    assert_same,
    both_norms,
    both_starts,
    full_blocks,
    gradients,
    hidden_of,
    make_model,
    ragged_calls,
    random_tokens,
    read,
)

EXPIRE = {name: case for name, case in UNBUDGETED.items() if isinstance(case.memory, ExpireSpan)}
expire_case = pytest.mark.parametrize("case", EXPIRE.values(), ids=EXPIRE.keys())


class KeepsEverything(ExpireSpanKeeper):
    """Never deletes: what has expired, or belongs to an earlier episode, is only masked."""

    def keep(self, sets, deadlines, window):
        never = tuple(torch.full_like(deadline, NEVER) for deadline in deadlines)
        one_episode = Window(window.length, window.clock, torch.full_like(window.origin, -NEVER))
        return super().keep(sets, never, one_episode)


def keeper_of(model: Transformer, layer: int = 0) -> ExpireSpanKeeper:
    keeper = model.layers[layer].keeper
    assert isinstance(keeper, ExpireSpanKeeper)
    return keeper


def set_predictor(model: Transformer, weight: float | Tensor, bias: float) -> None:
    with torch.no_grad():
        for layer in range(model.config.layers):
            keeper_of(model, layer).predictor.weight.copy_(torch.as_tensor(weight))
            keeper_of(model, layer).predictor.bias.fill_(bias)


def layer_memory(memory: Memory, layer: int = 0) -> ExpiringMemory:
    found = memory.layers[layer]
    assert isinstance(found, ExpiringMemory)
    return found


def far_times(memory: Memory, layer: int = 0) -> list[set[int]]:
    """Absolute times of the far memories of each row."""
    far = layer_memory(memory, layer).far
    counts = far.offsets.diff().tolist()
    return [set((part + memory.clock).tolist()) for part in far.times.split(counts)]


def train_on(model: Transformer, tokens: Tensor, lengths: Sequence[int], starts: Tensor) -> Tensor:
    """Read, with backward after every call and memory detached between; all hidden states."""
    memory, hidden = model.start(len(tokens)), []
    model.zero_grad()
    for part, begins in zip(
        tokens.split(list(lengths), dim=1), starts.split(list(lengths), dim=1), strict=True
    ):
        step = model(part, memory, starts=begins if begins.any() else None)
        (step.hidden.sin().sum() + step.penalty).backward()
        memory = step.memory.detach()
        hidden.append(torch.cat([step.hidden.detach().flatten(), step.penalty.detach()[None]]))
    return torch.cat(hidden)


# 2.1


def test_2_1_a_query_that_sees_nothing_attends_to_zeros() -> None:
    model = make_model(Case(ExpireSpan(20, 1), block=4))
    set_predictor(model, 0.0, -1000.0)  # every span is exactly 0
    attended: list[Tensor] = []
    for layer in model.layers:
        layer.attention.register_forward_hook(lambda *call: attended.append(call[2]))
    steps = read(model, random_tokens(2, 12))
    assert len(attended) == 6
    assert all((one == 0).all() for one in attended)
    found = gradients(hidden_of(steps).sin().sum(), model)
    assert all(torch.isfinite(gradient).all() for gradient in found.values())
    assert torch.stack([step.stats.live for step in steps]).sum() == 0


# 2.2 and 2.3


@both_norms
def test_2_2_spans_are_predicted_from_states_as_keys_read_them(norm: str) -> None:
    model = make_model(Case(ExpireSpan(20, 4, divisor=2.0), block=6), layers=1, norm=norm)
    tokens = random_tokens(2, 6)
    layer, predictor = model.layers[0], keeper_of(model).predictor
    states = model.inputs(tokens)
    readable = layer.attention_norm(states) if norm == "pre" else states
    spans = 20 * torch.sigmoid((readable @ predictor.weight[0] + predictor.bias) / 2)
    deadlines = model(tokens, model.start(2)).deadlines[0][0]
    assert_same(deadlines[:, 0], torch.arange(6) + spans)


@both_norms
def test_2_3_memories_of_many_blocks_ago_teach_the_present_weights(norm: str) -> None:
    # Every span is 26.5: in the block of times 24 .. 27, only the memory of time 0 is on its ramp
    # (at 27), written 6 blocks ago; all others are whole.
    model = make_model(Case(ExpireSpan(53, 2, penalty=1.0, initial=0.5), block=4), norm=norm)
    set_predictor(model, 0.0, 0.0)
    past, present = random_tokens(2, 28).tensor_split([24], dim=1)
    memory = read(model, past)[-1].memory.detach()
    step = model(present, memory)
    for loss in (step.hidden.sin().sum(), step.penalty):
        for near, far in step.deadlines:
            on_near, on_far = torch.autograd.grad(
                loss, (near, far), retain_graph=True, materialize_grads=True, allow_unused=True
            )
            assert (on_near == 0).all()
            assert (on_far != 0).sum() == 2  # time 0 of both rows
        found = gradients(loss, model)
        for layer in range(2):
            assert (found[f"layers.{layer}.keeper.predictor.weight"] != 0).any()
            assert (found[f"layers.{layer}.keeper.predictor.bias"] != 0).all()


@torch.no_grad()
def test_2_3_old_memories_are_read_with_the_present_weights() -> None:
    # One layer and long spans, so that old and new weights remember the same states.
    model = make_model(Case(ExpireSpan(300, 4, initial=0.9), block=4), layers=1)
    past, present = random_tokens(2, 24).tensor_split([20], dim=1)
    memory = read(model, past)[-1].memory
    before = model(present, memory).hidden
    for parameter in model.layers[0].parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    found = model(present, memory).hidden
    assert_same(found, model(present, read(model, past)[-1].memory).hidden)
    assert not torch.allclose(found, before)


# 2.4


@expire_case
@both_starts
def test_2_4_the_penalty_and_its_gradient_are_those_of_all_pairs(case: Case, start: str) -> None:
    model = make_model(case, start=start)
    tokens = random_tokens(3, 5 * case.block)
    steps, truth = read(model, tokens), whole_stream(model, tokens)
    for n, step in enumerate(steps):
        expected = truth.penalty(n * case.block, (n + 1) * case.block)
        assert_same(step.penalty, expected)
        true_gradients = gradients(expected, model)
        for name, found in gradients(step.penalty, model).items():
            assert_same(found, true_gradients[name])


def test_2_4_each_span_pays_the_number_of_its_ramp_queries() -> None:
    alpha, ramp, block = 0.3, 3, 5
    model = make_model(Case(ExpireSpan(20, ramp, penalty=alpha), block=block), layers=1)
    for step in read(model, random_tokens(2, 4 * block)):
        paid = torch.autograd.grad(
            step.penalty, step.deadlines[0], retain_graph=True, materialize_grads=True
        )
        for gradient, deadline in zip(paid, step.deadlines[0], strict=True):
            time = torch.arange(block)
            faded = (deadline[..., None] < time) & (time < deadline[..., None] + ramp)
            if deadline.ndim == 3:  # near: a query does not see itself
                own = torch.arange(deadline.shape[-1]) - deadline.shape[-1] + block
                faded &= own[:, None] < time
            pairs = faded.sum(dim=-1)
            assert_same(gradient, alpha * pairs.double() / (ramp * block * 2))


def test_2_4_the_penalty_of_the_block_is_the_mean_span() -> None:
    model = make_model(EXPIRE["expire-block-charge"])
    for step in read(model, random_tokens(3, 20)):
        assert_same(step.penalty, 0.1 * step.stats.mean_span.sum(), tolerance=1e-6)


# 2.5


@expire_case
@pytest.mark.parametrize(
    ("norm", "shorter"),
    [("post", 0.0), ("pre", 0.0), ("post", 2.0), ("pre", 1000.0)],
    ids=["post", "pre", "post, short spans", "pre, all expired"],
)
def test_2_5_deleting_equals_masking_in_values_and_gradients(
    case: Case, norm: str, shorter: float
) -> None:
    deleting, masking = make_model(case, norm=norm), make_model(case, norm=norm)
    for layer in range(2):
        with torch.no_grad():
            keeper_of(deleting, layer).predictor.bias.sub_(shorter * case.memory.divisor)
        masking.layers[layer].keeper = KeepsEverything(case.memory, 8, case.block).double()
    masking.load_state_dict(deleting.state_dict())

    tokens = random_tokens(3, 5 * case.block + 1)
    lengths = [case.block] * 2 + ragged_calls(3 * case.block + 1, case.block)
    starts = torch.zeros_like(tokens, dtype=torch.bool)
    starts[1, [2 * case.block, 3 * case.block + 1]] = True
    assert_same(
        train_on(deleting, tokens, lengths, starts), train_on(masking, tokens, lengths, starts)
    )
    for (name, mine), (_, theirs) in zip(
        deleting.named_parameters(), masking.named_parameters(), strict=True
    ):
        if mine.grad is None:
            assert theirs.grad is None, name
        else:
            assert_same(mine.grad, theirs.grad)


@both_starts
def test_2_5_deleting_equals_masking_from_either_start(start: str) -> None:
    case = EXPIRE["expire-odd"]
    deleting, masking = make_model(case, start=start), make_model(case, start=start)
    for layer in masking.layers:
        keeper = KeepsEverything(case.memory, 8, case.block).double()
        keeper.load_state_dict(layer.keeper.state_dict())
        layer.keeper = keeper
    tokens = random_tokens(2, 40)
    lengths = full_blocks(40, case.block)
    none = torch.zeros_like(tokens, dtype=torch.bool)
    found, expected = (train_on(model, tokens, lengths, none) for model in (deleting, masking))
    assert_same(found, expected)
    held = [read(model, tokens)[-1].stats.held for model in (deleting, masking)]
    assert (held[0] < held[1]).all()  # and the test is about something


@expire_case
@both_starts
@torch.no_grad()
def test_2_5_far_memory_is_exactly_what_is_alive_in_each_row(case: Case, start: str) -> None:
    model = make_model(case, start=start)
    tokens = random_tokens(3, 6 * case.block)
    starts = None
    if start == "empty":
        starts = torch.zeros_like(tokens, dtype=torch.bool)
        starts[1, 3 * case.block + 1] = True
    spans = whole_stream(model, tokens, starts).spans
    past = spans[0].shape[1] - tokens.shape[1]
    lengths = ragged_calls(tokens.shape[1], case.block)
    for step in read(model, tokens, lengths, starts=starts):
        now = step.memory.clock
        for layer, e in enumerate(spans):
            for row, kept in enumerate(far_times(step.memory, layer)):
                began = 3 * case.block + 1 if row == 1 and starts is not None else -past
                oldest = began if now > began else -past
                alive = {
                    time
                    for time in range(oldest, now - case.block)
                    if time + e[row, past + time].item() + case.memory.ramp > now
                }
                assert kept == alive


@torch.no_grad()
def test_2_5_a_row_with_long_spans_keeps_nothing_alive_in_another() -> None:
    model = make_model(Case(ExpireSpan(1000, 4), block=5), layers=1)
    direction = torch.zeros(8)
    direction[0] = 1000.0
    set_predictor(model, direction, 0.0)
    model.inputs.embedding.weight[0, 0], model.inputs.embedding.weight[1, 0] = 1.0, -1.0
    tokens = torch.tensor([0, 1, 0])[:, None].expand(3, 30)
    far = layer_memory(read(model, tokens)[-1].memory).far
    assert far.offsets.tolist() == [0, 25, 25, 50]


@torch.no_grad()
def test_2_5_what_is_deleted_stays_deleted_when_spans_grow_again() -> None:
    model = make_model(Case(ExpireSpan(100, 2), block=4), layers=1)
    set_predictor(model, 0.0, -10.0)
    memory = read(model, random_tokens(2, 16))[-1].memory
    set_predictor(model, 0.0, 10.0)
    step = model(random_tokens(2, 4), memory)
    assert far_times(step.memory) == [{12, 13, 14, 15}] * 2


# 2.6


def shortening_model() -> Transformer:
    memory = ExpireSpan(24, 3, penalty=0.1, initial=0.7, shorten=True)
    return make_model(Case(memory, block=6)).train()


@torch.no_grad()
def test_2_6_a_shortened_step_is_one_cut_for_all_layers() -> None:
    model = shortening_model()
    past, present = random_tokens(2, 24).tensor_split([18], dim=1)
    memory = read(model.eval(), past)[-1].memory
    cuts = [model(present, memory, limit=cut) for cut in range(24)]
    model.train()
    matches = set()
    for seed in range(12):
        step = model(present, memory, generator=torch.Generator().manual_seed(seed))
        same = [
            cut
            for cut, expected in enumerate(cuts)
            if torch.allclose(step.hidden, expected.hidden, rtol=0, atol=1e-12)
        ]
        assert same
        assert_same(step.penalty, cuts[same[0]].penalty)
        matches.add(same[0])
    assert len(matches) > 4


@torch.no_grad()
def test_2_6_shortening_never_deletes() -> None:
    memory = ExpireSpan(24, 3, initial=0.7, shorten=True)
    model = make_model(Case(memory, block=6), layers=1)
    tokens = random_tokens(3, 36)
    whole = read(model, tokens)
    shortened = read(model.train(), tokens)
    assert not torch.equal(hidden_of(shortened), hidden_of(whole))
    for one, other in zip(shortened, whole, strict=True):
        assert far_times(one.memory) == far_times(other.memory)
        assert torch.equal(one.stats.held, other.stats.held)


@torch.no_grad()
def test_2_6_shortening_is_reproducible_and_only_in_training() -> None:
    model = shortening_model()
    past, present = random_tokens(2, 24).tensor_split([18], dim=1)
    memory = read(model.eval(), past)[-1].memory

    def trained(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.train()(present, memory, generator=generator).hidden

    assert torch.equal(trained(5), trained(5))
    assert not torch.equal(trained(5), trained(6))
    unshortened = make_model(Case(replace(model.config.memory, shorten=False), block=6))
    expected = unshortened(present, memory).hidden
    assert torch.equal(model.eval()(present, memory).hidden, expected)


def test_2_6_cuts_are_drawn_evenly_between_zero_and_the_longest_span() -> None:
    generator = torch.Generator().manual_seed(0)
    memory = ExpireSpan(10, 3, shorten=True)
    draws = torch.tensor([memory.draw_limit(generator) for _ in range(5000)])
    counts = draws.bincount(minlength=10)
    assert len(counts) == 10
    assert (counts > 400).all()
    assert (counts < 600).all()


@torch.no_grad()
def test_2_6_a_given_limit_and_a_drawn_one_both_hold() -> None:
    model = shortening_model()
    past, present = random_tokens(2, 24).tensor_split([18], dim=1)
    memory = read(model.eval(), past)[-1].memory
    expected = model(present, memory, limit=0).hidden
    assert torch.equal(model.train()(present, memory, limit=0).hidden, expected)


# 2.7 and 2.8


@pytest.mark.parametrize("divisor", [1.0, 64.0])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.95])
@torch.no_grad()
def test_2_8_every_span_starts_at_its_share_of_the_longest(share: float, divisor: float) -> None:
    memory = ExpireSpan(16384, 64, initial=share, divisor=divisor)
    model = make_model(Case(memory, block=6))
    for layer in range(2):
        fresh = ExpireSpanKeeper(memory, 8, 6).double()
        keeper_of(model, layer).load_state_dict(fresh.state_dict())
        assert (keeper_of(model, layer).predictor.weight == 0).all()
    stats = model(random_tokens(2, 6), model.start(2)).stats
    for number in (stats.mean_span, stats.max_span):
        assert_same(number, torch.full((2,), share * 16384), tolerance=1e-5)


@torch.no_grad()
def test_2_7_the_divisor_divides_weight_and_bias() -> None:
    plain = make_model(Case(ExpireSpan(4096, 16), block=6), layers=1)
    divided = make_model(Case(ExpireSpan(4096, 16, divisor=16.0), block=6), layers=1)
    divided.load_state_dict(plain.state_dict())
    predictor = keeper_of(divided).predictor
    predictor.weight.mul_(16)
    predictor.bias.mul_(16)
    tokens = random_tokens(2, 6)
    for mine, theirs in zip(
        divided(tokens, divided.start(2)).deadlines[0],
        plain(tokens, plain.start(2)).deadlines[0],
        strict=True,
    ):
        assert_same(mine, theirs)


# 2.9


def dropping_model(**settings) -> Transformer:
    """A model that skips every layer of every training step."""
    memory = ExpireSpan(18, 3, penalty=0.1, initial=0.4)
    return make_model(Case(memory, block=5), layer_drop=1 - 1e-9, **settings).train()


@both_norms
def test_2_9_a_dropped_layer_passes_its_input_on_and_pays_and_learns_nothing(norm: str) -> None:
    model = dropping_model(norm=norm)
    tokens = random_tokens(2, 20)
    steps = read(model, tokens)
    assert_same(hidden_of(steps), model.final_norm(model.inputs(tokens)))
    assert all(step.penalty == 0 for step in steps)
    found = gradients(hidden_of(steps).sin().sum() + steps[-1].penalty, model)
    assert all((found[name] == 0).all() for name in found if name.startswith("layers."))
    assert (found["inputs.embedding.weight"] != 0).any()


@torch.no_grad()
def test_2_9_the_memory_of_a_dropped_layer_is_written_and_expires() -> None:
    model = dropping_model(layers=1)
    tokens = random_tokens(3, 30)
    dropped, kept = read(model, tokens), read(model.eval(), tokens)
    for one, other in zip(dropped, kept, strict=True):
        for name, tensor in one.memory.tensors().items():
            assert torch.equal(tensor, other.memory.tensors()[name])
        assert torch.equal(one.stats.live, other.stats.live)


@torch.no_grad()
def test_2_9_only_training_drops_layers_and_a_generator_repeats_it() -> None:
    memory = ExpireSpan(18, 3, initial=0.4)
    dropping = make_model(Case(memory, block=5), layers=4, layer_drop=0.5)
    whole = make_model(Case(memory, block=5), layers=4)
    tokens = random_tokens(2, 5)
    assert torch.equal(
        dropping(tokens, dropping.start(2)).hidden, whole(tokens, whole.start(2)).hidden
    )

    def outcome(seed: int) -> tuple[float, ...]:
        generator = torch.Generator().manual_seed(seed)
        hidden = dropping.train()(tokens, dropping.start(2), generator=generator).hidden
        return tuple(hidden.flatten().tolist())

    assert outcome(3) == outcome(3)
    assert len({outcome(seed) for seed in range(20)}) > 5


def test_2_9_dropping_one_layer_leaves_the_others_as_they_are() -> None:
    model = make_model(Case(ExpireSpan(18, 3, penalty=0.1), block=5), layers=2)
    states = model.inputs(random_tokens(2, 5))
    memory = model.start(2)
    window = Window(5, 0, memory.origin)
    first, second = model.layers
    skipped = first(states, memory.layers[0], window, model.positions, dropped=True)
    assert torch.equal(skipped.states, states)
    after = second(skipped.states, memory.layers[1], window, model.positions)
    assert_same(after.states, second(states, memory.layers[1], window, model.positions).states)
    assert skipped.penalty == 0
    assert after.penalty != 0


# 2.10 and positions


@torch.no_grad()
def test_the_order_of_far_memories_does_not_matter() -> None:
    model = make_model(EXPIRE["expire"])
    past, present = random_tokens(3, 48).tensor_split([40], dim=1)
    memory = read(model, past)[-1].memory

    def turned(layer: ExpiringMemory) -> ExpiringMemory:
        far = layer.far
        backwards = torch.cat(
            [
                torch.arange(end - 1, begin - 1, -1)
                for begin, end in zip(far.offsets[:-1], far.offsets[1:], strict=True)
            ]
        )
        mixed = replace(far, states=far.states[backwards], times=far.times[backwards])
        return replace(layer, far=mixed)

    assert all(len(layer_memory(memory, n).far.times) > 3 for n in range(2))
    other = replace(memory, layers=tuple(turned(layer) for layer in memory.layers))
    assert_same(model(present, other).hidden, model(present, memory).hidden)


@pytest.mark.parametrize("positions", ["near", "all"])
def test_far_memories_have_positions_only_in_the_ablation(positions: str) -> None:
    case = Case(ExpireSpan(30, 3, initial=0.8, positions=positions), block=5)
    model = make_model(case, layers=1)
    assert len(model.positions) == (5 if positions == "near" else 33)
    past, present = random_tokens(2, 25).tensor_split([20], dim=1)
    memory = read(model, past)[-1].memory.detach()
    found = gradients(model(present, memory).hidden.sin().sum(), model)["positions"]
    reached = (found != 0).any(dim=1).nonzero().max().item() + 1
    assert reached == 5 if positions == "near" else reached > 15


# 2.11


@pytest.mark.parametrize("ramp", [1, 4])
@pytest.mark.parametrize("span", [0.0, 7.0, 7.3, 12.9])
@torch.no_grad()
def test_2_11_constant_spans_settle_at_this_memory_size(span: float, ramp: int) -> None:
    longest = 16
    model = make_model(Case(ExpireSpan(longest, ramp), block=5))
    set_predictor(model, 0.0, math.log(span / (longest - span)) if span else -1000.0)
    assert model(random_tokens(1, 5), model.start(1)).stats.mean_span[0] == pytest.approx(span)
    step = read(model, random_tokens(2, 40))[-1]
    assert step.stats.live.tolist() == [ramp - 1 + math.ceil(span)] * 2


# 2.12


@pytest.mark.parametrize("budget", [0, 1, 4, 1000])
@pytest.mark.parametrize("ragged", [False, True])
@torch.no_grad()
def test_2_12_a_budget_is_never_exceeded_and_the_earliest_deadlines_go_first(
    budget: int, ragged: bool
) -> None:
    block, ramp = 5, 3
    model = make_model(Case(ExpireSpan(40, ramp, initial=0.5, budget=budget), block), layers=1)
    tokens = random_tokens(3, 40)
    predictor = keeper_of(model).predictor
    spans = 40 * torch.sigmoid(predictor(model.inputs(tokens))).squeeze(-1)
    kept: list[set[int]] = [set()] * 3
    lengths = ragged_calls(40, block) if ragged else full_blocks(40, block)
    near = 0  # time of the oldest near memory
    for step in read(model, tokens, lengths):
        now = step.memory.clock
        leaving, near = range(near, max(near, now - block)), max(near, now - block)
        for row in range(3):
            deadline = {i: i + spans[row, i].item() for i in kept[row] | set(leaving)}
            alive = [i for i in deadline if deadline[i] + ramp > now]
            latest = sorted(alive, key=deadline.__getitem__, reverse=True)
            kept[row] = set(latest[:budget])
        assert far_times(step.memory) == kept
        assert max(len(row) for row in kept) <= budget


@torch.no_grad()
def test_2_12_a_budget_that_is_never_reached_changes_nothing() -> None:
    memory = ExpireSpan(20, 4, penalty=0.1, initial=0.5)
    free = make_model(Case(memory, block=6))
    bound = make_model(Case(replace(memory, budget=100), block=6))
    tokens = random_tokens(2, 30)
    assert torch.equal(hidden_of(read(bound, tokens)), hidden_of(read(free, tokens)))


# Precision


@both_norms
@torch.no_grad()
def test_bf16_autocast_keeps_deadlines_in_float32_and_stays_close(norm: str) -> None:
    model = make_model(EXPIRE["expire"], norm=norm).float()
    rounded = copy.deepcopy(model)  # its first layer is given just what bfloat16 can hold
    with torch.no_grad():
        rounded.inputs.embedding.weight.copy_(model.inputs.embedding.weight.bfloat16())
    tokens = random_tokens(2, 40)
    exact = read(rounded, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        coarse = read(model, tokens)
    for one, other in zip(coarse, exact, strict=True):
        assert {deadline.dtype for layer in one.deadlines for deadline in layer} == {torch.float32}
        assert one.penalty.dtype == torch.float32
        # The first layer remembers the same states, so its spans are equal, to float32 rounding.
        for mine, theirs in zip(one.deadlines[0], other.deadlines[0], strict=True):
            assert_same(mine, theirs, tolerance=1e-5)
        assert_same(one.penalty, other.penalty, tolerance=0.05)
        assert {part.dtype for part in one.memory.layers[0].tensors().values()} == {
            torch.bfloat16, torch.int64
        }  # fmt: skip
    assert (hidden_of(coarse).float() - hidden_of(exact)).abs().max() < 0.15


@torch.no_grad()
def test_deadlines_are_float32_also_in_a_bfloat16_model() -> None:
    # In bfloat16, 9000 and 9001 are the same time.
    model = make_model(Case(ExpireSpan(18000, 4, initial=0.5), block=6)).bfloat16()
    set_predictor(model, 0.0, 0.0)
    near, far = model(random_tokens(2, 6), model.start(2)).deadlines[0]
    assert near.dtype == far.dtype == torch.float32
    assert near[0, 0].tolist() == [9000, 9001, 9002, 9003, 9004, 9005]


@torch.no_grad()
def test_stats_tell_the_mean_and_the_longest_span_of_the_call() -> None:
    model = make_model(Case(ExpireSpan(20, 4), block=6), layers=1)
    step = model(torch.tensor([[3, 3, 3], [5, 3, 5]]), model.start(2))
    logits = keeper_of(model).predictor(model.inputs.embedding.weight).flatten()
    spans = 20 * torch.sigmoid(logits)
    expected = (4 * spans[[3]] + 2 * spans[[5]]) / 6
    assert_same(step.stats.mean_span, expected, tolerance=1e-6)
    assert_same(step.stats.max_span, spans[[3, 5]].max()[None], tolerance=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_memory_of_half_a_million_steps_ends_on_the_very_step(dtype: torch.dtype) -> None:
    """Times are counted from the block, so a deadline far from its state loses nothing near it."""
    span, ramp, block = 2**19, 4, 6
    model = make_model(Case(ExpireSpan(2 * span, ramp), block=block), layers=1).to(dtype)
    set_predictor(model, 0.0, 0.0)  # every span is 2**19
    memory = model.start(1)
    # Seen last, counted from the next block's first query: at -1, 0, 2 and 9.
    ends = torch.tensor([-1, 0, 2, 9])
    far = PackedStates(
        states=torch.randn(4, 8, dtype=dtype),
        times=ends - span - ramp + 1,
        rows=torch.zeros(4, dtype=torch.int64),
        offsets=torch.tensor([0, 4]),
    )
    near = torch.zeros(1, 0, 8, dtype=dtype)
    memory = replace(memory, layers=(ExpiringMemory(near, far),), origin=memory.origin - 2 * span)
    step = model(random_tokens(1, block), memory)
    alone = model(random_tokens(1, block), model.start(1))
    seen = (step.stats.live - alone.stats.live) * block
    assert seen.item() == pytest.approx(0 + 1 + 3 + 6)
    assert step.memory.layers[0].far.times.tolist() == [(9 - span - ramp + 1) - block]


@torch.no_grad()
def test_a_limit_in_a_tensor_is_the_same_limit_and_nothing_is_drawn_beside_it() -> None:
    model = make_model(CASES["expire-long"])  # it shortens spans at random in training
    model.train()
    tokens, memory = random_tokens(2, 5), model.start(2)
    memory = model(tokens, memory, limit=torch.tensor(20)).memory
    shortest = model(tokens, memory, limit=torch.tensor(2))
    model.eval()
    torch.testing.assert_close(shortest.hidden, model(tokens, memory, limit=2).hidden)
    assert not torch.equal(shortest.hidden, model(tokens, memory).hidden)
