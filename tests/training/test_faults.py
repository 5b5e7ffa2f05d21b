"""What can go wrong in a long run: it stops in time, says where, and the old checkpoint is good."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from expire_span import FixedSpan
from expire_span.cli import main
from expire_span.model.transformer import Transformer
from expire_span.tasks import Batch
from expire_span.training import checkpoint as checkpoints
from expire_span.training.distributed import ALONE, Ranks, join_ranks
from expire_span.training.evaluation import Bookmark, Evaluation
from expire_span.training.experiment import EvaluationConfig, Experiment
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.log import JsonLines, TensorBoard
from expire_span.training.loop import train
from expire_span.training.replay import Pass
from expire_span.training.trainer import Trainer
from killing import become_rank, free_port, start
from small_runs import last_of, same_checkpoints, small_experiment, tasks

FAULTY = 7  # the update that goes wrong; the last checkpoint before it is of step 4


def calm(**changes) -> Experiment:
    """Without LayerDrop, so that every weight takes part in every update."""
    experiment = small_experiment(**changes)
    return replace(experiment, model=replace(experiment.model, layer_drop=0.0))


def before_update(monkeypatch, action) -> None:
    """Call `action(trainer)` before the update that is to go wrong."""
    update = Trainer.update

    def sabotaged(trainer: Trainer, **settings: bool) -> None:
        if trainer.step == FAULTY - 1:
            action(trainer)
        update(trainer, **settings)

    monkeypatch.setattr(Trainer, "update", sabotaged)


def break_loss(trainer: Trainer) -> None:
    """The loss of row 2 at the sixth step of the block, whichever part it is read in."""
    head, read = trainer.model.sequence_head(), 0
    plain = head.nll

    def broken(hidden, targets):
        nonlocal read
        nll = plain(hidden, targets)
        first, read = read, read + len(nll)
        if first <= 2 < read:
            place = torch.tensor(2 - first), torch.tensor(5)
            nll = nll.index_put(place, torch.tensor(torch.nan))
        return nll

    head.nll = broken  # type: ignore[method-assign]


def break_gradient(trainer: Trainer) -> None:
    weight = trainer.model.stack()[1].feedforward.outer.weight

    def hook(gradient):
        handle.remove()
        return gradient.index_fill(0, torch.tensor([0]), torch.inf)

    handle = weight.register_hook(hook)


def break_weight(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.stack()[0].attention.out.weight[0, 0] = torch.nan


def break_layer(trainer: Trainer) -> None:
    """An activation overflows although all weights are finite."""
    forward = trainer.model.stack()[0].feedforward.forward

    def overflowing(states):
        trainer.model.stack()[0].feedforward.forward = forward
        return forward(states) / 0

    trainer.model.stack()[0].feedforward.forward = overflowing


FAULTS = {
    "loss": (break_loss, r"the loss is nan in row 2 at position 53, first seen behind layer 1"),
    "gradient": (
        break_gradient,
        r"the gradient of layers\.1\.feedforward\.outer\.weight is not finite \(rows 0 to 3, "
        r"positions 48 to 55\)",
    ),
    "weight": (break_weight, r"the weight layers\.0\.attention\.out\.weight is not finite \(rows"),
    "layer": (break_layer, r"the loss is nan in row 0 at position \d+, first seen behind layer 0"),
}


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", FAULTS)
def test_what_is_not_finite_stops_the_run_before_the_update(
    kind, accumulate, tmp_path, monkeypatch
):
    sabotage, sentence = FAULTS[kind]
    experiment = calm(task=tasks(tmp_path)["text"], accumulate=accumulate, memory=FixedSpan(12))
    whole = train(experiment, tmp_path / "whole", progress=False)
    before: list[tuple[torch.nn.Parameter, torch.Tensor]] = []

    def action(trainer: Trainer) -> None:
        sabotage(trainer)
        before.extend((p, p.detach().clone()) for p in trainer.model.parameters())

    before_update(monkeypatch, action)
    with pytest.raises(NotFinite) as stop:
        train(experiment, tmp_path / "stopped", progress=False)
    monkeypatch.undo()
    message = str(stop.value)
    assert message.startswith(f"Step {FAULTY} was stopped before its update: ")
    assert re.search(sentence, message), message
    assert message.endswith("step-000000004 is still good: go on from it with --resume.")
    assert all(torch.equal(p, old) or not old.isfinite().all() for p, old in before)
    assert train(experiment, tmp_path / "stopped", resume=True, progress=False) == whole
    assert same_checkpoints(last_of(tmp_path / "whole"), last_of(tmp_path / "stopped"))


ORIGINS = [
    (break_loss, torch.nan, "first seen behind layer 1, the last"),
    (break_layer, 0.0, "first seen behind layer 0"),
]


@pytest.mark.parametrize(("fault", "written", "origin"), ORIGINS)
def test_the_layer_is_right_although_its_memory_is_written_again(fault, written, origin, tmp_path):
    """As a replayed block does with the memory of the one before."""
    trainer = Trainer(calm(task=tasks(tmp_path)["text"], memory=FixedSpan(12)))
    learn = trainer.learn

    def writing(batch: Batch, scored: torch.Tensor) -> list[Pass]:
        before = trainer.memories
        passes = learn(batch, scored)
        for memory in before:
            for layer in memory.layers:
                layer.states.fill_(written)
        return passes

    trainer.learn = writing  # type: ignore[method-assign]
    while trainer.step < FAULTY - 1:
        trainer.update()
    fault(trainer)
    trainer.update()
    with pytest.raises(NotFinite, match=rf"^Step {FAULTY} was stopped .*, {origin}\.$"):
        trainer.update()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")  # what the compiler says of itself
def test_the_layer_is_right_where_blocks_are_replayed(tmp_path):
    text = tasks(tmp_path)["text"]
    experiment = calm(task=text, memory=FixedSpan(12), precision="bfloat16", device="cuda")
    wide = replace(experiment.model, layers=3, width=32, attention="fused")
    trainer = Trainer(replace(experiment, model=wide))
    for _ in range(12):
        trainer.update()
    assert trainer.replay is not None
    # Finite, but too much for the product with it; only the third layer is given what comes of it.
    outer = trainer.model.stack()[1].feedforward_norm
    with torch.no_grad():
        outer.weight.fill_(3e38)
        outer.bias.fill_(3e38)
    trainer.update()
    with pytest.raises(NotFinite, match=r"^Step 13 was stopped .*, first seen behind layer 1\.$"):
        trainer.update()


def test_a_fault_in_the_last_update_is_not_missed(tmp_path, monkeypatch):
    before_update(monkeypatch, break_gradient)
    with pytest.raises(NotFinite, match=f"Step {FAULTY} was stopped"):
        train(calm(steps=FAULTY, save_every=100), tmp_path, progress=False)
    assert checkpoints.latest(tmp_path / "checkpoints") is None


def test_weights_that_nobody_used_are_not_saved_broken():
    trainer = Trainer(calm())
    trainer.update()
    with torch.no_grad():
        trainer.model.positions[0, 0] = torch.inf
    with pytest.raises(NotFinite, match=r"^The weight positions is not finite after step 1\.$"):
        trainer.checkpoint()


def wait_until_written(checkpoint: Path) -> None:
    patience = time.monotonic() + 60
    while not checkpoint.exists() and time.monotonic() < patience:
        time.sleep(0.01)


def no_room(
    folder: Path, experiment: Experiment, answer: Path, ranks: Ranks = ALONE, full: int = 0
) -> None:
    """Train where no file of one rank may grow large, once there is a checkpoint."""
    update = Trainer.update

    def filling(trainer: Trainer, **settings: bool) -> None:
        if trainer.step == 6 and ranks.rank == full:
            wait_until_written(folder / "checkpoints" / "step-000000004")  # beside training
            # Only the checkpoint is that large; like a full disk, this is an error of `write`.
            room = 20_000 if ranks.first else 4_000  # weights are with the first
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        update(trainer, **settings)

    Trainer.update = filling  # type: ignore[method-assign]
    try:
        train(experiment, folder, progress=False, ranks=ranks)
    except OSError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        answer.write_text(str(error))


def test_a_full_disk_ends_in_one_sentence_and_the_old_checkpoint_is_good(tmp_path):
    experiment = calm()
    process = start(no_room, tmp_path / "run", experiment, tmp_path / "answer")
    process.join()
    message = (tmp_path / "answer").read_text()
    assert message.startswith("The checkpoint of step 8 could not be written: ")
    assert message.endswith("step-000000004 is still good: go on from it with --resume.")
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step-000000004"]
    whole = train(experiment, tmp_path / "whole", progress=False)
    assert train(experiment, tmp_path / "run", resume=True, progress=False) == whole


def no_room_for_one(rank: int, port: int, full: int, experiment: Experiment, folder: Path) -> None:
    become_rank(rank, 2, port)
    with join_ranks("cpu") as ranks:
        no_room(folder / "run", experiment, folder / f"answer {rank}", ranks, full)


@pytest.mark.parametrize("full", [0, 1])
def test_a_full_disk_of_one_rank_ends_both_in_one_sentence(full, tmp_path):
    experiment, port = calm(steps=40), free_port()
    processes = [start(no_room_for_one, n, port, full, experiment, tmp_path) for n in range(2)]
    for process in processes:
        process.join(timeout=60)
    for rank in range(2):
        message = (tmp_path / f"answer {rank}").read_text()
        of_another = "" if rank == full else f"Rank {full}: "
        start_of_it = f"The checkpoint of step 8 could not be written: {of_another}"
        assert re.match(rf"{start_of_it}[^.]*File too large[^.]*\. The checkpoint ", message), (
            message
        )
        assert message.endswith("step-000000004 is still good: go on from it with --resume.")
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["step-000000004"]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of this process may grow large; like a full disk, this is an error of `write`."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, most))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


@pytest.mark.parametrize("full", ["metrics.jsonl", "TensorBoard"])
@pytest.mark.filterwarnings("error")  # such as of a thread that failed
def test_metrics_that_cannot_be_written_end_in_one_sentence(
    full, tmp_path, monkeypatch, small_files
):
    """TensorBoard writes in a thread of its own, which fails once more at the end."""
    other = TensorBoard if full == "metrics.jsonl" else JsonLines
    monkeypatch.setattr(other, "write", lambda *_: None)
    hook = threading.excepthook
    with pytest.raises(
        OSError,
        match=r"^The metrics of step \d+ could not be .*: File too large\. There is no checkpoint "
        r"yet: start anew\.$",
    ):
        train(calm(steps=200, log_every=1, save_every=1000), tmp_path, progress=False)
    assert threading.excepthook == hook


def test_a_folder_that_cannot_be_written_to_is_named_and_keeps_what_it_has(tmp_path, monkeypatch):
    experiment = calm(steps=4)
    train(experiment, tmp_path / "run", progress=False)
    files = [tmp_path / "run" / name for name in ("experiment.json", "metrics.jsonl")]
    before = [file.read_text() for file in files]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for folder, resume in (("run", True), ("new", False)):
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=rf"^The folder .*{folder} cannot .* left on device\): "):
            train(experiment, tmp_path / folder, resume=resume, progress=False)
        monkeypatch.undo()
        assert not [*(tmp_path / folder).glob("*.new")]
    assert [file.read_text() for file in files] == before
    train(experiment, tmp_path / "new", progress=False)  # nothing stands in the way


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_good(tmp_path):
    experiment = calm()
    whole = train(experiment, tmp_path, progress=False)
    newest = checkpoints.latest(tmp_path / "checkpoints")
    assert newest is not None
    file = newest / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"step-000000012 cannot be read .*: remove it to go on"):
        train(experiment, tmp_path, resume=True, progress=False)
    shutil.rmtree(newest)
    assert train(experiment, tmp_path, resume=True, progress=False) == whole


def test_a_text_that_changes_under_the_run_stops_it(tmp_path, monkeypatch):
    task = tasks(tmp_path)["text"]
    path = Path(task.path)
    text = path.read_bytes()
    experiment = calm(task=task)
    whole = train(experiment, tmp_path / "whole", progress=False)
    # In the middle, where a few samples would not see it.
    before_update(monkeypatch, lambda _: path.write_bytes(text[:999] + b"!" + text[1000:]))
    with pytest.raises(ValueError, match=r"text\.txt has changed under the run: bring back"):
        train(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"has changed since the checkpoint was saved"):
        train(experiment, tmp_path / "run", resume=True, progress=False)
    path.write_bytes(text)
    assert train(experiment, tmp_path / "run", resume=True, progress=False) == whole


def test_a_text_that_is_merely_touched_is_still_the_same(tmp_path, monkeypatch):
    task = tasks(tmp_path)["text"]
    before_update(monkeypatch, lambda _: os.utime(task.path, (0, 0)))
    train(calm(task=task, save_every=100), tmp_path / "run", progress=False)


def wait_for_line(process: subprocess.Popen, folder: Path) -> None:
    """Until the run has written its first metrics."""
    metrics = folder / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_signal_to_the_command_saves_and_says_how_to_go_on(number, status, tmp_path, capsys):
    run = tmp_path / "run"
    options = "--steps 100000 --batch 2 --log-every 1 --device cpu".split()
    command = [sys.executable, "-m", "expire_span", "train", "recall", *options, "--out", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_for_line(process, run)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status
    step = last_of(run).shared.values["step"]
    assert said.splitlines()[-1] == (
        f"expire-span: stopped at step {step}; everything is saved in {run}, and the same command "
        "goes on with --resume."
    )


def test_sigterm_stops_a_run_like_ctrl_c(tmp_path, monkeypatch):
    experiment = calm(save_every=100)
    whole = train(experiment, tmp_path / "whole", progress=False)
    before_update(monkeypatch, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped) as stop:
        train(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    assert stop.value.exit_status == 143
    assert last_of(tmp_path / "run").shared.values["step"] == FAULTY
    assert train(experiment, tmp_path / "run", resume=True, progress=False) == whole
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_second_ctrl_c_means_now_unless_torchrun_sends_its_own():
    with Interruption() as impatient:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)  # schedulers may send it twice
        assert impatient.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with Interruption(patient=True) as patient:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert patient.number == signal.SIGTERM


def interrupt_evaluation(monkeypatch, block: int) -> list[int]:
    """Ctrl-C in the middle of an evaluation; returns the blocks that have been read."""
    advance, read = Evaluation.advance, []

    def interrupted(evaluation: Evaluation) -> None:
        if len(read) == block:
            os.kill(os.getpid(), signal.SIGINT)
        read.append(evaluation.done)
        advance(evaluation)

    monkeypatch.setattr(Evaluation, "advance", interrupted)
    return read


def test_an_evaluation_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    evaluation = EvaluationConfig(every=6, batch=2, blocks=10)
    experiment = calm(evaluation=evaluation, save_every=100)
    whole = train(experiment, tmp_path / "whole", progress=False)
    interrupt_evaluation(monkeypatch, 4)
    with pytest.raises(Stopped, match="stopped at step 6; everything is saved"):
        train(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    assert last_of(tmp_path / "run").shared.values["step"] == 6
    read = interrupt_evaluation(monkeypatch, -1)
    assert train(experiment, tmp_path / "run", resume=True, progress=False) == whole
    assert read == [*range(5, 10), *range(10)]
    assert not (tmp_path / "run" / "evaluation").exists()
    lines = [(tmp_path / n / "metrics.jsonl").read_text().splitlines() for n in ("whole", "run")]
    valid = [[line for line in each if "valid/" in line] for each in lines]
    assert valid[0] == valid[1]


def test_the_evaluate_command_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    run = str(tmp_path / "run")
    train(calm(), tmp_path / "run", progress=False)
    command = ["evaluate", run, "--blocks", "9", "--device", "cpu"]
    main(command)
    whole = json.loads(capsys.readouterr().out)
    interrupt_evaluation(monkeypatch, 3)
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 130
    assert "stopped after 4 of 9 blocks; go on with the same command and --resume." in (
        capsys.readouterr().err
    )
    monkeypatch.undo()
    read = interrupt_evaluation(monkeypatch, -1)
    main([*command, "--resume"])
    assert json.loads(capsys.readouterr().out) == whole
    assert read == list(range(4, 9))


def test_a_bookmark_of_other_weights_is_of_no_use(tmp_path, monkeypatch, capsys):
    experiment = calm(evaluation=EvaluationConfig(every=6, batch=2, blocks=10), save_every=100)
    interrupt_evaluation(monkeypatch, 4)
    with pytest.raises(Stopped):
        train(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    other = replace(experiment, seed=5)
    whole = train(other, tmp_path / "other", progress=False)
    shutil.rmtree(tmp_path / "other")
    shutil.copytree(tmp_path / "run" / "evaluation", tmp_path / "other" / "evaluation")
    assert train(other, tmp_path / "other", progress=False) == whole


def an_evaluation(ranks: Ranks = ALONE, **changes: object) -> Evaluation:
    """Of the same weights each time."""
    experiment = calm()
    torch.manual_seed(0)
    settings = {"split": "valid", "batch": 2, "blocks": 9, "precision": "float32", **changes}
    return Evaluation(Transformer(experiment.model), experiment.task, ranks=ranks, **settings)


def stand_at(block: int, bookmark: Bookmark, ranks: Ranks = ALONE, **changes: object) -> None:
    """Leave the bookmark of an evaluation that has been stopped."""
    evaluation = an_evaluation(ranks, **changes)
    for _ in range(block):
        evaluation.advance()
    bookmark.keep(evaluation, now=True)


OTHERS = [
    {"split": "test"},
    {"batch": 4},
    {"blocks": 5},
    {"seed": 1},
    {"precision": "bfloat16"},
    {"limit": 3},
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_a_bookmark_of_another_evaluation_is_removed_and_hides_nothing(other, tmp_path):
    bookmark = Bookmark(tmp_path / "evaluation")
    stand_at(4, bookmark, **other)
    assert not bookmark.find(an_evaluation())
    assert not (tmp_path / "evaluation").exists()
    stand_at(2, bookmark)
    resumed = an_evaluation()
    assert bookmark.find(resumed)
    assert resumed.done == 2


def test_an_evaluation_that_cannot_be_kept_goes_on_and_says_so_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder can be made here")
    monkeypatch.setattr("expire_span.training.evaluation.SECONDS_BETWEEN_SAVES", -1.0)
    bookmark = Bookmark(tmp_path / "file")
    with pytest.warns(UserWarning, match="cannot be kept in .* it goes on, but begins") as warned:
        found = an_evaluation().run(bookmark=bookmark)
    assert found == an_evaluation().run()
    assert len(warned) == 1
    with pytest.raises(OSError, match="could not be written"):
        bookmark.keep(an_evaluation(), now=True)


def test_a_damaged_bookmark_is_removed_and_hides_nothing(tmp_path):
    bookmark = Bookmark(tmp_path)
    stand_at(4, bookmark)
    (tmp_path / "step-000000004" / "rank-00000.json").write_text("{}")
    assert not bookmark.find(an_evaluation())
    assert not tmp_path.exists()


def find_as_rank(rank: int, port: int, folder: Path) -> None:
    """Rank 1 finds its part of the bookmark damaged."""
    become_rank(rank, 2, port)
    with join_ranks("cpu") as ranks:
        bookmark = Bookmark(folder / "evaluation", ranks)
        stand_at(4, bookmark, ranks)
        whole, broken = an_evaluation(ranks), an_evaluation(ranks)
        found = [bookmark.find(whole)]
        if rank == 1:
            (folder / "evaluation" / "step-000000004" / "rank-00001.json").write_text("{}")
        found.append(bookmark.find(broken))
        there = (folder / "evaluation").exists()
    answer = [*found, whole.done, broken.done, there]
    (folder / f"{rank}.json").write_text(json.dumps(answer))


def test_ranks_go_on_with_an_evaluation_only_if_all_can(tmp_path):
    port = free_port()
    for process in [start(find_as_rank, n, port, tmp_path) for n in range(2)]:
        process.join(timeout=60)
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found == [True, False, 4, 0, False]


def test_a_result_is_on_the_disk_before_its_bookmark_goes(tmp_path, monkeypatch):
    order = []
    remove, flush = Bookmark.remove, JsonLines.flush

    def removing(bookmark: Bookmark) -> None:
        order.append("remove")
        remove(bookmark)

    def flushing(lines: JsonLines) -> None:
        judged = "valid/" in (tmp_path / "metrics.jsonl").read_text()
        order.append("flush with the result" if judged else "flush")
        flush(lines)

    monkeypatch.setattr(Bookmark, "remove", removing)
    monkeypatch.setattr(JsonLines, "flush", flushing)
    train(calm(save_every=100), tmp_path, progress=False)
    assert order[-2:] == ["flush with the result", "remove"]


def stop_evaluation(monkeypatch, run: Path, *options: str) -> None:
    """The command, interrupted in its fifth block."""
    interrupt_evaluation(monkeypatch, 4)
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", str(run), "--device", "cpu", *options])
    assert stop.value.code == 130
    monkeypatch.undo()


def test_another_evaluation_is_refused_and_the_one_that_was_stopped_is_not_lost(
    tmp_path, monkeypatch, capsys
):
    run = tmp_path / "run"
    train(calm(), run, progress=False)
    command = ["evaluate", str(run), "--device", "cpu"]
    stop_evaluation(monkeypatch, run, "--blocks", "9")
    with pytest.raises(SystemExit):
        main([*command, "--blocks", "8", "--batch", "4", "--resume"])
    assert re.search(
        r"^expire-span: The evaluation that was stopped in .*evaluation-valid is another one; "
        r"these differ: batch, blocks\. Resume it as it was, or begin anew without --resume\.$",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    read = interrupt_evaluation(monkeypatch, -1)
    main([*command, "--blocks", "9", "--resume"])
    assert read == list(range(5, 9))


def test_a_stopped_evaluation_of_a_text_that_has_changed_is_refused(tmp_path, monkeypatch, capsys):
    task, run = tasks(tmp_path)["text"], tmp_path / "run"
    path = Path(task.path)
    text = bytes(range(32, 127)) * 4000
    path.write_bytes(text)
    train(calm(task=task), run, progress=False)
    command = ["evaluate", str(run), "--device", "cpu", "--blocks", "9"]
    main(command)
    whole = json.loads(capsys.readouterr().out)
    stop_evaluation(monkeypatch, run, "--blocks", "9")
    # In the middle, where the few samples that a stream looks at do not see it.
    path.write_bytes(text[:9999] + b"!" + text[10000:])
    with pytest.raises(SystemExit):
        main([*command, "--resume"])
    assert "text.txt has changed since the checkpoint was saved" in capsys.readouterr().err
    path.write_bytes(text)
    main([*command, "--resume"])
    assert json.loads(capsys.readouterr().out) == whole


def test_a_text_that_changes_under_an_evaluation_stops_it(tmp_path, monkeypatch):
    task = tasks(tmp_path)["text"]
    path = Path(task.path)
    advance = Evaluation.advance

    def changing(evaluation: Evaluation) -> None:
        if evaluation.done == 2:
            path.write_bytes(path.read_bytes().upper())
        advance(evaluation)

    monkeypatch.setattr(Evaluation, "advance", changing)
    with pytest.raises(ValueError, match=r"text\.txt has changed under the run: bring back"):
        train(calm(task=task, steps=4), tmp_path / "run", progress=False)


def test_an_evaluation_begun_anew_forgets_the_one_before(tmp_path, monkeypatch):
    run = tmp_path / "run"
    train(calm(), run, progress=False)
    command = ["evaluate", str(run), "--device", "cpu", "--blocks", "9"]
    for block in (6, 2):
        interrupt_evaluation(monkeypatch, block)
        with pytest.raises(SystemExit):
            main(command)
        monkeypatch.undo()
    read = interrupt_evaluation(monkeypatch, -1)
    main([*command, "--resume"])
    assert read == list(range(3, 9))
