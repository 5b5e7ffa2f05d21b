"""What kinds of tokens each layer keeps longest (fig:vis_enwiki8_additional_layerwise).

Kinds overlap: the first letter of a name is a capital and part of a word. Layers count from 1.

Shapes: B rows, T tokens, layers.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expire_span.analysis.recording import Recording

MARKUP = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|'{2,}|={2,}|</?[A-Za-z][^<>\n]*>|&[a-z]+;|[|]|^[*#:;]+", re.M
)
HEADING = re.compile(r"^(={2,})[^=\n]+\1\s*$", re.M)
WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class ClassSpan:
    """Spans that one layer gives to one kind of token."""

    layer: int
    kind: str
    count: int
    mean: float
    longest: float


@dataclass(frozen=True)
class TokenSpan:
    """Mean span that one layer gives to one token, by its text."""

    layer: int
    piece: str
    count: int
    mean: float


def token_classes(pieces: Sequence[str]) -> dict[str, NDArray[np.bool_]]:
    """For every kind which tokens are of it, [T]; kinds that do not occur are left out.

    A rare word is one that the text has only once. Single letters are no words.
    """
    text = "".join(pieces)
    words = [match for match in WORD.finditer(text) if len(match[0]) > 1]
    often = Counter(match[0].lower() for match in words)
    rare = [match.span() for match in words if often[match[0].lower()] == 1]
    known = [match.span() for match in words if often[match[0].lower()] > 1]
    kinds = {
        "space": _matching(text, r"[^\S\n]"),
        "newline": _matching(text, r"\n"),
        "markup": _inside(text, [match.span() for match in MARKUP.finditer(text)]),
        "section title": _inside(text, [match.span() for match in HEADING.finditer(text)]),
        "capital": np.array([character.isupper() for character in text], dtype=bool),
        "digit": np.array([character.isdigit() for character in text], dtype=bool),
        "punctuation": _matching(text, r"[^\w\s]"),
        "rare word": _inside(text, rare),
        "repeated word": _inside(text, known),
    }
    owner = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    by_token = {kind: _any_by_token(marked, owner, len(pieces)) for kind, marked in kinds.items()}
    return {kind: marked for kind, marked in by_token.items() if marked.any()}


def spans_by_class(recording: Recording, kinds: Mapping[str, NDArray[np.bool_]]) -> list[ClassSpan]:
    """Every layer's kinds of tokens, the longest kept first; `kinds` marks them, [B, T]."""
    every = {"any": np.ones_like(recording.starts), **kinds}
    found = [
        ClassSpan(layer + 1, kind, int(marked.sum()), float(spans.mean()), float(spans.max()))
        for layer in range(recording.about.layers)
        for kind, marked in every.items()
        for spans in [recording.spans[layer][marked].astype(np.float64)]
    ]
    return sorted(found, key=lambda one: (one.layer, -one.mean))


def spans_by_token(
    recording: Recording, names: NDArray[np.str_], *, at_least: int = 3, most: int = 10
) -> list[TokenSpan]:
    """The `most` tokens, by name [B, T], that each layer keeps longest, of the frequent ones."""
    kinds, kind = np.unique(names.ravel(), return_inverse=True)
    counts = np.bincount(kind)
    found = []
    for layer in range(recording.about.layers):
        means = np.bincount(kind, weights=recording.spans[layer].ravel()) / counts
        order = [n for n in np.argsort(-means, kind="stable") if counts[n] >= at_least and kinds[n]]
        found += [
            TokenSpan(layer + 1, str(kinds[n]), int(counts[n]), float(means[n]))
            for n in order[:most]
        ]
    return found


def _matching(text: str, pattern: str) -> NDArray[np.bool_]:
    return _inside(text, [match.span() for match in re.finditer(pattern, text)])


def _inside(text: str, stretches: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Characters inside any of the stretches."""
    marked = np.zeros(len(text), dtype=bool)
    for first, last in stretches:
        marked[first:last] = True
    return marked


def _any_by_token(
    marked: NDArray[np.bool_], owner: NDArray[np.integer], count: int
) -> NDArray[np.bool_]:
    """Tokens with any marked character."""
    return np.bincount(owner[marked], minlength=count) > 0
