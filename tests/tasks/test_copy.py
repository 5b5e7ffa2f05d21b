"""Copy against a plain parser of its grammar, and its oracle against plain sums."""

import re
import tracemalloc
from math import log

import numpy as np
import pytest

from expire_span.tasks import Copy
from expire_span.tasks.copy import EPISODES_OF_A_PIECE, SYMBOLS

EPISODE = re.compile(r"(A+)(B*)\?(A+)\.")


def text_of_row(task: Copy, steps: int) -> str:
    row = task.stream("train", batch=1, seed=0).read(steps).inputs[0]
    return "".join(SYMBOLS[token] for token in row.tolist())


def episodes(task: Copy, steps: int) -> list[tuple[int, int]]:
    """(n, d) of every whole episode at the beginning of a row."""
    found = EPISODE.findall(text_of_row(task, steps))
    return [(len(first), len(between)) for first, between, _ in found]


@pytest.mark.parametrize(
    "task", [Copy(0), Copy(5), Copy(40, max_count=3), Copy(100, distances="log")], ids=str
)
def test_a_row_is_whole_episodes_one_after_another(task: Copy) -> None:
    text = text_of_row(task, 3 * EPISODES_OF_A_PIECE * 20)
    end = 0
    for found in EPISODE.finditer(text):
        assert found.start() == end
        end = found.end()
        assert found[1] == found[3]
        assert len(found[1]) <= task.max_count
        assert len(found[2]) <= task.max_distance
    longest_episode = 2 * task.max_count + task.max_distance + 2
    assert len(text) - end < longest_episode


@pytest.mark.parametrize("restart", [False, True])
def test_targets_scores_and_starts_follow_from_the_inputs(restart: bool) -> None:
    task = Copy(6, restart=restart)
    batch = task.stream("valid", batch=2, seed=1).read(15_000)
    for row in range(2):
        inputs = batch.inputs[row].tolist()
        assert batch.targets[row, :-1].tolist() == inputs[1:]
        answering, expected = False, []
        for token in inputs:
            answering = token == SYMBOLS.index("?") or (answering and token == SYMBOLS.index("A"))
            expected.append(answering)
        assert batch.scored[row].tolist() == expected
        if restart:
            ends = [True] + [token == SYMBOLS.index(".") for token in inputs[:-1]]
            assert batch.starts is not None
            assert batch.starts[row].tolist() == ends
    assert restart or batch.starts is None


@pytest.mark.parametrize("distances", ["uniform", "log"])
def test_counts_and_distances_are_distributed_as_said(distances) -> None:
    task = Copy(9, distances=distances)
    drawn = np.array(episodes(task, 250_000))
    counts = np.bincount(drawn[:, 0], minlength=9)[1:] / len(drawn)
    assert counts == pytest.approx(np.full(8, 1 / 8), abs=0.015)
    shares = np.bincount(drawn[:, 1], minlength=10) / len(drawn)
    assert shares == pytest.approx(np.array(probabilities(task)), abs=0.015)


def probabilities(task: Copy) -> list[float]:
    """P(d) for d = 0, ..., D."""
    every = range(task.max_distance + 1)
    if task.distances == "uniform":
        return [1 / len(every) for _ in every]
    return [log((d + 2) / (d + 1)) / log(task.max_distance + 2) for d in every]


@pytest.mark.parametrize("task", [Copy(0), Copy(23), Copy(23, 5), Copy(23, 8, "log")], ids=str)
def test_oracle_equals_the_plain_sum(task: Copy) -> None:
    chance = 1 / task.max_count
    for memory in range(task.max_distance + task.max_count + 3):
        plain = sum(
            share * chance * (1 if d + n <= memory else chance)
            for d, share in enumerate(probabilities(task))
            for n in range(1, task.max_count + 1)
        )
        assert task.oracle(memory) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("distances", ["uniform", "log"])
@pytest.mark.parametrize("memory", [0, 4, 15, 40, 68])
def test_oracle_equals_a_simulated_reader(distances, memory: int) -> None:
    """The reader finds the first A of an episode among its tokens, or guesses."""
    task = Copy(60, distances=distances)
    text = text_of_row(task, 200_000)
    credit = []
    for found in EPISODE.finditer(text):
        oldest_seen = found.start(3) - 1 - memory
        credit.append(1 if oldest_seen <= found.start() else 1 / 8)
    assert task.oracle(memory) == pytest.approx(sum(credit) / len(credit), abs=0.02)


def test_oracle_runs_from_chance_to_certainty_at_any_distance() -> None:
    task = Copy(1_000_000)
    assert task.oracle(0) == 1 / 8
    assert task.oracle(1_000_008) == 1.0
    assert task.oracle(1_000_007) < 1.0
    assert task.oracle(500_000) == pytest.approx(0.5 + 0.5 / 8, abs=1e-5)


def test_a_million_steps_of_distance_take_no_memory() -> None:
    stream = Copy(1_000_000).stream("train", batch=8, seed=0)
    tracemalloc.start()
    for _ in range(10):
        stream.read(512)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4e6


def test_distances_reach_a_million() -> None:
    row = Copy(1_000_000).stream("train", batch=1, seed=0).read(3_000_000).inputs[0]
    letters_other_than_b = np.flatnonzero(row != SYMBOLS.index("B"))
    assert np.diff(letters_other_than_b).max() > 700_000


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"max_distance": -1}, "max_distance must be a whole number of at least 0, but is -1"),
        (
            {"max_distance": 4, "max_count": 0},
            "max_count must be a whole number of at least 1, but is 0",
        ),
        (
            {"max_distance": 4, "distances": "gauss"},
            "distances must be one of uniform, log, but is 'gauss'",
        ),
    ],
)
def test_senseless_settings_are_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Copy(**settings)
