"""PG-19 character by character: whole books, nothing remembered from one to the next (fig:pg19).

The data are a folder (or archive) with one folder of `.txt` books for each split: train, valid (or
validation) and test. A character is a token; the vocabulary is what occurs in the train books, the
most frequent first, and everything else is one token for the unknown. Whoever knows nothing of a
vocabulary of V characters pays log2 V bits for one.

Books follow one another in the order of their names. Where one begins, memory can begin anew
(`restart`); the first character of a book is predicted from the last of the one before.

Shapes: N characters of a split, V characters of the vocabulary.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from expire_span.checks import require_at_least
from expire_span.tasks.base import BitsPerCharacter, Task
from expire_span.tasks.corpus import Corpus, CorpusStream, fingerprint, map_file
from expire_span.tasks.files import VOCABULARY_FILE, Source, folder_with, made_once, unpacked
from expire_span.tasks.stream import SPLITS, Split, split_number

SOURCE = Source(
    "PG-19",
    ("pg19", "pg19_subset"),
    "get the folders train, validation and test of gs://deepmind-gutenberg",
)
BEGINS = "begins.json"
CODE_POINTS = 0x110000
ALL_BOOKS = {"train": 28_602, "valid": 50, "test": 100}
UNKNOWN = 0  # the token of every character outside the vocabulary
TEST_BOOKS = frozenset(
    """
10146 10321 10356 10762 12204 15562 22424 24553 2544 25646 25773 25830 26183 26239 26493 26618
27454 28444 28988 29594 29973 30312 30752 30754 30909 30981 31065 3129 31974 3247 32761 3340
33426 33756 34467 35205 35246 3608 36256 37006 37328 37403 37443 3754 37702 38106 3890 38929
38955 4047 40579 40700 4128 41603 41607 42081 42655 43536 43845 44099 44557 45313 45881 45888
46915 47068 47558 47581 47676 48693 49078 49529 49596 50287 51410 53345 5396 54537 54624 55339
55871 56410 5734 5770 57791 58473 58553 58598 5956 5962 6412 6941 7412 7987 8197 8559 860 8788
9315 9931
""".split()
)
"""The numbers of the test books, by which PG-19 is told from other texts, and a test book among
those to learn from is found. Those of the other splits are too many to come along."""


@dataclass(frozen=True)
class PG19(Task):
    """The settings."""

    path: str = ""
    """Folder or archive of books; if empty, looked for in the folder in EXPIRE_SPAN_DATA."""
    vocabulary: int = 3506
    """Most tokens; characters beyond the most frequent ones become one, the unknown."""
    restart: bool = True
    """Whether to mark where books begin, so that a model may clear its memory there."""

    def __post_init__(self) -> None:
        require_at_least(2, vocabulary=self.vocabulary)

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return self.vocabulary

    def stream(self, split: Split, batch: int, seed: int) -> CorpusStream:
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The books are opened here, so that a task can be described where they are not.
        """
        split_number(split)
        folder = prepared(self.path, self.vocabulary)
        tokens = map_file(folder / f"{split}.tokens", np.uint16)
        begins = np.array(_begins(folder)[split])
        corpus = Corpus(
            tokens,
            f"PG-19 in {folder}",
            fingerprint(tokens),
            begins=begins if self.restart else None,
        )
        source = self._source()
        del source["path"]  # Books may move, but not change.
        return CorpusStream(corpus, source, split, batch, seed)

    def files(self) -> tuple[Path, ...]:
        """The tokens of every split, as they were prepared."""
        folder = prepared(self.path, self.vocabulary)
        return tuple(folder / f"{split}.tokens" for split in SPLITS)

    def subset(self) -> str:
        """How many books there are to learn from and to be judged by, where not all; or that they
        are other books, or in other splits."""
        if strange := _strange(_found(self.path)):
            return f"not PG-19 as it was published ({strange})"
        begins = _begins(prepared(self.path, self.vocabulary))
        missing = [
            f"{len(begins[split]):,} of {books:,} {split} books"
            for split, books in ALL_BOOKS.items()
            if len(begins[split]) < books
        ]
        return f"PG-19 subset ({', '.join(missing)})" if missing else ""

    def spelling(self) -> dict[str, bytes]:
        """The characters."""
        folder = prepared(self.path, self.vocabulary)
        return {VOCABULARY_FILE: (folder / VOCABULARY_FILE).read_bytes()}

    def score(self) -> BitsPerCharacter:
        """Bits per character."""
        return BitsPerCharacter()


def prepared(path: str, vocabulary: int) -> Path:
    """The folder with the tokens of every split, made at the first call."""
    if vocabulary > 2**16:
        raise ValueError(f"vocabulary must be at most {2**16}, not {vocabulary}.")
    books = _found(path)

    def prepare(folder: Path) -> None:
        codes, characters = _vocabulary(books["train"], vocabulary)
        (folder / VOCABULARY_FILE).write_text(json.dumps(characters))
        begins = {s: _encode(books[s], codes, folder / f"{s}.tokens") for s in SPLITS}
        (folder / BEGINS).write_text(json.dumps(begins))

    every_book = [book for split in SPLITS for book in books[split]]
    # With how many there are of each split, their order says which book belongs to which.
    counts = [len(books[split]) for split in SPLITS]
    return made_once("pg19", every_book, prepare, f"vocabulary {vocabulary}, books {counts}")


def _found(path: str) -> dict[Split, list[Path]]:
    """The books of every split, wherever they lie."""
    return _all_books(unpacked(SOURCE.find(path), SOURCE, _all_books))


def _strange(books: dict[Split, list[Path]]) -> str:
    """The first book that cannot be what its place says, if any: all have the number they have at
    Project Gutenberg for a name, and those of test are known."""
    for split, paths in books.items():
        for path in paths:
            expected = path.stem in TEST_BOOKS if split == "test" else path.stem not in TEST_BOOKS
            if not (path.stem.isdecimal() and expected):
                return f"{path.name} in {split}"
    return ""


def _begins(folder: Path) -> dict[str, list[int]]:
    """Where the books of each split begin among its tokens."""
    return json.loads((folder / BEGINS).read_text())


def _all_books(root: Path) -> dict[Split, list[Path]]:
    """The books of every split."""
    return {split: _books(root, split) for split in SPLITS}


def _books(root: Path, split: Split) -> list[Path]:
    """The books of a split, by name."""
    wanted = ["train", "test"]
    folder = folder_with(wanted, root, SOURCE) / split
    if split == "valid" and not folder.exists():
        folder = folder.with_name("validation")
    books = sorted(folder.glob("*.txt"))
    if not books:
        raise SOURCE.broken(root, f"has no books (.txt) for {split}")
    return books


def _code_points(book: Path) -> NDArray[np.uint32]:
    """The characters of a book as numbers."""
    try:
        text = book.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SOURCE.broken(book, f"is not a text in UTF-8 ({error})") from error
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


def _vocabulary(books: Sequence[Path], most: int) -> tuple[NDArray[np.uint16], str]:
    """The token of every code point, and the characters of tokens 1, 2, ...; 0 is the unknown."""
    counts = np.zeros(CODE_POINTS, dtype=np.int64)
    for book in tqdm(books, desc="PG-19: counting characters", unit="book", leave=False):
        points, times = np.unique(_code_points(book), return_counts=True)
        counts[points] += times
    known = np.argsort(-counts, kind="stable")[: most - 1]
    known = known[counts[known] > 0]
    codes = np.full(CODE_POINTS, UNKNOWN, dtype=np.uint16)
    codes[known] = np.arange(1, len(known) + 1)
    return codes, "".join(map(chr, known.tolist()))


def _encode(books: Sequence[Path], codes: NDArray[np.uint16], path: Path) -> list[int]:
    """Write the tokens of all books into one file; gives the place at which each book begins."""
    begins, size = [], 0
    with path.open("wb") as file:
        for book in tqdm(books, desc="PG-19: encoding", unit="book", leave=False):
            tokens = codes[_code_points(book)]
            begins += [size] if len(tokens) else []
            size += len(tokens)
            tokens.tofile(file)
    return begins
