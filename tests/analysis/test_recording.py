"""Recordings against the models they were made of."""

import re
import sys
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from expire_span import ExpireSpan, Transformer
from expire_span.analysis.recording import (
    MOMENTS_FILE,
    NOT_YET,
    Recording,
    live_along,
    read_block,
    record,
    record_task,
    record_tokens,
    text_batches,
)
from expire_span.model.ops.ramp import is_alive
from expire_span.tasks import Batch, Copy, Recall, Text
from policies import CASES, VOCAB, Case, every_case, make_model, random_tokens, read

STEPS = 83


def recorded(model: Transformer, tokens: torch.Tensor, starts=None, **settings) -> Recording:
    whole = Batch(tokens, tokens, torch.ones_like(tokens, dtype=torch.bool), starts)
    rows, steps = tokens.shape
    block = model.config.block
    batches = [whole.cut(first, first + block) for first in range(0, steps, block)]
    return record(model, batches, name="some", rows=rows, steps=steps, **settings)


@every_case
def test_recording_changes_no_bit(case: Case):
    model, tokens = make_model(case), random_tokens(1, STEPS)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    before = read(model, tokens)
    found = record_tokens(model, tokens[0].numpy())
    after = read(model, tokens)
    for one, two in zip(before, after, strict=True):
        assert torch.equal(one.hidden, two.hidden)
    assert all(torch.equal(weights[name], now) for name, now in model.state_dict().items())
    hidden = torch.cat([step.hidden for step in before], dim=1)
    nll = model.sequence_head().nll(hidden[:, :-1], tokens[:, 1:])
    np.testing.assert_array_equal(found.loss[0, :-1], nll[0].detach().float().numpy())
    assert np.isnan(found.loss[0, -1])
    np.testing.assert_array_equal(found.tokens, tokens)


EXPIRING = [name for name in CASES if name.startswith("expire") and "budget" not in name]


@pytest.mark.parametrize("name", EXPIRING)
def test_memories_are_deleted_by_the_deadline_rule(name: str):
    case = CASES[name]
    model, tokens = make_model(case), random_tokens(3, STEPS)
    found = recorded(model, tokens)
    times = torch.arange(STEPS)
    expected = torch.full(found.deleted.shape, NOT_YET)
    for end in reversed(found.ends.tolist()):
        # Old enough to have left the last block, and nothing is left of it.
        over = ~is_alive(torch.tensor(found.deadlines()), end, case.memory.ramp)
        expected[over & (times < end - case.block)] = end
    np.testing.assert_array_equal(found.deleted, expected)
    assert (found.deleted != NOT_YET).any()


@every_case
def test_held_and_deleted_add_up(case: Case):
    model, tokens = make_model(case), random_tokens(2, STEPS)
    found, steps = recorded(model, tokens), read(model, tokens)
    times = np.arange(STEPS)
    for call, (end, step) in enumerate(zip(found.ends, steps, strict=True)):
        there = (times < end) & ((found.deleted == NOT_YET) | (found.deleted > end))
        pooled = (found.pooled != NOT_YET) & (found.pooled <= end) & there
        held = (there & ~pooled).sum(axis=2).mean(axis=1)
        rate = getattr(case.memory, "rate", 1)
        stored = held + _stored_slots(step, pooled, rate)
        np.testing.assert_allclose(stored, step.stats.held)
        np.testing.assert_allclose(found.held[:, call], step.stats.held.float())
        np.testing.assert_allclose(found.live[:, call], step.stats.live.float())


def _stored_slots(step, pooled, rate):
    """Slots whose states are all pooled are counted by them; others still have single states."""
    slots = [getattr(memory, "slots", None) for memory in step.memory.layers]
    if slots[0] is None:
        return 0
    counts = np.array([slot.shape[1] for slot in slots], dtype=float)
    assert (pooled.sum(axis=2) <= counts[:, None] * rate).all()
    assert (pooled.sum(axis=2) > (counts[:, None] - 2) * rate).all()
    return counts


def test_compressive_pools_and_then_deletes():
    model = make_model(CASES["compressive"])  # 8 states, 3 slots of 4, blocks of 8
    found = recorded(model, random_tokens(1, 64))
    both = (found.pooled != NOT_YET) & (found.deleted != NOT_YET)
    assert both.any()
    assert (found.pooled[both] < found.deleted[both]).all()
    assert (np.diff(found.deleted[0, 0][found.deleted[0, 0] != NOT_YET]) >= 0).all()


def test_adaptive_span_records_its_heads():
    case = CASES["adaptive"]
    model = make_model(case)
    found = recorded(model, random_tokens(1, 30))
    for layer, spans in enumerate(found.head_spans):
        ratio = model.stack()[layer].keeper.ratio.detach()
        np.testing.assert_allclose(spans, ratio * case.memory.max_span, rtol=1e-6)


@pytest.mark.parametrize("name", [*EXPIRING, "expire-budget"])
@pytest.mark.parametrize("limit", [None, 6])
@pytest.mark.parametrize("restarts", [False, True])
def test_live_memory_is_counted_as_the_model_counts_it(name: str, limit: int | None, restarts):
    case = CASES[name]
    starts = torch.rand(2, STEPS) < 0.05 if restarts else None
    found = recorded(make_model(case), random_tokens(2, STEPS), starts=starts, limit=limit)
    assert found.starts.any() == restarts
    for layer in range(found.about.layers):
        along = live_along(found, layer)
        means = [along[a:b].mean() for a, b in pairwise([0, *found.ends])]
        np.testing.assert_allclose(means, found.live[layer], rtol=1e-5, atol=1e-5)


def test_a_recording_on_the_disk_is_the_same(tmp_path: Path):
    model, tokens = make_model(CASES["expire"]), random_tokens(2, STEPS)
    in_ram = recorded(model, tokens)
    recorded(model, tokens, folder=tmp_path)
    opened = Recording.open(tmp_path)
    assert opened.about == in_ram.about
    assert isinstance(opened.spans, np.memmap)
    for name in ("tokens", "loss", "starts", "spans", "deleted", "ends", "live", "held"):
        np.testing.assert_array_equal(getattr(opened, name), getattr(in_ram, name))


def test_what_is_no_whole_recording_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="holds no whole recording"):
        Recording.open(tmp_path)
    model, tokens = make_model(CASES["expire"]), random_tokens(1, STEPS)
    recorded(model, tokens, folder=tmp_path)
    assert Recording.open(tmp_path).steps == STEPS

    def broken():
        yield from islice(text_batches(tokens[0].numpy(), 8), 3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(model, broken(), name="some", rows=1, steps=STEPS, folder=tmp_path)
    with pytest.raises(ValueError, match="holds no whole recording"):
        Recording.open(tmp_path)


def test_a_recording_takes_the_place_of_none_of_another_run(tmp_path: Path):
    model, tokens = make_model(CASES["expire"]), random_tokens(1, STEPS)[0].numpy()
    record_tokens(model, tokens, name="one", folder=tmp_path)
    (tmp_path / MOMENTS_FILE).write_text("what its tokens mean")
    with pytest.raises(ValueError, match="holds a recording of one: choose another folder"):
        record_tokens(model, tokens, name="two", folder=tmp_path)
    assert Recording.open(tmp_path).about.name == "one"
    record_tokens(model, tokens, name="one", folder=tmp_path)
    assert not (tmp_path / MOMENTS_FILE).exists()


def test_no_file_is_taken_for_a_part_of_a_recording_by_its_name_alone(tmp_path: Path):
    (tmp_path / "loss.npy").write_text("mine")
    model = make_model(CASES["expire"]).eval()
    with pytest.raises(ValueError, match=r"holds other files, such as loss\.npy"):
        record_tokens(model, list(range(5)), folder=tmp_path)
    assert (tmp_path / "loss.npy").read_text() == "mine"
    with pytest.raises(ValueError, match=r"^A text is one row of tokens, not an array of shape"):
        record_tokens(model, np.zeros((2, 5), dtype=np.int64))


def test_calls_of_any_length_record_the_same_spans():
    model, tokens = make_model(CASES["expire"]), random_tokens(1, STEPS)
    whole = recorded(model, tokens)
    memory, spans = model.start(1), []
    for batch in text_batches(tokens[0].numpy(), 1):
        step, _ = read_block(model, batch, memory)
        memory = step.memory
        spans.append([float(layer[0, -1].detach()) for layer in step.spans])
    np.testing.assert_allclose(np.array(spans).T, whole.spans[:, 0], rtol=1e-5)


@pytest.mark.parametrize("task", [Recall(period=16), Copy(max_distance=10, restart=True)])
def test_tasks_are_recorded(task):
    model = make_model(CASES["expire"], vocab=task.vocab)
    found = record_task(model, task, "valid", rows=2, blocks=4)
    stream = task.stream("valid", 2, 0)
    memory = model.start(2)
    for begin in range(0, 32, 8):
        batch = stream.read(8)
        step = model(batch.inputs, memory, starts=batch.starts)
        memory = step.memory
        nll = model.sequence_head().nll(step.hidden, batch.targets)
        nll = nll.masked_fill(~batch.scored, torch.nan).detach().float()
        np.testing.assert_array_equal(found.loss[:, begin : begin + 8], nll)
        if batch.starts is not None:
            np.testing.assert_array_equal(found.starts[:, begin : begin + 8], batch.starts)


def test_a_loss_stands_with_the_token_it_is_about():
    model = make_model(CASES["expire"])
    text = record_tokens(model, random_tokens(1, 20)[0].numpy())
    assert np.isnan(text.loss_by_token()[0, 0])
    np.testing.assert_array_equal(text.loss_by_token()[0, 1:], text.loss[0, :-1])
    task = Recall(period=16)  # whose answers are to the very token that asks
    answers = record_task(make_model(CASES["expire"], vocab=task.vocab), task, "valid", blocks=4)
    np.testing.assert_array_equal(answers.loss_by_token(), answers.loss)


def test_a_model_in_training_is_refused():
    model = make_model(CASES["expire"]).train()
    with pytest.raises(ValueError, match="eval"):
        record_tokens(model, [1, 2, 3])
    with pytest.raises(ValueError, match="nothing to read"):
        record_tokens(model, [])
    assert VOCAB > 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much RAM is in use")
def test_a_stream_of_a_million_needs_no_more_ram_than_a_short_one(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes(bytes(range(32, 127)) * 22_000)
    task = Text(str(path), train_share=0.0001, valid_share=0.4998)
    case = Case(ExpireSpan(64, 8, initial=0.2), block=512)
    model = make_model(case, vocab=256, layers=1, attention="auto").float()
    record_task(model, task, "valid", blocks=100, folder=tmp_path / "short")
    before = _private_ram()
    found = record_task(model, task, "valid", folder=tmp_path / "long")
    grown = _private_ram() - before
    size = sum(file.stat().st_size for file in (tmp_path / "long").iterdir())
    assert found.steps > 1_000_000
    assert size > 24 * found.steps
    assert grown < 6 * 2**20, f"{grown / 2**20:.1f} MiB"


def _private_ram() -> int:
    """Bytes of RAM that are no mapped file's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"RssAnon:\s+(\d+)", status)[1])
