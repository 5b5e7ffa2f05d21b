"""A run that was stopped and resumed equals one that never stopped, bit for bit, on a CPU."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from expire_span.training import checkpoint as checkpoints
from expire_span.training.experiment import Experiment
from expire_span.training.folder import at_work_in
from expire_span.training.loop import train
from expire_span.training.schedule import PenaltySchedule
from expire_span.training.sources import SourceFiles
from expire_span.training.trainer import Trainer
from killing import metrics_of
from policies import count_graphs, room_as_on_a_gpu
from small_runs import MEMORIES, STREAMS, last_of, same_checkpoints, small_experiment, tasks

STEPS = 12


def run(trainer: Trainer, steps: int) -> None:
    while trainer.step < steps:
        trainer.update(watch_spans=trainer.step % 3 == 0)
        if trainer.step % 5 == 0:
            trainer.report()


def same_state(one: Trainer, other: Trainer) -> bool:
    """Weights, optimiser, memory, random state, stream position and all else that is saved."""
    return same_checkpoints(one.checkpoint(), other.checkpoint())


def assert_stop_is_invisible(experiment: Experiment, stop: int, folder: Path) -> None:
    unbroken = Trainer(experiment)
    run(unbroken, STEPS)
    broken = Trainer(experiment)
    run(broken, stop)
    path = checkpoints.save(broken.checkpoint(), folder, stop)
    torch.manual_seed(99)  # another process would not have this one's random state
    resumed = Trainer(experiment)
    resumed.restore(checkpoints.load(path))
    run(resumed, STEPS)
    assert same_state(unbroken, resumed)


def test_checkpoints_from_before_spans_rested_and_were_looked_at_together_can_be_resumed():
    experiment = small_experiment(memory=MEMORIES["expire"])
    unbroken = Trainer(experiment)
    run(unbroken, 7)
    unbroken.take_stats()  # the other one will begin to look anew
    run(unbroken, STEPS)
    broken = Trainer(experiment)
    run(broken, 7)
    saved = broken.checkpoint()
    assert saved.shared is not None
    saved.shared.values["control"].pop("closed")
    saved.own.values.pop("lately")
    for name in [name for name in saved.own.tensors if name.startswith("lately.")]:
        del saved.own.tensors[name]
    resumed = Trainer(experiment)
    resumed.restore(saved)
    run(resumed, STEPS)
    assert same_state(unbroken, resumed)


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_resume_equals_no_stop_for_every_memory(memory, stop, tmp_path):
    assert_stop_is_invisible(small_experiment(memory=memory), stop, tmp_path)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", STREAMS)
def test_resume_equals_no_stop_for_every_task(name, accumulate, tmp_path, monkeypatch):
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
    experiment = small_experiment(tasks(tmp_path)[name], accumulate=accumulate)
    assert_stop_is_invisible(experiment, 5, tmp_path / "run")


@pytest.mark.parametrize("stop", range(STEPS + 1))
def test_resume_equals_no_stop_from_any_step(stop, tmp_path):
    """In the middle of documents, of logged intervals, of warm-ups, and with a target."""
    waiting = PenaltySchedule(delay=2, warmup=4, target_live=9.0)
    task = tasks(tmp_path)["copy"]
    experiment = small_experiment(task, accumulate=2, penalty=waiting)
    assert_stop_is_invisible(experiment, stop, tmp_path / "run")


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
def test_the_log_of_a_stopped_run_is_that_of_an_undisturbed_one(memory, tmp_path, monkeypatch):
    experiment = small_experiment(memory=memory, log_every=5, save_every=100, accumulate=2)
    train(experiment, tmp_path / "whole", progress=False)
    update = Trainer.update
    for last in (3, 5, 7):

        def stopping(trainer: Trainer, last: int = last, **settings: bool) -> None:
            update(trainer, **settings)
            if trainer.step == last:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(Trainer, "update", stopping)
        with pytest.raises(KeyboardInterrupt):
            train(experiment, tmp_path / "run", resume=last > 3, progress=False)
    monkeypatch.undo()
    train(experiment, tmp_path / "run", resume=True, progress=False)
    assert metrics_of(tmp_path / "whole") == metrics_of(tmp_path / "run")


def test_the_comparison_notices_a_lost_memory(tmp_path):
    experiment = small_experiment()
    unbroken, forgetful = Trainer(experiment), Trainer(experiment)
    run(unbroken, 6)
    saved = unbroken.checkpoint()
    forgetful.restore(saved)
    forgetful.memories = (forgetful.model.start(experiment.batch),)
    run(unbroken, STEPS)
    torch.set_rng_state(saved.own.tensors["random.cpu"])
    run(forgetful, STEPS)
    assert not same_state(unbroken, forgetful)


def test_training_resumes_from_the_newest_checkpoint_of_its_folder(tmp_path):
    experiment = small_experiment(steps=STEPS)
    whole = train(experiment, tmp_path / "whole", progress=False)
    constant = replace(experiment.optimizer.schedule, decay="constant")
    with_constant = replace(experiment, optimizer=replace(experiment.optimizer, schedule=constant))
    reference = train(with_constant, tmp_path / "reference", progress=False)
    train(replace(with_constant, steps=8), tmp_path / "parts", progress=False)
    parts = train(with_constant, tmp_path / "parts", resume=True, progress=False)
    assert parts == reference
    assert whole != reference
    assert same_checkpoints(*(last_of(tmp_path / name) for name in ("reference", "parts")))


def test_a_run_that_is_past_its_end_is_judged_where_it_stands(tmp_path):
    experiment = small_experiment(steps=7)
    constant = replace(experiment.optimizer.schedule, decay="constant")
    experiment = replace(experiment, optimizer=replace(experiment.optimizer, schedule=constant))
    result = train(experiment, tmp_path, progress=False)
    assert train(replace(experiment, steps=3), tmp_path, resume=True, progress=False) == result


def test_lines_after_the_checkpoint_are_written_only_once(tmp_path):
    experiment = small_experiment(log_every=1, save_every=5, steps=12)
    train(experiment, tmp_path, progress=False)
    before = (tmp_path / "metrics.jsonl").read_text().count('"loss"')
    for path in sorted((tmp_path / "checkpoints").iterdir())[1:]:  # as if it had died at step 10
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    train(experiment, tmp_path, resume=True, progress=False)
    assert (tmp_path / "metrics.jsonl").read_text().count('"loss"') == before == 12


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    train(small_experiment(steps=4), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"already holds a run: pass --resume .* --out\.$"):
        train(small_experiment(steps=4), tmp_path, progress=False)


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    begun = (
        r"^Another process is at work in .*: wait for it, or choose another folder with --out\.$"
    )
    with at_work_in(tmp_path, resume=False), pytest.raises(ValueError, match=begun):
        train(small_experiment(steps=4), tmp_path, progress=False)
    train(small_experiment(steps=4), tmp_path, progress=False)
    with at_work_in(tmp_path, resume=True), pytest.raises(ValueError, match=begun):
        train(small_experiment(steps=4), tmp_path, resume=True, progress=False)


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        train(small_experiment(steps=4), tmp_path / "mistyped", resume=True, progress=False)
    assert not (tmp_path / "mistyped").exists()


def test_another_experiment_is_refused_also_before_the_first_checkpoint(tmp_path):
    experiment = small_experiment(steps=4)
    train(experiment, tmp_path, progress=False)
    shutil.rmtree(tmp_path / "checkpoints")
    before = (tmp_path / "experiment.json").read_bytes()
    with pytest.raises(ValueError, match=r"these differ: seed\.$"):
        train(replace(experiment, seed=5), tmp_path, resume=True, progress=False)
    assert (tmp_path / "experiment.json").read_bytes() == before


def test_checkpoints_without_settings_are_a_run_all_the_same(tmp_path):
    experiment = small_experiment(steps=4)
    result = train(experiment, tmp_path, progress=False)
    (tmp_path / "experiment.json").unlink()
    with pytest.raises(ValueError, match="already holds a run"):
        train(experiment, tmp_path, progress=False)
    assert train(experiment, tmp_path, resume=True, progress=False) == result


def test_another_experiment_is_refused_with_the_settings_that_differ(tmp_path):
    experiment = small_experiment(steps=4)
    train(experiment, tmp_path, progress=False)
    other = replace(experiment, seed=5, model=replace(experiment.model, dropout=0.3))
    with pytest.raises(ValueError, match=r"these differ: model\.dropout, seed\.$"):
        train(other, tmp_path, resume=True, progress=False)


def test_a_longer_cosine_is_another_experiment_but_a_longer_constant_rate_is_not(tmp_path):
    experiment = small_experiment(steps=4)
    train(experiment, tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"these differ: steps \(a rate that decays depends on"):
        train(replace(experiment, steps=8), tmp_path, resume=True, progress=False)


def test_resume_equals_no_stop_while_the_penalty_waits_for_a_metric(tmp_path):
    waiting = PenaltySchedule(after_metric=0.2, warmup=3)
    assert_stop_is_invisible(small_experiment(penalty=waiting), 4, tmp_path)


def test_there_must_be_something_to_resume(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run that could be resumed: check --out\.$"):
        train(small_experiment(steps=4), tmp_path, resume=True, progress=False)


def test_a_run_that_has_not_saved_yet_is_not_overwritten_either(tmp_path):
    train(small_experiment(steps=4), tmp_path, progress=False)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="already holds a run"):
        train(small_experiment(steps=4), tmp_path, progress=False)


def test_a_line_that_was_cut_off_does_not_stand_in_the_way(tmp_path):
    train(small_experiment(steps=4, log_every=2), tmp_path, progress=False)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    train(small_experiment(steps=4, log_every=2), tmp_path, resume=True, progress=False)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 4]


def test_a_text_that_has_moved_is_still_the_same_text(tmp_path):
    before = tasks(tmp_path)["text"]
    experiment = small_experiment(before, steps=4, save_every=2)
    train(experiment, tmp_path / "run", progress=False)
    moved = shutil.move(before.path, tmp_path / "elsewhere.txt")
    again = replace(experiment, task=replace(before, path=str(moved)))
    train(again, tmp_path / "run", resume=True, progress=False)
    Path(moved).write_bytes(b"another text altogether " * 200)
    with pytest.raises(ValueError, match="has changed since the checkpoint was saved"):
        train(again, tmp_path / "run", resume=True, progress=False)


def test_another_number_of_files_is_not_the_same_text(tmp_path):
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        path.write_text("text")
    saved = SourceFiles(paths).sums()
    SourceFiles(paths).compare(saved)
    with pytest.raises(ValueError, match=r"^The task reads 1 files, but 2 when .* start anew\.$"):
        SourceFiles(paths[:1]).compare(saved)


def test_a_run_that_was_stopped_before_its_first_checkpoint_begins_anew(tmp_path):
    experiment = small_experiment(steps=4)
    whole = train(experiment, tmp_path / "whole", progress=False)
    train(experiment, tmp_path / "stopped", progress=False)
    shutil.rmtree(tmp_path / "stopped" / "checkpoints")
    assert train(experiment, tmp_path / "stopped", resume=True, progress=False) == whole


def test_ctrl_c_saves_first_and_the_run_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch):
    experiment = small_experiment(save_every=100)
    whole = train(experiment, tmp_path / "whole", progress=False)
    update = Trainer.update

    def interrupted(trainer: Trainer, **settings: bool) -> None:
        if trainer.step == 6:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of the seventh update
        update(trainer, **settings)

    monkeypatch.setattr(Trainer, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "stopped", progress=False)
    monkeypatch.undo()
    assert last_of(tmp_path / "stopped").shared.values["step"] == 7
    assert train(experiment, tmp_path / "stopped", resume=True, progress=False) == whole


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
def test_a_rehearsal_leaves_no_trace(memory):
    """Blocks that are read only so that code is compiled for them: nothing is learned from them."""
    experiment = small_experiment(memory=memory, accumulate=2)
    plain = Trainer(experiment)
    run(plain, 3)
    without = plain.checkpoint()
    rehearsed = Trainer(experiment)
    rehearsed.rehearse()
    run(rehearsed, 3)
    assert same_checkpoints(without, rehearsed.checkpoint())


@pytest.mark.filterwarnings("ignore")  # what the compiler trips over in its own code
@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
def test_after_a_rehearsal_nothing_is_compiled_any_more(memory, monkeypatch):
    room_as_on_a_gpu(monkeypatch)
    experiment = small_experiment(memory=memory)
    config = replace(experiment.model, layer_drop=0.0, attention="reference")
    trainer = Trainer(replace(experiment, model=config))
    counter = count_graphs(trainer.model)
    trainer.rehearse()
    assert counter.frame_count == 1
    run(trainer, 6)
    assert counter.frame_count == 1
