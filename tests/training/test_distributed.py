"""Parts of a batch, read one after another or by several ranks, add up to the whole."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch.distributed import TCPStore

from expire_span.training.distributed import Ranks, choose_device, join_ranks, take_device
from expire_span.training.experiment import EvaluationConfig, Experiment
from expire_span.training.folder import open_run
from expire_span.training.guard import NotFinite
from expire_span.training.loop import train
from expire_span.training.trainer import Trainer
from killing import become_rank, finish, free_port, metrics_of, start, start_training
from small_runs import MEMORIES, STREAMS, last_of, same_checkpoints, small_experiment, tasks


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
    assert all(part.starts is None for part in replace(batch, starts=None).split(1))


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("name", STREAMS)
def test_rows_read_apart_are_the_rows_of_the_whole_stream(name, split, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
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
    finish(experiment, tmp_path / "two", ranks=2)
    assert_equal_to_rounding(tmp_path / "one", tmp_path / "two", ranks=2)


def check_draws(rank: int, port: int, folder: Path) -> None:
    become_rank(rank, 2, port)
    with join_ranks("cpu") as ranks:
        trainer = Trainer(small_experiment(), ranks)
        trainer.update()
        sources = (trainer.memory_draws(), trainer.layer_draws())
        draws = [torch.rand(4, generator=source).tolist() for source in sources]
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
    assert draws[0] != draws[1]
    assert dropout != other[1]
    assert weights == other[2]
    assert [rows, other[3]] == [[0, 1], [2, 3]]


def test_an_uneven_number_of_rows_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"^batch is 4 rows, which 3 ranks .* multiple of 3\.$"):
        Trainer(small_experiment(), Ranks(0, 3))
    uneven = small_experiment(evaluation=EvaluationConfig(batch=3, blocks=2))
    with pytest.raises(ValueError, match=r"^evaluation\.batch is 3 rows, which 2 ranks cannot"):
        open_run(uneven, tmp_path, ranks=Ranks(0, 2))


def test_two_ranks_asked_to_stop_do_so_at_the_same_step_and_go_on(tmp_path):
    experiment = small_experiment(steps=50, save_every=1000, log_every=1)
    finish(experiment, tmp_path / "whole", ranks=2)
    processes, _begun = start_training(experiment, tmp_path / "run", ranks=2)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        time.sleep(0.01)
    os.kill(processes[1].pid, signal.SIGTERM)  # only one of them is told
    for process in processes:
        process.join()
        assert process.exitcode == 1  # `Stopped`
    stopped = [last_of(tmp_path / "run", rank, 2) for rank in range(2)]
    assert 0 < stopped[0].shared.values["step"] < 50
    assert (
        stopped[0].own.values["stream"]["steps_read"]
        == (stopped[1].own.values["stream"]["steps_read"])
    )
    finish(experiment, tmp_path / "run", ranks=2)
    for rank in range(2):
        ends = [last_of(tmp_path / name, rank, 2) for name in ("whole", "run")]
        assert same_checkpoints(*ends)


def break_one(rank: int, port: int, folder: Path) -> None:
    """Only rank 1 has a loss that is not finite."""
    become_rank(rank, 2, port)
    with join_ranks("cpu") as ranks:
        trainer = Trainer(small_experiment(memory=MEMORIES["fixed"]), ranks)
        head = trainer.model.sequence_head()
        plain = head.nll
        if rank == 1:
            head.nll = lambda hidden, targets: plain(hidden, targets) * torch.nan
        trainer.update()
        weights = trainer.model.positions.detach().clone()
        try:
            trainer.update()
        except NotFinite as error:
            same = torch.equal(weights, trainer.model.positions)
            (folder / f"{rank}.txt").write_text(f"{error} {same}")


def test_a_fault_on_one_rank_stops_all_and_is_named_by_its_row(tmp_path):
    port = free_port()
    for process in [start(break_one, n, port, tmp_path) for n in range(2)]:
        process.join()
    told = [(tmp_path / f"{n}.txt").read_text() for n in range(2)]
    assert told[0] == told[1]
    assert re.search(r"Step 1 was stopped before its update: the loss is nan in row [23]", told[0])
    assert told[0].endswith("True")


@pytest.mark.slow
def test_torchrun_trains_resumes_and_evaluates(tmp_path):
    run = str(tmp_path / "run")
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--master-port", str(free_port()), "-m", "expire_span"]
    tiny = "--batch 4 --evaluation.blocks 2 --evaluation.batch 2 --save-every 2 --device cpu"
    schedule = "--optimizer.schedule.decay constant"
    found = []
    for options in (f"--steps 3 {tiny} {schedule}", "--steps 5 --resume"):
        command = [*launch, "train", "recall", "--out", run, *options.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))  # one rank speaks
    command = [*launch, "evaluate", run, "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(found[1]["accuracy"])
    uneven = [*launch, "train", "recall", "--out", run + "2", "--batch", "3", "--device", "cpu"]
    done = subprocess.run(uneven, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "batch is 3 rows, which 2 ranks cannot share evenly" in done.stderr


def join_again(rank: int, port: int, restarts: int, folder: Path) -> None:
    """A rank as torchrun starts it, which at first never ends; the second comes later."""
    time.sleep(rank)
    become_rank(rank, 2, port)
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    with join_ranks("cpu") as ranks:
        found = ranks.gather(rank)
        (folder / f"{restarts} {rank}").write_text(json.dumps(found))
        while not restarts:
            time.sleep(1)


def test_ranks_that_are_started_again_do_not_look_for_those_that_died(tmp_path):
    """torchrun keeps its store, and in it the addresses of the dead."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for restarts in range(2):
        processes = [start(join_again, n, store.port, restarts, tmp_path) for n in range(2)]
        answers = [tmp_path / f"{restarts} {n}" for n in range(2)]
        for _ in range(300):
            if all(answer.exists() and answer.read_text() for answer in answers):
                break
            time.sleep(0.1)
        assert [json.loads(answer.read_text()) for answer in answers] == [[0, 1]] * 2
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.slow
def test_torchrun_starts_killed_ranks_again_and_they_go_on(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--max-restarts", "1", "--master-port", str(free_port()), "-m", "expire_span"]
    options = "--steps 60 --batch 4 --evaluation.blocks 2 --evaluation.batch 2 --save-every 5"
    found = {}
    for name in ("whole", "killed"):
        run = tmp_path / name
        command = [*launch, "train", "recall", "--out", str(run), *options.split()]
        process = subprocess.Popen(
            [*command, "--device", "cpu"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        while name == "killed" and not [*run.glob("checkpoints/step-*")]:
            time.sleep(0.05)
        if name == "killed":
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[-1]), signal.SIGKILL)
        told, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        found[name] = {**json.loads(told), "run": None}
    assert found["killed"] == found["whole"]
    for rank in range(2):
        assert same_checkpoints(*(last_of(tmp_path / name, rank, 2) for name in found))


def fail_together(rank: int, port: int, folder: Path) -> None:
    """Only rank 1 fails, in several ways, one after another."""
    become_rank(rank, 2, port)
    told = []
    with join_ranks("cpu") as ranks:
        for kind in FAILURES:

            def action(kind: type[Exception] = kind) -> int:
                if rank == 1:
                    raise kind("There is no file x.")
                return rank

            try:
                ranks.together(action)
            except Exception as error:
                told.append(f"{type(error).__name__}: {error}")
        told.append(str(ranks.together(lambda: rank)))
    (folder / f"{rank}.json").write_text(json.dumps(told))


FAILURES = (ValueError, OSError, NotFinite, SafetensorError, RuntimeError)


def test_a_sentence_of_one_rank_is_heard_by_all(tmp_path):
    port = free_port()
    for process in [start(fail_together, n, port, tmp_path) for n in range(2)]:
        process.join(timeout=60)
    told = [json.loads((tmp_path / f"{n}.json").read_text()) for n in range(2)]
    assert told[0] == ["ValueError: Rank 1: There is no file x."] * len(FAILURES) + ["0"]
    assert told[1] == [f"{kind.__name__}: There is no file x." for kind in FAILURES] + ["1"]


def test_what_fails_alone_fails_as_it_is():
    with pytest.raises(ZeroDivisionError):
        Ranks().together(lambda: 1 // 0)


def test_a_process_alone_makes_the_gpu_it_was_given_the_current_one(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    with join_ranks("cuda:1") as ranks:
        assert ranks.alone
        assert current == [torch.device("cuda:1")]
    for name in ("auto", "cuda", "cpu"):  # whichever is current
        take_device(name)
    assert len(current) == 1
    with pytest.raises(ValueError, match=r"^There is no cuda:2 here: .* cuda:0 to cuda:1\.$"):
        take_device("cuda:2")


def test_each_rank_of_a_machine_takes_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda:3")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert choose_device("cpu") == torch.device("cpu")
