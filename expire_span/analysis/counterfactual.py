"""What would be remembered if the text said something else (fig:vis_enwiki8).

A passage is replaced wherever it occurs, both texts are read from the start, and what is the same
in both is compared token by token.

Shapes: T tokens of the first text, S tokens of the second, P passages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expire_span.analysis.codec import Codec, Places
from expire_span.analysis.recording import Recording, record_tokens
from expire_span.analysis.subject import Subject


@dataclass(frozen=True)
class Replacement:
    """One passage for another, written `old=new`."""

    old: str
    new: str

    @classmethod
    def parse(cls, text: str) -> "Replacement":
        """From `old=new`; the first = counts."""
        old, equals, new = text.partition("=")
        if not equals or not old:
            raise ValueError(f"A replacement is written old=new, but {text!r} is not.")
        return cls(old, new)

    def __str__(self) -> str:
        return f"{self.old} → {self.new or '(nothing)'}"


@dataclass(frozen=True)
class Passage:
    """Where a passage stands in both texts, as tokens first to before last."""

    before: range
    after: range


@dataclass(frozen=True)
class Counterfactual:
    """Both texts as they were read, and where they differ."""

    replacement: Replacement
    before: Recording
    after: Recording
    passages: tuple[Passage, ...]

    def same(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens that stand in both texts: their places in the first and in the second."""
        begins = [Passage(range(0), range(0)), *self.passages]
        ends = [*self.passages, Passage(range(self.before.steps, 0), range(self.after.steps, 0))]
        one = [np.arange(a.before.stop, b.before.start) for a, b in zip(begins, ends, strict=True)]
        two = [np.arange(a.after.stop, b.after.start) for a, b in zip(begins, ends, strict=True)]
        return np.concatenate(one), np.concatenate(two)

    def change(self) -> NDArray[np.float32]:
        """How much longer each token that stands in both is kept in the second, [layers, ...]."""
        one, two = self.same()
        return self.after.spans[:, 0, two] - self.before.spans[:, 0, one]

    def passage_spans(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean span of the passages in the first text and in the second, [layers]."""
        one = [place for passage in self.passages for place in passage.before]
        two = [place for passage in self.passages for place in passage.after]
        return _means(self.before, one), _means(self.after, two)


def counterfactual(
    subject: Subject, text: str, replacement: Replacement, before: Recording | None = None
) -> Counterfactual:
    """Read a text and its other version.

    Args:
        subject: who reads.
        text: the first version.
        replacement: what makes the second out of it.
        before: the recording of the first, if there is one already.
    """
    codec = subject.codec
    text = "".join(codec.pieces(codec.encode(text).tolist()))  # as this model sees it
    found = [match.start() for match in re.finditer(re.escape(replacement.old), text)]
    if not found:
        raise ValueError(f"{replacement.old!r} is not in the text: nothing can be replaced.")
    changed = text.replace(replacement.old, replacement.new)
    if before is None:
        before = _record(subject, text)
    after = _record(subject, changed)
    if codec.of_words:
        passages = _passages_of_words(codec, text, found, replacement)
    else:
        places = [Places(codec.pieces(r.tokens[0].tolist())) for r in (before, after)]
        old, new = len(replacement.old), len(replacement.new)
        begins = [(begin, begin + n * (new - old)) for n, begin in enumerate(found)]
        passages = [
            _passage(places, [range(one, one + old), range(two, two + new)]) for one, two in begins
        ]
    made = Counterfactual(replacement, before, after, tuple(passages))
    one, two = made.same()
    if len(one) != len(two) or (before.tokens[0, one] != after.tokens[0, two]).any():
        raise ValueError(
            f"With {replacement.new!r}, the text around it falls into other tokens: replace whole "
            "words."
        )
    return made


def _record(subject: Subject, text: str) -> Recording:
    tokens = subject.codec.encode(text)
    return record_tokens(subject.model, tokens, name=subject.name, ahead=subject.ahead)


def _passages_of_words(
    codec: Codec, text: str, found: Sequence[int], replacement: Replacement
) -> list[Passage]:
    """The words that are replaced, and as many in their place as the new passage has.

    A word that the model does not know is shown by another, so that characters cannot be counted.
    """
    places = Places(codec.pieces(codec.encode(text).tolist()))
    passages, moved = list[Passage](), 0
    for begin in found:
        end = begin + len(replacement.old)
        words = places.tokens(begin, end)
        whole = places.characters(words)
        written = text[whole.start : begin] + replacement.new + text[end : whole.stop]
        first, count = words.start + moved, len(codec.encode(written))
        passages.append(Passage(words, range(first, first + count)))
        moved += count - len(words)
    return passages


def _passage(places: Sequence[Places], written: Sequence[range]) -> Passage:
    """The tokens of a passage in both texts, given its characters in both.

    If its first or last token in one text has characters around it as well, such as the space in
    front of a word, then these belong to the passage in the other text, too.
    """
    before = after = 0  # characters around it
    while True:
        tokens = [
            place.tokens(max(one.start - before, 0), one.stop + after)
            for place, one in zip(places, written, strict=True)
        ]
        covered = [place.characters(one) for place, one in zip(places, tokens, strict=True)]
        pairs = list(zip(written, covered, strict=True))
        wider = (
            max(before, *(one.start - whole.start for one, whole in pairs)),
            max(after, *(whole.stop - one.stop for one, whole in pairs)),
        )
        if wider == (before, after):
            return Passage(*tokens)
        before, after = wider


def _means(recording: Recording, places: list[int]) -> NDArray[np.float64]:
    if not places:
        return np.zeros(recording.about.layers)
    return recording.spans[:, 0, places].astype(np.float64).mean(axis=1)
