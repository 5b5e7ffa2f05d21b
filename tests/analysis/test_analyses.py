"""Every analysis against a plain run of the model it speaks of."""

import csv
import json
import math
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.text import Text as Written

from expire_span import AdaptiveSpan, FixedSpan
from expire_span.analysis import plots
from expire_span.analysis.along import along, spikes
from expire_span.analysis.classes import ClassSpan, spans_by_class, spans_by_token, token_classes
from expire_span.analysis.codec import TokenizerCodec, WordCodec
from expire_span.analysis.counterfactual import Replacement, counterfactual
from expire_span.analysis.cut import LEAST, cut_span, suffering
from expire_span.analysis.look import Source, look, look_at_text
from expire_span.analysis.recording import record_tokens
from expire_span.analysis.shaded import COLUMNS, _frame, _grid, plot_texts
from expire_span.analysis.sizes import KNOWN_METRICS, Size, read_sizes
from expire_span.analysis.tables import write_csv
from expire_span.cli import main
from expire_span.tasks import Recall, Text
from expire_span.training.loop import train
from expire_span.training.release import release
from policies import Case, make_model
from reading_models import EXPIRING, byte_level_tokenizer, reading_subject, text_of_some_length
from small_runs import small_experiment

EXAMPLE = Path(__file__).parents[2] / "examples" / "enwik8-small"
TEXT = "In Egypt the café of Egypt is known in all Egypt.\n"


@torch.no_grad()
def plain_run(subject, text, limit=None):
    """Spans [layers, T] and losses [T - 1] of a text, read without any of the analyses."""
    model, tokens = subject.model, torch.tensor(list(text.encode()))[None]
    memory, spans, hidden = model.start(1), [], []
    for part in tokens.split(model.config.block, dim=1):
        step = model(part, memory, limit=limit)
        memory = step.memory
        spans.append(torch.stack([layer[0] for layer in step.spans]))
        hidden.append(step.hidden)
    nll = model.sequence_head().nll(torch.cat(hidden, dim=1)[:, :-1], tokens[:, 1:])
    return torch.cat(spans, dim=1).detach().numpy(), nll[0].detach().numpy()


@pytest.mark.parametrize("new", ["somewhere", "", "Ägypten", "Egypt"])
def test_a_counterfactual_is_a_plain_second_run(new):
    subject = reading_subject()
    found = counterfactual(subject, TEXT, Replacement.parse(f"Egypt={new}"))
    changed = TEXT.replace("Egypt", new)
    before, after = plain_run(subject, TEXT)[0], plain_run(subject, changed)[0]
    np.testing.assert_array_equal(found.before.spans[:, 0], before)
    np.testing.assert_array_equal(found.after.spans[:, 0], after)
    one, two = found.same()
    old_bytes, new_bytes = TEXT.encode(), changed.encode()
    assert len(one) == len(old_bytes) - 3 * len("Egypt")
    assert bytes(old_bytes[n] for n in one) == bytes(new_bytes[n] for n in two)
    np.testing.assert_array_equal(found.change(), after[:, two] - before[:, one])
    for passage in found.passages:
        assert bytes(old_bytes[n] for n in passage.before) == b"Egypt"
        assert bytes(new_bytes[n] for n in passage.after) == new.encode()
    if new == "Egypt":
        assert (found.change() == 0).all()


def test_a_counterfactual_stands_beside_characters_of_several_tokens(tmp_path):
    path = tmp_path / "tokenizer.json"
    codec = TokenizerCodec(path, byte_level_tokenizer(path))
    torch.manual_seed(3)
    model = make_model(Case(EXPIRING, 16), vocab=262, attention="auto").float()
    subject = replace(reading_subject(), model=model, codec=codec)
    found = look_at_text(subject, TEXT)
    for new in ("Ägypten", "the 😀", "Egypt", ""):
        version = counterfactual(
            subject, "".join(found.pieces), Replacement("Egypt", new), found.recording
        )
        after = codec.pieces(version.after.tokens[0].tolist())
        assert "".join(after) == TEXT.replace("Egypt", new)
        for passage in version.passages:
            assert "".join(after[n] for n in passage.after).strip() == new
        one, two = version.same()
        assert [found.pieces[n] for n in one] == [after[n] for n in two]


@pytest.mark.parametrize("new", ["rose", "violet", "it", "a rose and", "", "rose rose"])
def test_words_are_replaced_whether_the_model_knows_them_or_not(new):
    codec = WordCodec(["<eos>", "<unk>", "a", "rose", "is", "red"], "<eos>", "<unk>")
    subject = replace(reading_subject(), codec=codec)
    text = "a lily is a rose\nis a lily red\nand lily \n"
    found = counterfactual(subject, text.replace("lily", "red"), Replacement("red", new))
    after = codec.encode(text.replace("lily", "red").replace("red", new))
    assert found.after.tokens[0].tolist() == after.tolist()
    assert len(found.passages) == 4
    for passage in found.passages:
        assert [found.before.tokens[0, n] for n in passage.before] == [5]
        assert [found.after.tokens[0, n] for n in passage.after] == codec.encode(new).tolist()
    one, two = found.same()
    assert (found.before.tokens[0, one] == found.after.tokens[0, two]).all()


def test_a_part_of_a_word_takes_its_word_along():
    subject = replace(reading_subject(), codec=WordCodec(["<unk>", "a", "rose"], unknown="<unk>"))
    found = counterfactual(subject, "a rose a rose", Replacement("ros", "x"))
    assert [passage.before for passage in found.passages] == [range(1, 2), range(3, 4)]
    assert found.after.tokens[0].tolist() == [1, 0, 1, 0]


def test_what_answers_is_not_scored_by_the_text_that_follows():
    """A model of recall is asked in the middle of its input; a text does not say what is right."""
    subject = reading_subject()
    answering = replace(subject, experiment=small_experiment(Recall(period=16)))
    assert np.isnan(look_at_text(answering, TEXT).recording.loss).all()
    scored = ~np.isnan(look_at_text(subject, TEXT).recording.loss[0])
    assert scored.tolist() == [True] * (len(TEXT.encode()) - 1) + [False]


@pytest.mark.parametrize("analysis", ["cut", "stream"])
def test_losses_of_what_is_not_scored_are_refused(analysis, tmp_path, capsys):
    train(small_experiment(Recall(period=16), steps=1), tmp_path / "run", progress=False)
    (tmp_path / "numbers.txt").write_text("1 2 3 4 5 6 7 0 1 2")
    command = ["analyse", analysis, str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main([*command, "--text", str(tmp_path / "numbers.txt"), "--device", "cpu"])
    assert "a text does not say what a model should have answered" in capsys.readouterr().err


def test_a_frame_goes_round_whole_tokens():
    figure, axes = plt.subplots()
    _frame(axes, [(0, 3), (0, 9), (1, 0)], [6, 5, 2])
    boxes = sorted((box.get_y(), box.get_x(), box.get_width()) for box in axes.patches)
    assert boxes == [(0, 3, 11), (1, 0, 2)]
    plt.close(figure)


def test_a_replacement_must_make_sense():
    with pytest.raises(ValueError, match="old=new"):
        Replacement.parse("Egypt")
    with pytest.raises(ValueError, match="not in the text"):
        counterfactual(reading_subject(), TEXT, Replacement("Rome", "Egypt"))


def test_a_cut_is_a_plain_second_run():
    subject = reading_subject()
    text = TEXT * 4
    found = cut_span(look_at_text(subject, text), 10)
    whole, cut = found.losses()
    np.testing.assert_array_equal(whole[1:], plain_run(subject, text)[1])
    np.testing.assert_array_equal(cut[1:], plain_run(subject, text, limit=10)[1])
    assert (whole[1:] != cut[1:]).any()
    worst = suffering(found, most=1000, least=-math.inf)
    assert all(one.lost >= two.lost for one, two in pairwise(worst))
    data = text.encode()
    for one in worst:
        word = one.word.encode()
        assert data[one.place : one.place + len(word)] == word
        places = slice(one.place, one.place + len(word))
        assert one.cut == pytest.approx(np.nansum(cut[places]) / np.log(2), rel=1e-5)
        if one.last_seen is not None:
            before = one.place - one.last_seen
            assert data[before : before + len(word)] == word
    assert {w.last_seen for w in worst if w.word == "café"} == {None, len(TEXT.encode())}


def test_classes_are_what_they_are_called():
    text = "== Menu ==\nThe [[tea]] of 1869 is the best tea, é!\n"
    kinds = token_classes(list(text))
    marked = {kind: "".join(np.array(list(text))[where]) for kind, where in kinds.items()}
    assert marked["newline"] == "\n\n"
    assert marked["markup"] == "====[[]]"
    assert marked["section title"] == "== Menu =="
    assert marked["capital"] == "MT"
    assert marked["digit"] == "1869"
    assert marked["rare word"] == "Menuofisbest"
    assert marked["repeated word"] == "Theteathetea"
    assert marked["space"] == " " * text.count(" ")


@pytest.mark.parametrize("more", [0, 2])
def test_a_picture_of_many_kinds_says_how_many_it_leaves_out(more):
    count = plots.MOST_KINDS + more
    figure = plots.plot_classes([ClassSpan(1, f"k{n}", 1, n, n) for n in range(count)], "run")
    axes = figure.axes[0]
    assert axes.get_yticklabels()[0].get_text() == f"k{count - 1}"
    assert len(axes.get_yticks()) == plots.MOST_KINDS
    said = f"{plots.MOST_KINDS} of {count} kinds, those kept longest"
    assert axes.get_title().endswith(said if more else "what each layer keeps")
    plt.close(figure)


def test_spans_of_classes_are_means_of_their_tokens():
    subject = reading_subject()
    found = record_tokens(subject.model, list(TEXT.encode()))
    pieces = subject.codec.pieces(list(TEXT.encode()))
    spans = plain_run(subject, TEXT)[0]
    spaces = np.array([piece == " " for piece in pieces])
    kinds = {kind: marked[None] for kind, marked in token_classes(pieces).items()}
    by_kind = {(one.layer, one.kind): one for one in spans_by_class(found, kinds)}
    for layer in (1, 2):
        mean = spans[layer - 1, spaces].mean()
        assert by_kind[layer, "space"].mean == pytest.approx(mean, rel=1e-5)
        assert by_kind[layer, "any"].count == len(pieces)
    tokens = spans_by_token(found, np.array([pieces]), most=100)
    assert {one.piece for one in tokens if one.layer == 1} == {
        piece for piece in set(pieces) if pieces.count(piece) >= 3 and piece
    }
    means = [one.mean for one in tokens if one.layer == 2]
    assert means == sorted(means, reverse=True)


def test_losses_stand_along_the_stream():
    subject = reading_subject()
    text = TEXT * 3
    recording = record_tokens(subject.model, list(text.encode()))
    found = along(recording)
    nll = plain_run(subject, text)[1]
    means = [part.mean() / np.log(2) for part in np.split(nll, found.ends[:-1])]
    np.testing.assert_allclose(found.bits, means, rtol=1e-6)
    worst = spikes(recording, subject.codec, most=2)
    assert worst[0].bits == pytest.approx(max(means), rel=1e-6)
    assert worst[0].text.encode() == text.encode()[worst[0].first : worst[0].first + 16]


def test_plots_can_be_drawn_of_anything(tmp_path):
    subject = reading_subject()
    found = counterfactual(subject, TEXT + "$x_1$ \x01 中 \t😀\n", Replacement("Egypt", ""))
    pieces = subject.codec.pieces(found.before.tokens[0].tolist())
    figures = [
        plot_texts(["a"], [pieces], [found.before.spans[0, 0]], run="some_$run"),
        plots.plot_change(found, "run"),
        plots.plot_classes(spans_by_class(found.before, {}), "run"),
        plots.plot_along(along(found.before), "run", "bits a byte"),
    ]
    for number, figure in enumerate(figures):
        for path in plots.save_plot(figure, tmp_path / f"plot-{number}"):
            assert path.stat().st_size > 2000
    assert not plt.get_fignums()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    text = text_of_some_length(folder)
    train(small_experiment(Text(str(text)), steps=2), folder / "expiring")
    train(small_experiment(Text(str(text)), steps=2, memory=FixedSpan(12)), folder / "window")
    return folder


def test_lines_hold_whole_words_and_no_more_than_fits():
    text = ("A word, a longer-word and " * 12 + "\n") * 2 + "x" * 230 + " end"
    grid = _grid(list(text))
    lines = {}
    for (line, column), character in zip(grid, text, strict=True):
        assert column == len(lines.get(line, "")), "characters follow one another"
        lines[line] = lines.get(line, "") + character
    assert "".join(lines.values()) == text
    assert max(map(len, lines.values())) <= COLUMNS
    for line in lines.values():
        assert line[-1].isspace() or line[-1] == "x" or line.endswith("end")


def test_numbers_have_no_kinds_but_may_ask(tmp_path):
    train(small_experiment(Recall(period=16), steps=1), tmp_path / "run", progress=False)
    found = look(tmp_path / "run", Source(split="valid"), 64, "cpu").survey()
    (marked,) = found.kinds.values()
    np.testing.assert_array_equal(marked, ~np.isnan(found.recording.loss))
    assert found.names.shape == found.recording.tokens.shape == (1, 64)
    assert found.names[0, 0] == f"{found.recording.tokens[0, 0]} "


def test_whole_numbers_are_written_whole(tmp_path):
    path = write_csv(
        tmp_path / "t.csv", ["steps", "bits"], [(np.int32(123456789), np.float32(0.1))]
    )
    assert rows_of(path) == [{"steps": "123456789", "bits": "0.1"}]


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_analysis_is_a_command(run, tmp_path, capsys):
    text, out = str(run / "text.txt"), ["--out", str(tmp_path), "--device", "cpu"]
    model = str(run / "expiring")
    main(
        [
            "analyse",
            "spans",
            model,
            "--text",
            text,
            *out,
            "--replace",
            "Humpty=Egg",
            "--length",
            "90",
        ]
    )
    main(["analyse", "layers", model, "--text", text, *out, "--drawn", "60"])
    main(["analyse", "cut", model, "--text", text, *out, "--limit", "6"])
    main(["analyse", "stream", model, "--text", text, *out])
    main(["analyse", "memory", str(run), "--out", str(tmp_path)])
    main(["analyse", "record", model, "--split", "valid", "--out", str(tmp_path / "kept")])
    printed = capsys.readouterr().out
    assert "Humpty → Egg: mean span" in printed
    for name in ("spans", "change-1", "layers", "classes", "cut", "stream", "memory"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
        assert b"<svg" in (tmp_path / f"{name}.svg").read_bytes()[:1000]
    first = rows_of(tmp_path / "spans.csv")[0]
    assert first["token"] == "T"
    assert float(first["deadline_2"]) == pytest.approx(float(first["span_2"]))
    assert {row["policy"] for row in rows_of(tmp_path / "memory.csv")} == {
        "Expire-Span",
        "Transformer-XL",
    }
    assert len(rows_of(tmp_path / "stream.csv")) == -(-len((run / "text.txt").read_bytes()) // 8)
    assert json.loads((tmp_path / "kept" / "recording.json").read_text())["policy"] == "ExpireSpan"


def test_sizes_are_what_runs_wrote(run):
    found, left_out = read_sizes([run])
    assert left_out == {}
    sizes = {one.run: one for one in found}
    lines = (run / "window" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert sizes["window"].performance == last["valid/bpb"]
    assert sizes["window"].live == last["valid/live"]
    with pytest.raises(ValueError, match="None of these runs tells of beauty: choose from") as stop:
        read_sizes([run], "beauty")
    assert set(str(stop.value)[:-1].split("choose from ")[1].split(", ")) <= set(KNOWN_METRICS)
    with pytest.raises(ValueError, match="no run with an evaluation"):
        read_sizes([run / "window" / "checkpoints"])


def test_a_run_that_tells_nothing_of_the_metric_is_named_and_left_out(run, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(run / "window", tmp_path / name)
    told = {"steps": 4, "tokens": 128, "data": {"train": "3000 tokens"}, "subset": "", "live": 3.0}
    (tmp_path / "two" / "result.json").write_text(json.dumps(told))
    (size,), left_out = read_sizes([tmp_path])
    assert size.run == "one"
    assert left_out == {tmp_path / "two": "tells nothing of how well it does"}
    (tmp_path / "empty").mkdir()
    release(run / "window", tmp_path / "released")
    without = {
        tmp_path / "nothing": "is not there",
        tmp_path / "empty": "no run there",
        tmp_path / "released": "released, without its evaluations",
    }
    assert read_sizes([tmp_path / "one", *without]) == ([size], without)
    _, left_out = read_sizes([tmp_path], "bpb")
    assert left_out == {tmp_path / "two": "tells nothing of bpb"}
    with pytest.raises(ValueError, match="None of these runs tells of data: choose from bpb"):
        read_sizes([tmp_path], "data")
    (tmp_path / "two" / "result.json").write_text(
        json.dumps(told | {"valid": {"bpb": 2.5, "live": 7.0}})
    )
    sizes, left_out = read_sizes([tmp_path])
    assert left_out == {}
    assert [(one.performance, one.live, one.split) for one in sizes][1] == (2.5, 7.0, "valid")


def groups_of_copies(run, folder, changes):
    """What copies of a run are called together, by their names, each with some other settings."""
    settings = json.loads((run / "experiment.json").read_text())
    for name, changed in changes.items():
        shutil.copytree(run, folder / name)
        (folder / name / "experiment.json").write_text(json.dumps(settings | changed))
    sizes, _ = read_sizes([folder])
    return {one.run: one.group for one in sizes}


def test_runs_of_equal_settings_are_one_group_and_others_are_not(run, tmp_path):
    changes = {
        "wide/seed-0": {},
        "wide/seed-1": {"seed": 1},
        "long-seed-0": {"steps": 99},
        "alone": {"steps": 98},
    }
    assert groups_of_copies(run / "window", tmp_path, changes) == {
        "wide/seed-0": "wide",
        "wide/seed-1": "wide",
        "long-seed-0": "long",
        "alone": "alone",
    }


def test_other_settings_are_no_seeds_of_the_same_and_other_machines_are(run, tmp_path):
    settings = json.loads((run / "expiring" / "experiment.json").read_text())
    memory = settings["model"]["memory"]
    steeper = {"model": settings["model"] | {"memory": memory | {"ramp": memory["ramp"] + 1}}}
    changes = {
        "a/w-seed-0": {"device": "cpu"},
        "a/w-seed-1": {"seed": 1, "device": "auto", "tracker": "wandb", "compile": False},
        "a/w-seed-2": {"seed": 2, **steeper},
        "b/w-seed-0": {"steps": 99},
        "b/w-seed-1": {"steps": 99, "seed": 1, "save_every": 7, "log_every": 7},
    }
    assert groups_of_copies(run / "expiring", tmp_path, changes) == {
        "a/w-seed-0": "a/w-seed-0, a/w-seed-1",
        "a/w-seed-1": "a/w-seed-0, a/w-seed-1",
        "a/w-seed-2": "a/w-seed-2",
        "b/w-seed-0": "b/w",
        "b/w-seed-1": "b/w",
    }


def test_a_run_is_read_once(run, monkeypatch):
    read, plainly = [], Path.read_text

    def counted(path, *options, **named):
        read.append(path)
        return plainly(path, *options, **named)

    monkeypatch.setattr(Path, "read_text", counted)
    read_sizes([run])
    files = ("experiment.json", "metrics.jsonl")
    assert sorted(read) == [run / name / file for name in ("expiring", "window") for file in files]


def test_sizes_are_joined_to_the_mean_of_their_seeds_and_to_nothing_else():
    found = [
        Size(f"{group}-{n}", group, policy, live + n, "success", 0.5 + 0.1 * n, "episodes")
        for group, policy, live in (("a", "Transformer-XL", 4), ("b", "Expire-Span", 8))
        for n in range(2)
    ]
    figure = plots.plot_sizes(found)
    (axes,) = figure.axes
    rays = sorted(line.get_xydata().tolist() for line in axes.lines if line.get_ls() != "None")
    means = {"a": [4.5, 0.55], "b": [8.5, 0.55]}
    assert rays == sorted([[one.live, one.performance], means[one.group]] for one in found)
    assert [text.get_text() for text in axes.texts] == ["a", "b"]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["Transformer-XL", "Expire-Span"]
    plt.close(figure)


def texts_of(figure):
    """All that is written in a figure."""
    return " ".join(text.get_text() for text in figure.findobj(Written))


@pytest.mark.parametrize(
    ("model", "options", "unit"),
    [
        ("enwik8-small", ["--text", str(EXAMPLE.parent / "egypt.txt")], "bits a byte"),
        ("corridor", ["--episodes", "2"], "bits a step"),
    ],
)
def test_losses_are_told_in_one_unit(model, options, unit, tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save_plot", lambda figure, path: drawn.append(figure) or [path])
    for analysis in ("cut", "stream"):
        command = ["analyse", analysis, str(EXAMPLE.parent / model), "--out", str(tmp_path)]
        main([*command, *options, "--device", "cpu"])
        assert unit in capsys.readouterr().out
        assert unit in texts_of(drawn[-1])
        assert "bits a token" not in texts_of(drawn[-1])
        plt.close(drawn[-1])


def test_a_cut_shows_what_suffers_and_nothing_else(tmp_path, capsys, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save_plot", lambda figure, path: drawn.append(figure) or [path])
    command = ["analyse", "cut", str(EXAMPLE), "--text", str(EXAMPLE.parent / "egypt.txt")]
    for limit, suffers in ((64, True), (1024, False)):
        main([*command, "--limit", str(limit), "--out", str(tmp_path), "--device", "cpu"])
        rows = rows_of(tmp_path / "cut.csv")
        assert all(float(row["bits_lost"]) >= LEAST for row in rows)
        said = "Nothing suffers: no loss grows by 0.01 bits by a cut at 1024 steps"
        assert (len(rows) > 0) == suffers
        assert (said in capsys.readouterr().out) == (not suffers)
        assert (said in texts_of(drawn[-1])) == (not suffers)
        assert bool(drawn[-1].axes[0].lines) == suffers
        plt.close(drawn[-1])


@pytest.mark.parametrize("memory", [EXPIRING, FixedSpan(12), AdaptiveSpan(30, 8, initial=0.4)])
def test_a_cut_beyond_the_longest_memory_hides_nothing(memory):
    found = look_at_text(reading_subject(memory), TEXT * 3)
    longest_span = found.recording.spans.max()
    lasts = math.ceil(longest_span + getattr(memory, "ramp", 0))
    beyond = cut_span(found, lasts)
    np.testing.assert_array_equal(*beyond.losses())
    assert f"no memory here lasts longer than {lasts}." in beyond.nothing_suffers()
    fades = cut_span(found, math.ceil(longest_span) - isinstance(memory, FixedSpan))
    assert not np.array_equal(*fades.losses(), equal_nan=True)


def test_one_run_that_failed_or_was_killed_does_not_spoil_the_others(run, tmp_path, capsys):
    for name in ("failed", "begun", "killed"):
        shutil.copytree(run / "window", tmp_path / name)
    (tmp_path / "failed" / "result.json").write_text('{"failed": "out of memory"}')
    (tmp_path / "begun" / "metrics.jsonl").write_text('{"step": 1, "tra')
    with (tmp_path / "killed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "valid/bpb": 0.')
    main(["analyse", "memory", str(tmp_path), "--out", str(tmp_path / "out")])
    (row,) = rows_of(tmp_path / "out" / "memory.csv")
    ((window,), _) = read_sizes([run / "window"])
    assert float(row["performance"]) == pytest.approx(window.performance)
    printed = capsys.readouterr().out
    assert f"{tmp_path / 'failed'} (out of memory)" in printed
    assert f"{tmp_path / 'begun'} (no evaluation yet)" in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["spans", "RUN", "--text", "nowhere.txt"], "There is no file nowhere.txt"),
        (["spans", "RUN", "--text", "TEXT", "--layer", "3"], "Layers are numbered 1 to 2"),
        (["spans", "RUN", "--text", "TEXT", "--replace", "x"], "written old=new"),
        (["cut", "nowhere", "--text", "TEXT"], "is not a run"),
        (["spans", "RUN", "--text", "TEXT", "--length", "0"], "length must be a whole number of"),
        (["record", "RUN", "--blocks", "2", "--out", "RUN"], "holds other files, such as"),
        (["layers", "RUN", "--text", "TEXT", "--drawn", "0"], "drawn must be a whole number of"),
        (
            ["cut", "RUN", "--text", "TEXT", "--most", "0"],
            "most must be a whole number of at least",
        ),
        (["layers", "RUN", "--episodes", "0"], "episodes must be a whole number of at least 1"),
        (["layers", "EXAMPLE"], "There is no file enwik8: check the path"),
        (["layers", "EXAMPLE"], "or give another text with --text."),
        (["memory"], "Which runs are to be compared?"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments, sentence, run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {"RUN": str(run / "expiring"), "TEXT": str(run / "text.txt"), "EXAMPLE": str(EXAMPLE)}
    with pytest.raises(SystemExit) as stop:
        main(["analyse", *(known.get(word, word) for word in arguments)])
    assert stop.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_a_report_that_would_be_cut_short_is_refused(run, tmp_path, capsys):
    out = tmp_path / "report.html"
    with pytest.raises(SystemExit):
        main(["inspect", str(run / "expiring"), "--out", str(out), "--length", "500000"])
    assert "length must be at most 200000" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "out", "sentence"),
    [
        ("text.txt", "text.txt", "A report is a page: give a path that ends in .html"),
        ("page.html", "page.html", "is the text itself: choose another file with --out"),
    ],
)
def test_a_report_does_not_take_the_place_of_its_text(text, out, sentence, run, tmp_path, capsys):
    (tmp_path / text).write_text("kept")
    options = ["--text", str(tmp_path / text), "--out", str(tmp_path / out)]
    with pytest.raises(SystemExit):
        main(["inspect", str(run / "expiring"), *options])
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / text).read_text() == "kept"


def test_the_first_word_is_drawn_however_long_it_is(tmp_path):
    train(small_experiment(Recall(period=16), steps=1), tmp_path / "run", progress=False)
    options = ["--split", "valid", "--length", "32", "--drawn", "1", "--out", str(tmp_path)]
    main(["analyse", "layers", str(tmp_path / "run"), *options])  # "3 " has two characters
    assert (tmp_path / "layers.png").exists()


def test_a_release_is_the_same_model(run, tmp_path, capsys):
    out = tmp_path / "released"
    main(["release", str(run / "expiring"), "--out", str(out)])
    assert sorted(path.name for path in out.iterdir()) == ["experiment.json", "model.safetensors"]
    reports = []
    for model in (run / "expiring", out):
        path = tmp_path / f"{model.name}.html"
        main(["inspect", str(model), "--text", str(run / "text.txt"), "--out", str(path)])
        data = path.read_text().split('type="application/json">')[1].split("</script>")[0]
        reports.append(json.loads(data)["versions"][0])
    assert reports[0].pop("name") != reports[1].pop("name")
    assert reports[0] == reports[1]
    with pytest.raises(SystemExit):
        main(["release", str(run / "expiring"), "--out", str(out)])
    assert "already holds a model" in capsys.readouterr().err
