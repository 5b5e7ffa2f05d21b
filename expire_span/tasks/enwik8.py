"""enwik8: the first 100 million bytes of the English Wikipedia, byte by byte (tab:enwik8).

The usual split: 90 million bytes to learn from, then 5 million for valid and 5 million for test.
The 205 byte values that occur are the tokens. Whoever knows nothing pays 7.68 bits for a byte.

The file is taken as it is, or unpacked once from `.zip` or `.xz`, and its checksum is verified.
"""

import lzma
import shutil
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from expire_span.tasks.base import BitsPerByte, Task
from expire_span.tasks.corpus import Corpus, CorpusStream, fingerprint, map_file
from expire_span.tasks.files import Source, made_once, md5_of
from expire_span.tasks.stream import Split, split_number

SOURCE = Source(
    "enwik8",
    ("enwik8",),
    "download http://mattmahoney.net/dc/enwik8.zip",
)
CHUNK = 2**20


@dataclass(frozen=True)
class Release:
    """What the file must be."""

    size: int = 100_000_000
    md5: str = "a1fa5ffddb56f4953e226637dabbb36a"
    held_out: int = 5_000_000  # bytes of valid, and as many of test
    byte_values: int = 205


RELEASE = Release()


@dataclass(frozen=True)
class Enwik8(Task):
    """The settings."""

    path: str = ""
    """The file, packed or not, or a folder with it; if empty, the folder in EXPIRE_SPAN_DATA."""

    @property
    def vocab(self) -> int:
        """Number of different bytes."""
        return RELEASE.byte_values

    def stream(self, split: Split, batch: int, seed: int) -> CorpusStream:
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The file is opened here, so that a task can be described where the file is not.
        """
        number = split_number(split)
        (path,) = self.files()
        about = path.stat()
        codes = verified_codes(path, about.st_size, about.st_mtime_ns)
        data = map_file(path)
        valid, test = RELEASE.size - 2 * RELEASE.held_out, RELEASE.size - RELEASE.held_out
        edges = (0, valid, test, RELEASE.size)
        part = data[edges[number] : edges[number + 1]]
        corpus = Corpus(part, str(path), fingerprint(data), codes)
        return CorpusStream(corpus, {"task": "Enwik8"}, split, batch, seed)

    def files(self) -> tuple[Path, ...]:
        """The one file, unpacked."""
        return (unpacked_file(SOURCE.find(self.path)),)

    def score(self) -> BitsPerByte:
        """Bits per byte."""
        return BitsPerByte()


def unpacked_file(path: Path) -> Path:
    """The file itself, unpacked into the cache if it is packed; a folder is looked into."""
    if path.is_dir():
        path = SOURCE.find(str(path))
    if path.is_dir():
        raise SOURCE.broken(path, "is a folder without enwik8 in it")
    if path.suffix not in (".zip", ".xz"):
        return path

    def unpack(folder: Path) -> None:
        with (
            SOURCE.unpacking(path),
            _opened(path) as packed,
            (folder / "enwik8").open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, CHUNK)
        _verify(folder / "enwik8", path)

    return made_once("enwik8", [path], unpack) / "enwik8"


@lru_cache(maxsize=4)
def verified_codes(path: Path, size: int, changed: int) -> NDArray[np.int64]:
    """The token of every byte value, once it is certain that this is the file.

    Size and time of change are arguments only so that a file is verified again after a change.
    """
    _verify(path, path)
    data = map_file(path)
    occurs = np.zeros(256, dtype=bool)
    for first in range(0, size, CHUNK):
        occurs |= np.bincount(data[first : first + CHUNK], minlength=256) > 0
    return occurs.cumsum() - 1


def _verify(file: Path, given: Path) -> None:
    """Refuse a file that is not enwik8, by the name under which the user knows it."""
    size = file.stat().st_size
    if size != RELEASE.size:
        raise SOURCE.broken(given, f"has {size:,} bytes, not the {RELEASE.size:,} of enwik8")
    if md5_of(file) != RELEASE.md5:
        raise SOURCE.broken(given, "is not enwik8: its size is right, but not its checksum")


def _opened(path: Path) -> IO[bytes]:
    """The one file in an archive, open for reading."""
    if path.suffix == ".xz":
        return lzma.open(path)
    archive = zipfile.ZipFile(path)
    names = archive.namelist()
    if "enwik8" not in names:
        raise ValueError(f"it holds {', '.join(names) or 'nothing'}, but no enwik8")
    return archive.open("enwik8")
