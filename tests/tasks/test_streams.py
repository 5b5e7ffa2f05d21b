"""What every stream promises, and the scores that add up what was made of it."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from expire_span.experiments.scale import SAMPLES
from expire_span.tasks import (
    PG19,
    SPLITS,
    TASKS,
    Batch,
    BitsPerByte,
    BitsPerCharacter,
    Collision,
    CollisionEasy,
    Copy,
    Documents,
    Enwik8,
    ErrorRate,
    ExactMatch,
    Instruction,
    Perplexity,
    PieceStream,
    Recall,
    Score,
    Stream,
    Task,
    Text,
    TokenAccuracy,
    WikiText,
    enwik8,
)
from expire_span.tasks.copy import END
from expire_span.tasks.stream import Steps

QUICK = settings(deadline=None, derandomize=True, max_examples=20)
PLAIN_SCORES = [TokenAccuracy, ErrorRate, BitsPerByte, BitsPerCharacter, Perplexity]
CUTS = st.lists(st.integers(1, 700), min_size=1, max_size=12)
TASKS_TO_TRY: dict[str, Callable[[Path], Task]] = {
    "recall": lambda _: Recall(period=50),
    "two facts": lambda _: Recall(period=13, facts=2, query_probability=0.5),
    "copy": lambda _: Copy(30, distances="log"),
    "copy restart": lambda _: Copy(5, restart=True),
    "text": lambda folder: Text(str(folder / "some.txt")),
    "collision": lambda _: Collision(),
    "easy collision": lambda _: CollisionEasy(),
    "instruction": lambda _: Instruction(distance=40),
    "documents": lambda folder: Documents(str(folder / "some.jsonl")),
    "enwik8": lambda folder: Enwik8(str(folder / "some.txt")),
    "pg19": lambda _: PG19(str(SAMPLES / "books"), vocabulary=50),
    "wikitext": lambda _: WikiText(str(SAMPLES / "words"), vocabulary=60),
}
SOME_TEXT = np.random.default_rng(0).bytes(3000)


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(enwik8, "RELEASE", enwik8.Release(3000, md5(SOME_TEXT).hexdigest(), 300, 256))
        yield


@pytest.fixture(scope="module", params=TASKS_TO_TRY)
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("text")
    (folder / "some.txt").write_bytes(SOME_TEXT)
    documents = "".join(json.dumps({"text": "word " * n}) + "\n" for n in range(40))
    (folder / "some.jsonl").write_text(documents)
    return TASKS_TO_TRY[request.param](folder)


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches agree in all fields, whichever there are."""
    names = [field.name for field in fields(Batch)]
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return all(a is b is None or (None not in (a, b) and torch.equal(a, b)) for a, b in pairs)


def rows(batch: Batch, count: int) -> Batch:
    return batch.map(lambda field: field[:count])


def through_json(state: dict) -> dict:
    return json.loads(json.dumps(state))


def test_fields_have_the_promised_types_and_range(task: Task) -> None:
    batch = task.stream("train", batch=3, seed=0).read(500)
    assert batch.inputs.shape == (3, 500)
    assert batch.inputs.dtype == batch.targets.dtype == torch.int64
    assert batch.scored.dtype == torch.bool
    for tokens in (batch.inputs, batch.targets):
        assert tokens.min() >= 0
        assert tokens.max() < task.vocab


@QUICK
@given(cuts=CUTS)
def test_block_length_does_not_matter(task: Task, cuts: list[int]) -> None:
    whole = task.stream("train", batch=3, seed=1).read(sum(cuts))
    stream = task.stream("train", batch=3, seed=1)
    assert same(whole, Batch.joined([stream.read(cut) for cut in cuts]))


@QUICK
@given(before=st.integers(0, 20_000), after=st.integers(1, 500))
def test_stop_and_resume_equals_no_stop(task: Task, before: int, after: int) -> None:
    stream = task.stream("train", batch=2, seed=2)
    if before:
        stream.read(before)
    state = through_json(stream.state())
    expected = stream.read(after)
    fresh = task.stream("train", batch=2, seed=2)
    fresh.read(7)
    fresh.restore(state)
    assert same(expected, fresh.read(after))
    assert fresh.state() == stream.state()


def test_a_saved_state_does_not_move_with_the_stream(task: Task) -> None:
    stream = task.stream("train", batch=2, seed=2)
    stream.read(5)
    state = stream.state()
    copied = through_json(state)
    stream.read(5000)
    assert state == copied


@pytest.mark.parametrize(
    "synthetic", [Recall(period=20, facts=2), Copy(9), Collision(), CollisionEasy(), Instruction()]
)
def test_a_row_is_the_same_in_any_batch(synthetic: Task) -> None:
    four = synthetic.stream("train", batch=4, seed=3).read(3000)
    sixteen = synthetic.stream("train", batch=16, seed=3).read(3000)
    assert same(four, rows(sixteen, 4))


@pytest.mark.parametrize(
    "synthetic", [Recall(), Copy(9), Collision(), CollisionEasy(), Instruction()]
)
def test_splits_seeds_and_rows_differ(synthetic: Task) -> None:
    streams = [synthetic.stream(split, batch=2, seed=seed) for split in SPLITS for seed in (0, 1)]
    drawn = [row for stream in streams for row in stream.read(300).inputs]
    for number, one in enumerate(drawn):
        assert not any(torch.equal(one, other) for other in drawn[:number])


def test_some_rows_are_those_of_the_whole(task: Task) -> None:
    whole = task.stream("train", batch=5, seed=4)
    some = task.stream("train", batch=5, seed=4).only(range(1, 4))
    for steps in (700, 9000):
        expected = whole.read(steps).map(lambda field: field[1:4])
        assert same(expected, some.read(steps))
    fresh = task.stream("train", batch=5, seed=4).only(range(1, 4))
    fresh.restore(through_json(some.state()))
    assert same(whole.read(300).map(lambda field: field[1:4]), fresh.read(300))


def test_a_batch_in_parts_is_the_batch() -> None:
    batch = Instruction(distance=20).stream("train", batch=5, seed=0).read(300)
    assert batch.in_metric is not None
    parts = batch.split(2)
    assert [len(part.inputs) for part in parts] == [2, 2, 1]
    assert torch.cat([part.judged for part in parts]).equal(batch.in_metric)
    assert torch.cat([part.inputs for part in parts]).equal(batch.inputs)
    assert batch.cut(3, 9).targets.equal(batch.targets[:, 3:9])


def test_a_new_stream_begins_at_the_beginning(task: Task) -> None:
    streams = [task.stream("train", batch=2, seed=0) for _ in range(2)]
    assert same(streams[0].read(100), streams[1].read(100))


class Counting(PieceStream):
    """Rows that spell (row, piece, offset) as a number; some pieces have no step at all."""

    def piece(self, row: int, index: int) -> Steps:
        length = int(self.random(row, index).integers(0, 5))
        spelled = 10_000 * row + 10 * index + np.arange(length)
        return Steps(spelled, spelled + 1, spelled % 2 == 0, np.arange(length) == 0)


@QUICK
@given(cuts=st.lists(st.integers(1, 9), min_size=1, max_size=30), batch=st.integers(1, 4))
def test_pieces_are_read_end_to_end(cuts: list[int], batch: int) -> None:
    stream = Counting({"task": "Counting"}, "valid", batch, seed=5)
    read = Batch.joined([stream.read(cut) for cut in cuts])
    for row in range(batch):
        plain: list[int] = []
        index = 0
        while len(plain) < sum(cuts):
            length = int(np.random.default_rng([5, 1, row, index]).integers(0, 5))
            plain += [10_000 * row + 10 * index + offset for offset in range(length)]
            index += 1
        expected = plain[: sum(cuts)]
        assert read.inputs[row].tolist() == expected
        assert read.targets[row].tolist() == [number + 1 for number in expected]
        assert read.scored[row].tolist() == [number % 2 == 0 for number in expected]
        assert read.starts is not None
        assert read.starts[row].tolist() == [number % 10 == 0 for number in expected]


def test_endless_streams_say_so(task: Task) -> None:
    stream = task.stream("train", batch=2, seed=0)
    stream.read(10)
    assert stream.length is None
    assert stream.remaining is None
    assert stream.batch == 2


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Recall().stream("train", batch=3, seed=0), "batch 3"),
        (Recall().stream("train", batch=2, seed=1), "seed 1"),
        (Recall().stream("valid", batch=2, seed=0), "split 'valid'"),
        (Recall(period=64).stream("train", batch=2, seed=0), "period 64"),
        (Copy(9).stream("train", batch=2, seed=0), "task 'Copy'"),
    ],
)
def test_the_position_of_another_stream_is_refused(other: Stream, named: str) -> None:
    stream = Recall().stream("train", batch=2, seed=0)
    stream.read(5)
    before = stream.state()
    with pytest.raises(ValueError, match=f"saved by another stream, with {named} where"):
        stream.restore(through_json(other.state()))
    assert stream.state() == before


def test_something_that_is_no_position_is_refused() -> None:
    with pytest.raises(ValueError, match="saved by another stream, with task None where"):
        Recall().stream("train", batch=2, seed=0).restore({})


def test_senseless_requests_are_refused(task: Task) -> None:
    with pytest.raises(ValueError, match="no split 'dev': choose one of train, valid, test"):
        task.stream("dev", batch=2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch must be a whole number of at least 1, but is 0"):
        task.stream("train", batch=0, seed=0)
    with pytest.raises(ValueError, match="seed must be a whole number from 0"):
        task.stream("train", batch=2, seed=-1)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, but is 0"):
        task.stream("train", batch=2, seed=0).read(0)


def test_every_task_is_registered_under_its_name() -> None:
    assert {"Recall", "Copy", "Text"} <= TASKS.keys()
    assert all(made.__name__ == name for name, made in TASKS.items())


def test_every_task_is_held_to_the_contract(tmp_path: Path) -> None:
    assert {type(make(tmp_path)) for make in TASKS_TO_TRY.values()} == set(TASKS.values())


def test_a_batch_moves_as_a_whole_and_refuses_unequal_shapes() -> None:
    batch = Copy(3, restart=True).stream("train", batch=2, seed=0).read(9)
    moved = batch.to("meta")
    assert moved.starts is not None
    assert {field.device.type for field in (moved.inputs, moved.scored, moved.starts)} == {"meta"}
    assert same(batch, batch.to("cpu"))
    with pytest.raises(ValueError, match=r"shape of inputs, \(2, 9\), not \[\(2, 9\), \(2, 8\)\]"):
        Batch(batch.inputs, batch.targets, batch.scored[:, :8])


# Scores


def guesses(batch: Batch, wrong_share: float, seed: int) -> torch.Tensor:
    """Predictions of which about so many are wrong."""
    slips = torch.rand(batch.targets.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(slips < wrong_share, (batch.targets + 1) % 4, batch.targets)


def losses(batch: Batch, seed: int) -> torch.Tensor:
    """Some losses; where nothing is scored they are not even numbers."""
    nll = torch.rand(batch.targets.shape, generator=torch.Generator().manual_seed(seed)) * 3
    return torch.where(batch.scored, nll, math.nan)


def cut_up(whole: Batch, cuts: list[int], *values: torch.Tensor) -> list[tuple]:
    """Block after block of a batch, with the same steps of other values."""
    pieces, first = [], 0
    for cut in cuts:
        part = slice(first, first + cut)
        pieces.append((whole.cut(first, first + cut), *(value[:, part] for value in values)))
        first += cut
    return pieces


def plain_exact_match(batch: Batch, predictions: torch.Tensor) -> tuple[int, int]:
    """Answers that are right, and all answers, one step after the other."""
    right = answers = 0
    for row in range(len(batch.inputs)):
        flawless = True
        for step in range(batch.inputs.shape[1]):
            if not batch.scored[row, step]:
                continue
            flawless &= bool(predictions[row, step] == batch.targets[row, step])
            if batch.targets[row, step] == END:
                answers += 1
                right += flawless
                flawless = True
    return right, answers


def mean_scored(batch: Batch, values: torch.Tensor) -> float:
    return float(values.double()[batch.scored].mean())


@QUICK
@given(cuts=st.lists(st.integers(1, 12), min_size=10, max_size=40), seed=st.integers(0, 99))
def test_exact_match_equals_the_plain_count_however_answers_are_cut(
    cuts: list[int], seed: int
) -> None:
    batch = Copy(2).stream("train", batch=3, seed=seed).read(sum(cuts))
    predictions, nll = guesses(batch, 0.1, seed), losses(batch, seed)
    score = Copy(2).score()
    for block, block_nll, block_predictions in cut_up(batch, cuts, nll, predictions):
        score.update(block, block_nll, block_predictions)
    right, answers = plain_exact_match(batch, predictions)
    result = score.result()
    if answers == 0:
        assert result == {}
        return
    assert result["accuracy"] == right / answers
    assert result["answers"] == answers
    assert result["scored"] == int(batch.scored.sum())
    assert result["nll"] == pytest.approx(mean_scored(batch, nll), rel=1e-12)
    agreement = predictions == batch.targets
    assert result["token_accuracy"] == pytest.approx(mean_scored(batch, agreement), rel=1e-12)


def test_exact_match_counts_by_hand() -> None:
    """One answer straddles two blocks and its mistake lies in the first; the next is right."""
    tokens = torch.tensor([[2, 0, 0, 3, 0, 2, 0]])
    targets = torch.tensor([[0, 0, 3, 0, 2, 0, 3]])
    scored = torch.tensor([[True, True, True, False, False, True, True]])
    predictions = torch.tensor([[0, 3, 3, 1, 1, 0, 3]])
    score = ExactMatch(end=3)
    for block, block_predictions in cut_up(Batch(tokens, targets, scored), [2, 5], predictions):
        score.update(block, torch.zeros(block.targets.shape), block_predictions)
    assert score.result() == {
        "accuracy": 0.5,
        "token_accuracy": 0.8,
        "answers": 2,
        "nll": 0,
        "scored": 5,
    }


@pytest.mark.parametrize("score_type", PLAIN_SCORES)
def test_plain_scores_equal_the_naive_mean(score_type: type[Score]) -> None:
    batch = Recall(period=9).stream("train", batch=4, seed=0).read(400)
    predictions, nll = guesses(batch, 0.3, 0), losses(batch, 0)
    score = score_type()
    for block, block_nll, block_predictions in cut_up(batch, [1, 150, 249], nll, predictions):
        score.update(block, block_nll, block_predictions if score.needs_predictions else None)
    result = score.result()
    mean = mean_scored(batch, nll)
    expected = {
        "accuracy": mean_scored(batch, predictions == batch.targets),
        "error": 100 * mean_scored(batch, predictions != batch.targets),
        "bpb": mean / math.log(2),
        "bpc": mean / math.log(2),
        "perplexity": math.exp(mean),
    }
    assert set(result) == {score.metric, "nll", "scored"}
    assert result[score.metric] == pytest.approx(expected[score.metric], rel=1e-12)
    assert result["nll"] == pytest.approx(mean, rel=1e-12)
    assert result["scored"] == int(batch.scored.sum())


@pytest.mark.parametrize("make", [*PLAIN_SCORES, lambda: ExactMatch(END)])
def test_a_score_resumes_exactly(make) -> None:
    batch = Copy(2).stream("train", batch=3, seed=1).read(300)
    predictions, nll = guesses(batch, 0.1, 1), losses(batch, 1)
    through, resumed = make(), make()
    for block in cut_up(batch, [1, 2, 3, 4] * 30, nll, predictions):
        through.update(*block)
        state = through_json(resumed.state())
        resumed = make()
        resumed.restore(state)
        resumed.update(*block)
    assert through.result()
    assert resumed.result() == through.result()
    assert resumed.state() == through.state()


@pytest.mark.parametrize("make", [*PLAIN_SCORES, lambda: ExactMatch(END)])
def test_there_is_no_result_before_anything_is_scored(make) -> None:
    score = make()
    assert score.result() == {}
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    nothing = Batch(tokens, tokens, torch.zeros(2, 5, dtype=torch.bool))
    score.update(nothing, torch.full((2, 5), math.nan), tokens)
    assert score.result() == {}


def test_sums_outlive_float32() -> None:
    tokens = torch.zeros(1, 1, dtype=torch.int64)
    step = Batch(tokens, tokens, torch.ones(1, 1, dtype=torch.bool))
    score = BitsPerByte()
    for loss in (2.0**30, 1.0, 1.0, 1.0):
        score.update(step, torch.full((1, 1), loss))
    assert score.result()["nll"] == (2**30 + 3) / 4


def test_a_score_leaves_no_graph_behind() -> None:
    batch = Recall(period=9).stream("train", batch=2, seed=0).read(40)
    nll = torch.ones(2, 40, requires_grad=True)
    score = TokenAccuracy()
    score.update(batch, nll, batch.targets)
    assert not any(amount.requires_grad for amount in score._sums.values())


def test_misuse_of_a_score_is_refused() -> None:
    batch = Copy(2).stream("train", batch=3, seed=0).read(10)
    nll = torch.zeros(3, 10)
    for score in (TokenAccuracy(), ExactMatch(END)):
        with pytest.raises(ValueError, match="needs predictions: pass the likeliest token"):
            score.update(batch, nll)
    with pytest.raises(ValueError, match=r"one loss for each target, \(3, 10\), not \(30,\)"):
        BitsPerByte().update(batch, nll.flatten())
    with pytest.raises(ValueError, match="belong to the score 'BitsPerByte': restore them into"):
        TokenAccuracy().restore(BitsPerByte().state())
    score = ExactMatch(END)
    score.update(batch, nll, batch.targets)
    with pytest.raises(ValueError, match="must have the 3 rows of the first one, not 2"):
        score.update(rows(batch, 2), nll[:2], batch.targets[:2])
