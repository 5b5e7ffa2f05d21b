"""Adaptive input and adaptive softmax: rare words get narrower vectors and are seldom computed.

Words are numbered by frequency and cut into bands: the shortlist S, the next 2 S, all others. Band
i has vectors of width D / 4^i and a matrix between that width and D. The input of a word is its
vector brought to width D (Baevski and Auli, 2018); its logit is the product of the same vector with
the state brought to the band's width (Grave et al., 2017). One set of weights serves both ends.

The first softmax is over the shortlist and one gate for each other band; a word of such a band has
the probability of its gate times that of a softmax within the band.

Example: 20 words, shortlist 4: bands of 4, 8 and 8 words. The first softmax has 4 + 2 entries; word
13 has the probability of gate 2 times that of place 1 in the last band.

Shapes: B rows, T steps, D model width, V vocabulary, n words and w width of a band
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expire_span.model.ops.precision import at_least_float32
from expire_span.model.ports import SequenceHead, token_ids

NARROWER = 4  # each band than the one before


def band_edges(vocab: int, shortlist: int) -> list[int]:
    """Where the bands begin, and where the last one ends."""
    return [0, *(edge for edge in (shortlist, 3 * shortlist) if edge < vocab), vocab]


class AdaptiveInput(nn.Module):
    """A vector for each word, narrow for rare ones; it owns what `AdaptiveHead` shares."""

    def __init__(self, vocab: int, width: int, shortlist: int):
        super().__init__()
        self.width = width
        self.edges = band_edges(vocab, shortlist)
        sizes = [end - begin for begin, end in zip(self.edges, self.edges[1:], strict=False)]
        widths = [max(width // NARROWER**band, 1) for band in range(len(sizes))]
        # Scaled so that inputs and logits have unit variance at first.
        self.vectors = nn.ParameterList(
            torch.randn(size, narrow) * narrow**-0.5
            for size, narrow in zip(sizes, widths, strict=True)
        )  # [n, w] each
        self.widen = nn.ParameterList(
            torch.randn(narrow, width) * width**-0.5 for narrow in widths[1:]
        )  # [w, D] each

    def forward(self, tokens: Tensor) -> Tensor:
        """Ids [B, T] -> [B, T, D]"""
        flat = token_ids(tokens, self.edges[-1]).flatten()
        states = self.vectors[0][flat.clamp(max=self.edges[1] - 1)]
        for band in range(1, len(self.vectors)):
            inside = self.rows_in(flat, band)
            found = self.vectors[band][flat[inside] - self.edges[band]] @ self.widen[band - 1]
            states = states.index_copy(0, inside, found.to(states.dtype))
        return states.view(*tokens.shape, self.width) * self.width**0.5

    def rows_in(self, tokens: Tensor, band: int) -> Tensor:
        """Where the tokens [N] belong to a band, as indices."""
        inside = (tokens >= self.edges[band]) & (tokens < self.edges[band + 1])
        return inside.nonzero().squeeze(1)


class AdaptiveHead(SequenceHead):
    """Log-probabilities of words, tied to the vectors that they come in by."""

    def __init__(self, shared: AdaptiveInput):
        super().__init__()
        # In a list it is not registered a second time, so that a checkpoint holds it once.
        self._shared = [shared]
        self.gates = nn.Parameter(torch.randn(len(shared.vectors) - 1, shared.width))
        nn.init.normal_(self.gates, std=shared.width**-0.5)

    @property
    def shared(self) -> AdaptiveInput:
        """The incoming end, which owns the vectors."""
        return self._shared[0]

    def forward(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of all words, [..., D] -> [..., V]; costs what a dense layer would."""
        first = self._first(hidden)
        shortlist = self.shared.edges[1]
        parts = [first[..., :shortlist]]
        for band in range(1, len(self.shared.vectors)):
            gate = first[..., shortlist + band - 1, None]
            parts.append(gate + self._within(hidden, band))
        return torch.cat(parts, dim=-1)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[B, T]; a band's softmax is computed only where the target is in it."""
        states, words = hidden.flatten(0, -2), targets.flatten()
        shortlist = self.shared.edges[1]
        entry = words
        bands = range(1, len(self.shared.vectors))
        inside = {band: self.shared.rows_in(words, band) for band in bands}
        for band, rows in inside.items():
            entry = entry.index_fill(0, rows, shortlist + band - 1)
        nll = -self._first(states).gather(1, entry[:, None]).squeeze(1)
        for band, rows in inside.items():
            place = words[rows] - self.shared.edges[band]
            further = self._within(states[rows], band).gather(1, place[:, None]).squeeze(1)
            nll = nll - torch.zeros_like(nll).index_copy(0, rows, further)
        return nll.view(targets.shape)

    def predict(self, hidden: Tensor) -> Tensor:
        """[B, T]"""
        return self(hidden).argmax(dim=-1)

    def _first(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the shortlist and of the gates, [..., S + bands - 1]."""
        weights = torch.cat([self.shared.vectors[0], self.gates])
        return _log_softmax(F.linear(hidden, weights))

    def _within(self, hidden: Tensor, band: int) -> Tensor:
        """Log-probabilities within a band, [..., n]."""
        narrow = F.linear(hidden, self.shared.widen[band - 1])
        return _log_softmax(F.linear(narrow, self.shared.vectors[band]))


def _log_softmax(logits: Tensor) -> Tensor:
    """In at least float32."""
    return logits.to(at_least_float32(logits)).log_softmax(dim=-1)
