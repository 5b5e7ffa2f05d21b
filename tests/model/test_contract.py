"""The contract of every memory policy: what a model promises whatever it remembers by.

Which policies promise what:
- all: shapes, causality, rows that do not touch, episodes, resets, selection, save and load;
- all without a budget: at fixed weights, any cutting of a stream into calls of 1 to `block` steps
  gives what `oracle.py` computes over the whole stream at once, in values and in every gradient
  (a gradient ends only where the caller detaches memory). So deleting equals masking. A budget
  deletes at the end of each call, so there the calls matter.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model.oracle import Truth, whole_stream
from torch import Tensor

from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, Memory, Step
from expire_span.model.memory import POLICIES
from policies import (
    CASES,
    VOCAB,
    Case,
    assert_same,
    both_norms,
    both_starts,
    every_case,
    gradients,
    hidden_of,
    make_model,
    ragged_calls,
    random_tokens,
    read,
    room_as_on_a_gpu,
    unbudgeted_case,
)

two_models = pytest.mark.parametrize(("norm", "start"), [("post", "empty"), ("pre", "zeros")])


def stream_for(case: Case, blocks: float = 4.5, batch: int = 3) -> Tensor:
    return random_tokens(batch, int(blocks * case.block))


def episode_starts(case: Case, tokens: Tensor) -> Tensor:
    """Episodes that begin at the first, second, middle and last step of a block, or not at all."""
    block = case.block
    starts = torch.zeros_like(tokens, dtype=torch.bool)
    starts[0, [block, block + 1, 2 * block + block // 2, 4 * block - 1]] = True
    starts[1, [0, 2 * block - 1, 2 * block]] = True
    return starts


def assert_true(steps: list[Step], truth: Truth) -> None:
    """Final states, live memory and penalty of all calls are those of the whole stream."""
    assert_same(hidden_of(steps), truth.hidden)
    begin = 0
    for step in steps:
        end = begin + step.hidden.shape[1]
        live = truth.live[:, :, begin:end].mean(dim=(1, 2))
        assert_same(step.stats.live, live, tolerance=1e-6)  # counted in float32
        assert_same(step.penalty, truth.penalty(begin, end))
        begin = end


def assert_identical(found: Memory, expected: Memory) -> None:
    """The same memory, bit for bit."""
    assert found.clock == expected.clock
    assert found.made_for == expected.made_for
    assert found.fresh_origin == expected.fresh_origin
    theirs = expected.tensors()
    assert found.tensors().keys() == theirs.keys()
    for name, tensor in found.tensors().items():
        assert tensor.dtype == theirs[name].dtype
        assert torch.equal(tensor, theirs[name]), name


def weighted_sum(hidden: Tensor) -> Tensor:
    """A loss in which every number counts differently."""
    weights = torch.linspace(-1, 1, hidden.numel(), dtype=hidden.dtype)
    return weights @ hidden.flatten()


def loss_of(steps: list[Step]) -> Tensor:
    """All final states and penalties, each query counting the same however the calls are cut."""
    total = sum(step.hidden.shape[1] for step in steps)
    prices = [step.penalty * step.hidden.shape[1] / total for step in steps]
    return weighted_sum(hidden_of(steps)) + torch.stack(prices).sum()


def test_every_registered_policy_has_a_case() -> None:
    assert {type(case.memory) for case in CASES.values()} == set(POLICIES.values())


@every_case
@two_models
def test_a_step_has_these_shapes(case: Case, norm: str, start: str) -> None:
    model = make_model(case, norm=norm, start=start)
    tokens = random_tokens(3, case.block + 1)
    for step, length in zip(read(model, tokens), (case.block, 1), strict=True):
        assert step.hidden.shape == (3, length, 8)
        assert step.logits.shape == (3, length, VOCAB)
        assert step.penalty.shape == ()
        assert step.memory.batch == 3
        for number in vars(step.stats).values():
            assert number.shape == (2,)
            assert not number.requires_grad
    assert step.memory.clock == case.block + 1


@unbudgeted_case
@both_norms
@both_starts
def test_blocks_equal_the_whole_stream_in_values_and_gradients(
    case: Case, norm: str, start: str
) -> None:
    model = make_model(case, norm=norm, start=start)
    tokens = stream_for(case)
    steps, truth = read(model, tokens), whole_stream(model, tokens)
    assert_true(steps, truth)
    true_loss = weighted_sum(truth.hidden) + truth.penalty(0, tokens.shape[1])
    expected = gradients(true_loss, model)
    for name, found in gradients(loss_of(steps), model).items():
        assert_same(found, expected[name], tolerance=1e-9)


@unbudgeted_case
@two_models
def test_calls_of_any_length_equal_the_whole_stream(case: Case, norm: str, start: str) -> None:
    model = make_model(case, norm=norm, start=start)
    tokens = stream_for(case)
    lengths = ragged_calls(tokens.shape[1], case.block)
    assert_true(read(model, tokens, lengths), whole_stream(model, tokens))


@unbudgeted_case
@torch.no_grad()
def test_single_steps_equal_the_whole_stream(case: Case) -> None:
    model = make_model(case, layers=1)
    tokens = stream_for(case, batch=2)
    assert_true(read(model, tokens, [1] * tokens.shape[1]), whole_stream(model, tokens))


@unbudgeted_case
def test_one_long_block_equals_many_short_calls_in_values_and_gradients(case: Case) -> None:
    long = Case(case.memory, block=3 * case.block)
    model = make_model(long)
    tokens = random_tokens(2, long.block)
    whole, cut = read(model, tokens), read(model, tokens, ragged_calls(long.block, case.block))
    assert len(whole) == 1
    assert_same(hidden_of(cut), hidden_of(whole))
    expected = gradients(loss_of(whole), model)
    for name, found in gradients(loss_of(cut), model).items():
        assert_same(found, expected[name], tolerance=1e-9)


@unbudgeted_case
@both_norms
@torch.no_grad()
def test_episodes_equal_the_whole_stream(case: Case, norm: str) -> None:
    model = make_model(case, norm=norm)
    tokens = stream_for(case)
    starts = episode_starts(case, tokens)
    truth = whole_stream(model, tokens, starts)
    assert_true(read(model, tokens, starts=starts), truth)
    lengths = ragged_calls(tokens.shape[1], case.block)
    assert_true(read(model, tokens, lengths, starts=starts), truth)


@every_case
@torch.no_grad()
def test_starts_that_mark_nothing_change_nothing(case: Case) -> None:
    model = make_model(case)
    tokens = stream_for(case, blocks=3)
    none = torch.zeros_like(tokens, dtype=torch.bool)
    marked, unmarked = read(model, tokens, starts=none), read(model, tokens)
    assert torch.equal(hidden_of(marked), hidden_of(unmarked))
    assert_identical(marked[-1].memory, unmarked[-1].memory)


@unbudgeted_case
@pytest.mark.parametrize("limit", [0, 1, 9])
@torch.no_grad()
def test_a_limit_cuts_every_distance_beyond_it(case: Case, limit: int) -> None:
    model = make_model(case)
    tokens = stream_for(case, blocks=4)
    starts = episode_starts(case, tokens)
    truth = whole_stream(model, tokens, starts, limit)
    assert_true(read(model, tokens, starts=starts, limit=limit), truth)


@every_case
@both_starts
@torch.no_grad()
def test_a_limit_deletes_nothing(case: Case, start: str) -> None:
    # One layer, so that what a cut call reads does not change what it remembers.
    model = make_model(case, layers=1, start=start)
    before, cut, after = stream_for(case, blocks=6).split([4 * case.block, *[case.block] * 2], 1)
    memory = read(model, before)[-1].memory
    uncut = model(cut, memory).memory
    limited = model(cut, memory, limit=2).memory
    assert_identical(limited, uncut)
    assert torch.equal(model(after, limited).hidden, model(after, uncut).hidden)


@settings(max_examples=25)
@given(data=st.data())
@torch.no_grad()
def test_any_sizes_equal_the_whole_stream(data: st.DataObject) -> None:
    rate = data.draw(st.integers(1, 3), "rate")
    block = rate * data.draw(st.integers(1, 4), "slots in a block")
    span = rate * data.draw(st.integers(1, 5), "slots in a span")
    ramp = data.draw(st.integers(1, 9), "ramp")
    share = data.draw(st.floats(0.01, 0.99), "initial")
    policies = [
        ExpireSpan(span, ramp, 0.1, share),
        FixedSpan(span),
        AdaptiveSpan(span, ramp, 0.1, share),
        Compressive(span, data.draw(st.integers(1, 3), "slots"), rate),
    ]
    case = Case(data.draw(st.sampled_from(policies), "policy"), block)
    norm = data.draw(st.sampled_from(["post", "pre"]), "norm")
    start = data.draw(st.sampled_from(["empty", "zeros"]), "start")
    model = make_model(case, norm=norm, start=start, seed=data.draw(st.integers(0, 99)))
    tokens = random_tokens(data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4 * block)))
    lengths = ragged_calls(tokens.shape[1], block, seed=data.draw(st.integers(0, 99)))
    assert_true(read(model, tokens, lengths), whole_stream(model, tokens))


@every_case
@two_models
@torch.no_grad()
def test_changing_a_token_changes_nothing_before_it(case: Case, norm: str, start: str) -> None:
    model = make_model(case, norm=norm, start=start)
    tokens = stream_for(case, blocks=3, batch=4)
    places = [0, case.block + case.block // 2, 2 * case.block - 1, 2 * case.block]
    changed = tokens.clone()
    changed[range(4), places] = (changed[range(4), places] + 1) % VOCAB
    before, after = hidden_of(read(model, tokens)), hidden_of(read(model, changed))
    for row, place in enumerate(places):
        assert_same(after[row, :place], before[row, :place])
        assert not torch.isclose(after[row, place], before[row, place]).all()


@every_case
def test_a_query_never_sees_itself(case: Case) -> None:
    model = make_model(case, layers=1)
    attention, keys, values = model.layers[0].attention, [], []
    attention.key.register_forward_hook(lambda *call: keys.append(call[2]))
    attention.value.register_forward_hook(lambda *call: values.append(call[2]))
    attended: list[Tensor] = []
    attention.register_forward_hook(lambda *call: attended.append(call[2]))
    read(model, random_tokens(2, 3 * case.block))
    for projected in (keys, values):
        # The first set ends with the block's states; every block projects each of its sets once.
        assert len(projected) % 3 == 0
        last_block = projected[-len(projected) // 3]
        for t in range(case.block):
            (seen,) = torch.autograd.grad(
                weighted_sum(attended[-1][:, t]), last_block, retain_graph=True
            )
            itself = last_block.shape[1] - case.block + t
            assert (seen[:, itself:] == 0).all()
            assert projected is keys or (seen[:, itself - 1] != 0).any()


@every_case
@two_models
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_batch(case: Case, norm: str, start: str) -> None:
    model = make_model(case, norm=norm, start=start)
    tokens = stream_for(case)
    together = read(model, tokens)
    alone = [read(model, row[None]) for row in tokens]
    assert_same(torch.cat([hidden_of(steps) for steps in alone]), hidden_of(together))
    for n, step in enumerate(together):
        rows = [steps[n] for steps in alone]
        assert_same(torch.stack([row.penalty for row in rows]).mean(), step.penalty)
        for name in ("live", "held"):
            mean = torch.stack([getattr(row.stats, name) for row in rows]).mean(dim=0)
            assert_same(getattr(step.stats, name), mean, tolerance=1e-6)


@every_case
@torch.no_grad()
def test_a_row_does_not_feel_the_episodes_of_its_neighbours(case: Case) -> None:
    model = make_model(case)
    tokens = stream_for(case)
    starts = episode_starts(case, tokens)
    with_neighbours = hidden_of(read(model, tokens, starts=starts))
    for row in range(3):
        alone = read(model, tokens[[row]], starts=starts[[row]])
        assert_same(with_neighbours[[row]], hidden_of(alone))


@every_case
@torch.no_grad()
def test_nothing_before_an_episode_changes_anything_in_it(case: Case) -> None:
    model = make_model(case)
    block = case.block
    tokens, others = stream_for(case, blocks=5, batch=4), random_tokens(4, 5 * block, seed=9)
    starts = torch.zeros_like(tokens, dtype=torch.bool)
    places = [2 * block, 2 * block + 1, 2 * block + block // 2, 3 * block - 1]
    starts[range(4), places] = True
    earlier = torch.arange(5 * block) < torch.tensor(places)[:, None]
    mine = read(model, tokens, starts=starts)
    theirs = read(model, torch.where(earlier, others, tokens), starts=starts)
    assert_same(hidden_of(mine)[~earlier], hidden_of(theirs)[~earlier])
    for one, other in zip(mine[3:], theirs[3:], strict=True):
        assert_same(one.penalty, other.penalty)
        assert torch.equal(one.stats.live, other.stats.live)
        assert torch.equal(one.stats.held, other.stats.held)


@every_case
@two_models
@torch.no_grad()
def test_a_reset_row_is_as_at_the_very_start_and_others_are_untouched(
    case: Case, norm: str, start: str
) -> None:
    model = make_model(case, norm=norm, start=start)
    past, future = stream_for(case, blocks=4).tensor_split([2 * case.block], dim=1)
    memory = read(model, past)[-1].memory
    fresh, went_on = hidden_of(read(model, future)), hidden_of(read(model, future, memory=memory))
    found = hidden_of(read(model, future, memory=memory.reset(torch.tensor([2, 0]))))
    assert_same(found[[0, 2]], fresh[[0, 2]])
    assert_same(found[1], went_on[1])
    marked = torch.tensor([True, False, True])
    assert_identical(memory.reset(marked), memory.reset(torch.tensor([2, 0])))


@every_case
@torch.no_grad()
def test_a_reset_equals_an_episode_that_starts_with_the_next_call(case: Case) -> None:
    model = make_model(case)
    past, future = stream_for(case, blocks=5).tensor_split([2 * case.block + 1], dim=1)
    memory = read(model, past)[-1].memory
    starts = torch.zeros_like(future, dtype=torch.bool)
    starts[1, 0] = True
    for by_reset, by_start in zip(
        read(model, future, memory=memory.reset(torch.tensor([1]))),
        read(model, future, memory=memory, starts=starts),
        strict=True,
    ):
        assert_same(by_reset.hidden, by_start.hidden)
        assert_same(by_reset.penalty, by_start.penalty)
        assert torch.equal(by_reset.stats.live, by_start.stats.live)


@every_case
@two_models
@torch.no_grad()
def test_selected_rows_go_on_as_they_were(case: Case, norm: str, start: str) -> None:
    model = make_model(case, norm=norm, start=start)
    past, future = stream_for(case, blocks=4, batch=4).tensor_split([3 * case.block + 1], dim=1)
    memory = read(model, past)[-1].memory.reset(torch.tensor([3]))
    expected = hidden_of(read(model, future, memory=memory))
    for rows in (torch.tensor([3, 1, 1, 0, 2]), torch.tensor([2])):
        found = read(model, future[rows], memory=memory.select(rows))
        assert_same(hidden_of(found), expected[rows])
    marked = torch.tensor([False, True, False, True])
    assert_identical(memory.select(marked), memory.select(torch.tensor([1, 3])))


@every_case
@torch.no_grad()
def test_negative_rows_count_from_the_end(case: Case) -> None:
    memory = read(make_model(case), stream_for(case))[-1].memory
    assert_identical(memory.select(torch.tensor([-2])), memory.select(torch.tensor([1])))
    assert_identical(memory.reset(torch.tensor([-2])), memory.reset(torch.tensor([1])))


@every_case
@two_models
@pytest.mark.parametrize("batch", [1, 3])
@torch.no_grad()
def test_memory_goes_on_bit_for_bit_after_save_and_load(
    case: Case, norm: str, start: str, batch: int, tmp_path: Path
) -> None:
    model = make_model(case, norm=norm, start=start)
    past, future = stream_for(case, blocks=3, batch=batch).tensor_split([2 * case.block + 1], dim=1)
    for memory in (model.start(batch), read(model, past)[-1].memory):
        memory.save(tmp_path / "memory.safetensors")
        loaded = model.load_memory(tmp_path / "memory.safetensors")
        assert_identical(loaded, memory)
        # At an odd address some CPUs round otherwise; so this can fail on any of them.
        assert {tensor.data_ptr() % 64 for tensor in loaded.tensors().values()} == {0}
        expected, found = read(model, future, memory=memory), read(model, future, memory=loaded)
        assert torch.equal(hidden_of(found), hidden_of(expected))
        assert_identical(found[-1].memory, expected[-1].memory)


@every_case
def test_detached_or_moved_memory_holds_the_same_numbers(case: Case) -> None:
    model = make_model(case)
    memory = read(model, stream_for(case))[-1].memory
    assert any(tensor.requires_grad for tensor in memory.tensors().values())
    assert not any(tensor.requires_grad for tensor in memory.detach().tensors().values())
    assert_identical(memory.detach(), memory)
    assert_identical(memory.to("cpu"), memory)
    assert {tensor.device.type for tensor in memory.to("meta").tensors().values()} == {"meta"}


@every_case
@torch.no_grad()
def test_memory_is_never_changed_in_place(case: Case) -> None:
    model = make_model(case)
    past, future = stream_for(case, blocks=4).tensor_split([3 * case.block], dim=1)
    memory = read(model, past)[-1].memory
    copy = memory.clone()
    memory.reset(torch.tensor([0]))
    memory.select(torch.tensor([1, 1]))
    first, second = model(future, memory), model(future, memory)
    assert_identical(memory, copy)
    assert torch.equal(first.hidden, second.hidden)


@every_case
@two_models
@torch.no_grad()
def test_held_counts_the_states_in_memory(case: Case, norm: str, start: str) -> None:
    model = make_model(case, norm=norm, start=start)
    for step in read(model, stream_for(case)):
        for held, layer in zip(step.stats.held, step.memory.layers, strict=True):
            stored = [
                tensor.numel() / 8
                for tensor in layer.tensors().values()
                if tensor.is_floating_point()
            ]
            assert held == pytest.approx(sum(stored) / 3)


@every_case
@torch.no_grad()
@pytest.mark.parametrize("device", ["cpu", "as on a gpu"])
def test_held_is_at_most_live_and_two_blocks(case: Case, device: str, monkeypatch) -> None:
    if device != "cpu":
        room_as_on_a_gpu(monkeypatch)
    model = make_model(case)
    for step in read(model, stream_for(case, blocks=7)):
        assert (step.stats.held <= step.stats.live + 2 * case.block).all()


@every_case
@torch.no_grad()
def test_only_learned_spans_have_a_price(case: Case) -> None:
    model = make_model(case)
    penalties = [step.penalty for step in read(model, stream_for(case))]
    learned = isinstance(case.memory, ExpireSpan | AdaptiveSpan)
    closed = isinstance(case.memory, AdaptiveSpan) and case.memory.initial == 0
    assert any(penalty != 0 for penalty in penalties) == (learned and not closed)
