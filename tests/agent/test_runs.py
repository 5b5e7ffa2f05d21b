"""Runs in folders: what they leave, how they go on, and that they keep out of each other's way."""

import json
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch

from agent.small_agents import WORLDS, stop_after_steps, tiny_experiment
from expire_span import FixedSpan
from expire_span.agent import evaluation, run
from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiments import AGENT_EXPERIMENTS, corridor
from expire_span.agent.run import (
    AGENT_KINDS,
    AgentRun,
    load_agent,
    load_agent_experiment,
    train_agent,
    train_side_by_side,
)
from expire_span.agent.sweep import run_sweep
from expire_span.agent.trainer import AgentTrainer
from expire_span.cli import main
from expire_span.training import checkpoint as checkpoints
from expire_span.training.folder import at_work_in
from expire_span.training.guard import NotFinite
from expire_span.training.log import JsonLines, MetricLog
from expire_span.training.records import from_record, to_record
from expire_span.training.release import release
from expire_span.training.saver import Saver
from expire_span.training.schedule import PenaltySchedule
from expire_span.worlds import Portal


def lines(folder) -> list[dict]:
    """The metrics of a run, without what depends on the clock."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if "per_second" not in k} for line in found]


def test_a_run_leaves_metrics_a_result_and_an_agent_that_can_be_loaded(tmp_path):
    experiment = tiny_experiment(WORLDS["portal"])
    result = train_agent(experiment, tmp_path, progress=False)
    assert result["episodes"] == 8
    assert json.loads((tmp_path / "result.json").read_text()) == result
    told = lines(tmp_path)
    assert [line["step"] for line in told] == [5, 10, 12]
    assert told[-1]["world_steps"] == 12 * 6 * 10
    assert {"return", "furthest_room", "live", "entropy"} <= told[-1].keys()
    loaded, model = load_agent(tmp_path, "cpu")
    assert loaded == experiment
    assert load_agent_experiment(tmp_path) == experiment
    assert not model.training


def test_a_run_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    experiment = tiny_experiment()
    whole = train_agent(experiment, tmp_path / "whole", progress=False)
    train_agent(replace(experiment, steps=8), tmp_path / "parts", progress=False)
    result = train_agent(experiment, tmp_path / "parts", resume=True, progress=False)
    assert result == whole
    one, other = (load_agent(tmp_path / name, "cpu")[1] for name in ("whole", "parts"))
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_runs_side_by_side_are_the_runs_alone(tmp_path):
    experiments = {
        "one": tiny_experiment(steps=6),
        "two": tiny_experiment(seed=1, steps=4),
        "three": tiny_experiment(WORLDS["portal"], memory=FixedSpan(8), steps=5),
    }
    wanted = [(experiment, tmp_path / name) for name, experiment in experiments.items()]
    together = train_side_by_side(wanted, progress=False)
    for (name, experiment), result in zip(experiments.items(), together, strict=True):
        assert train_agent(experiment, tmp_path / f"{name}-alone", progress=False) == result
        assert lines(tmp_path / name) == lines(tmp_path / f"{name}-alone")


def test_folders_and_settings_that_do_not_fit_are_refused(tmp_path):
    experiment = tiny_experiment(steps=4)
    with pytest.raises(ValueError, match="holds no run that could be resumed"):
        train_agent(experiment, tmp_path / "none", resume=True, progress=False)
    train_agent(experiment, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="already holds a run"):
        train_agent(experiment, tmp_path / "run", progress=False)
    other = replace(experiment, batch=7)
    with pytest.raises(ValueError, match="these differ: batch"):
        train_agent(other, tmp_path / "run", resume=True, progress=False)
    with pytest.raises(ValueError, match="is not a run"):
        load_agent(tmp_path)


@pytest.mark.parametrize("name", ["result.json", "metrics.jsonl"])
def test_what_is_somebody_elses_is_not_written_over(name, tmp_path):
    (tmp_path / name).write_text("precious")
    with pytest.raises(ValueError, match=f"holds no run, but a {name}, over which one would write"):
        train_agent(tiny_experiment(steps=1), tmp_path, progress=False)
    assert (tmp_path / name).read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_two_processes_do_not_work_in_one_folder(tmp_path):
    with at_work_in(tmp_path, resume=False), pytest.raises(ValueError, match="Another process is"):
        train_agent(tiny_experiment(steps=1), tmp_path, progress=False)


def test_other_settings_are_refused_also_before_the_first_checkpoint(tmp_path):
    train_agent(tiny_experiment(steps=4), tmp_path, progress=False)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="these differ: batch"):
        train_agent(tiny_experiment(steps=4, batch=7), tmp_path, resume=True, progress=False)


def test_metrics_that_cannot_be_written_end_a_run_that_can_go_on(tmp_path, monkeypatch):
    experiment = tiny_experiment(steps=6, log_every=4, save_every=2)

    def full(self: JsonLines, step: int, metrics: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JsonLines, "write", full)
    with pytest.raises(OSError, match=r"metrics of step 4 could .*step-000000002 is still good"):
        train_agent(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    whole = train_agent(experiment, tmp_path / "whole", progress=False)
    assert train_agent(experiment, tmp_path / "run", resume=True, progress=False) == whole


@pytest.mark.parametrize("name", AGENT_EXPERIMENTS)
@pytest.mark.parametrize("scale", ["smoke", "single", "paper"])
def test_experiments_can_be_written_and_read(name, scale):
    experiment = AGENT_EXPERIMENTS[name](scale)
    if name == "portal":
        experiment = replace(experiment, world=Portal(spawn=(1, 2)))
    record = json.loads(json.dumps(to_record(experiment)))
    assert from_record(record, AGENT_KINDS) == experiment


def test_the_papers_settings_are_the_papers():
    corridor, portal = (AGENT_EXPERIMENTS[name]("paper") for name in ("corridor", "portal"))
    assert corridor.batch * corridor.steps * corridor.model.block == 100_000_000
    assert (corridor.batch, corridor.optimizer.method, corridor.optimizer.rate) == (
        64,
        "rmsprop",
        1e-4,
    )
    assert (corridor.world.shortest, corridor.world.longest) == (3, 200)
    memory = corridor.model.memory
    assert (memory.max_span, memory.ramp, memory.penalty) == (200, 16, 5e-6)
    assert (portal.batch, portal.optimizer.method, portal.optimizer.rate) == (1024, "adam", 5e-4)
    assert (portal.optimizer.clip, portal.learning.discount, portal.world.rooms) == (0.1, 0.98, 50)
    memory = portal.model.memory
    assert (memory.max_span, memory.ramp, memory.penalty) == (100, 16, 1e-6)
    assert corridor.optimizer.clip is None
    assert (corridor.optimizer.rmsprop_decay, corridor.optimizer.rmsprop_epsilon) == (0.97, 1e-6)
    assert portal.batch * portal.steps * portal.model.block == 1_024_000_000  # ours
    assert corridor.learning.discount == 0.99  # ours, as all that follows but sizes and entropy
    for experiment in (corridor, portal):
        model = experiment.model
        assert (model.layers, model.width, model.block) == (2, 64, 100)
        assert (model.heads, model.feedforward, model.norm) == (4, 256, "pre")
        assert model.memory.initial == 0.95
        assert (model.memory.charge, model.memory.positions) == ("ramp", "near")
        assert experiment.learning.entropy_weight == 0.0005
        assert experiment.learning.value_weight == 0.05
        assert (experiment.learning.cut_off, experiment.learning.normalise) == ("ended", False)
    # Not the paper's, whose alpha is constant from the beginning.
    assert corridor.penalty == PenaltySchedule(after_metric=0.97, while_metric=0.97)
    assert portal.penalty == PenaltySchedule(after_metric=650, while_metric=650)


def test_a_signal_stops_a_run_where_it_can_go_on(tmp_path, monkeypatch):
    experiment = tiny_experiment(save_every=100)
    whole = train_agent(experiment, tmp_path / "whole", progress=False)
    stop_after_steps(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 3; everything is saved"):
        train_agent(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    assert train_agent(experiment, tmp_path / "run", resume=True, progress=False) == whole
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_a_signal_while_an_agent_is_judged_stops_what_follows(tmp_path, monkeypatch):
    wanted = {name: tiny_experiment(steps=2) for name in ("first", "second", "third")}
    judge, play = AgentRun.judge, evaluation.play_first_episodes
    blocks: list[str] = []

    def interrupted(run, *given):
        def plays(*given, **settings):
            for played in play(*given, **settings):
                blocks.append(run.folder.name)
                if blocks.count("second") == 1:
                    signal.raise_signal(signal.SIGTERM)
                yield played

        monkeypatch.setattr(evaluation, "play_first_episodes", plays)
        return judge(run, *given)

    monkeypatch.setattr(AgentRun, "judge", interrupted)
    with pytest.raises(KeyboardInterrupt, match="with 1 of 3 runs done; everything"):
        run_sweep(wanted, tmp_path, side_by_side=2, progress=False)
    assert blocks.count("first") > 1 == blocks.count("second")  # it stopped within the episodes
    assert [path.parent.name for path in tmp_path.rglob("result.json")] == ["first"]
    assert not (tmp_path / "third").exists()
    monkeypatch.undo()
    run_sweep(wanted, tmp_path, side_by_side=2, progress=False)
    assert len(list(tmp_path.rglob("result.json"))) == 3


def test_what_is_done_is_not_stopped_by_a_signal_nor_judged_again(tmp_path, monkeypatch):
    experiment, played = tiny_experiment(steps=2), []

    def judged(*_, **settings):
        played.append(settings["rows"])
        signal.raise_signal(signal.SIGTERM)
        return evaluate_agent(*_, **settings | {"interruption": None})

    monkeypatch.setattr(run, "evaluate_agent", judged)
    result = train_agent(experiment, tmp_path, progress=False)
    assert train_agent(experiment, tmp_path, resume=True, progress=False) == result
    assert played == [8]
    others = replace(experiment, evaluation_rows=9)
    assert train_agent(others, tmp_path, resume=True, progress=False)["episodes"] == 9
    assert played == [8, 9]


def test_metrics_are_on_the_disk_before_the_checkpoint_that_goes_on_from_them(
    tmp_path, monkeypatch
):
    done: list[str] = []
    flush, save = MetricLog.flush, Saver.save
    monkeypatch.setattr(MetricLog, "flush", lambda log: (done.append("flushed"), flush(log)))
    monkeypatch.setattr(Saver, "save", lambda *given: (done.append("saved"), save(*given)))
    train_agent(tiny_experiment(steps=8, save_every=4), tmp_path, progress=False)
    assert [one for one in done if one == "saved"] == ["saved"] * 2
    assert all(done[n - 1] == "flushed" for n, one in enumerate(done) if one == "saved")


def test_no_result_stands_beside_weights_that_it_is_not_of(tmp_path, monkeypatch):
    save = checkpoints.save

    def full_disk(checkpoint, folder, step, ranks):
        if step == 8:
            raise OSError("No space left.")
        return save(checkpoint, folder, step, ranks)

    monkeypatch.setattr(checkpoints, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        train_agent(tiny_experiment(steps=8, save_every=4), tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_target_for_live_memory_weighs_the_penalty():
    schedule = PenaltySchedule(target_live=4.0)
    trainer = AgentTrainer(tiny_experiment(penalty=schedule), torch.device("cpu"))
    assert trainer._penalty_weight() == 0
    for _ in range(12):
        trainer.update()
    assert trainer.take_stats().live.mean() > 4
    assert trainer._penalty_weight() > 0  # there is more in memory than wanted


def test_a_save_that_fails_stops_the_run_and_names_the_last_good_one(tmp_path, monkeypatch):
    save = checkpoints.save

    def full_disk(checkpoint, folder, step, ranks):
        if folder.parent.name == "second" and step > 4:
            raise OSError("No space left.")
        return save(checkpoint, folder, step, ranks)

    monkeypatch.setattr(checkpoints, "save", full_disk)
    experiment = tiny_experiment(steps=1000)
    names = ("first", "second", "third")
    with pytest.raises(OSError, match=r"No space left\. The checkpoint .*4 is still good"):
        train_side_by_side([(experiment, tmp_path / name) for name in names], progress=False)
    newest = [checkpoints.latest(tmp_path / name / "checkpoints") for name in names]
    steps = [checkpoints.load_shared(path).values["step"] for path in newest]
    assert 8 <= steps[0] == steps[2] < 1000  # stopped as soon as the failure was known, and saved
    assert steps[1] == 4


def test_a_gradient_that_is_not_finite_changes_no_weight_and_stops_the_run(tmp_path, monkeypatch):
    runs, before = [], []
    update = AgentTrainer.update

    def spoil(trainer: AgentTrainer) -> None:
        runs.append(trainer)
        if trainer.step == 6:
            before.extend(weight.detach().clone() for weight in trainer.model.parameters())
            trainer.memory = trainer.memory.map(
                lambda t: t * float("nan") if t.is_floating_point() else t
            )
        update(trainer)

    monkeypatch.setattr(AgentTrainer, "update", spoil)
    experiment = tiny_experiment(save_every=4, log_every=10)
    with pytest.raises(NotFinite, match=r"before step 8.*The checkpoint .*4 is still good"):
        train_agent(experiment, tmp_path, progress=False)
    assert runs[-1].step == 8
    assert all(map(torch.equal, runs[-1].model.parameters(), before))


def spoil_seed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The run of that seed meets a gradient that is not finite in its fourth update."""
    update = AgentTrainer.update

    def spoilt(trainer: AgentTrainer) -> None:
        if trainer.experiment.seed == seed and trainer.step == 3:
            trainer.memory = trainer.memory.map(
                lambda t: t * float("nan") if t.is_floating_point() else t
            )
        update(trainer)

    monkeypatch.setattr(AgentTrainer, "update", spoilt)


def test_a_run_that_diverges_is_named_and_those_beside_it_are_finished(tmp_path, monkeypatch):
    wanted = {f"run-{n}": tiny_experiment(seed=n, steps=6, save_every=2) for n in range(3)}
    spoil_seed(monkeypatch, 1)
    with pytest.raises(NotFinite, match=r"run-1: A gradient .*000002 is still good") as failure:
        train_side_by_side([(wanted[n], tmp_path / n) for n in wanted], progress=False)
    assert "run-0" not in str(failure.value)
    assert not (tmp_path / "run-1" / "result.json").exists()
    for name in ("run-0", "run-2"):
        alone = train_agent(wanted[name], tmp_path / f"{name}-alone", progress=False)
        assert json.loads((tmp_path / name / "result.json").read_text()) == alone


def test_a_sweep_goes_on_beside_a_run_that_diverges_and_names_it_at_the_end(tmp_path, monkeypatch):
    wanted = {f"run-{n}": tiny_experiment(seed=n, steps=6, save_every=2) for n in range(4)}
    spoil_seed(monkeypatch, 1)
    for _ in range(2):  # it is tried again, from its last checkpoint, and diverges again
        with pytest.raises(NotFinite, match=r"run-1: A gradient .*\nAll other runs are done"):
            run_sweep(wanted, tmp_path, side_by_side=2, progress=False)
        done = {path.parent.name for path in tmp_path.glob("*/result.json")}
        assert done == {"run-0", "run-2", "run-3"}
    monkeypatch.undo()
    run_sweep(wanted, tmp_path, side_by_side=2, progress=False)
    assert (tmp_path / "run-1" / "result.json").exists()


@pytest.mark.parametrize("spoilt", [0, 1])
def test_a_signal_beside_a_run_that_diverged_saves_the_other_and_tells(
    spoilt, tmp_path, monkeypatch
):
    wanted = [(tiny_experiment(seed=n, save_every=100), tmp_path / str(n)) for n in range(2)]
    spoil_seed(monkeypatch, spoilt)
    stop_after_steps(monkeypatch, 4)
    sound = tmp_path / str(1 - spoilt)
    with pytest.raises(KeyboardInterrupt) as stop:
        train_side_by_side(wanted, progress=False)
    first, fault = str(stop.value).splitlines()
    assert first.startswith(f"stopped at step 4; everything is saved in {sound},")
    assert fault.startswith(f"{tmp_path / str(spoilt)}: A gradient was not finite")
    assert checkpoints.load_shared(checkpoints.latest(sound / "checkpoints")).values["step"] == 4
    assert checkpoints.latest(tmp_path / str(spoilt) / "checkpoints") is None


def test_no_agent_is_judged_before_all_checkpoints_are_written(tmp_path, monkeypatch):
    save = checkpoints.save
    written: list[int] = []
    judged: list[int] = []

    def slowly(*given):
        time.sleep(0.3)
        path = save(*given)
        written.append(given[2])
        return path

    monkeypatch.setattr(checkpoints, "save", slowly)
    monkeypatch.setattr(AgentRun, "judge", lambda *_: judged.append(len(written)))
    wanted = [(tiny_experiment(steps=1, seed=n), tmp_path / str(n)) for n in range(2)]
    train_side_by_side(wanted, progress=False)
    assert judged == [2, 2]


def test_a_run_that_goes_on_is_no_longer_judged_as_it_was(tmp_path, monkeypatch):
    train_agent(tiny_experiment(steps=2), tmp_path, progress=False)
    assert (tmp_path / "result.json").exists()
    stop_after_steps(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        train_agent(tiny_experiment(steps=6), tmp_path, resume=True, progress=False)
    assert not (tmp_path / "result.json").exists()


def test_a_run_is_judged_by_episodes_that_it_was_not_trained_on(tmp_path):
    experiment = tiny_experiment(steps=2, evaluation_rows=30)
    result = train_agent(experiment, tmp_path, progress=False)
    _, model = load_agent(tmp_path, "cpu")
    trained_on, others = (
        evaluate_agent(model, experiment.world, rows=30, seed=experiment.seed + n) for n in (0, 1)
    )
    assert result == others != trained_on


def test_a_released_agent_is_not_trained_over(tmp_path):
    experiment = tiny_experiment(steps=2)
    train_agent(experiment, tmp_path / "run", progress=False)
    release(tmp_path / "run", tmp_path / "released")
    with pytest.raises(ValueError, match="holds a released model"):
        train_agent(experiment, tmp_path / "released", resume=True, progress=False)


def test_the_scale_may_stand_anywhere_but_is_no_options_value(tmp_path, capsys):
    out = str(tmp_path / "smoke")
    few = ["--steps", "1", "--batch", "4", "--evaluation-rows", "4", "--device", "cpu"]
    main(["train", "corridor", "--out", out, "smoke", *few])
    assert load_agent_experiment(tmp_path / "smoke").model.width == corridor("smoke").model.width
    capsys.readouterr()
    main(["evaluate", "--rows", "3", out])
    assert json.loads(capsys.readouterr().out)["episodes"] == 3
    with pytest.raises(SystemExit):
        main(["train", "nothing"])
    assert "portal" in capsys.readouterr().err
