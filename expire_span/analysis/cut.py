"""Which predictions suffer when memory is cut short (fig:enwik8_loss).

A text is read as it is and with everything hidden that is further away than a limit. What suffers
is listed by words, because a name that is forgotten costs most in its first letters.

Shapes: T tokens.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expire_span.analysis.codec import Places
from expire_span.analysis.recording import Recording, record_tokens
from expire_span.analysis.subject import Subject

WORD = re.compile(r"\w+|[^\w\s]+|\s+")
AROUND = 40  # characters shown before a word


@dataclass(frozen=True)
class Cut:
    """One text, read with all memory and with less."""

    pieces: Sequence[str]
    limit: int
    whole: Recording
    cut: Recording

    def losses(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Loss of predicting each token in nats, whole and cut, [T]; NaN for the first."""
        return self.whole.loss_by_token()[0], self.cut.loss_by_token()[0]

    def means(self) -> tuple[float, float]:
        """Mean loss in nats, whole and cut."""
        whole, cut = self.losses()
        return float(np.nanmean(whole)), float(np.nanmean(cut))


@dataclass(frozen=True)
class Suffering:
    """A word whose prediction got worse."""

    place: int
    """Number of its first token."""
    word: str
    before: str
    """What stands before it."""
    whole: float
    """Loss in bits, of all its tokens together, with all memory."""
    cut: float
    """The same with memory cut short."""
    last_seen: int | None
    """How many tokens earlier the word stood last; None if nowhere."""

    @property
    def lost(self) -> float:
        """Bits that the cut costs."""
        return self.cut - self.whole


def cut_span(subject: Subject, text: str, limit: int, progress: bool = False) -> Cut:
    """Read a text twice, the second time with all memory hidden beyond `limit` steps."""
    tokens = subject.codec.encode(text)
    whole, cut = (
        record_tokens(subject.model, tokens, name=subject.name, limit=distance, progress=progress)
        for distance in (None, limit)
    )
    return Cut(subject.codec.pieces(tokens.tolist()), limit, whole, cut)


def suffering(cut: Cut, most: int = 30) -> list[Suffering]:
    """The words that the cut costs most, worst first."""
    whole, short = cut.losses()
    text = "".join(cut.pieces)
    found = [
        Suffering(
            place=int(places[0]),
            word=word,
            before=text[max(begin - AROUND, 0) : begin],
            whole=_bits(whole[places]),
            cut=_bits(short[places]),
            last_seen=last_seen,
        )
        for word, begin, places, last_seen in _words(cut.pieces)
        if word.strip()
    ]
    return sorted(found, key=lambda one: -one.lost)[:most]


def _words(
    pieces: Sequence[str],
) -> Iterator[tuple[str, int, NDArray[np.integer], int | None]]:
    """Each word, where it begins in the text, its tokens, and how far back it stood last."""
    places = Places(pieces)
    last: dict[str, int] = {}
    for match in WORD.finditer("".join(pieces)):
        tokens = places.tokens(*match.span())
        before = last.get(match[0])
        distance = None if before is None else tokens.start - before
        yield match[0], match.start(), np.array(tokens), distance
        last[match[0]] = tokens.start


def _bits(losses: NDArray[np.float32]) -> float:
    return float(np.nansum(losses.astype(np.float64)) / np.log(2))
