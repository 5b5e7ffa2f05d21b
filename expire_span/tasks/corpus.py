"""Streams of a text that is there: rows that start evenly spaced over the tokens of one split.

A split of N tokens gives N - 1 pairs of an input and the token that follows it.

Example: a split of 10 tokens in 3 rows; the rows begin at tokens 0, 3 and 6 and have 3 pairs each.
Train rows go on from there through the whole split, for ever; valid and test rows end where the
next row begins. In 4 rows, beginning at 0, 2, 5 and 7, the second has 3 pairs and the others 2 and
one step that is not scored.

Shapes: B rows, T steps, N tokens of the split.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from expire_span.tasks.batch import Batch
from expire_span.tasks.stream import Split, Stream

SAMPLES, SAMPLE_SIZE = 16, 4096
COMPRESSED = re.compile(
    rb"(?P<zip>PK\x03\x04)|(?P<gzip>\x1f\x8b)|(?P<xz>\xfd7zXZ\x00)"
    rb"|(?P<bzip2>BZh[1-9]1AY&SY)|(?P<zstd>\x28\xb5\x2f\xfd)"
)
"""What compressed files begin with."""


@dataclass(frozen=True)
class Corpus:
    """One split of a text.

    Args:
        tokens: [N], mapped from a file, not read whole.
        name: what it is, to name it when something is wrong.
        contents: fingerprint of the text, by which positions in another one are refused.
        codes: the token each entry of `tokens` stands for; None if they are the tokens themselves.
        begins: places at which something new begins (a book), in order; None if nothing does.
    """

    tokens: NDArray[np.integer]
    name: str
    contents: str
    codes: NDArray[np.integer] | None = None
    begins: NDArray[np.integer] | None = None

    def at(self, places: NDArray[np.int64]) -> torch.Tensor:
        """The tokens at these places, int64."""
        found = self.tokens[places]
        if self.codes is not None:
            found = self.codes[found]
        return torch.from_numpy(found.astype(np.int64))

    def begin_at(self, places: NDArray[np.int64]) -> torch.Tensor | None:
        """Whether something new begins at these places."""
        if self.begins is None:
            return None
        if len(self.begins) == 0:
            return torch.zeros(places.shape, dtype=torch.bool)
        following = self.begins.searchsorted(places).clip(max=len(self.begins) - 1)
        return torch.from_numpy(self.begins[following] == places)


class CorpusStream(Stream):
    """Nothing is left to chance: the seed only tells streams apart.

    Args:
        corpus: the split.
        source, split, batch, seed: as for every stream. What the tokens are is added to `source`.
    """

    def __init__(
        self, corpus: Corpus, source: dict[str, Any], split: Split, batch: int, seed: int
    ) -> None:
        size = len(corpus.tokens)
        super().__init__({**source, "contents": corpus.contents}, split, batch, seed)
        if size < batch + 1:
            raise ValueError(
                f"The {split} split of {corpus.name} has {size} tokens but {batch} rows need at "
                f"least {batch + 1}: use a larger file, a larger share or fewer rows."
            )
        self.contents = corpus.contents
        self._corpus = corpus
        self._pairs = size - 1
        self._first = np.arange(batch) * size // batch
        self._last = np.append(self._first[1:], self._pairs)
        if split != "train":
            self.length = int((self._last - self._first).max())

    def _next(self, steps: int) -> Batch:
        first, last = (edge[self.rows, None] for edge in (self._first, self._last))
        place = first + np.arange(self._steps_read, self._steps_read + steps)
        endless = self.length is None
        scored = np.ones_like(place, dtype=bool) if endless else place < last
        # The last token of the split has no successor, so the last pair is followed by the first.
        place %= self._pairs
        return Batch(
            inputs=self._corpus.at(place),
            targets=self._corpus.at(place + 1),
            scored=torch.from_numpy(scored),
            starts=self._corpus.begin_at(place),
        )

    def _position(self) -> None:
        """The number of steps read says it all."""

    def _seek(self, position: None) -> None:
        """The number of steps read says it all."""

    def _refusal(self, name: str, saved: Any, ours: Any) -> str:
        if name != "contents":
            return super()._refusal(name, saved, ours)
        return (
            f"{self._corpus.name} has changed since this position was saved: bring back the text "
            f"as it was, or start anew."
        )


def split_edges(size: int, train_share: float, valid_share: float) -> tuple[int, int, int, int]:
    """Where train, valid and test begin, and where test ends."""
    return 0, round(size * train_share), round(size * (train_share + valid_share)), size


def map_file(path: str | Path, dtype: type[np.integer] = np.uint8) -> NDArray[np.integer]:
    """The numbers in a file, mapped into memory and not yet read."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise IsADirectoryError(f"{path} is a directory: give the path of one file in it.")
    if not file.exists():
        raise FileNotFoundError(f"There is no file {path}: check the path (--task.path).")
    if file.stat().st_size == 0:
        raise ValueError(f"The file {path} is empty: give one with some text in it.")
    return np.memmap(file, dtype=dtype, mode="r").view(np.ndarray)


def map_text(path: str | Path) -> NDArray[np.integer]:
    """The bytes of a text, mapped; refused if they are compressed, and so next to chance."""
    data = map_file(path)
    found = COMPRESSED.match(data[:10].tobytes())
    if found:
        raise ValueError(
            f"{path} is compressed ({found.lastgroup}): unpack it, and give what was in it."
        )
    return data


def fingerprint(tokens: NDArray[np.integer]) -> str:
    """Size and a checksum of a few samples, spread evenly; of everything if the text is small."""
    firsts = np.linspace(0, max(0, len(tokens) - SAMPLE_SIZE), SAMPLES).astype(int)
    checksum = blake2b(digest_size=8)
    for first in firsts:
        checksum.update(tokens[first : first + SAMPLE_SIZE].tobytes())
    return f"{len(tokens)} tokens, {checksum.hexdigest()}"
