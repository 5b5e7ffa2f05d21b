"""Checkpoints are whole or not there, hold nothing that executes, and say what is wrong."""

import json

import pytest
import torch

from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint


def make(step: int) -> Checkpoint:
    return Checkpoint({"model.weight": torch.full((3,), float(step))}, {"step": step})


def test_what_was_saved_comes_back(tmp_path):
    path = checkpoints.save(make(7), tmp_path, 7)
    back = checkpoints.load(path)
    assert back.values == {"step": 7}
    assert torch.equal(back.part("model")["weight"], torch.full((3,), 7.0))
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}


def test_the_newest_and_the_one_before_it_are_kept(tmp_path):
    for step in (5, 10, 100, 1000):
        checkpoints.save(make(step), tmp_path, step)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000100",
        "step-000001000",
    ]
    newest = checkpoints.latest(tmp_path)
    assert newest is not None
    assert checkpoints.load(newest).values["step"] == 1000


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoints.save(make(1), tmp_path, 1)

    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(make(2), tmp_path, 2)
    newest = checkpoints.latest(tmp_path)
    assert newest is not None
    assert checkpoints.load(newest).values["step"] == 1


def test_an_unfinished_checkpoint_is_not_taken_for_one(tmp_path):
    (tmp_path / ".unfinished-9").mkdir()
    assert checkpoints.latest(tmp_path) is None
    checkpoints.save(make(9), tmp_path, 9)
    assert checkpoints.latest(tmp_path) == tmp_path / "step-000000009"


@pytest.mark.parametrize("file", [checkpoints.TENSORS, checkpoints.VALUES])
def test_a_damaged_checkpoint_is_named(tmp_path, file):
    path = checkpoints.save(make(3), tmp_path, 3)
    whole = (path / file).read_bytes()
    (path / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"step-000000003 cannot be read .* the one before it\.$"):
        checkpoints.load(path)


def test_values_are_plain_json(tmp_path):
    path = checkpoints.save(make(3), tmp_path, 3)
    assert json.loads((path / checkpoints.VALUES).read_text()) == {"step": 3}
