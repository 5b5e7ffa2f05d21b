"""Instruction against a reader that parses the words of its stories."""

import hashlib
import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from expire_span.tasks import Batch, Instruction, Split, lore
from expire_span.tasks.lore import FILES, UNKNOWN, UTTERANCES, words_of

ASKED = re.compile(r"asks : can you tell the ([^.?“”]+) that the ([^.?“”]+) wants to see them \?")
TOLD = re.compile(r"(?<= is here \. )you tell the ([^.?“”]+) “ ([^.?“”]+) wants to see you ! ”")
HERE = re.compile(r"the ([^.?“”:]+) is here \.")


@pytest.fixture
def small_light(tmp_path: Path) -> Path:
    """A few lines in the format of LIGHT."""
    people = [
        {"name": f"{kind} {number}", "persona": ["I stand here."], "description": "Tall and grey."}
        for kind in ("Old guard", "Young cook")
        for number in range(12)
    ]
    rooms = [{"name": "The Hall", "description": "It is cold. It is dark!"}]
    things = [{"name": "lamp", "descripton": ["A lamp that is rarely lit"]}]
    folder = tmp_path / "light"
    folder.mkdir()
    for name, entries in zip(FILES, (people, rooms, things), strict=True):
        (folder / name).write_text(json.dumps(entries))
    (folder / UTTERANCES).write_text(
        "Good evening, friend.\tsomewhere\nWho goes there?\telsewhere\n"
    )
    return folder


def story(task: Instruction, number: int = 0) -> str:
    words = task.tongue().words
    return " ".join(words[token] for token in task.stream("train", 1, 0).tell(0, number).words)


def test_every_line_told_is_what_was_asked_and_nothing_is_forgotten() -> None:
    task = Instruction()
    for number in range(5):
        text = story(task, number)
        open_ones: dict[str, str] = {}
        events = sorted([*ASKED.finditer(text), *TOLD.finditer(text)], key=re.Match.start)
        waiting = []
        for event in events:
            whom, who = event.groups()
            if event.re is ASKED:
                assert whom not in open_ones
                assert whom != who
                open_ones[whom] = who
            else:
                assert open_ones.pop(whom) == who
            waiting.append(len(open_ones))
        assert not open_ones
        assert len(events) > 20
        assert max(waiting) > 1


def test_nobody_who_is_waited_for_is_met_without_being_told() -> None:
    """Otherwise even a perfect memory could not know when to speak."""
    text = story(Instruction())
    told = {match.start() for match in TOLD.finditer(text)}
    for met in HERE.finditer(text):
        before = text[: met.start()]
        asked = [m.start() for m in ASKED.finditer(before) if m[1] == met[1]]
        done = [m.start() for m in TOLD.finditer(before) if m[1] == met[1]]
        assert (len(asked) > len(done)) == (met.end() + 1 in told)


def test_exactly_the_words_told_are_judged_and_all_are_learned() -> None:
    task = Instruction(distance=60)
    batch = task.stream("valid", batch=2, seed=3).read(4000)
    assert batch.scored.all()
    assert batch.in_metric is not None
    assert batch.inputs[:, 1:].equal(batch.targets[:, :-1])
    words = task.tongue().words
    for row in range(2):
        tokens = [words[token] for token in batch.targets[row].tolist()]
        text = " ".join(tokens)
        lines = [match.group().split() for match in TOLD.finditer(text)]
        judged = [word for word, mark in zip(tokens, batch.in_metric[row], strict=True) if mark]
        expected = [word for line in lines for word in line]
        assert judged[: len(expected)] == expected  # a line may be cut off at the end
        assert len(judged) - len(expected) < 16


@pytest.mark.parametrize("distance", [200, 950])
def test_the_mean_distance_is_as_set(distance: int) -> None:
    task = Instruction(distance=distance)
    between = []
    for number in range(12):
        text = story(task, number)
        for told in TOLD.finditer(text):
            asked = [m for m in ASKED.finditer(text[: told.start()]) if m[1] == told[1]][-1]
            between.append(len(text[asked.end() : told.start()].split()))
    assert np.mean(between) == pytest.approx(distance, rel=0.12)


def perfect(batch: Batch) -> tuple:
    nll = batch.targets.double() * 0
    return batch, nll, batch.targets


def test_a_memory_oracle_scores_everything_and_a_guesser_one_in_so_many_names() -> None:
    task = Instruction(distance=100)
    score = task.score()
    score.update(*perfect(task.stream("valid", 2, 0).read(5000)))
    assert score.result()["accuracy"] == 1
    assert score.result()["answers"] > 20
    assert task.oracle(10**6) == 1
    assert task.oracle(0) == pytest.approx(1 / 24)
    errors = [task.oracle(memory) for memory in (0, 50, 100, 200, 300)]
    assert errors == sorted(errors)


def test_if_only_lines_are_learned_the_same_stories_are_judged_alike() -> None:
    everything, lines = (
        Instruction(distance=60, learned=learned).stream("train", 2, 0).read(400)
        for learned in ("all", "lines")
    )
    assert everything.scored.all()
    assert torch.equal(lines.scored, everything.judged)
    assert 0.02 < lines.scored.float().mean() < 0.3
    for name in ("inputs", "targets", "judged"):
        assert torch.equal(getattr(lines, name), getattr(everything, name))


def test_other_distances_bring_instructions_nearer_in_training_alone() -> None:
    uniform, log, mixed = (
        Instruction(training_distances=each) for each in ("uniform", "log", "mixed")
    )

    def reaches(task: Instruction, split: Split) -> list[int]:
        stream = task.stream(split, 1, 0)
        return [reach for number in range(12) for reach in stream.tell(0, number).reach]

    assert reaches(log, "valid") == reaches(mixed, "valid") == reaches(uniform, "valid")
    near, both, far = (np.array(reaches(each, "train")) for each in (log, mixed, uniform))
    assert np.median(near) < 0.4 * np.median(far)
    assert near.max() > 1700  # but some are as far as ever
    in_between = (np.mean(near < 400) + np.mean(far < 400)) / 2
    assert np.mean(both < 400) == pytest.approx(in_between, abs=0.06)


@pytest.mark.parametrize("memory", [90, 119, 120, 200])
def test_the_oracle_equals_a_reader_with_a_window(memory: int) -> None:
    """One that wants to have read of the whole line, who asks included."""
    task = Instruction(distance=100)
    whole = re.compile(r"the [\w ]+ " + ASKED.pattern)
    seen = []
    for number in range(64):
        words = task.stream("valid", 1, 0).tell(0, number).words
        text = " ".join(task.tongue().words[token] for token in words)
        for told in TOLD.finditer(text):
            window = " ".join(text[: told.start()].split()[-memory:])
            seen.append(any(m.groups() == told.groups() for m in whole.finditer(window)))
    assert 0.1 < np.mean(seen) < 0.9
    assert task.oracle(memory) == pytest.approx(np.mean(seen) + (1 - np.mean(seen)) / 24)


def test_stories_are_told_with_light(small_light: Path) -> None:
    task = Instruction(text="light", path=str(small_light), distance=100, vocabulary=60)
    text = story(task)
    assert "you enter the the hall ." in text
    assert "it is dark !" in text
    assert "who goes there ?" in text
    assert "old guard 3" in text
    assert len(TOLD.findall(text)) > 3
    assert task.stream("train", 2, 0).read(2000).inputs.max() < task.vocab == 60


def test_stories_without_utterances_or_of_other_people_say_so(
    small_light: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Instruction(text="light", path=str(small_light))
    assert task.subset() == "not LIGHT as it was published (24 people)"
    sums = {name: hashlib.md5((small_light / name).read_bytes()).hexdigest() for name in FILES}
    monkeypatch.setattr(lore, "FILES", sums)
    assert task.subset() == ""
    (small_light / "rooms.json").write_bytes(
        (small_light / "rooms.json").read_bytes().replace(b"\n", b"\r\n")
    )
    assert task.subset() == ""
    (small_light / UTTERANCES).unlink()
    assert task.subset() == "LIGHT without utterances"
    lore._read.cache_clear()
    assert "it is dark !" in story(task)
    assert "who goes there ?" not in story(task)


def test_a_small_vocabulary_loses_rare_words_but_no_names(small_light: Path) -> None:
    task = Instruction(text="light", path=str(small_light), distance=100, vocabulary=50)
    text = story(task)
    assert UNKNOWN in text
    assert all(0 not in name for name in task.tongue().names)
    with pytest.raises(ValueError, match=r"Names and places alone have \d+ words: raise vocab"):
        Instruction(text="light", path=str(small_light), vocabulary=20).stream("train", 1, 0)


def test_light_is_found_in_an_archive_and_in_the_data_folder(
    small_light: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = story(Instruction(text="light", path=str(small_light)))
    archive = tmp_path / "packed" / "light.tar.xz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:xz") as file:
        file.add(small_light, arcname="light")
    assert story(Instruction(text="light", path=str(archive))) == expected
    monkeypatch.setenv("EXPIRE_SPAN_DATA", str(archive.parent))
    assert story(Instruction(text="light")) == expected


@pytest.mark.parametrize(
    ("name", "contents", "sentence"),
    [
        ("rooms.json", "[{", r"rooms\.json is cut off or damaged .*: get characters\.json"),
        ("rooms.json", "{}", r"rooms\.json is not a list of entries: get"),
        ("rooms.json", "[]", "has fewer than 16 names, no places or no text: get"),
        ("characters.json", "[]", "has fewer than 16 names, no places or no text: get"),
        ("objects.json", '[{"name": 3}]', r"does not hold LIGHT \(KeyError\('descripton'\)\): get"),
        ("characters.json", None, r"does not hold LIGHT \(it has no characters\.json.*\): get"),
    ],
)
def test_what_is_not_light_is_refused(small_light: Path, name, contents, sentence) -> None:
    (small_light / name).unlink()
    if contents is not None:
        (small_light / name).write_text(contents)
    with pytest.raises(ValueError, match=sentence):
        Instruction(text="light", path=str(small_light)).stream("train", 1, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"distance": 0}, "distance must be a whole number of at least 1, but is 0"),
        ({"rate": 0.0}, "rate must lie above 0 and at most at 1, not at 0.0"),
        ({"text": "dark"}, "text must be one of built-in, light, but is 'dark'"),
        ({"learned": "some"}, "learned must be one of all, lines, but is 'some'"),
        (
            {"training_distances": "far"},
            "training_distances must be one of uniform, log, mixed, but is 'far'",
        ),
    ],
)
def test_senseless_settings_are_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Instruction(**settings)


def test_words_are_cut_at_signs_and_lowered() -> None:
    assert words_of("Don't go, Sir!") == ("don't", "go", ",", "sir", "!")
