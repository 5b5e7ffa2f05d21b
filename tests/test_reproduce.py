"""The command that reproduces a table, as a user meets it."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from expire_span import comparison
from expire_span import reproduce as module
from expire_span.analysis.figures import Outcome, draw_beside, draw_memory, save_figure
from expire_span.cli import main
from expire_span.comparison import SMALL, compare, found_results, render
from expire_span.experiments import TABLES
from expire_span.experiments.scale import SAMPLES
from expire_span.experiments.table import Line
from expire_span.locks import claim
from expire_span.looks import LOOKS
from expire_span.tasks import Collision, Text, pg19
from expire_span.training.evaluation import Evaluation
from expire_span.training.folder import EXPERIMENT_FILE, RESULT_FILE
from expire_span.training.guard import NotFinite
from expire_span.training.trainer import Trainer


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "prepared"))


def smoke(table: str, out: Path, *options: str) -> None:
    main(["reproduce", table, "--scale", "smoke", "--out", str(out), "--device", "cpu", *options])


def test_a_table_is_run_once_printed_and_drawn(tmp_path: Path, capsys) -> None:
    smoke("colliding-easy", tmp_path)
    printed = capsys.readouterr().out
    for line in TABLES["colliding-easy"].lines:
        (result,) = found_results(line, tmp_path / "smoke")
        (row,) = [text for text in printed.splitlines() if text.startswith(f"| {line.label} ")]
        cells = [cell.strip() for cell in row.strip("| ").split("|")]
        assert cells[1] == f"{line.paper['error']:.1f}"
        assert cells[2] == f"{result['error']:.1f}"
        assert cells[-1] == "1"
    assert (tmp_path / "smoke" / "colliding-easy.png").stat().st_size > 5000
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    smoke("colliding-easy", tmp_path)
    shown = capsys.readouterr().out
    assert printed.endswith(shown)
    assert "seed 0" in printed.removesuffix(shown)
    for path, time in times.items():
        assert path.parent == tmp_path / "smoke" or path.stat().st_mtime_ns == time  # the table


def test_a_figure_of_the_loss_along_a_text(tmp_path: Path, capsys) -> None:
    smoke("enwik8-overfit", tmp_path)
    curve = json.loads(next(tmp_path.rglob("valid_loss.json")).read_text())
    assert len(curve) == 2 * 4  # rows and blocks
    assert all(2 < loss < 10 for loss in curve)
    assert (tmp_path / "smoke" / "enwik8-overfit.png").exists()


def test_a_figure_over_memory_sizes_with_some_of_its_models(tmp_path: Path, capsys) -> None:
    smoke("instruction-memory", tmp_path, "--only", "expire-span", "--seeds", "2")
    printed = capsys.readouterr().out
    (row,) = [line for line in printed.splitlines() if line.startswith("| Expire-Span 4k")]
    assert "±" in row
    assert row.strip("| ").endswith("| 2 of 5")
    (row,) = [line for line in printed.splitlines() if line.startswith("| Transformer-XL 64 ")]
    assert row.strip("| ").endswith("0")
    assert (tmp_path / "smoke" / "instruction-memory.png").exists()


def test_every_model_has_its_first_run_before_any_has_its_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def note(line: Line, scale: str, seed: int, *_: object, **__: object) -> None:
        made.append((seed, line.label))

    monkeypatch.setattr(module, "run_line", note)
    smoke("instruction-memory", tmp_path)
    lines = TABLES["instruction-memory"].lines
    assert made == [(seed, line.label) for seed in range(5) for line in lines if seed < line.seeds]
    assert {line.seeds for line in lines} == {2, 5}


def test_a_table_may_be_about_the_validation_data(tmp_path: Path, capsys) -> None:
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    (result,) = found_results(TABLES["enwik8-speedrun"].lines[0], tmp_path / "smoke")
    (row,) = [text for text in capsys.readouterr().out.splitlines() if text[:6] == "| 12 l"]
    assert f" {result['valid']['bpb']:.3f} " in row
    assert result["valid"]["bpb"] != result["bpb"]


def test_a_run_that_lost_its_metrics_is_judged_all_the_same(tmp_path: Path, capsys) -> None:
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    (line, *_) = TABLES["enwik8-speedrun"].lines
    (before,) = found_results(line, tmp_path / "smoke")
    for name in (RESULT_FILE, "metrics.jsonl"):
        next(tmp_path.rglob(name)).unlink()
    capsys.readouterr()
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    (after,) = found_results(line, tmp_path / "smoke")
    assert after["bpb"] == before["bpb"]
    assert "seconds" not in after
    (row,) = [text for text in capsys.readouterr().out.splitlines() if text[:6] == "| 12 l"]
    assert f" {before['valid']['bpb']:.3f} " in row


def test_a_model_that_does_not_fit_says_so_and_the_others_go_on(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(experiment, folder: Path, resume: bool) -> dict[str, float]:
        if "16k" in str(folder):
            raise torch.OutOfMemoryError
        return real(experiment, folder, resume=resume)

    real = module.train
    monkeypatch.setattr(module, "train", train)
    smoke("efficiency-colliding", tmp_path)
    printed = capsys.readouterr().out
    assert printed.count("out of memory") == 2 * 4
    assert "| Compressive 8k" in printed
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)  # what failed is not tried again
    smoke("efficiency-colliding", tmp_path)
    assert "failed before (out of memory): remove" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_diverges_says_so_and_the_others_go_on(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(experiment, folder: Path, resume: bool) -> dict[str, float]:
        if "own-long" not in str(folder):
            raise NotFinite("The loss is not finite at step 3.")
        return real(experiment, folder, resume=resume)

    real = module.train
    monkeypatch.setattr(module, "train", train)
    smoke("enwik8-speedrun", tmp_path, "--only", "own")
    printed = capsys.readouterr().out
    assert "our own recipe, 8 minutes has diverged. The loss is not finite at step 3." in printed
    rows = [line for line in printed.splitlines() if line.startswith("| our own recipe")]
    assert ["diverged" in row for row in rows] == [True, False]
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)  # what failed is not tried again
    smoke("enwik8-speedrun", tmp_path, "--only", "own")
    assert "failed before (diverged): remove" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("step", ["load_run", "_judge", "add_curve"])
def test_a_trained_model_that_cannot_be_judged_has_not_failed(
    step: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(module, step, no_room)
    with pytest.raises(SystemExit) as stop:
        smoke("enwik8-overfit", tmp_path, "--only", "unshortened")
    assert stop.value.code == 2
    assert "give the same command again when there is room" in capsys.readouterr().err
    monkeypatch.undo()
    smoke("enwik8-overfit", tmp_path, "--only", "unshortened")
    assert "out of memory" not in capsys.readouterr().out
    assert len(list(tmp_path.rglob("valid_loss.json"))) == 1


@pytest.mark.parametrize("seen", [(True, False), (False, True)])
def test_who_runs_out_of_memory_beside_others_has_not_failed(
    seen: tuple[bool, bool], tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the others were there before, or only afterwards."""

    def train(*_: object, **__: object) -> None:
        shared[:] = seen[1:]
        raise torch.OutOfMemoryError

    shared = list(seen[:1])
    monkeypatch.setattr(module, "_gpu_is_shared", lambda _: shared[0])
    monkeypatch.setattr(module, "train", train)
    with pytest.raises(SystemExit):
        smoke("colliding", tmp_path, "--only", "adaptive-span-32k")
    assert "ran out of memory beside other work" in capsys.readouterr().err
    assert not list(tmp_path.rglob(RESULT_FILE))


def test_that_a_run_was_beside_others_is_remembered_when_it_goes_on_alone(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(module, "_gpu_is_shared", lambda _: True)
    monkeypatch.setattr(module, "_judge", stopped)
    with pytest.raises(SystemExit):
        smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    monkeypatch.undo()
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    (result,) = tmp_path.rglob(RESULT_FILE)
    assert json.loads(result.read_text())["shared"]


def test_a_table_that_was_stopped_goes_on_with_the_same_command(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer.update
    updates = []

    def update(self: Trainer, **options: bool) -> None:
        real(self, **options)
        updates.append(self.step)
        if len(updates) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "update", update)
    with pytest.raises(SystemExit) as stop:
        smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    assert stop.value.code == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().err.split())
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    assert updates == [1, 2, 3, 4]


def test_a_table_that_was_stopped_on_the_test_data_goes_on_there(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, read = Evaluation.advance, []

    def advance(self: Evaluation) -> None:
        real(self)
        read.append((self.split, self.done))
        if read[-1] == ("test", 2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Evaluation, "advance", advance)
    with pytest.raises(SystemExit) as stop:
        smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    assert stop.value.code == 130
    assert "everything is saved" in " ".join(capsys.readouterr().err.split())
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    assert [done for split, done in read if split == "test"] == [1, 2, 3, 4]
    monkeypatch.setattr(Evaluation, "advance", real)
    smoke("enwik8-speedrun", tmp_path / "whole", "--only", "same-recipe")
    (found,) = found_results(TABLES["enwik8-speedrun"].lines[0], tmp_path / "smoke")
    (whole,) = found_results(TABLES["enwik8-speedrun"].lines[0], tmp_path / "whole" / "smoke")
    assert found["bpb"] == whole["bpb"]
    assert not list(tmp_path.rglob("evaluation-test"))


@pytest.mark.parametrize("part", ["Transformer-XL 512", "xl-512", "XL 512, 12"])
def test_models_are_chosen_by_what_the_table_or_the_folder_calls_them(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr(module, "run_line", lambda line, *_, **__: made.append(line.name))
    smoke("enwik8", tmp_path, "--only", part)
    assert made == ["enwik8/transformer-xl-512"]


def test_missing_data_are_named_before_anything_is_made(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        main(["reproduce", "enwik8", "--scale", "single", "--device", "cpu", "--out", str(out)])
    assert "There is no enwik8 in data" in capsys.readouterr().err
    assert not out.exists()


def test_a_run_that_is_trained_is_only_judged(tmp_path: Path, monkeypatch) -> None:
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    path = next(tmp_path.rglob(RESULT_FILE))
    first = path.read_text()
    path.unlink()
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    assert path.read_text() == first


def test_processes_side_by_side_make_every_run_once(tmp_path: Path) -> None:
    """They share the folder of prepared data, too, which neither of them finds there."""
    command = [sys.executable, "-m", "expire_span", "reproduce", "wikitext", "--scale", "smoke"]
    options = ["--out", str(tmp_path / "out"), "--seeds", "2", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    together = [
        subprocess.Popen([*command, *options], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = "".join(process.communicate(timeout=300)[0] for process in together)
    assert [process.returncode for process in together] == [0, 0]
    for line in TABLES["wikitext"].lines:
        for seed in (0, 1):
            assert printed.count(f"{line.label}, seed {seed}: {tmp_path}") == 1
        assert len(found_results(line, tmp_path / "out" / "smoke")) == 2
    prepared = [path.name for path in (tmp_path / "prepared").iterdir() if path.is_dir()]
    assert len(prepared) == 1


def test_a_run_that_another_process_makes_is_left_to_it(tmp_path: Path, capsys) -> None:
    line = TABLES["enwik8-speedrun"].lines[0]
    with claim(tmp_path / "smoke" / line.name / "seed-0.lock"):
        smoke("enwik8-speedrun", tmp_path, "--only", line.name)
    assert f"{line.label}, seed 0: another process is at it" in capsys.readouterr().out
    assert found_results(line, tmp_path / "smoke") == []
    smoke("enwik8-speedrun", tmp_path, "--only", line.name)
    assert len(found_results(line, tmp_path / "smoke")) == 1


def test_small_files_are_copied_and_stand_for_the_runs(tmp_path: Path, capsys, monkeypatch) -> None:
    out, records = tmp_path / "out", tmp_path / "records"
    smoke("enwik8-overfit", out, "--records", str(records))
    printed = capsys.readouterr().out
    copied = [path.relative_to(records) for path in records.rglob("*") if path.is_file()]
    assert {path.name for path in copied} == {*SMALL, "enwik8-overfit.md", "enwik8-overfit.png"}
    assert all((out / path).read_bytes() == (records / path).read_bytes() for path in copied)
    table = (records / "smoke" / "enwik8-overfit.md").read_text().strip()
    assert table in printed
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)
    smoke("enwik8-overfit", records)
    assert table in capsys.readouterr().out


def test_copies_follow_a_run_that_is_not_done_yet(tmp_path: Path, monkeypatch) -> None:
    def killed(experiment, folder: Path, resume: bool) -> dict[str, float]:
        real(replace(experiment, steps=steps), folder, resume=resume)
        raise OSError("the machine is taken away")

    real, sizes = module.train, []
    monkeypatch.setattr(module, "train", killed)
    options = ("--only", "same-recipe", "--records", str(tmp_path / "records"))
    for steps in (2, 4):
        with pytest.raises(SystemExit):
            smoke("enwik8-speedrun", tmp_path / str(steps), *options)
        (copied,) = (tmp_path / "records").rglob("metrics.jsonl")
        sizes.append(len(copied.read_text().splitlines()))
    assert sizes[0] < sizes[1]


def test_machines_that_share_a_folder_of_copies_keep_each_others_runs(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(experiment, folder: Path, resume: bool) -> dict[str, float]:
        real(replace(experiment, steps=2), folder, resume=resume)
        raise OSError("the machine is taken away")

    shared = ("--records", str(tmp_path / "records"))
    smoke("colliding-easy", tmp_path / "a", "--only", "expire-span-1k", *shared)
    smoke("colliding-easy", tmp_path / "b", "--only", "expire-span-2k", *shared)
    files = [path for path in (tmp_path / "records").rglob("seed-0/*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    assert len(before) == 2 * 3
    real = module.train
    monkeypatch.setattr(module, "train", killed)
    with pytest.raises(SystemExit):
        smoke("colliding-easy", tmp_path / "c", "--only", "expire-span-1k", *shared)
    assert {path: path.read_bytes() for path in before} == before
    table = (tmp_path / "records" / "smoke" / "colliding-easy.md").read_text()
    runs = [line.split("|")[-2].strip() for line in table.splitlines() if "-Span" in line]
    assert runs == ["1", "1", "0"]


def test_copies_stand_for_the_runs_in_other_tables_too(tmp_path: Path, capsys) -> None:
    out, records = tmp_path / "out", tmp_path / "records"
    smoke("ablations", out, "--only", "as-it-is", "--records", str(records))
    capsys.readouterr()
    smoke("enwik8-overfit", records)
    printed = capsys.readouterr().out
    folders = [records / "smoke" / line.name / "seed-0" for line in TABLES["enwik8-overfit"].lines]
    assert f"{folders[0]}: no curve: the weights are not here" in printed
    assert [(folder / "valid_loss.json").exists() for folder in folders] == [False, True]
    assert "no curve" not in printed.split(str(folders[1]))[1]


def test_a_curve_is_drawn_on_the_device_that_was_asked_for(tmp_path: Path, monkeypatch) -> None:
    smoke("ablations", tmp_path, "--only", "as-it-is")
    (path,) = tmp_path.rglob(EXPERIMENT_FILE)
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "cuda:7"'))
    smoke("enwik8-overfit", tmp_path)
    assert len(list(tmp_path.rglob("valid_loss.json"))) == 2


def test_what_a_stopped_table_has_is_copied(tmp_path: Path, monkeypatch) -> None:
    def train(experiment, folder: Path, resume: bool) -> dict[str, float]:
        if "2k" in str(folder):
            raise OSError("the disk is full")
        return real(experiment, folder, resume=resume)

    real = module.train
    monkeypatch.setattr(module, "train", train)
    with pytest.raises(SystemExit):
        smoke("colliding-easy", tmp_path / "out", "--records", str(tmp_path / "records"))
    assert len(list((tmp_path / "records").rglob(RESULT_FILE))) == 2
    assert (tmp_path / "records" / "smoke" / "colliding-easy.md").exists()


def test_results_of_other_settings_are_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    line = TABLES["enwik8-speedrun"].lines[0]
    smoke("enwik8-speedrun", tmp_path, "--only", line.name)
    swap_in(monkeypatch, steps=5, save_every=3)
    with pytest.raises(SystemExit):
        smoke("enwik8-speedrun", tmp_path)
    printed = " ".join(capsys.readouterr().err.split())
    assert "was run with other settings; these differ: steps. Move it" in printed


@pytest.mark.parametrize("where", ["out", "records"])
def test_no_result_of_other_settings_is_shown_whatever_is_asked_for(
    where: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    smoke("enwik8-speedrun", tmp_path / where, "--only", "same-recipe")
    swap_in(monkeypatch, steps=5, save_every=3)
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)  # nor is anything trained first
    records = ("--records", str(tmp_path / "records"))
    with pytest.raises(SystemExit):
        smoke("enwik8-speedrun", tmp_path / "out", "--only", "own-long", *records)
    printed = " ".join(capsys.readouterr().err.split())
    assert "seed-0 was run with other settings; these differ: steps. Move it" in printed
    (stale,) = (path.parent for path in (tmp_path / where).rglob(RESULT_FILE))
    stale.rename(stale.with_name("seed-0.old"))  # moved away, it is no run of the table
    assert found_results(TABLES["enwik8-speedrun"].lines[0], tmp_path / where / "smoke") == []
    with pytest.raises(ZeroDivisionError):  # so training begins
        smoke("enwik8-speedrun", tmp_path / "out", "--only", "own-long", *records)


def test_a_record_of_a_run_is_not_replaced_by_one_that_failed(tmp_path: Path, monkeypatch) -> None:
    records = tmp_path / "records"
    one = ("--only", "same-recipe", "--records", str(records))
    smoke("enwik8-speedrun", tmp_path / "first", *one)
    files = {path: path.read_bytes() for path in records.rglob("seed-0/*")}

    def diverge(*_: object, **__: object) -> dict[str, float]:
        raise NotFinite("The loss is not finite.")

    with monkeypatch.context() as patch:
        patch.setattr(module, "train", diverge)
        smoke("enwik8-speedrun", tmp_path / "second", *one)
        assert json.loads(next((tmp_path / "second").rglob(RESULT_FILE)).read_text())["failed"]
        assert {path: path.read_bytes() for path in records.rglob("seed-0/*")} == files
        smoke("enwik8-speedrun", tmp_path / "third", "--only", "same-recipe", "--records",
              str(tmp_path / "failed"))  # fmt: skip
    (tmp_path / "failed/smoke/enwik8-speedrun/same-recipe/seed-0/valid_loss.json").write_text("[]")
    smoke("enwik8-speedrun", tmp_path / "first", "--only", "same-recipe", "--records",
          str(tmp_path / "failed"))  # fmt: skip
    copies = {path.name: path.read_bytes() for path in (tmp_path / "failed").rglob("seed-0/*")}
    assert copies == {path.name: content for path, content in files.items()}  # and no other's


def test_a_table_names_those_whose_numbers_stand_beside_ours() -> None:
    heads = {
        name: render(TABLES[name], {}).splitlines()[3] for name in ("enwik8", "enwik8-speedrun")
    }
    assert "bits/byte, paper" in heads["enwik8"]
    assert "bits/byte, original code" in heads["enwik8-speedrun"]
    assert "paper" not in heads["enwik8-speedrun"]


def test_a_line_says_how_many_of_its_runs_are_there() -> None:
    table = TABLES["enwik8-span"]
    table = replace(table, lines=(*table.lines, *TABLES["enwik8-speedrun"].lines))
    seeds = {line.name: line.seeds for line in table.lines}
    found = {name: [{"bpb": 1.0}] for name in seeds}
    rows = render(table, found).splitlines()[5:]
    ends = [row.split("|")[-2].strip() for row in rows if row.startswith("|")]
    assert ends == ["1" if count == 1 else f"1 of {count}" for count in seeds.values()]
    assert {"1", "1 of 2"} == set(ends)


def swap_in(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Let the first model of a table have other settings."""
    table = TABLES["enwik8-speedrun"]
    first = table.lines[0]
    other = replace(first, experiment=lambda scale: replace(first.experiment(scale), **changes))
    lines = (other, *table.lines[1:])
    monkeypatch.setitem(TABLES, "enwik8-speedrun", replace(table, lines=lines))


def test_results_of_another_evaluation_are_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    settings = TABLES["enwik8-speedrun"].lines[0].experiment("smoke").evaluation
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    swap_in(monkeypatch, evaluation=replace(settings, every=3))
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")  # which is not what is judged
    swap_in(monkeypatch, evaluation=replace(settings, blocks=3))
    with pytest.raises(SystemExit):
        smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    printed = " ".join(capsys.readouterr().err.split())
    assert "was run with other settings; these differ: evaluation.blocks. Move it" in printed


def test_results_of_other_data_are_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    """Data may move, or be elsewhere; results of before do not tell what they were run on."""

    def again(path: Path) -> None:
        with monkeypatch.context() as patch:
            swap_in(patch, task=Text(str(path)))
            smoke("enwik8-speedrun", tmp_path / "out", "--only", "same-recipe")

    text, moved, other = (tmp_path / name for name in ("text", "moved", "other"))
    text.write_bytes(bytes(range(256)) * 20)
    again(text)
    text.rename(moved)
    other.write_bytes(bytes(reversed(range(256))) * 20)
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)
    again(moved)
    again(tmp_path / "nowhere")
    with pytest.raises(SystemExit):
        again(other)
    printed = " ".join(capsys.readouterr().err.split())
    assert "was run on other data than those at hand: name the same by --data, move" in printed
    path = next(tmp_path.rglob(RESULT_FILE))
    result = json.loads(path.read_text())
    del result["data"]
    path.write_text(json.dumps(result))
    again(other)
    path.unlink()  # trained, but not judged
    with pytest.raises(SystemExit):
        again(other)
    assert "has changed since the checkpoint was saved" in " ".join(capsys.readouterr().err.split())
    again(moved)
    assert json.loads(path.read_text())["bpb"] == result["bpb"]


def test_a_damaged_result_is_named(tmp_path: Path, capsys) -> None:
    smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    path = next(tmp_path.rglob(RESULT_FILE))
    path.write_text(path.read_text()[:100])
    with pytest.raises(SystemExit):
        smoke("enwik8-speedrun", tmp_path, "--only", "same-recipe")
    printed = " ".join(capsys.readouterr().err.split())
    assert f"{path} is damaged (" in printed
    assert "remove it, and the same command makes it again." in printed


def test_a_smoke_table_says_what_it_is_and_nothing_of_other_scales(tmp_path: Path, capsys) -> None:
    smoke("instruction", tmp_path, "--only", "transformer-xl")
    printed = capsys.readouterr().out
    assert "its numbers mean nothing" in printed
    assert "LIGHT's texts" not in printed
    assert "its numbers mean nothing" in (tmp_path / "smoke" / "instruction.md").read_text()


def test_data_come_along_at_smoke_scale(tmp_path: Path, capsys) -> None:
    smoke("enwik8", tmp_path, "--only", "transformer-xl", "--data", str(tmp_path))
    printed = capsys.readouterr().out
    assert printed.startswith("At smoke scale all data come along: --data is not looked at.\n")
    assert len(list(tmp_path.rglob(RESULT_FILE))) == 1


@pytest.mark.parametrize("seeds", ["0", "-1"])
def test_no_runs_at_all_are_refused(seeds: str, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        smoke("enwik8", tmp_path, "--seeds", seeds)
    printed = " ".join(capsys.readouterr().err.split())
    assert f"seeds must be a whole number of at least 1, but is {seeds}." in printed


def test_a_perfect_reader_reads_as_much_as_is_judged(tmp_path: Path) -> None:
    line = TABLES["colliding"].lines[0]
    result = module.run_line(line, "smoke", 0, tmp_path, device="cpu")
    assert result is not None
    assert result["oracle"] == Collision().oracle(
        line.experiment("smoke").model.memory.reach(), 2048
    )
    assert result["oracle"] != Collision().oracle(result["reach"])


def test_a_part_of_the_data_is_named_in_table_and_picture(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    titles = []

    def draw(path: Path, picture: str, outcomes: object, title: str, heading: str) -> None:
        titles.append(title)
        path.touch()

    monkeypatch.setattr(comparison, "save_figure", draw)
    tests = {path.stem for path in (SAMPLES / "books" / "test").iterdir()}
    monkeypatch.setattr(pg19, "TEST_BOOKS", tests)
    smoke("pg19", tmp_path, "--only", "transformer-xl")
    train, valid, test = (
        len(list((SAMPLES / "books" / split).iterdir())) for split in ("train", "valid", "test")
    )
    said = (
        f"ours: PG-19 subset ({train} of 28,602 train books, {valid} of 50 valid books, "
        f"{test} of 100 test books)"
    )
    assert f"PG-19, test bits per character (fig:pg19); {said}\n" in capsys.readouterr().out
    assert titles[-1].endswith(f"smoke scale)\n{said}")


def test_what_has_no_number_is_said_in_the_picture(tmp_path: Path, monkeypatch) -> None:
    drawn: list[Outcome] = []

    def note(path: Path, picture: str, outcomes: list[Outcome], *_: str) -> None:
        drawn[:] = outcomes
        path.touch()

    monkeypatch.setattr(comparison, "save_figure", note)
    table, root = TABLES["colliding"], tmp_path / "single"
    folder = root / "colliding" / "adaptive-span-32k" / "seed-0"
    told = []
    for failure in (None, "out of memory", "diverged"):
        if failure:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RESULT_FILE).write_text(json.dumps({"failed": failure}))
        compare("colliding", table, root)
        told.append({one.label: one.instead for one in drawn if one.instead})
    assert told == [
        {"Adaptive-Span 32k": "paper: out of memory"},
        {"Adaptive-Span 32k": "paper: out of memory, ours: out of memory"},
        {"Adaptive-Span 32k": "paper: out of memory, ours: diverged"},
    ]


def test_a_perfect_reader_is_drawn_over_memory_sizes() -> None:
    """By how far it looks back, not by what a model with that reach remembers."""
    outcomes = [
        Outcome("Expire-Span 4k", [0.9], [300.0], oracle=1.0, reach=4096),
        Outcome("Transformer-XL 64", [0.1], [63.0], oracle=0.2, reach=64),
        Outcome("Transformer-XL 128", [0.2], [127.0]),
    ]
    figure, axes = plt.subplots()
    draw_memory(axes, outcomes, "accuracy")
    (line,) = [line for line in axes.lines if line.get_label() == "a perfect reader"]
    assert line.get_xydata().tolist() == [[64, 0.2], [4096, 1.0]]
    axes.clear()
    draw_memory(axes, outcomes[2:], "accuracy")
    assert [line.get_label() for line in axes.lines] == ["Transformer-XL"]
    plt.close(figure)


def test_every_row_lies_within_the_frame_and_what_is_not_there_is_not_in_the_legend() -> None:
    figure, (some, nothing) = plt.subplots(1, 2)
    outcomes = [
        Outcome("Transformer-XL 8", [], []),
        Outcome("Expire-Span 8", [1.0, 2.0], [8.0, 8.0]),
        Outcome("Adaptive-Span 8", [], [], instead="paper: out of memory"),
    ]
    draw_beside(some, outcomes, "error %")
    bottom, top = some.get_ylim()
    assert all(top < row < bottom for row in range(3))
    (said,) = some.texts
    assert (said.get_text(), said.get_position()[1]) == ("paper: out of memory", 2)
    assert [text.get_text() for text in some.get_legend().get_texts()] == ["ours"]
    draw_beside(nothing, outcomes[:1], "error %")
    assert nothing.get_legend() is None
    plt.close(figure)


def test_ours_and_the_papers_have_colours_that_no_kind_of_memory_has() -> None:
    figure, axes = plt.subplots()
    draw_beside(axes, [Outcome("Expire-Span 8", [1.0], [8.0], paper=2.0, oracle=3.0)], "error %")
    drawn = {line.get_label(): line for line in axes.lines}
    assert drawn.keys() == {"ours", "paper", "a perfect reader"}
    assert {to_hex(line.get_color()) for line in axes.lines}.isdisjoint(
        look.colour for look in LOOKS.values()
    )
    shades = [sum(to_rgb(drawn[name].get_color())) / 3 for name in ("ours", "paper")]
    assert abs(shades[0] - shades[1]) > 0.4  # also in grey
    plt.close(figure)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("picture", ["beside", "memory"])
def test_a_title_fits_into_its_picture(
    name: str, picture: str, tmp_path: Path, monkeypatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    table = TABLES[name]
    title = f"{table.title} ({table.label}, single scale)\nours: {'a part of the data, ' * 6}"
    outcomes = [Outcome(line.label, [1.0], [8.0]) for line in table.lines]
    save_figure(tmp_path / "picture.png", picture, outcomes, title, "error %")
    monkeypatch.undo()
    (figure,) = figures
    written = figure.get_suptitle()
    assert written.split() == title.split()
    (box,) = [text.get_window_extent() for text in figure.texts]
    whole, axes = figure.bbox, figure.axes[0].get_window_extent()
    assert whole.x0 < box.x0 < box.x1 < whole.x1
    assert axes.y1 < box.y0 < box.y1 < whole.y1
    plt.close(figure)


def test_times_beside_others_are_marked(tmp_path: Path) -> None:
    table = TABLES["enwik8-speedrun"]
    for line, shared in zip(table.lines, (True, False, False), strict=True):
        path = tmp_path / line.name / "seed-0" / RESULT_FILE
        path.parent.mkdir(parents=True)
        times = {"milliseconds": 60.4, "seconds": 512.0}
        path.write_text(json.dumps({"bpb": 1.0, **times, "shared": shared}))
    rows = [row for row in compare("x", table, tmp_path).splitlines() if " 60 " in row]
    first, *others = [" ".join(row.split()) for row in rows]
    assert "| 60 (beside others) |" in first
    assert "| 512 (beside others) |" in first
    assert len(others) == 2
    assert not any("beside" in row for row in others)


def test_the_course_of_training_is_drawn_over_seconds(tmp_path: Path, monkeypatch) -> None:
    table, drawn = TABLES["enwik8-speedrun"], []
    folder = tmp_path / table.lines[0].name / "seed-0"
    folder.mkdir(parents=True)
    lines = [
        {"step": 2, "bpb": 5.0, "seconds_per_step": 0.5},
        {"step": 6, "bpb": 4.0, "seconds_per_step": 0.25},
        {"step": 6, "valid/bpb": 4.1},
    ]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 7, "b')

    def draw(path: Path, *what: object) -> None:
        save_figure(path, *what)
        drawn.append(what)

    monkeypatch.setattr(comparison, "save_figure", draw)
    compare("enwik8-speedrun", table, tmp_path)
    ((picture, (first, *others), *_),) = drawn
    assert picture == "training"
    assert (tmp_path / "enwik8-speedrun.png").stat().st_size > 5000
    assert list(first.course) == [(1.0, 5.0), (2.0, 4.0)]
    assert all(list(other.course) == [] for other in others)


def test_the_time_of_all_updates_counts_each_of_them_once(tmp_path: Path) -> None:
    """The last line of a run often tells of fewer updates than the others."""
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 50, "seconds_per_step": 0.5, "peak_memory_gb": 2.0},
        {"step": 50, "valid/bpb": 4.1},
        {"step": 100, "seconds_per_step": 0.25, "peak_memory_gb": 3.0},
        {"step": 102, "seconds_per_step": 1.0, "peak_memory_gb": 1.0},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert module._pace(path) == {"milliseconds": 500, "seconds": 39.5, "peak_gb": 3.0}


def test_a_slow_beginning_after_a_stop_counts_once(tmp_path: Path) -> None:
    """Of updates 51 to 100 only the last four came after the stop, and the first of them waited."""
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": 50, "seconds_per_step": 0.5, "timed_updates": 50, "peak_memory_gb": 1.0},
        {"step": 100, "seconds_per_step": 3.0, "timed_updates": 4, "peak_memory_gb": 1.0},
        {"step": 150, "seconds_per_step": 0.5, "timed_updates": 50, "peak_memory_gb": 1.0},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert module._pace(path)["seconds"] == 25 + 46 * 0.5 + 4 * 3 + 25


def test_a_name_that_no_model_has_lists_those_there_are(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        smoke("enwik8-overfit", tmp_path, "--only", "small")
    printed = " ".join(capsys.readouterr().err.split())
    assert "No model of enwik8-overfit has 'small' in its name: they are ablations/as" in printed


def test_whoever_has_no_gpu_is_told_how_long_it_takes(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(module, "run_line", lambda *_, **__: None)
    for scale, told in (("smoke", False), ("single", True), ("paper", True)):
        out = str(tmp_path)
        main(["reproduce", "copy", "--scale", scale, "--out", out, "--device", "cpu"])
        assert ("may take days on a CPU" in capsys.readouterr().out) == told


def test_an_unknown_table_lists_those_there_are(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        smoke("colour", tmp_path)
    assert stop.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert "There is no table 'colour': choose one of copy, instruction," in printed


def test_missing_data_end_in_one_sentence(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.delenv("EXPIRE_SPAN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["reproduce", "pg19", "--scale", "single", "--device", "cpu"])
    printed = " ".join(capsys.readouterr().err.split())
    assert "There is no PG-19 in data" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", TABLES)
def test_a_table_without_runs_shows_the_papers_numbers(name: str) -> None:
    table = TABLES[name]
    text = render(table, {})
    assert table.label in text
    for line in table.lines:
        assert line.label in text
    assert text.count(" 0    |") + text.count(" 0 |") == len(table.lines)


def test_a_cell_says_how_many_of_its_runs_have_failed() -> None:
    table = TABLES["colliding"]
    name = table.lines[0].name
    runs = [{"error": 60.0}, {"failed": "diverged"}, {"error": 62.0}]
    assert "| 61.0 ± 1.4 (1 of 3: diverged) |" in " ".join(render(table, {name: runs}).split())
    assert "| diverged |" in " ".join(render(table, {name: runs[1:2]}).split())
