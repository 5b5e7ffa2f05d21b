"""Parts of a batch, read one after another or by several ranks, add up to the whole."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from expire_span.tasks import Batch
from expire_span.training.distributed import Ranks, choose_device, join_ranks
from expire_span.training.experiment import EvaluationConfig, Experiment
from expire_span.training.loop import train
from expire_span.training.trainer import Trainer
from killing import free_port, metrics_of, start, start_training
from small_runs import MEMORIES, last_of, small_experiment, tasks


def without_dropout(experiment: Experiment) -> Experiment:
    """Dropout is drawn for each rank; all else that is random is the same for all."""
    return replace(experiment, model=replace(experiment.model, dropout=0.0))


def assert_equal_to_rounding(one: Path, other: Path, ranks: int = 1) -> None:
    """Weights and metrics of two runs."""
    first, second = last_of(one).shared, last_of(other, 0, ranks).shared
    assert first is not None
    assert second is not None
    assert first.tensors.keys() == second.tensors.keys()
    for name, tensor in first.tensors.items():
        torch.testing.assert_close(tensor, second.tensors[name], rtol=1e-3, atol=2e-5)
    for line, same in zip(metrics_of(one), metrics_of(other), strict=True):
        assert line.keys() == same.keys()
        line.pop("span_histogram", None), same.pop("span_histogram", None)
        assert line == pytest.approx(same, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
def test_accumulated_parts_equal_the_whole_batch(memory, tmp_path):
    whole = without_dropout(small_experiment(memory=memory))
    train(whole, tmp_path / "whole", progress=False)
    train(replace(whole, accumulate=4), tmp_path / "parts", progress=False)
    assert_equal_to_rounding(tmp_path / "whole", tmp_path / "parts")


def test_accumulated_parts_follow_answers_across_blocks(tmp_path):
    whole = without_dropout(small_experiment(tasks(tmp_path)["copy"]))
    train(whole, tmp_path / "whole", progress=False)
    train(replace(whole, accumulate=2), tmp_path / "parts", progress=False)
    assert_equal_to_rounding(tmp_path / "whole", tmp_path / "parts")


def test_parts_must_be_equal():
    with pytest.raises(ValueError, match=r"^accumulate is 3, but the 4 rows .* divides 4\.$"):
        Trainer(small_experiment(accumulate=3))


def test_a_batch_splits_into_its_rows(tmp_path):
    stream = tasks(tmp_path)["copy"].stream("train", 6, 0)
    batch = stream.read(5)
    parts = batch.split(2)
    assert [len(part.inputs) for part in parts] == [2, 2, 2]
    for field in ("inputs", "targets", "scored", "starts"):
        joined = torch.cat([getattr(part, field) for part in parts])
        assert torch.equal(joined, getattr(batch, field))
    assert all(part.starts is None for part in Batch(*vars(batch).values()).split(1)) is False


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("name", ["recall", "copy", "text"])
def test_rows_read_apart_are_the_rows_of_the_whole_stream(name, split, tmp_path):
    task = tasks(tmp_path)[name]
    whole = task.stream(split, 6, 3)
    parts = [task.stream(split, 6, 3).only(Ranks(n, 3).rows(6)) for n in range(3)]
    for length in (5, 1, 9):
        batch = whole.read(length)
        found = [part.read(length) for part in parts]
        for field in ("inputs", "targets", "scored"):
            assert torch.equal(torch.cat([getattr(b, field) for b in found]), getattr(batch, field))
    again = task.stream(split, 6, 3).only(range(2, 4))
    again.restore(parts[1].state())
    assert torch.equal(again.read(4).inputs, parts[1].read(4).inputs)
    with pytest.raises(ValueError, match=r"another stream, with rows \[2, 4\] where"):
        task.stream(split, 6, 3).restore(parts[1].state())
    with pytest.raises(ValueError, match="Rows can be chosen before the first read"):
        again.only(range(2))
    with pytest.raises(ValueError, match="from 0 to 5"):
        task.stream(split, 6, 3).only(range(4, 7))


@pytest.mark.parametrize("name", ["recall", "copy", "text"])
def test_two_ranks_equal_one_to_rounding(name, tmp_path):
    experiment = without_dropout(small_experiment(tasks(tmp_path)[name]))
    train(experiment, tmp_path / "one", progress=False)
    processes, _ = start_training(experiment, tmp_path / "two", ranks=2)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert_equal_to_rounding(tmp_path / "one", tmp_path / "two", ranks=2)


def check_draws(rank: int, port: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {"MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    with join_ranks("cpu") as ranks:
        trainer = Trainer(small_experiment(), ranks)
        trainer.update()
        draws = torch.rand(4, generator=trainer.memory_draws()).tolist()
        weights = trainer.model.positions.flatten().tolist()
        found = ranks.gather((draws, torch.rand(4).tolist(), weights, list(trainer.rows)))
        if ranks.first:
            (folder / "found.json").write_text(json.dumps(found))


def test_ranks_share_what_shapes_memory_but_not_dropout(tmp_path):
    port = free_port()
    processes = [start(check_draws, n, port, tmp_path) for n in range(2)]
    for process in processes:
        process.join()
    (draws, dropout, weights, rows), other = json.loads((tmp_path / "found.json").read_text())
    assert draws == other[0]
    assert dropout != other[1]
    assert weights == other[2]
    assert [rows, other[3]] == [[0, 1], [2, 3]]


def test_an_uneven_number_of_rows_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"^batch is 4 rows, which 3 ranks .* multiple of 3\.$"):
        Trainer(small_experiment(), Ranks(0, 3))
    settings = EvaluationConfig(batch=3, blocks=2)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    del settings, command


def test_a_sentence_of_one_rank_is_heard_by_all():
    def fail() -> None:
        raise ValueError("There is no file x.")

    with pytest.raises(ValueError, match=r"^There is no file x\.$"):
        Ranks().together(fail)


def test_each_rank_of_a_machine_takes_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:3")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
