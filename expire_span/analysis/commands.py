"""The commands `analyse` and `inspect`: every analysis as a plot, the numbers behind it as CSV."""

import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from expire_span.analysis import plots
from expire_span.analysis.along import along, spikes
from expire_span.analysis.classes import spans_by_class, spans_by_token
from expire_span.analysis.counterfactual import Counterfactual, Replacement, counterfactual
from expire_span.analysis.cut import cut_span, mean_losses, suffering
from expire_span.analysis.look import Look, Source, look, record_source
from expire_span.analysis.recording import Recording
from expire_span.analysis.report import Report, write_report
from expire_span.analysis.shaded import plot_texts
from expire_span.analysis.sizes import read_sizes
from expire_span.analysis.subject import Subject
from expire_span.analysis.tables import write_csv, write_records
from expire_span.checks import require_at_least
from expire_span.training.release import release as keep_release

Run = Annotated[Path, tyro.conf.Positional]
Read = Annotated[Source, tyro.conf.arg(name="")]
Replacements = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]

TESTED, VALIDATED = Source(), Source(split="valid")
LONGEST_REPORT = 200_000  # tokens; a report of more is slow to open


def spans(
    run: Run,
    source: Read = TESTED,
    out: Path = Path("analysis"),
    replace: Replacements = (),
    layer: int | None = None,
    length: int = 2000,
    device: str = "auto",
) -> None:
    """Text shaded by how long each token is kept (fig:vis_enwiki8), and what another word changes.

    Of an agent it is an episode, step by step what was in view and the move that was made.

    Args:
        run: folder that `train` or `release` wrote.
        source: what is read.
        out: folder for plots and CSV.
        replace: a counterfactual, old=new; may be given several times.
        layer: one layer, from 1; the mean of all if left out.
        length: characters to read.
        device: auto, cpu, cuda ...
    """
    found = look(run, source, length, device, rewritten=bool(replace))
    subject, versions = found.subject, _versions(found, replace)
    every = [found.recording, *(version.after for version in versions)]
    texts = [subject.codec.pieces(one.tokens[0].tolist()) for one in every]
    chosen = _chosen(found.recording, layer)
    frames = [
        [passage.before for version in versions for passage in version.passages],
        *([passage.after for passage in version.passages] for version in versions),
    ]
    figure = plot_texts(
        [subject.codec.whole, *(f"with {version.replacement}" for version in versions)],
        texts,
        [one.spans[chosen, 0].mean(axis=0) for one in every],
        run=f"{subject.name}, {_layers_named(layer)}",
        frames=frames,
    )
    written = plots.save_plot(figure, out / "spans")
    written.append(_write_tokens(out / "spans.csv", found.recording, texts[0]))
    for number, version in enumerate(versions, start=1):
        picture = plots.plot_change(version, subject.name)
        written += plots.save_plot(picture, out / f"change-{number}")
        written.append(_write_change(out / f"change-{number}.csv", version, subject))
    _say(written)


def layers(
    run: Run,
    source: Read = TESTED,
    out: Path = Path("analysis"),
    length: int = 20_000,
    drawn: int = 500,
    device: str = "auto",
) -> None:
    """What each layer keeps (fig:vis_enwiki8_additional_layerwise): its text, tokens and kinds.

    Of an agent, kinds are what can be in view; they are counted over all episodes played.

    Args:
        run: folder that `train` or `release` wrote.
        source: what is read.
        out: folder for plots and CSV.
        length: characters to read.
        drawn: characters of them to draw.
        device: auto, cpu, cuda ...
    """
    require_at_least(1, drawn=drawn)
    found = look(run, source, length, device)
    pieces, recording, name = found.pieces, found.recording, found.subject.name
    count = _tokens_within(drawn, pieces)
    numbers = range(recording.about.layers)
    figure = plot_texts(
        [f"layer {n + 1}" for n in numbers],
        [pieces[:count] for _ in numbers],
        [recording.spans[n, 0, :count] for n in numbers],
        run=name + _of_how_many(count, pieces, found.subject.codec.unit),
    )
    survey = found.survey()
    kinds = spans_by_class(survey.recording, survey.kinds)
    tokens = spans_by_token(survey.recording, survey.names)
    written = plots.save_plot(figure, out / "layers")
    written += plots.save_plot(plots.plot_classes(kinds, name), out / "classes")
    written.append(write_records(out / "classes.csv", kinds))
    written.append(write_records(out / "tokens.csv", tokens))
    for layer in (n + 1 for n in numbers):
        best = [one for one in kinds if one.layer == layer and one.kind != "any"][:4]
        named = ", ".join(f"{one.kind} {one.mean:.0f}" for one in best)
        often = " ".join(repr(one.piece) for one in tokens if one.layer == layer)
        print(f"layer {layer} keeps longest: {named} (steps); {found.subject.codec.unit}s {often}")
    _say(written)


def cut(
    run: Run,
    source: Read = TESTED,
    limit: int = 1024,
    out: Path = Path("analysis"),
    length: int = 100_000,
    most: int = 100,
    device: str = "auto",
) -> None:
    """Which predictions suffer when memory is cut short (fig:enwik8_loss).

    Of an agent these are its moves: how likely it would still make them. The mean is over all
    episodes, what is listed and drawn is of one.

    Args:
        run: folder that `train` or `release` wrote.
        source: what is read.
        limit: steps beyond which nothing is seen.
        out: folder for plots and CSV.
        length: characters to read.
        most: words to list.
        device: auto, cpu, cuda ...
    """
    require_at_least(1, most=most)
    looked = look(run, source, length, device)
    _require_losses(looked.recording)
    subject, found = looked.subject, cut_span(looked, limit)
    worst = suffering(found, most)
    figure = plots.plot_cut(found, worst, looked.called(), subject.loss_unit)
    written = plots.save_plot(figure, out / "cut")
    rows = ((w.place, w.word, w.before, w.whole, w.cut, w.lost, w.last_seen) for w in worst)
    heads = ("place", "word", "before", "bits_whole", "bits_cut", "bits_lost", "last_seen")
    written.append(write_csv(out / "cut.csv", heads, rows))
    whole, short = (mean / np.log(2) for mean in mean_losses(looked, found))
    print(f"Mean loss {whole:.4f} {subject.loss_unit}, cut at {limit} steps {short:.4f}.")
    if looked.played is not None:
        print(f"Shown are moves of {looked.called()}.")
    if not worst:
        print(found.nothing_suffers())
    _say(written)


def stream(
    run: Run,
    source: Read = VALIDATED,
    blocks: int | None = None,
    out: Path = Path("analysis"),
    device: str = "auto",
) -> None:
    """Loss along a stream with live memory under it, and its worst blocks (fig:enwik8_ovefit).

    The recording is kept beside the plot, in as many files as it has arrays.

    Args:
        run: folder that `train` or `release` wrote.
        source: what is read.
        blocks: most blocks to read; made-up data need it.
        out: folder for plots, CSV and recording.
        device: auto, cpu, cuda ...
    """
    folder = out / "stream-recording"
    subject, recording = record_source(run, source, blocks, folder, device)
    _require_losses(recording)
    found = along(recording)
    written = plots.save_plot(
        plots.plot_along(found, subject.name, subject.loss_unit), out / "stream"
    )
    numbers = range(recording.about.layers)
    heads = [f"{kind}_layer_{n + 1}" for kind in ("live", "held") for n in numbers]
    columns = zip(found.ends, found.bits, *found.live, *found.held, strict=True)
    written.append(write_csv(out / "stream.csv", ["steps", "bits", *heads], columns))
    worst = spikes(recording, subject.codec)
    written.append(write_records(out / "spikes.csv", worst))
    mean = np.nanmean(recording.loss[0].astype(np.float64)) / np.log(2)
    print(f"{mean:.4f} {subject.loss_unit} over {recording.steps} steps.")
    _say([*written, folder])


def memory(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    metric: str | None = None,
    out: Path = Path("analysis"),
) -> None:
    """Performance against memory size (fig:corridor_result, fig:enwik8_span, fig:wiki103_memsize).

    Args:
        runs: folders of runs, of text or of agents, or folders with runs somewhere in them.
        metric: such as bpb, accuracy or success; the runs' own if left out.
        out: folder for plots and CSV.
    """
    found, left_out = read_sizes(runs, metric)
    written = plots.save_plot(plots.plot_sizes(found), out / "memory")
    written.append(write_records(out / "memory.csv", found))
    width = max(len(one.run) for one in found)
    for one in sorted(found, key=lambda one: one.live):
        performance = f"{one.metric} {one.performance:.4g}"
        print(f"{one.run:{width}}  {one.policy:14}  live {one.live:8.1f}  {performance}")
    if left_out:
        print("Left out: " + ", ".join(f"{run} ({why})" for run, why in left_out.items()))
    _say(written)


def record(
    run: Run,
    source: Read = TESTED,
    blocks: int | None = None,
    out: Path = Path("analysis/recording"),
    device: str = "auto",
) -> None:
    """Keep what a model did with every token, as .npy files that `Recording.open` maps.

    Of an agent these are its episodes; `moments.csv` says what its tokens mean.

    Args:
        run: folder that `train` or `release` wrote.
        source: what is read.
        blocks: most blocks to read; made-up data need it.
        out: folder for the recording.
        device: auto, cpu, cuda ...
    """
    _, recording = record_source(run, source, blocks, out, device)
    rows, steps = recording.tokens.shape
    about = {"rows": rows, "steps": steps, "layers": recording.about.layers, "folder": str(out)}
    print(json.dumps(about))


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
    source: Read = TESTED,
    out: Path = Path("report.html"),
    replace: Replacements = (),
    length: int = 100_000,
    device: str = "auto",
) -> None:
    """Write one HTML file that shows what a model remembers of a text, and for how long.

    Of an agent it is an episode, step by step what was in view and the move that was made.

    Args:
        run: folder that `train` or `release` wrote.
        source: what is read.
        out: the file to write.
        replace: another version of the text, old=new; may be given several times.
        length: characters to read, at most 200,000.
        device: auto, cpu, cuda ...
    """
    if length > LONGEST_REPORT:
        raise ValueError(
            f"length must be at most {LONGEST_REPORT}, for a longer report is slow to open, but is "
            f"{length}: give the part of the text to look at with --text."
        )
    if out.suffix != ".html":
        raise ValueError(f"A report is a page: give a path that ends in .html, not {out}.")
    if source.text is not None and source.text.resolve() == out.resolve():
        raise ValueError(f"{out} is the text itself: choose another file with --out.")
    found = look(run, source, length, device, rewritten=bool(replace))
    report = Report(found.subject, found.recording, _versions(found, replace))
    _say([write_report(report, out)])


def release(run: Run, out: Path) -> None:
    """Keep a run's model for others to look at: settings, weights as safetensors, vocabulary.

    Args:
        run: folder that `train` wrote.
        out: folder to write.
    """
    keep_release(run, out)
    _say([out])


def _versions(found: Look, replace: Sequence[str]) -> list[Counterfactual]:
    """The text with each of the replacements, and a sentence about every one."""
    text = "".join(found.pieces)
    versions = [
        counterfactual(found.subject, text, Replacement.parse(one), found.recording)
        for one in replace
    ]
    for version in versions:
        print(_verdict(version))
    return versions


def _chosen(recording: Recording, layer: int | None) -> list[int]:
    """Layers to show, from 0."""
    count = recording.about.layers
    if layer is None:
        return list(range(count))
    if not 1 <= layer <= count:
        raise ValueError(f"Layers are numbered 1 to {count}, but {layer} was asked for.")
    return [layer - 1]


def _tokens_within(characters: int, pieces: Sequence[str]) -> int:
    """How many tokens are drawn: as many as have so few characters, but always the first."""
    ends = np.cumsum([len(piece) for piece in pieces])
    return max(int(ends.searchsorted(characters, side="right")), 1)


def _of_how_many(count: int, pieces: Sequence[str], unit: str) -> str:
    """What there is to say if not all is drawn."""
    return "" if count == len(pieces) else f", the first {count:,} of {len(pieces):,} {unit}s"


def _layers_named(layer: int | None) -> str:
    return "mean of layers" if layer is None else f"layer {layer}"


def _write_tokens(path: Path, recording: Recording, pieces: list[str]) -> Path:
    """One token a line, with all that was recorded of it."""
    numbers = range(recording.about.layers)
    heads = [f"{kind}_{n + 1}" for n in numbers for kind in ("span", "deadline", "deleted")]
    deadlines, bits = recording.deadlines(), recording.loss_by_token()[0] / np.log(2)

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


def _require_losses(recording: Recording) -> None:
    if np.isnan(recording.loss).all():
        raise ValueError(
            "Nothing of this is scored: a text does not say what a model should have answered. "
            "Leave out --text to read its own data, or read more of them."
        )


def _say(written: list[Path]) -> None:
    print("Written: " + ", ".join(map(str, written)))
