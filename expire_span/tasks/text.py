"""Text: predict the next byte of any file.

The file is cut into consecutive splits: train first, then valid, the rest is test. A split of N
bytes gives N - 1 pairs of an input and the byte that follows it. The file is mapped, never read
whole.

Example: a split of 10 bytes in 3 rows; the rows begin at bytes 0, 3 and 6 and have 3 pairs each.
Train rows go on from there through the whole split, for ever; valid and test rows end where the
next row begins. In 4 rows, beginning at 0, 2, 5 and 7, the second has 3 pairs and the others 2 and
one step that is not scored.

Shapes: B rows, T steps, N bytes of the split.
"""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from expire_span.tasks.base import BitsPerByte, Task
from expire_span.tasks.batch import Batch
from expire_span.tasks.stream import Split, Stream, split_number

SAMPLES, SAMPLE_BYTES = 16, 4096


@dataclass(frozen=True)
class Text(Task):
    """The settings."""

    path: str
    """Any file; its bytes are the tokens."""
    train_share: float = 0.9
    """Share of the file to learn from, at its beginning."""
    valid_share: float = 0.05
    """Share of the file to choose by, after that; the rest is for the final test."""

    def __post_init__(self) -> None:
        if self.train_share <= 0 or self.valid_share < 0:
            raise ValueError(
                f"train_share must be above 0 and valid_share at least 0, "
                f"not {self.train_share} and {self.valid_share}."
            )
        if self.train_share + self.valid_share > 1:
            raise ValueError(
                f"train_share and valid_share must not exceed 1 together, "
                f"as {self.train_share} and {self.valid_share} do."
            )

    @property
    def vocab(self) -> int:
        """Number of different tokens: every byte is one."""
        return 256

    def stream(self, split: Split, batch: int, seed: int) -> "TextStream":
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The file is opened here, so that a task can be described where the file is not.
        """
        data = map_file(self.path)
        source = {**self._source(), "contents": fingerprint(data)}
        del source["path"]  # A file may move, but not change.
        return TextStream(self._part(data, split), source, split, batch, seed, self.path)

    def files(self) -> tuple[Path, ...]:
        """The one file."""
        return (Path(self.path).expanduser(),)

    def score(self) -> BitsPerByte:
        """Bits per byte."""
        return BitsPerByte()

    def _part(self, data: NDArray[np.uint8], split: Split) -> NDArray[np.uint8]:
        """The bytes of one split, [N]."""
        train_end = round(len(data) * self.train_share)
        valid_end = round(len(data) * (self.train_share + self.valid_share))
        edges = (0, train_end, valid_end, len(data))
        number = split_number(split)
        return data[edges[number] : edges[number + 1]]


class TextStream(Stream):
    """Rows that start evenly spaced over one split.

    Args:
        data: the bytes of the split, [N].
        source, split, batch, seed: as for every stream.
        path: where the bytes come from, to name it when something is wrong.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        source: dict[str, Any],
        split: Split,
        batch: int,
        seed: int,
        path: str,
    ) -> None:
        super().__init__(source, split, batch, seed)
        if len(data) < batch + 1:
            raise ValueError(
                f"The {split} split of {path} has {len(data)} bytes but {batch} rows need at least "
                f"{batch + 1}: use a larger file, a larger share or fewer rows."
            )
        self._data = data
        self._path = path
        self._pairs = len(data) - 1
        self._first = np.arange(batch) * len(data) // batch
        self._last = np.append(self._first[1:], self._pairs)
        if split != "train":
            self.length = int((self._last - self._first).max())

    def _next(self, steps: int) -> Batch:
        first, last = (edge[self.rows, None] for edge in (self._first, self._last))
        position = first + np.arange(self._steps_read, self._steps_read + steps)
        endless = self.length is None
        scored = np.ones_like(position, dtype=bool) if endless else position < last
        # The last byte of the split has no successor, so the last pair is followed by the first.
        position %= self._pairs
        return Batch(
            inputs=torch.from_numpy(self._data[position].astype(np.int64)),
            targets=torch.from_numpy(self._data[position + 1].astype(np.int64)),
            scored=torch.from_numpy(scored),
        )

    def _position(self) -> None:
        """The number of steps read says it all."""

    def _seek(self, position: None) -> None:
        """The number of steps read says it all."""

    def _refusal(self, name: str, saved: Any, ours: Any) -> str:
        if name != "contents":
            return super()._refusal(name, saved, ours)
        return (
            f"The file {self._path} has changed since this position was saved: bring back the file "
            f"as it was, or start anew."
        )


def map_file(path: str) -> NDArray[np.uint8]:
    """The bytes of a file, mapped into memory and not yet read."""
    file = Path(path).expanduser()
    if file.is_dir():
        raise IsADirectoryError(f"{path} is a directory: give the path of one file in it.")
    if not file.exists():
        raise FileNotFoundError(f"There is no file {path}: check the path or fetch the data first.")
    if file.stat().st_size == 0:
        raise ValueError(f"The file {path} is empty: give one with some text in it.")
    return np.memmap(file, dtype=np.uint8, mode="r").view(np.ndarray)


def fingerprint(data: NDArray[np.uint8]) -> str:
    """Size and a checksum of a few samples, spread evenly; of everything if the file is small."""
    firsts = np.linspace(0, max(0, len(data) - SAMPLE_BYTES), SAMPLES).astype(int)
    checksum = blake2b(digest_size=8)
    for first in firsts:
        checksum.update(data[first : first + SAMPLE_BYTES].tobytes())
    return f"{len(data)} bytes, {checksum.hexdigest()}"
