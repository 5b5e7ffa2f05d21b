"""The command that reproduces a table, as a user meets it."""

import json
import signal
from pathlib import Path

import pytest
import torch

from expire_span import reproduce as module
from expire_span.cli import main
from expire_span.experiments import TABLES
from expire_span.reproduce import found_results, render
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
        assert path.suffix == ".png" or path.stat().st_mtime_ns == time


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
    assert row.strip("| ").endswith("2")
    (row,) = [line for line in printed.splitlines() if line.startswith("| Transformer-XL 64 ")]
    assert row.strip("| ").endswith("0")
    assert (tmp_path / "smoke" / "instruction-memory.png").exists()


def test_a_table_may_be_about_the_validation_data(tmp_path: Path, capsys) -> None:
    smoke("enwik8-speedrun", tmp_path)
    (result,) = found_results(TABLES["enwik8-speedrun"].lines[0], tmp_path / "smoke")
    (row,) = [text for text in capsys.readouterr().out.splitlines() if text[:6] == "| 12 l"]
    assert f" {result['valid']['bpb']:.3f} " in row
    assert result["valid"]["bpb"] != result["bpb"]


def test_a_model_that_does_not_fit_says_so_and_the_others_go_on(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(experiment, folder: Path, resume: bool) -> dict[str, float]:
        if "16k" in str(folder):
            raise torch.OutOfMemoryError
        return real(experiment, folder, resume=resume)

    real = module.train
    monkeypatch.setattr(module, "train", train)
    smoke("efficiency-colliding", tmp_path, "--only", "-")
    printed = capsys.readouterr().out
    assert printed.count("out of memory") == 2 * 4
    assert "| Compressive 8k" in printed
    monkeypatch.setattr(module, "train", lambda *_, **__: 1 / 0)  # what failed is not tried again
    smoke("efficiency-colliding", tmp_path)


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
        smoke("enwik8-speedrun", tmp_path)
    assert stop.value.code == 130
    assert "the same command goes on" in " ".join(capsys.readouterr().err.split())
    smoke("enwik8-speedrun", tmp_path)
    assert updates == [1, 2, 3, 4]


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
