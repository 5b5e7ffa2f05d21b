"""What a command looks at: a text, a run's own data, or the episodes of an agent.

Shapes: B rows, T steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from expire_span.agent.run import is_agent
from expire_span.analysis.classes import token_classes
from expire_span.analysis.codec import NumberCodec
from expire_span.analysis.episodes import Played, play
from expire_span.analysis.recording import MOMENTS_FILE, Recording, record_task, record_tokens
from expire_span.analysis.subject import Reader, Subject, open_reader
from expire_span.checks import require_at_least
from expire_span.tasks import Split
from expire_span.training.release import check_spelling


@dataclass(frozen=True)
class Source:
    """What is read, or played."""

    text: Path | None = None
    """File to read; the run's own data if left out. An agent plays instead."""
    split: Split = "test"
    """Which part of the run's own data."""
    data: str | None = None
    """Where the run's own data lie, if not where they lay in training."""
    episodes: int = 16
    """Episodes that an agent plays; the longest of the best is shown."""
    seed: int = 0
    """Which episodes these are."""

    def __post_init__(self) -> None:
        require_at_least(1, episodes=self.episodes)


@dataclass(frozen=True)
class Survey:
    """All that a model was given, row by row, with what there is to count over."""

    recording: Recording
    kinds: dict[str, NDArray[np.bool_]]
    """Which tokens are of each kind, [B, T]."""
    names: NDArray[np.str_]
    """What each token is called, [B, T]."""


@dataclass(frozen=True)
class Look:
    """A model, and a recording of one row, to be shown."""

    subject: Subject
    record: Callable[..., Recording]
    """Makes the recording; `limit=` hides all that is further away."""
    recording: Recording
    played: Played | None = None
    """The episodes of which it is one."""

    @property
    def pieces(self) -> list[str]:
        """The text of every token."""
        return self.subject.codec.pieces(self.recording.tokens[0].tolist())

    def called(self) -> str:
        """What is shown: the model, and which episode."""
        if self.played is None:
            return self.subject.name
        rows, steps = len(self.played.tokens), self.recording.tokens.shape[1]
        return (
            f"{self.subject.name}, an episode of {steps} steps, the longest of the best of {rows}"
        )

    def survey(self) -> Survey:
        """What can be counted: the text, or all episodes."""
        if self.played is not None:
            return Survey(self.played.record(), self.played.kinds(), self.played.views())
        pieces = self.pieces
        kinds = _kinds(self.subject, self.recording, pieces)
        return Survey(self.recording, kinds, np.array([pieces], dtype=np.str_))


def look(
    run: Path, source: Source, length: int, device: str = "auto", *, rewritten: bool = False
) -> Look:
    """Open a model and record it.

    Args:
        run: folder that `train` or `release` wrote.
        source: what it is to read or play.
        length: characters of a text, or steps of the run's own data.
        device: where to compute.
        rewritten: whether the text is going to be changed, so that it must be read as a text.
    """
    require_at_least(1, length=length)
    if is_agent(run):
        played = _play(run, source, device)
        return Look(played.player, played.record_best, played.record_best(), played)
    reader = open_reader(run, device, source.data)
    if source.text is not None:
        return look_at_text(reader, read_text(source.text, length))
    blocks = -(-length // reader.model.config.block)
    record = partial(record_split, reader, source.split, blocks)
    found = Look(reader, record, record())
    return look_at_text(reader, "".join(found.pieces)) if rewritten else found


def look_at_text(subject: Subject, text: str) -> Look:
    """Record a model that reads a text."""
    record = partial(record_text, subject, text)
    return Look(subject, record, record())


def record_source(
    run: Path, source: Source, blocks: int | None, folder: Path, device: str = "auto"
) -> tuple[Subject, Recording]:
    """Record a source on the disk, at most so many blocks of it."""
    if is_agent(run):
        played = _play(run, source, device)
        recording = played.record(folder)
        played.player.codec.write(folder / MOMENTS_FILE)
        return played.player, recording
    reader = open_reader(run, device, source.data)
    if source.text is None:
        return reader, record_split(reader, source.split, blocks, folder)
    length = None if blocks is None else blocks * reader.model.config.block
    return reader, record_text(reader, read_text(source.text, length), folder)


def read_text(path: Path, length: int | None) -> str:
    """The first characters of a file; bytes that are no UTF-8 are replaced."""
    if not path.is_file():
        raise ValueError(f"There is no file {path}: check the path.")
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        text = file.read() if length is None else file.read(length)
    if not text:
        raise ValueError(f"The file {path} is empty: give one with some text in it.")
    return text


def record_text(
    subject: Subject, text: str, folder: Path | None = None, *, limit: int | None = None
) -> Recording:
    """Read a text."""
    return record_tokens(
        subject.model,
        subject.codec.encode(text),
        name=subject.name,
        limit=limit,
        ahead=subject.ahead,
        folder=folder,
        progress=True,
    )


def record_split(
    reader: Reader,
    split: Split,
    blocks: int | None,
    folder: Path | None = None,
    *,
    limit: int | None = None,
) -> Recording:
    """Read a model's own data."""
    experiment = reader.experiment
    try:
        check_spelling(reader.folder, experiment.task)
        return record_task(
            reader.model,
            experiment.task,
            split,
            name=reader.name,
            blocks=blocks,
            seed=experiment.seed,
            limit=limit,
            precision=experiment.precision,
            folder=folder,
            progress=True,
        )
    except FileNotFoundError as error:
        raise ValueError(
            f"{error} Say with --data where it lies, or give another text with --text."
        ) from error


def _kinds(
    subject: Subject, recording: Recording, pieces: Sequence[str]
) -> dict[str, NDArray[np.bool_]]:
    """Kinds of tokens in a text; numbers are of no kind, but some of them may ask for an answer."""
    if not isinstance(subject.codec, NumberCodec):
        return {kind: marked[None] for kind, marked in token_classes(pieces).items()}
    asking = ~np.isnan(recording.loss_by_token())
    return {"predicted or asking": asking} if asking.any() and not asking.all() else {}


def _play(run: Path, source: Source, device: str) -> Played:
    if source.text is not None or source.data is not None:
        raise ValueError("An agent sees a world and reads no text: leave out --text and --data.")
    return play(run, rows=source.episodes, seed=source.seed, device=device)
