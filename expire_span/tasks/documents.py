"""Documents: the user's own text, one JSON object a line or plain, as bytes or through a tokenizer.

The file is read once, line by line, and long lines of a plain text in pieces; its tokens are kept
(`files.py`) and mapped, never read whole. They are cut into splits as those of `Text` are. Where a
document begins, memory can begin anew (`restart`). A plain file is one document.

Whoever knows nothing pays 8 bits for a byte, or has a perplexity of the vocabulary's size.

Shapes: N tokens of the file, D documents.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from expire_span.checks import require_at_least, require_shares
from expire_span.tasks.base import BitsPerByte, Perplexity, Task
from expire_span.tasks.corpus import (
    Corpus,
    CorpusStream,
    fingerprint,
    map_file,
    map_text,
    split_edges,
)
from expire_span.tasks.files import TOKENIZER_FILE, made_once
from expire_span.tasks.stream import Split, split_number

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BYTES = 256
OBJECTS = (".jsonl", ".ndjson")
TOKENS, BEGINS = "tokens", "begins.npy"
PIECE = 2**20  # bytes of a long line that are read at once
LAST_BLANK = re.compile(r"\s\S*\Z")
Encode = Callable[[str], list[int] | NDArray[np.uint8]]


@dataclass(frozen=True)
class Documents(Task):
    """The settings."""

    one_file = True

    path: str
    """A file with one JSON object a line (.jsonl, .ndjson), or any text in UTF-8. A tokenizer is
    given a whole text of an object, but a plain text line by line."""
    field: str = "text"
    """The entry of each JSON object that is read."""
    tokenizer: str = ""
    """A Hugging Face tokenizer (tokenizer.json); if empty, bytes are the tokens."""
    vocabulary: int = BYTES
    """Number of different tokens; that of the tokenizer."""
    restart: bool = True
    """Whether to mark where documents begin, so that a model may clear its memory there."""
    train_share: float = 0.9
    """Share of the tokens to learn from, at the beginning."""
    valid_share: float = 0.05
    """Share of the tokens to choose by, after that; the rest is for the final test."""

    def __post_init__(self) -> None:
        require_at_least(2 if self.tokenizer else BYTES, vocabulary=self.vocabulary)
        require_shares(self.train_share, self.valid_share)

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return self.vocabulary

    def stream(self, split: Split, batch: int, seed: int) -> CorpusStream:
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The file is opened here, so that a task can be described where the file is not.
        """
        number = split_number(split)
        folder = self._prepared()
        tokens = map_file(folder / TOKENS, np.uint32)
        edges = split_edges(len(tokens), self.train_share, self.valid_share)
        first, end = edges[number], edges[number + 1]
        begins = np.load(folder / BEGINS) - first
        corpus = Corpus(
            tokens[first:end],
            self.path,
            fingerprint(tokens),
            begins=begins[(begins >= 0) & (begins < end - first)] if self.restart else None,
        )
        source = self._source()
        del source["path"], source["tokenizer"]  # They may move, but what comes of them may not.
        return CorpusStream(corpus, source, split, batch, seed)

    def files(self) -> tuple[Path, ...]:
        """The tokens, as they were prepared."""
        return (self._prepared() / TOKENS,)

    def spelling(self) -> dict[str, bytes]:
        """The tokenizer, if there is one."""
        if not self.tokenizer:
            return {}
        return {TOKENIZER_FILE: map_file(self.tokenizer).tobytes()}

    def with_spelling(self, folder: Path) -> "Documents":
        """The same task with the tokenizer that a release brought along, if it did."""
        kept = folder / TOKENIZER_FILE
        return replace(self, tokenizer=str(kept)) if self.tokenizer and kept.exists() else self

    def score(self) -> BitsPerByte | Perplexity:
        """Bits per byte, or the perplexity of a token."""
        return Perplexity() if self.tokenizer else BitsPerByte()

    def _prepared(self) -> Path:
        """The folder with the tokens, made at the first call."""
        map_text(self.path)  # says what is wrong if nothing is there
        path = Path(self.path).expanduser()
        made_of = [path, Path(self.tokenizer).expanduser()] if self.tokenizer else [path]

        def prepare(folder: Path) -> None:
            begins = _encode(read_texts(path, self.field), self._encoder(), folder / TOKENS)
            if not begins:
                raise ValueError(f"There is no text in {path}: give a file with some.")
            np.save(folder / BEGINS, np.array(begins, dtype=np.int64))

        return made_once("documents", made_of, prepare, f"{self.field} {self.vocabulary}")

    def _encoder(self) -> Encode:
        """What turns a text into tokens."""
        if not self.tokenizer:
            return _bytes
        tokenizer = load_tokenizer(self.tokenizer, self.vocabulary)

        def encode(text: str) -> list[int]:
            try:
                return tokenizer.encode(text, add_special_tokens=False).ids
            except Exception as error:  # the library raises nothing narrower
                raise ValueError(
                    f"The tokenizer {self.tokenizer} has no tokens for {text[:40]!r} ({error}): "
                    "take one that knows all words, or has a token for the unknown."
                ) from error

        return encode


def read_texts(path: Path, field: str) -> Iterator[tuple[str, bool]]:
    """The texts of a file piece by piece, and whether each begins a document."""
    objects = path.suffix.lower() in OBJECTS
    wanted = f"a JSON object with a text under {field!r}" if objects else "text in UTF-8"
    lines = Lines(path)
    try:
        if objects:
            for line in lines.read():
                if line.strip():
                    yield _text_of(json.loads(line.decode("utf-8-sig")), field), True
        else:
            for number, piece in enumerate(_pieces(lines.read(PIECE))):
                yield piece, number == 0
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"Line {lines.number} of {path} is not {wanted} ({error}): mend or remove it."
        ) from error


class Lines:
    """The lines of a file; `number` is that of the one just read."""

    def __init__(self, path: Path) -> None:
        self.number = 1
        self._path = path

    def read(self, most: int = -1) -> Iterator[bytes]:
        """One after another; with `most`, longer ones in parts of so many bytes."""
        size, name = self._path.stat().st_size, self._path.name
        bar = tqdm(total=size, desc=name, unit="B", unit_scale=True, leave=False)
        with self._path.open("rb") as file, bar:
            while part := file.readline(most):
                bar.update(len(part))
                yield part
                self.number += part.endswith(b"\n")


def _pieces(parts: Iterator[bytes]) -> Iterator[str]:
    """The text of lines; those that come in parts are cut before a blank, if there is one.

    So a tokenizer finds whole words, and finds them as in the whole line.
    """
    decoder, rest = codecs.getincrementaldecoder("utf-8")(), ""
    for part in parts:
        text = rest + decoder.decode(part)
        cut = len(text)
        if len(part) == PIECE and not part.endswith(b"\n"):
            blank = LAST_BLANK.search(text, 1)
            cut = blank.start() if blank else cut
        yield text[:cut]
        rest = text[cut:]
    yield rest + decoder.decode(b"", final=True)


def load_tokenizer(path: str | Path, vocabulary: int) -> "Tokenizer":
    """The tokenizer of a tokenizer.json, which may have so many tokens."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError(
            "A tokenizer needs the package tokenizers: pip install tokenizers."
        ) from error
    map_file(path)  # says what is wrong if nothing is there
    try:
        tokenizer = Tokenizer.from_file(str(Path(path).expanduser()))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is not a tokenizer.json ({error}): check the path.") from error
    needed = max(tokenizer.get_vocab().values(), default=0) + 1
    if needed > vocabulary:
        raise ValueError(
            f"The tokens of the tokenizer {path} are numbered up to {needed - 1}, but vocabulary "
            f"is {vocabulary}: set it to {needed}."
        )
    return tokenizer


def _text_of(entry: dict[str, str], field: str) -> str:
    text = entry[field]
    if not isinstance(text, str):
        raise TypeError(f"it is {type(text).__name__}")
    text.encode("utf-8")  # JSON can spell half a character, such as \ud83d, which is no text
    return text


def _bytes(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def _encode(texts: Iterator[tuple[str, bool]], encode: Encode, path: Path) -> list[int]:
    """Write the tokens of all texts; gives the place at which each document begins."""
    begins: list[int] = []
    size = 0
    with path.open("wb") as file:
        for text, new in texts:
            tokens = np.array(encode(text), dtype=np.uint32)
            if new and len(tokens):
                begins.append(size)
            size += len(tokens)
            tokens.tofile(file)
    return begins
