"""Text: predict the next byte of any file.

The file is cut into consecutive splits: train first, then valid, the rest is test. A split of N
bytes gives N - 1 pairs of an input and the byte that follows it (`corpus.py`). The file is mapped,
never read whole. Whoever knows nothing pays 8 bits for a byte.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from expire_span.checks import require_shares
from expire_span.tasks.base import BitsPerByte, Task
from expire_span.tasks.corpus import Corpus, CorpusStream, fingerprint, map_text, split_edges
from expire_span.tasks.stream import Split, split_number


@dataclass(frozen=True)
class Text(Task):
    """The settings."""

    one_file = True

    path: str
    """Any file; its bytes are the tokens."""
    train_share: float = 0.9
    """Share of the file to learn from, at its beginning."""
    valid_share: float = 0.05
    """Share of the file to choose by, after that; the rest is for the final test."""

    def __post_init__(self) -> None:
        require_shares(self.train_share, self.valid_share)

    @property
    def vocab(self) -> int:
        """Number of different tokens: every byte is one."""
        return 256

    def stream(self, split: Split, batch: int, seed: int) -> CorpusStream:
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The file is opened here, so that a task can be described where the file is not.
        """
        data = map_text(self.path)
        source = self._source()
        del source["path"]  # A file may move, but not change.
        corpus = Corpus(self._part(data, split), self.path, fingerprint(data))
        return CorpusStream(corpus, source, split, batch, seed)

    def files(self) -> tuple[Path, ...]:
        """The one file."""
        return (Path(self.path).expanduser(),)

    def score(self) -> BitsPerByte:
        """Bits per byte."""
        return BitsPerByte()

    def _part(self, data: NDArray[np.integer], split: Split) -> NDArray[np.integer]:
        """The bytes of one split, [N]."""
        edges = split_edges(len(data), self.train_share, self.valid_share)
        number = split_number(split)
        return data[edges[number] : edges[number + 1]]
