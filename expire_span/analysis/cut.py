"""Which predictions suffer when memory is cut short (fig:enwik8_loss).

A text is read as it is and with everything hidden that is further away than a limit. What suffers
is listed by words, because a name that is forgotten costs most in its first letters; answers and an
agent's moves are listed one by one.

Shapes: T tokens.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from expire_span.analysis.codec import Places
from expire_span.analysis.look import Look
from expire_span.analysis.recording import Recording

WORD = re.compile(r"\w+|[^\w\s]+|\s+")
AROUND = 40  # characters shown before a word
LEAST = 0.01  # bits; what loses less does not suffer


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

    def longest(self) -> int:
        """Steps after which nothing is left of any memory: the longest span, and then the ramp."""
        return math.ceil(float(self.whole.spans.max(initial=0)) + self.whole.about.ramp)

    def nothing_suffers(self) -> str:
        """What there is to say if the cut costs nothing."""
        return (
            f"Nothing suffers: no loss grows by {LEAST:g} bits by a cut at {self.limit} steps; "
            f"no memory here lasts longer than {self.longest()}."
        )


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


def cut_span(found: Look, limit: int) -> Cut:
    """Read the same once more, with all memory hidden beyond `limit` steps."""
    return Cut(found.pieces, limit, found.recording, found.record(limit=limit))


def mean_losses(found: Look, cut: Cut) -> tuple[float, float]:
    """Mean loss in nats, whole and cut, of all that was read or played, not of what is shown."""
    if found.played is None:
        return cut.means()
    whole, short = (
        float(np.nanmean(found.played.record(limit=limit).loss)) for limit in (None, cut.limit)
    )
    return whole, short


def suffering(cut: Cut, most: int = 30, least: float = LEAST) -> list[Suffering]:
    """The words that suffer from the cut, by so many bits at least, worst first."""
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
        for word, begin, places, last_seen in _words(cut)
        if word.strip() and not np.isnan(whole[places]).all()
    ]
    return sorted((one for one in found if one.lost >= least), key=lambda one: -one.lost)[:most]


def _words(cut: Cut) -> Iterator[tuple[str, int, NDArray[np.integer], int | None]]:
    """Each word, where it begins in the text, its tokens, and how far back it stood last."""
    text, places = "".join(cut.pieces), Places(cut.pieces)
    last: dict[str, int] = {}
    for first, end in _stretches(cut):
        tokens, word = places.tokens(first, end), text[first:end]
        before = last.get(word)
        distance = None if before is None else tokens.start - before
        yield word, first, np.array(tokens), distance
        last[word] = tokens.start


def _stretches(cut: Cut) -> Iterator[tuple[int, int]]:
    """First and last character of every word, or of every token if each is answered by itself."""
    if cut.whole.about.ahead == 1:
        yield from (match.span() for match in WORD.finditer("".join(cut.pieces)))
        return
    ends = np.cumsum([len(piece) for piece in cut.pieces]).tolist()
    yield from pairwise([0, *ends])


def _bits(losses: NDArray[np.float32]) -> float:
    return float(np.nansum(losses.astype(np.float64)) / np.log(2))
