"""The command line as a user meets it."""

import json
from dataclasses import fields, replace
from importlib.metadata import version
from inspect import signature

import pytest
import torch

from expire_span.agent.experiments import AGENT_EXPERIMENTS
from expire_span.cli import COMMANDS, main
from expire_span.experiments import EXPERIMENTS, TABLES
from expire_span.experiments.scale import SCALES
from expire_span.tasks import TASKS
from expire_span.training.command import WITH_WORDS, say_if_slow, take_scale
from expire_span.training.evaluation import bookmark_in
from expire_span.training.records import load_experiment

TINY = "--steps 3 --batch 2 --evaluation.blocks 2 --evaluation.batch 2 --save-every 2".split()
TINY += ["--device", "cpu"]


def test_the_version_is_that_of_the_package(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"expire-span {version('expire-span')}\n"


def test_list_names_every_experiment_and_table(capsys):
    main(["list"])
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert [line.split()[0] for line in printed] == [*EXPERIMENTS, *AGENT_EXPERIMENTS, *TABLES]
    assert all(len(line.split(maxsplit=1)[1]) > 20 for line in printed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "recal"], "no experiment 'recal'. Perhaps you meant recall: choose one of rec"),
        (["train", "Corridor"], "no experiment 'Corridor'. Perhaps you meant corridor: choose"),
        (["train", "xyz", "smoke"], "There is no experiment 'xyz'. Choose one of recall, copy,"),
        (["evaluate", "nowhere", "--limit", "-3"], "limit must be a whole number of at least 0"),
    ],
)
def test_what_is_wrong_is_said_first(words, said, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_a_model_is_judged_by_a_file_of_the_same_name_in_a_folder(tmp_path, capsys):
    data, run = tmp_path / "some.txt", str(tmp_path / "run")
    data.write_text("a rose is a rose\n" * 600)
    tiny = "--model.layers 1 --model.width 8 --model.heads 1 --model.feedforward 8 --model.block 16"
    main(["train", "text", "--task.path", str(data), *TINY, *tiny.split(), "--out", run])
    capsys.readouterr()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    data.rename(moved / data.name)
    with pytest.raises(SystemExit):
        main(["evaluate", run])
    assert "some.txt" in (told := capsys.readouterr().err)
    assert told.strip().endswith("Say with --data where it lies.")
    results = []
    for place in (moved, moved / data.name):
        main(["evaluate", run, "--data", str(place)])
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1]


DEEPER = ["train recall", "train corridor", "train portal smoke", "analyse cut"]


@pytest.mark.parametrize("arguments", [[], *(name.split() for name in [*COMMANDS, *DEEPER])])
def test_help_is_there_for_every_command(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"])
    assert stop.value.code == 0
    assert "usage: expire-span" in capsys.readouterr().out


def test_train_then_resume_then_evaluate(tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["train", "recall", *TINY, "--out", run, "--model.memory.ramp", "5"])
    trained = json.loads(capsys.readouterr().out)
    for out in (["--out", run], [f"--out={run}"]):
        main(["train", "recall", *out, "--resume"])  # with the run's own settings
        assert json.loads(capsys.readouterr().out) == trained
    main(["evaluate", run, "--split", "valid", "--device", "cpu"])
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["accuracy"] == trained["accuracy"]
    saved = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert saved["model"]["memory"]["ramp"] == 5
    assert saved["steps"] == 3


def test_no_options_value_is_taken_for_a_scale():
    """Every setting of a task that may be any word is known to be one."""
    settings = {
        field.name for task in TASKS.values() for field in fields(task) if field.type is str
    }
    assert settings
    assert {f"--task.{name}" for name in settings} <= set(WITH_WORDS)
    for option in WITH_WORDS:
        assert take_scale(["smoke", option, "paper"]) == ("smoke", [option, "paper"])
        assert take_scale([option, "paper", "--steps", "3"])[0] is None


def test_a_gpu_without_room_is_told_in_one_sentence(tmp_path, capsys, monkeypatch):
    def no_room(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("expire_span.cli.train_experiment", no_room)
    with pytest.raises(SystemExit) as stop:
        main(["train", "recall", "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "take fewer rows (of train: --batch) or runs at a time" in capsys.readouterr().err


def test_an_experiment_in_another_scale_than_single(tmp_path, capsys):
    run = tmp_path / "single"  # a folder may be called like a scale
    main(["train", "enwik8", "--out", str(run), "smoke", "--steps", "3"])
    trained = json.loads(capsys.readouterr().out)
    smoke = EXPERIMENTS["enwik8"](scale="smoke")
    assert load_experiment(run / "experiment.json") == replace(smoke, steps=3)
    for again in (["enwik8", "smoke"], ["enwik8"]):
        main(["train", *again, "--out", str(run), "--resume"])
        assert json.loads(capsys.readouterr().out) == trained


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_plain_line(tmp_path, caplog):
    short = "--model.memory.initial 0.001 --optimizer.span-rate 0 --steps 50".split()
    main(["train", "recall", "--batch", "2", "--device", "cpu", "--out", str(tmp_path), *short])
    (told,) = [line for line in caplog.messages if "collapsed" in line]
    assert told.startswith(
        "Step 50: all spans have collapsed (the longest since the last look is 0.2"
    )


def test_a_run_that_torchrun_starts_again_goes_on_by_itself(tmp_path, capsys, monkeypatch):
    run = str(tmp_path / "run")
    command = ["train", "recall", *TINY, "--out", run]
    main([*command, "--penalty.target-live", "40"])
    trained = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main([*command, "--penalty.target-live", "40"])
    assert "already holds a run" in capsys.readouterr().err
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    main([*command, "--penalty.target-live", "40"])
    assert json.loads(capsys.readouterr().out) == trained
    saved = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert saved["penalty"]["target_live"] == 40
    main(["train", "recall", *TINY, "--out", run + "2"])  # it died before there was a run
    assert json.loads(capsys.readouterr().out)["run"] == run + "2"


def test_a_run_is_resumed_by_the_name_it_was_begun_with(tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["train", "recall", *TINY, "--out", run])
    with pytest.raises(SystemExit):
        main(["train", "copy", "--out", run, "--resume"])
    told = " ".join(capsys.readouterr().err.split())
    assert "is about Recall, not Copy: resume it by the name it was begun with" in told
    with pytest.raises(SystemExit):
        main(["watch", run])
    told = " ".join(capsys.readouterr().err.split())
    assert "holds a sequence model, but this needs an agent" in told


def test_what_the_system_refuses_is_a_sentence_too(tmp_path, capsys):
    run, file = tmp_path / "run", tmp_path / "file"
    main(["train", "recall", *TINY, "--out", str(run)])
    file.write_text("no folder")
    with pytest.raises(SystemExit):
        main(["inspect", str(run), "--out", str(file / "report.html"), "--length", "64"])
    told = " ".join(capsys.readouterr().err.split())
    assert "cannot be used (File exists): choose another path." in told


def test_evaluate_reads_as_much_as_it_is_told(tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["train", "recall", *TINY, "--out", run])
    capsys.readouterr()
    counts = []
    for blocks in ("4", "16"):
        main(["evaluate", run, "--blocks", blocks, "--limit", "8"])
        result = json.loads(capsys.readouterr().out)
        counts.append(result["scored"])
        assert result["blocks"] == int(blocks)
        assert result["live"] <= 8
        assert result["limit"] == 8
        assert result["step"] == 3
    assert counts[0] < counts[1]


def test_a_text_can_be_evaluated_to_its_end(tmp_path, capsys):
    path = tmp_path / "any.txt"
    path.write_text("a rose is a rose\n" * 600)
    run = str(tmp_path / "run")
    tiny = "--model.layers 1 --model.width 8 --model.heads 1 --model.feedforward 8 --model.block 16"
    main(["train", "text", "--task.path", str(path), *TINY, *tiny.split(), "--out", run])
    capsys.readouterr()
    for words, blocks in (([], 2), (["--blocks", "all"], 16)):  # 510 bytes in two rows
        main(["evaluate", run, *words])
        assert json.loads(capsys.readouterr().out)["blocks"] == blocks


def test_numbers_of_a_part_of_a_data_set_say_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "prepared"))
    run = str(tmp_path / "run")
    main(["train", "pg19", "smoke", *TINY, "--out", run])
    trained = json.loads(capsys.readouterr().out)
    assert trained["subset"] == "not PG-19 as it was published (4.txt in test)"
    main(["evaluate", run])
    assert json.loads(capsys.readouterr().out)["subset"] == trained["subset"]


@pytest.mark.filterwarnings("default")
def test_evaluations_side_by_side_leave_each_other_alone(tmp_path, capsys, caplog):
    run = tmp_path / "run"
    main(["train", "recall", *TINY, "--out", str(run)])
    kept = run / "evaluation-valid" / "of the other"
    kept.parent.mkdir()
    kept.touch()
    with bookmark_in(run / "evaluation-valid") as mine:
        assert mine is not None
        main(["evaluate", str(run), "--blocks", "4"])
        with pytest.raises(SystemExit):
            main(["evaluate", str(run), "--blocks", "4", "--resume"])
    assert kept.exists()
    assert any("Another evaluation of the same data is under way" in one for one in caplog.messages)
    assert "Another process is at that evaluation" in capsys.readouterr().err
    main(["evaluate", str(run), "--blocks", "4"])
    assert not kept.exists()
    assert not list(run.glob(".evaluation*"))


def test_a_finished_run_is_judged_anew_if_more_is_asked_for(tmp_path, capsys):
    run = str(tmp_path / "run")
    main(["train", "recall", *TINY, "--out", run])
    scored = [json.loads(capsys.readouterr().out)["scored"]]
    for blocks in ("2", "8"):
        main(["train", "recall", "--out", run, "--resume", "--evaluation.blocks", blocks])
        scored.append(json.loads(capsys.readouterr().out)["scored"])
    assert scored[0] == scored[1] < scored[2]


def test_a_run_that_goes_on_is_no_longer_judged_as_it_was(tmp_path):
    run = tmp_path / "run"
    steady = ["--optimizer.schedule.decay", "constant"]
    main(["train", "recall", *TINY, *steady, "--out", str(run)])
    (run / "result.json").write_text("{}")
    main(["train", "recall", "--out", str(run), "--resume"])
    assert (run / "result.json").exists()  # it had come to its end
    main(["train", "recall", "--out", str(run), "--resume", "--steps", "4"])
    assert not (run / "result.json").exists()


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("fixed-span", ["--model.memory.span", "16"]),
        ("adaptive-span", ["--model.memory.max-span", "16", "--model.memory.ramp", "4"]),
        (
            "compressive",
            "--model.memory.span 16 --model.memory.compressed 2 --model.memory.rate 4".split(),
        ),
    ],
)
def test_the_memory_policy_can_be_swapped(policy, options, tmp_path, capsys):
    run = tmp_path / "run"
    swap = [f"model.memory:{policy}", *options]
    main(["train", "recall", "--out", str(run), *swap, *TINY])
    saved = json.loads((run / "experiment.json").read_text())
    assert saved["model"]["memory"]["kind"].lower() == policy.replace("-", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "text", "--task.path", "nowhere.txt"], "There is no file nowhere.txt"),
        (["evaluate", "nowhere"], "is not a run"),
        (["train", "recall", "--model.heads", "3"], "heads must divide width"),
        (
            ["train", "recall", "--model.memory.ramp", "0"],
            "ramp must be a whole number of at least 1",
        ),
        (["train", "recall", "paper"], "recall comes in one size: leave out paper."),
        (["train", "enwik8", "small"], "scale must be one of smoke, single, paper"),
        (["train", "recall", "--seed", "-1"], "seed must be a whole number of at least 0"),
        (["train", "recall", "--device", "mps"], "There is no device 'mps': choose auto, cpu"),
        (["demo", "--steps", "0"], "steps must be a whole number of at least 1"),
        (["serve", "nowhere", "--at-once", "0"], "at_once must be a whole number of at least 1"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())  # long lines may be folded
    assert sentence in printed
    assert "Traceback" not in printed


def test_text_of_any_file_can_be_learned(tmp_path, capsys):
    path = tmp_path / "any.bin"
    path.write_bytes(bytes(range(256)) * 30)
    sizes = "--model.layers 1 --model.width 8 --model.heads 2 --model.block 16".split()
    main(["train", "text", "--task.path", str(path), "--out", str(tmp_path / "r"), *TINY, *sizes])
    assert 0 < json.loads(capsys.readouterr().out)["bpb"] < 20


def test_whoever_trains_for_hours_on_a_cpu_is_told_before(caplog):
    """Of all experiments, those that are meant for a GPU, and no others."""
    for name, experiment in EXPERIMENTS.items():
        for scale in SCALES if "scale" in signature(experiment).parameters else (None,):
            one = experiment() if scale is None else experiment(scale=scale)
            caplog.clear()
            say_if_slow("cpu", one.model, one.batch * one.steps)
            for_a_cpu = scale == "smoke" or name in ("recall", "copy")
            assert ("may take hours" in caplog.text) != for_a_cpu, (name, scale)
    for agent in AGENT_EXPERIMENTS.values():
        for scale in SCALES:
            one = agent(scale)
            caplog.clear()
            say_if_slow("cpu", one.model, one.batch * one.steps)
            assert ("may take hours" in caplog.text) == (scale != "smoke")
