"""The commands `analyse` and `inspect`: every analysis as a plot, the numbers behind it as CSV."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from expire_span.analysis import plots
from expire_span.analysis.along import along, spikes
from expire_span.analysis.classes import spans_by_class, spans_by_token
from expire_span.analysis.counterfactual import Counterfactual, Replacement, counterfactual
from expire_span.analysis.cut import cut_span, suffering
from expire_span.analysis.recording import Recording, record_task, record_tokens
from expire_span.analysis.report import Report, write_report
from expire_span.analysis.sizes import find_runs, read_size
from expire_span.analysis.subject import Subject, open_subject
from expire_span.analysis.tables import write_csv, write_records
from expire_span.analysis.view import bits_by_token
from expire_span.tasks import Split
from expire_span.training.release import release as keep_release

Run = Annotated[Path, tyro.conf.Positional]
Replacements = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]

LONGEST_REPORT = 200_000  # tokens; a report of more is slow to open


def spans(
    run: Run,
    text: Path,
    out: Path = Path("analysis"),
    replace: Replacements = (),
    layer: int | None = None,
    length: int = 2000,
    device: str = "auto",
) -> None:
    """Text shaded by how long each token is kept (fig:vis_enwiki8), and what another word changes.

    Args:
        run: folder that `train` or `release` wrote.
        text: file to read.
        out: folder for plots and CSV.
        replace: a counterfactual, old=new; may be given several times.
        layer: one layer, from 1; the mean of all if left out.
        length: characters to read.
        device: auto, cpu, cuda ...
    """
    subject = open_subject(run, device)
    given = read_text(text, length)
    recording = _record(subject, given)
    versions = [
        counterfactual(subject, given, Replacement.parse(one), recording) for one in replace
    ]
    every = [recording, *(version.after for version in versions)]
    texts = [subject.codec.pieces(one.tokens[0].tolist()) for one in every]
    chosen = _chosen(recording, layer)
    frames = [
        [passage.before for version in versions for passage in version.passages],
        *([passage.after for passage in version.passages] for version in versions),
    ]
    figure = plots.plot_texts(
        ["the text", *(f"with {version.replacement}" for version in versions)],
        texts,
        [one.spans[chosen, 0].mean(axis=0) for one in every],
        run=f"{subject.name}, {_layers_named(layer)}",
        frames=frames,
    )
    written = plots.save_plot(figure, out / "spans")
    written.append(_write_tokens(out / "spans.csv", recording, texts[0]))
    for number, version in enumerate(versions, start=1):
        picture = plots.plot_change(version, subject.name)
        written += plots.save_plot(picture, out / f"change-{number}")
        written.append(_write_change(out / f"change-{number}.csv", version, subject))
        print(_verdict(version))
    _say(written)


def layers(
    run: Run,
    text: Path,
    out: Path = Path("analysis"),
    length: int = 20_000,
    drawn: int = 500,
    device: str = "auto",
) -> None:
    """What each layer keeps (fig:vis_enwiki8_additional_layerwise): its text, tokens and kinds.

    Args:
        run: folder that `train` or `release` wrote.
        text: file to read.
        out: folder for plots and CSV.
        length: characters to read.
        drawn: characters of them to draw.
        device: auto, cpu, cuda ...
    """
    subject = open_subject(run, device)
    recording = _record(subject, read_text(text, length))
    pieces = subject.codec.pieces(recording.tokens[0].tolist())
    count = int(np.cumsum([len(piece) for piece in pieces]).searchsorted(drawn, side="right"))
    numbers = range(recording.about.layers)
    figure = plots.plot_texts(
        [f"layer {n + 1}" for n in numbers],
        [pieces[:count] for _ in numbers],
        [recording.spans[n, 0, :count] for n in numbers],
        run=subject.name,
    )
    kinds, tokens = spans_by_class(recording, pieces), spans_by_token(recording, pieces)
    written = plots.save_plot(figure, out / "layers")
    written += plots.save_plot(plots.plot_classes(kinds, subject.name), out / "classes")
    written.append(write_records(out / "classes.csv", kinds))
    written.append(write_records(out / "tokens.csv", tokens))
    for n in numbers:
        best = [one for one in kinds if one.layer == n and one.kind != "any"][:4]
        named = ", ".join(f"{one.kind} {one.mean:.0f}" for one in best)
        often = " ".join(repr(one.piece) for one in tokens if one.layer == n)
        print(f"layer {n + 1} keeps longest: {named} (steps); tokens {often}")
    _say(written)


def cut(
    run: Run,
    text: Path,
    limit: int = 1024,
    out: Path = Path("analysis"),
    length: int = 100_000,
    most: int = 100,
    device: str = "auto",
) -> None:
    """Which predictions suffer when memory is cut short (fig:enwik8_loss).

    Args:
        run: folder that `train` or `release` wrote.
        text: file to read.
        limit: steps beyond which nothing is seen.
        out: folder for plots and CSV.
        length: characters to read.
        most: words to list.
        device: auto, cpu, cuda ...
    """
    subject = open_subject(run, device)
    found = cut_span(subject, read_text(text, length), limit, progress=True)
    worst = suffering(found, most)
    written = plots.save_plot(plots.plot_cut(found, worst, subject.name), out / "cut")
    rows = ((w.place, w.word, w.before, w.whole, w.cut, w.lost, w.last_seen) for w in worst)
    heads = ("place", "word", "before", "bits_whole", "bits_cut", "bits_lost", "last_seen")
    written.append(write_csv(out / "cut.csv", heads, rows))
    whole, short = (mean / np.log(2) for mean in found.means())
    print(f"Mean loss {whole:.4f} bits a {subject.codec.unit}, cut at {limit} steps {short:.4f}.")
    _say(written)


def stream(
    run: Run,
    text: Path | None = None,
    split: Split = "valid",
    blocks: int | None = None,
    out: Path = Path("analysis"),
    device: str = "auto",
) -> None:
    """Loss along a stream with live memory under it, and its worst blocks (fig:enwik8_ovefit).

    The recording is kept beside the plot, in as many files as it has arrays.

    Args:
        run: folder that `train` or `release` wrote.
        text: file to read; the run's own data if left out.
        split: which part of the run's own data.
        blocks: most blocks to read.
        out: folder for plots, CSV and recording.
        device: auto, cpu, cuda ...
    """
    subject = open_subject(run, device)
    folder = out / "recording"
    if text is not None:
        length = None if blocks is None else blocks * subject.model.config.block
        recording = _record(subject, read_text(text, length), folder)
    else:
        recording = _record_split(subject, split, blocks, folder)
    found = along(recording)
    written = plots.save_plot(plots.plot_along(found, subject.name), out / "stream")
    numbers = range(recording.about.layers)
    heads = [f"{kind}_layer_{n + 1}" for kind in ("live", "held") for n in numbers]
    columns = zip(found.ends, found.bits, *found.live, *found.held, strict=True)
    written.append(write_csv(out / "stream.csv", ["steps", "bits", *heads], columns))
    worst = spikes(recording, subject.codec)
    written.append(write_records(out / "spikes.csv", worst))
    mean = np.nanmean(recording.loss[0].astype(np.float64)) / np.log(2)
    print(f"{mean:.4f} bits a {subject.codec.unit} over {recording.steps} steps.")
    _say([*written, folder])


def memory(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    metric: str | None = None,
    out: Path = Path("analysis"),
) -> None:
    """Performance against memory size (fig:corridor_result, fig:enwik8_span, fig:wiki103_memsize).

    Args:
        runs: folders of runs, or folders with runs somewhere in them.
        metric: such as bpb or accuracy; the runs' own if left out.
        out: folder for plots and CSV.
    """
    found = [read_size(run, metric) for run in find_runs(runs)]
    if len({(one.metric, one.split) for one in found}) > 1:
        kinds = ", ".join(sorted({f"{one.metric} ({one.split})" for one in found}))
        raise ValueError(f"These runs were judged differently: {kinds}. Compare them apart.")
    written = plots.save_plot(plots.plot_sizes(found), out / "memory")
    written.append(write_records(out / "memory.csv", found))
    for one in sorted(found, key=lambda one: one.live):
        performance = f"{one.metric} {one.performance:.4g}"
        print(f"{one.run:40}  {one.policy:12}  live {one.live:8.1f}  {performance}")
    _say(written)


def record(
    run: Run,
    text: Path | None = None,
    split: Split = "test",
    blocks: int | None = None,
    out: Path = Path("analysis/recording"),
    device: str = "auto",
) -> None:
    """Keep what a model did with every token, as .npy files that `Recording.open` maps.

    Args:
        run: folder that `train` or `release` wrote.
        text: file to read; the run's own data if left out.
        split: which part of the run's own data.
        blocks: most blocks to read; made-up data need it.
        out: folder for the recording.
        device: auto, cpu, cuda ...
    """
    subject = open_subject(run, device)
    if text is not None:
        length = None if blocks is None else blocks * subject.model.config.block
        recording = _record(subject, read_text(text, length), out)
    else:
        recording = _record_split(subject, split, blocks, out)
    shapes = {"steps": recording.steps, "layers": recording.about.layers, "folder": str(out)}
    print(json.dumps(shapes))


ANALYSES: dict[str, Callable[..., None]] = {
    "spans": spans,
    "layers": layers,
    "cut": cut,
    "stream": stream,
    "memory": memory,
    "record": record,
}


def inspect(
    run: Run,
    text: Path | None = None,
    out: Path = Path("report.html"),
    replace: Replacements = (),
    length: int = 100_000,
    split: Split = "test",
    device: str = "auto",
) -> None:
    """Write one HTML file that shows what a model remembers of a text, and for how long.

    Args:
        run: folder that `train` or `release` wrote.
        text: file to read; the run's own data if left out.
        out: the file to write.
        replace: another version of the text, old=new; may be given several times.
        length: characters to read.
        split: which part of the run's own data.
        device: auto, cpu, cuda ...
    """
    subject = open_subject(run, device)
    if text is not None:
        given = read_text(text, min(length, LONGEST_REPORT))
    else:
        blocks = -(-min(length, LONGEST_REPORT) // subject.model.config.block)
        recording = _record_split(subject, split, blocks, None)
        given = "".join(subject.codec.pieces(recording.tokens[0].tolist()))
    if text is not None or replace:
        recording = _record(subject, given)
    versions = [
        counterfactual(subject, given, Replacement.parse(one), recording) for one in replace
    ]
    for version in versions:
        print(_verdict(version))
    _say([write_report(Report(subject, recording, versions), out)])


def release(run: Run, out: Path) -> None:
    """Keep a run's model for others to look at: its settings and its weights as safetensors.

    Args:
        run: folder that `train` wrote.
        out: folder to write.
    """
    keep_release(run, out)
    _say([out])


def read_text(path: Path, length: int | None) -> str:
    """The first characters of a file; bytes that are no UTF-8 are replaced."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}: check the path.")
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        text = file.read() if length is None else file.read(length)
    if not text:
        raise ValueError(f"The file {path} is empty: give one with some text in it.")
    return text


def _record(subject: Subject, text: str, folder: Path | None = None) -> Recording:
    tokens = subject.codec.encode(text)
    return record_tokens(subject.model, tokens, name=subject.name, folder=folder, progress=True)


def _record_split(
    subject: Subject, split: Split, blocks: int | None, folder: Path | None
) -> Recording:
    experiment = subject.experiment
    return record_task(
        subject.model,
        experiment.task,
        split,
        name=subject.name,
        blocks=blocks,
        seed=experiment.seed,
        precision=experiment.precision,
        folder=folder,
        progress=True,
    )


def _chosen(recording: Recording, layer: int | None) -> list[int]:
    """Layers to show, from 0."""
    count = recording.about.layers
    if layer is None:
        return list(range(count))
    if not 1 <= layer <= count:
        raise ValueError(f"Layers are numbered 1 to {count}, but {layer} was asked for.")
    return [layer - 1]


def _layers_named(layer: int | None) -> str:
    return "mean of layers" if layer is None else f"layer {layer}"


def _write_tokens(path: Path, recording: Recording, pieces: list[str]) -> Path:
    """One token a line, with all that was recorded of it."""
    numbers = range(recording.about.layers)
    heads = [f"{kind}_{n + 1}" for n in numbers for kind in ("span", "deadline", "deleted")]
    deadlines, bits = recording.deadlines(), bits_by_token(recording)

    def row(place: int) -> list[Any]:
        arrays = (recording.spans, deadlines, recording.deleted)
        return [array[n, 0, place] for n in numbers for array in arrays]

    rows = ([n, piece, bits[n], *row(n)] for n, piece in islice(enumerate(pieces), recording.steps))
    return write_csv(path, ["place", "token", "bits", *heads], rows)


def _write_change(path: Path, version: Counterfactual, subject: Subject) -> Path:
    """Tokens that stand in both texts, and how their spans differ."""
    one, two = version.same()
    pieces = subject.codec.pieces(version.before.tokens[0].tolist())
    heads = ["place_before", "place_after", "token"]
    heads += [f"change_{n + 1}" for n in range(version.before.about.layers)]
    change = version.change()
    rows = ([a, b, pieces[a], *change[:, n]] for n, (a, b) in enumerate(zip(one, two, strict=True)))
    return write_csv(path, heads, rows)


def _verdict(version: Counterfactual) -> str:
    before, after = version.passage_spans()
    return (
        f"{version.replacement}: mean span {before.mean():.1f} before, {after.mean():.1f} after "
        f"(steps, {len(version.passages)} places, mean of layers)."
    )


def _say(written: list[Path]) -> None:
    print("Written: " + ", ".join(map(str, written)))
