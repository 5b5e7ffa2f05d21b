"""Checkpoints are whole or not there, hold nothing that executes, and say what is wrong."""

import json
import os
import pickle
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint, Shard
from expire_span.training.distributed import Ranks


def make(step: int) -> Checkpoint:
    shared = Shard({"model.weight": torch.full((3,), float(step))}, {"step": step})
    return Checkpoint(shared, Shard({"memory.0": torch.arange(5)}, {"position": [step]}))


def load_step(folder: Path) -> int:
    newest = checkpoints.latest(folder)
    assert newest is not None
    shared = checkpoints.load(newest).shared
    assert shared is not None
    return shared.values["step"]


def test_what_was_saved_comes_back(tmp_path):
    path = checkpoints.save(make(7), tmp_path, 7)
    back = checkpoints.load(path)
    assert back.shared is not None
    assert back.shared.values["step"] == 7
    assert torch.equal(back.shared.part("model")["weight"], torch.full((3,), 7.0))
    assert torch.equal(back.own.part("memory")["0"], torch.arange(5))
    assert back.own.values == {"position": [7]}


def test_tensors_come_back_to_where_pytorch_puts_tensors(tmp_path):
    """At an odd address some CPUs round otherwise: what goes on would not be what was saved."""
    odd = {f"memory.{size}": torch.zeros(size) for size in range(1, 9)}
    path = checkpoints.save(Checkpoint(make(1).shared, Shard(odd, {})), tmp_path, 1)
    assert {tensor.data_ptr() % 64 for tensor in checkpoints.load(path).own.tensors.values()} == {0}


def test_nothing_in_it_can_execute_and_sha256sum_agrees(tmp_path):
    path = checkpoints.save(make(7), tmp_path, 7)
    kinds = {file.suffix for file in path.iterdir()}
    assert kinds == {".safetensors", ".json", ".sha256"}
    assert json.loads((path / "rank-00000.json").read_text()) == {"position": [7]}
    command = ["sha256sum", "--check", "--strict", checkpoints.MANIFEST]
    subprocess.run(command, cwd=path, check=True, capture_output=True)


def test_the_newest_and_the_one_before_it_are_kept(tmp_path):
    for step in (5, 10, 100, 1000):
        checkpoints.save(make(step), tmp_path, step)
    assert sorted(os.listdir(tmp_path)) == ["step-000000100", "step-000001000"]
    assert load_step(tmp_path) == 1000


def test_later_updates_do_not_reach_what_is_being_saved():
    checkpoint = make(1)
    copy = checkpoint.on_host()
    assert checkpoint.shared is not None
    assert copy.shared is not None
    checkpoint.shared.tensors["model.weight"].zero_()
    assert copy.shared.tensors["model.weight"].eq(1).all()


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoints.save(make(1), tmp_path, 1)

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("expire_span.tensors.save_file", full_disk)
    with pytest.raises(
        OSError, match=r"^The checkpoint of step 2 could not be .* left on device\.$"
    ):
        checkpoints.save(make(2), tmp_path, 2)
    assert os.listdir(tmp_path) == ["step-000000001"]  # a full disk needs every byte
    assert load_step(tmp_path) == 1


def test_what_a_killed_save_left_behind_is_not_taken_for_a_checkpoint(tmp_path):
    (tmp_path / ".unfinished-000000009").mkdir()
    (tmp_path / ".outdated-000000008").mkdir()
    assert checkpoints.latest(tmp_path) is None
    checkpoints.save(make(9), tmp_path, 9)
    assert os.listdir(tmp_path) == ["step-000000009"]


def test_a_step_that_is_already_saved_is_left_alone_unless_it_is_damaged(tmp_path):
    path = checkpoints.save(make(9), tmp_path, 9)
    before = (path / checkpoints.MANIFEST).stat()
    checkpoints.save(make(9), tmp_path, 9)
    assert (path / checkpoints.MANIFEST).stat().st_mtime_ns == before.st_mtime_ns
    (path / "shared.json").write_text("{}")
    checkpoints.save(make(9), tmp_path, 9)
    assert load_step(tmp_path) == 9


def test_every_altered_byte_is_noticed(tmp_path):
    """All bytes of all files, one at a time, and what is cut off."""
    path = checkpoints.save(make(3), tmp_path, 3)
    for file in sorted(path.iterdir()):
        whole = file.read_bytes()
        for place in range(len(whole)):
            file.write_bytes(
                whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
            )
            with pytest.raises(ValueError, match=r"step-000000003 cannot be read .* before it\.$"):
                checkpoints.load(path)
        for length in random.Random(0).sample(range(len(whole)), 5):
            file.write_bytes(whole[:length])
            with pytest.raises(ValueError, match="cannot be read"):
                checkpoints.load(path)
        file.write_bytes(whole)
    assert checkpoints.load(path).own.values == {"position": [3]}


def test_files_that_come_or_go_are_noticed(tmp_path):
    path = checkpoints.save(make(3), tmp_path, 3)
    (path / "more.json").write_text("{}")
    with pytest.raises(ValueError, match="its files are not those that were written"):
        checkpoints.load(path)
    (path / "more.json").unlink()
    (path / "rank-00000.json").unlink()
    with pytest.raises(ValueError, match="its files are not those that were written"):
        checkpoints.load(path)


class Trap:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self) -> tuple:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("signed", [False, True], ids=["as it is", "with a matching manifest"])
def test_a_pickle_in_its_place_is_refused_unread(tmp_path, signed):
    path = checkpoints.save(make(3), tmp_path / "run", 3)
    trace = tmp_path / "it was executed"
    for name in ("shared.safetensors", "rank-00000.json"):
        shutil.copytree(path, tmp_path / name)
        place = tmp_path / name / name
        place.write_bytes(pickle.dumps(Trap(trace)))
        if signed:
            files = [f for f in place.parent.iterdir() if f.name != checkpoints.MANIFEST]
            sums = {file.name: checkpoints._digest(file) for file in files}
            (place.parent / checkpoints.MANIFEST).write_text(checkpoints.render_manifest(sums))
        with pytest.raises(ValueError, match="cannot be read"):
            checkpoints.load(place.parent)
        with pytest.raises(ValueError, match="is not a folder that this library wrote"):
            checkpoints.load(place)
    assert not trace.exists()


def test_a_checkpoint_of_another_number_of_ranks_is_refused_in_one_sentence(tmp_path):
    path = checkpoints.save(make(3), tmp_path, 3)
    with pytest.raises(ValueError, match=r"saved by 1 ranks, but 2 want to go on .* its rank\.$"):
        checkpoints.load(path, Ranks(rank=1, count=2))


def test_an_older_format_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "FORMAT", 1)
    path = checkpoints.save(make(3), tmp_path, 3)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="its format is 1, not 2"):
        checkpoints.load(path)
