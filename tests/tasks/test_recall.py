"""Recall against a reader that walks through the tokens one by one."""

import pytest
import torch

from expire_span.tasks import Batch, Recall
from expire_span.tasks.recall import TOKENS_OF_A_PIECE

SETTINGS = [
    Recall(),
    Recall(period=2, query_probability=1.0),
    Recall(period=7, colours=3, fillers=1, query_probability=0.5, facts=2),
    Recall(period=100, facts=40),
    Recall(period=TOKENS_OF_A_PIECE + 5, facts=3),
]


def read(task: Recall, tokens: int, batch: int = 2) -> Batch:
    return task.stream("train", batch=batch, seed=0).read(tokens)


@pytest.mark.parametrize("task", SETTINGS, ids=str)
def test_targets_equal_those_of_a_plain_reader(task: Recall) -> None:
    """Over several pieces, so that colours given in earlier ones are asked for."""
    batch = read(task, 3 * TOKENS_OF_A_PIECE)
    for inputs, targets, scored in zip(batch.inputs, batch.targets, batch.scored, strict=True):
        latest: dict[int, int] = {}
        for step, token in enumerate(inputs.tolist()):
            is_query = task.first_query <= token < task.first_filler
            assert bool(scored[step]) == is_query
            assert (token < task.first_query) == (step % task.period == 0)
            if token < task.first_query:
                latest[token // task.colours] = token
            expected = latest[token - task.first_query] if is_query else 0
            assert targets[step] == expected


def test_only_keys_without_a_colour_are_not_asked_for() -> None:
    """With queries everywhere, fillers end for good once every key has been cued."""
    task = Recall(period=300, facts=20, query_probability=1.0)
    inputs = read(task, 6 * TOKENS_OF_A_PIECE, batch=1).inputs[0]
    cued: set[int] = set()
    fillers = {True: 0, False: 0}
    for token in inputs.tolist():
        if token < task.first_query:
            cued.add(token // task.colours)
        fillers[len(cued) == task.facts] += token >= task.first_filler
    assert len(cued) == task.facts
    assert fillers[False] > 0
    assert fillers[True] == 0


def test_kinds_of_token_are_told_apart() -> None:
    task = Recall(colours=3, fillers=2, facts=2)
    tokens = torch.arange(task.vocab)
    assert task.is_cue(tokens).tolist() == [True] * 6 + [False] * 4
    assert task.is_query(tokens).tolist() == [False] * 6 + [True] * 2 + [False] * 2
    assert task.is_filler(tokens).tolist() == [False] * 8 + [True] * 2


def test_the_default_has_the_vocabulary_of_the_demo() -> None:
    assert Recall().vocab == 4 + 1 + 6


@pytest.mark.parametrize("facts", [1, 3])
def test_shares_of_tokens_are_as_set(facts: int) -> None:
    task = Recall(period=10, query_probability=0.3, facts=facts)
    batch = read(task, 20_000, batch=4)
    bodies = batch.inputs.view(4, -1, task.period)[:, :, 1:]
    assert task.is_query(bodies).double().mean() == pytest.approx(0.3, abs=0.01)
    for kind, size in (
        (task.is_cue, task.first_query),
        (task.is_query, facts),
        (task.is_filler, task.fillers),
    ):
        counts = batch.inputs[kind(batch.inputs)].bincount(minlength=task.vocab).double()
        shares = counts[counts > 0] / counts.sum()
        assert len(shares) == size
        assert shares == pytest.approx(torch.full((size,), 1 / size).double(), abs=0.02)


def simulated_oracle(task: Recall, batch: Batch, window: int) -> float:
    """Mean accuracy of a reader that looks for the answer in the `window` tokens before a query."""
    credit = []
    for inputs, scored in zip(batch.inputs.tolist(), batch.scored, strict=True):
        # The first stretch is left out: there, fewer cues lie behind than in the long run.
        for step in torch.nonzero(scored).flatten().tolist():
            if step < 40 * task.period:
                continue
            key = inputs[step] - task.first_query
            seen = inputs[max(0, step - window) : step]
            cues = range(key * task.colours, (key + 1) * task.colours)
            credit.append(1 if any(token in cues for token in seen) else 1 / task.colours)
    return sum(credit) / len(credit)


@pytest.mark.parametrize("window", [0, 1, 4, 8, 9, 10, 25])
def test_oracle_is_exact_when_every_token_is_a_query(window: int) -> None:
    task = Recall(period=10, query_probability=1.0)
    assert task.oracle(window) == pytest.approx(simulated_oracle(task, read(task, 600), window))


@pytest.mark.parametrize("window", [0, 3, 8, 11, 20])
def test_oracle_of_two_facts_equals_a_simulated_reader(window: int) -> None:
    task = Recall(period=5, query_probability=0.5, facts=2)
    simulated = simulated_oracle(task, read(task, 10_000, batch=4), window)
    assert task.oracle(window) == pytest.approx(simulated, abs=0.01)


def test_oracle_runs_from_chance_to_certainty() -> None:
    assert Recall().oracle(0) == 0.25
    assert Recall().oracle(127) == 1.0
    assert Recall().oracle(126) < 1.0
    assert Recall(facts=2).oracle(100_000) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"period": 1}, "period must be a whole number of at least 2, but is 1"),
        ({"colours": 1}, "colours must be a whole number of at least 2, but is 1"),
        ({"fillers": 0}, "fillers must be a whole number of at least 1, but is 0"),
        ({"facts": 0}, "facts must be a whole number of at least 1, but is 0"),
        ({"query_probability": 0.0}, "query_probability must lie above 0 .* not at 0.0"),
        ({"query_probability": 1.5}, "query_probability must lie .* at most at 1, not at 1.5"),
    ],
)
def test_senseless_settings_are_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Recall(**settings)
