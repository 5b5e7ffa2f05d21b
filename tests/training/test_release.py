"""Released models are the models they were released from."""

import json
import shutil

import pytest
import torch
from safetensors import SafetensorError

import expire_span as es
from agent.small_agents import tiny_experiment
from expire_span.agent.run import load_agent, train_agent
from expire_span.cli import main
from expire_span.tasks import PG19, Recall, Text
from expire_span.training.folder import load_run
from expire_span.training.loop import train
from expire_span.training.release import WEIGHTS_FILE, release
from small_runs import small_experiment


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A run and its release."""
    folder = tmp_path_factory.mktemp("release")
    text = folder / "text.txt"
    text.write_bytes(bytes(range(32, 127)) * 40)
    train(small_experiment(Text(str(text)), steps=3), folder / "run", progress=False)
    release(folder / "run", folder / "released")
    return folder / "run", folder / "released"


def test_a_release_holds_the_same_weights_and_knows_its_step(folders):
    (one, model, step), (other, released, again) = (load_run(folder, "cpu") for folder in folders)
    assert one == other
    assert step == again == 3
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, released.state_dict()[name])
        assert torch.equal(tensor, es.load(str(folders[1]), "cpu").state_dict()[name])


def test_a_release_is_evaluated_as_its_run_is(folders, capsys, tmp_path):
    results = []
    for folder in folders:
        main(["evaluate", str(folder), "--split", "test", "--device", "cpu"])
        results.append(json.loads(capsys.readouterr().out))
    assert results[0].pop("run") != results[1].pop("run")
    assert results[0] == results[1]
    assert sorted(path.name for path in folders[1].iterdir()) == ["experiment.json", WEIGHTS_FILE]

    moved = tmp_path / "moved.txt"
    shutil.move(folders[0].parent / "text.txt", moved)
    with pytest.raises(SystemExit):
        main(["evaluate", str(folders[1]), "--split", "test"])
    assert "There is no file" in capsys.readouterr().err
    main(["evaluate", str(folders[1]), "--split", "test", "--device", "cpu", "--data", str(moved)])
    shutil.move(moved, folders[0].parent / "text.txt")
    found = json.loads(capsys.readouterr().out)
    assert found.pop("run") == str(folders[1])
    assert found == results[1]


def test_an_agent_is_released_too(tmp_path, capsys):
    train_agent(tiny_experiment(steps=2), tmp_path / "run", progress=False)
    main(["release", str(tmp_path / "run"), "--out", str(tmp_path / "released")])
    capsys.readouterr()
    agents = [load_agent(tmp_path / name, "cpu") for name in ("run", "released")]
    assert agents[0][0] == agents[1][0]
    for name, tensor in agents[0][1].state_dict().items():
        assert torch.equal(tensor, agents[1][1].state_dict()[name])
        assert torch.equal(tensor, es.load(tmp_path / "run", "cpu").state_dict()[name])
    main(["evaluate", str(tmp_path / "released"), "--rows", "3", "--device", "cpu"])
    assert json.loads(capsys.readouterr().out)["episodes"] == 3


@pytest.mark.parametrize("left", ["experiment.json", "checkpoints"])
def test_a_release_overwrites_no_run(folders, tmp_path, left):
    run, other = folders[0], tmp_path / "other"
    experiment = small_experiment(Recall(period=16), steps=2)
    train(experiment, other, progress=False)
    for out in (other, run):
        with pytest.raises(ValueError, match=r"holds a run, .*: choose another folder"):
            release(run, out)
    train(experiment, other, resume=True, progress=False)
    half = tmp_path / "half"
    half.mkdir()
    shutil.move(other / left, half / left)
    with pytest.raises(ValueError, match=r"holds a run, .*: choose another folder"):
        release(run, half)


def test_a_release_overwrites_no_file_of_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
    books = tmp_path / "books"
    for split in ("train", "valid", "test"):
        (books / split).mkdir(parents=True)
        (books / split / "1.txt").write_text("a rose is a rose\n" * 20)
    train(small_experiment(PG19(str(books), 30), steps=1), tmp_path / "run", progress=False)
    mine = tmp_path / "mine" / "vocabulary.json"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ValueError, match=r"vocabulary\.json would be overwritten: move it away"):
        release(tmp_path / "run", mine.parent)
    assert mine.read_text() == "mine"
    assert len(list(mine.parent.iterdir())) == 1


def test_a_release_that_fails_leaves_nothing_and_can_be_made_again(folders, tmp_path, monkeypatch):
    run, out = folders[0], tmp_path / "out"

    def cut_off(weights, path, about):
        path.write_bytes(b"half of it")
        raise SafetensorError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("expire_span.tensors.save_file", cut_off)
        with pytest.raises(OSError, match=r"The release in .* could not be written: No space"):
            release(run, out)
    assert list(out.iterdir()) == []
    unfinished = out / ".unfinished"
    unfinished.mkdir()  # and of one that was killed
    (unfinished / WEIGHTS_FILE).write_bytes(b"half of it")
    release(run, out)
    assert sorted(path.name for path in out.iterdir()) == ["experiment.json", WEIGHTS_FILE]
    assert load_run(out, "cpu")[2] == 3


def test_what_is_no_release_is_refused(folders, tmp_path, capsys):
    run, released = folders
    with pytest.raises(ValueError, match="already holds a model"):
        release(run, released)
    with pytest.raises(ValueError, match="is not a run"):
        release(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match="no run: choose another folder"):
        train(small_experiment(Recall(period=16)), released, resume=True)
    other = tmp_path / "other"
    shutil.copytree(released, other)
    settings = json.loads((other / "experiment.json").read_text())
    settings["model"]["width"] *= 2
    (other / "experiment.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"are not those of the model in its experiment\.json"):
        load_run(other, "cpu")
    (other / WEIGHTS_FILE).write_bytes((other / WEIGHTS_FILE).read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read"):
        load_run(other, "cpu")
    train(small_experiment(Recall(period=16), steps=1), tmp_path / "made-up", progress=False)
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "made-up"), "--data", "anything"])
    assert "makes up its data" in capsys.readouterr().err
