"""Processes killed with SIGKILL: they always go on, and end bit for bit as if nothing had been."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint, Shard
from killing import Killer, experiment_for_kills, start
from small_runs import tasks

# Everything through which a save changes what is on the disk.
CALLS = ("mkdir", "open", "fsync", "rename", "unlink", "rmdir")


def test_dozens_of_kills_at_random_moments(tmp_path):
    toll = Killer(experiment_for_kills(), tmp_path).kill(times=24)
    assert toll.kills >= 24
    assert toll.rounds >= 1


def test_two_ranks_killed_and_started_again(tmp_path):
    experiment = experiment_for_kills(steps=40, save_every=4, accumulate=1)
    toll = Killer(experiment, tmp_path, longest=0.1, ranks=2).kill(times=4)
    assert toll.kills >= 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recall", "copy", "text"])
def test_many_more_kills_on_every_stream(name, tmp_path):
    experiment = experiment_for_kills(task=tasks(tmp_path)[name], save_every=1)
    assert Killer(experiment, tmp_path / "runs").kill(times=100, seed=1).kills >= 100


def state(step: int) -> Checkpoint:
    shared = Shard({"weight": torch.full((4,), float(step))}, {"step": step})
    return Checkpoint(shared, Shard({"memory": torch.arange(3)}, {"step": step}))


def save_until_killed(folder: Path, step: int, deadly: int) -> None:
    """Save, and die just before call number `deadly` to the operating system."""
    count = 0

    def counted(call):
        def wrapper(*arguments, **settings):
            nonlocal count
            if count == deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1
            return call(*arguments, **settings)

        return wrapper

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    checkpoints.save(state(step), folder, step)


def test_a_kill_at_any_point_of_a_save_leaves_a_whole_checkpoint(tmp_path):
    """Before each of the calls that a save makes, from the first to the last."""
    prepared = tmp_path / "prepared"
    for step in (1, 2):
        checkpoints.save(state(step), prepared, step)
    found = []
    for deadly in range(1000):
        folder = tmp_path / "killed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(prepared, folder)
        process = start(save_until_killed, folder, 3, deadly)
        process.join()
        newest = checkpoints.latest(folder)
        assert newest is not None
        found.append(checkpoints.load(newest).own.values["step"])
        for path in checkpoints.all_in(folder):
            checkpoints.load(path)  # what has the name of a whole one is whole
        checkpoints.save(state(4), folder, 4)
        assert len(os.listdir(folder)) == checkpoints.KEPT
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert deadly > 15
    assert found == sorted(found)
    assert set(found) == {2, 3}
