"""Text and tokens: what a run's task reads, and how its tokens are shown.

Every token has a piece of text, and the pieces of a text joined are that text. A character of
several bytes is the piece of its last byte; the bytes before it have an empty one.

Example: the bytes of "né" are 6e c3 a9, their pieces "n", "" and "é".
"""

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expire_span.tasks import PG19, Documents, Enwik8, Instruction, Task, Text, WikiText
from expire_span.tasks.documents import load_tokenizer
from expire_span.tasks.files import VOCABULARY_FILE
from expire_span.tasks.lore import words_of
from expire_span.tasks.wikitext import END_OF_LINE, UNKNOWN
from expire_span.training.release import read_spelling

Tokens = NDArray[np.int64]

BROKEN = "�"
MOST_HELD = 64  # tokens; a character has at most 4 bytes, but many may follow that are broken

# The byte values that occur in enwik8, whose checksum is in `tasks/enwik8.py`.
ENWIK8_BYTES = (
    *range(9, 11),
    *range(32, 127),
    *range(128, 192),
    *range(194, 221),
    222,
    *range(224, 238),
    *range(239, 241),
)


class Codec(ABC):
    """Turns text into tokens, and tokens into pieces of text."""

    unit: str = "token"
    """What a token is, to be read after a number."""
    whole: str = "the text"
    """What all tokens together are."""
    cost: str = "loss"
    """What the loss of predicting it is called."""
    note: str = ""
    """What a reader should know about how tokens are written."""
    of_words: bool = False
    """Whether tokens are what stands between blanks, whatever is around them."""

    @abstractmethod
    def encode(self, text: str) -> Tokens:
        """The tokens of a text, [T]."""

    @abstractmethod
    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The text of every token."""

    def speller(self) -> Callable[[int], str]:
        """Gives the text of one token after another, as they are written."""
        return lambda token: self.pieces([token])[0]


class ByteCodec(Codec):
    """Bytes of UTF-8, or those of them that have a token.

    Args:
        values: the byte that each token stands for.
    """

    unit = "byte"

    def __init__(self, values: Sequence[int] = range(256)):
        self._values = bytes(values)
        self._tokens = np.full(256, -1)
        self._tokens[list(values)] = np.arange(len(values))

    def encode(self, text: str) -> Tokens:
        """One token a byte; refuses bytes that this model has never met."""
        found = self._tokens[np.frombuffer(text.encode(), dtype=np.uint8)]
        if len(found) and found.min() < 0:
            strange = next(c for c in text if (self._tokens[list(c.encode())] < 0).any())
            raise ValueError(f"This model has no token for {strange!r}: remove it from the text.")
        return found.astype(np.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """A character stands at its last byte; bytes that are no UTF-8 are shown as �."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        data = [bytes([self._values[token]]) for token in tokens]
        last = len(data) - 1
        return [decoder.decode(byte, final=n == last) for n, byte in enumerate(data)]

    def speller(self) -> Callable[[int], str]:
        """A character comes with its last byte."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        return lambda token: decoder.decode(bytes([self._values[token]]))


class CharacterCodec(Codec):
    """One token a character.

    Args:
        characters: those of tokens 1, 2, ...; 0 is any other.
    """

    unit = "character"

    def __init__(self, characters: str):
        self._characters = "�" + characters
        self._tokens = {character: token for token, character in enumerate(self._characters)}

    def encode(self, text: str) -> Tokens:
        """Characters outside the vocabulary become the unknown one."""
        return np.array([self._tokens.get(character, 0) for character in text], dtype=np.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The characters."""
        known = len(self._characters)
        return [self._characters[token] if token < known else "�" for token in tokens]


class WordCodec(Codec):
    """Words between spaces.

    Args:
        words: the word of each token.
        end_of_line: the word that stands for one.
        unknown: the word that stands for all others; None to refuse them.
        cut: how a line falls into words.
    """

    unit = "word"
    of_words = True

    def __init__(
        self,
        words: Sequence[str],
        end_of_line: str | None = None,
        unknown: str | None = None,
        cut: Callable[[str], Sequence[str]] = str.split,
    ):
        self._words = words
        self._tokens = {word: token for token, word in enumerate(words)}
        self._end, self._unknown, self._cut = end_of_line, unknown, cut

    def encode(self, text: str) -> Tokens:
        """A line that has come to its end ends with the word for that, if there is one."""
        words = list[str]()
        for line in text.splitlines(keepends=True):
            words += self._cut(line)
            if self._end is not None and line.splitlines() != [line]:
                words.append(self._end)
        strange = next((word for word in words if word not in self._tokens), None)
        if strange is not None and self._unknown is None:
            raise ValueError(f"This model has no word {strange!r}: remove it from the text.")
        unknown = self._tokens.get(self._unknown or "", 0)
        return np.array([self._tokens.get(word, unknown) for word in words], dtype=np.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """A space after every word, a new line for every end of one."""
        known = len(self._words)
        words = [self._words[token] if token < known else "�" for token in tokens]
        return ["\n" if word == self._end else f"{word} " for word in words]


class NumberCodec(Codec):
    """Tokens of made-up tasks, written as numbers."""

    of_words = True

    def __init__(self, vocab: int):
        self._vocab = vocab

    def encode(self, text: str) -> Tokens:
        """Numbers between spaces."""
        found = text.split()
        if any(not re.fullmatch(r"\d+", word) or int(word) >= self._vocab for word in found):
            raise ValueError(
                f"This model reads numbers from 0 to {self._vocab - 1} with spaces between them."
            )
        return np.array([int(word) for word in found], dtype=np.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """The numbers, each with a space."""
        return [f"{token} " for token in tokens]


class TokenizerCodec(Codec):
    """The tokens of a Hugging Face tokenizer.

    Args:
        path: its tokenizer.json.
        vocabulary: most tokens that it may have.
    """

    def __init__(self, path: str | Path, vocabulary: int):
        self._tokenizer = load_tokenizer(path, vocabulary)

    def encode(self, text: str) -> Tokens:
        """As in training: no special tokens."""
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.int64)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """What each token adds to the text so far; a character stands where it is whole."""
        spelling = Spelling(self._decode)
        found = [spelling.add(token) for token in tokens]
        return [*found[:-1], found[-1] + spelling.rest()] if found else []

    def speller(self) -> Callable[[int], str]:
        """What each token adds; a character comes when it is whole."""
        return Spelling(self._decode).add

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


class Spelling:
    """What each token adds to the text of those before it.

    Tokens are decoded together with a few before them, for some have a space in front only after
    another. Where they end within a character, the tokenizer writes �; that is held back until the
    character is whole. A � that stays one, for it stands in the text, is held back as well, until
    something else follows or the tokens are too many for one character.

    Args:
        decode: the text of tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]):
        self._decode = decode
        self._tokens: list[int] = []  # those spelled last, then those held back
        self._spelled = 0  # how many of them are spelled
        self._given = 0  # characters of their text that have been given

    def add(self, token: int) -> str:
        """The text that is whole by this token, and was not before."""
        self._tokens.append(token)
        text = self._decode(self._tokens)
        unfinished = text.endswith(BROKEN)
        if unfinished and len(self._tokens) - self._spelled < MOST_HELD:
            return ""
        piece = text[self._given : len(text) - unfinished]
        self._tokens = self._tokens[self._spelled :]
        self._spelled = len(self._tokens)
        self._given = len(self._decode(self._tokens)) - unfinished
        return piece

    def rest(self) -> str:
        """What is still held back."""
        return self._decode(self._tokens)[self._given :]


class Places:
    """Where the characters of a text stand among its tokens.

    Args:
        pieces: the text of every token.
    """

    def __init__(self, pieces: Sequence[str]):
        self._pieces = pieces
        self._ends = np.cumsum([len(piece) for piece in pieces])

    def tokens(self, first: int, last: int) -> range:
        """The tokens of the characters first, ..., last - 1, with every byte of them.

        Example: in "né!" of four bytes, characters 1 to before 2 are the tokens 1 and 2.
        """
        begin = int(self._ends.searchsorted(first, side="right"))
        while begin > 0 and not self._pieces[begin - 1]:
            begin -= 1
        end = min(int(self._ends.searchsorted(last - 1, side="right")) + 1, len(self._pieces))
        return range(begin, end if last > first else begin)

    def characters(self, tokens: range) -> range:
        """The characters of some tokens that follow one another."""
        first, last = (int(self._ends[n - 1]) if n else 0 for n in (tokens.start, tokens.stop))
        return range(first, last)


def codec_of(task: Task, folder: Path) -> Codec:
    """What a model of this task reads; its vocabulary may lie in its folder, if it is released."""
    match task:
        case Text():
            return ByteCodec()
        case Enwik8():
            return ByteCodec(ENWIK8_BYTES)
        case Documents():
            if not task.tokenizer:
                return ByteCodec()
            return TokenizerCodec(task.tokenizer, task.vocabulary)
        case PG19():
            return CharacterCodec(_vocabulary(task, folder))
        case WikiText():
            return WordCodec(_vocabulary(task, folder), END_OF_LINE, UNKNOWN)
        case Instruction():
            known = task.text == "built-in"
            words = task.tongue().words if known else _vocabulary(task, folder)
            return WordCodec(words, unknown=words[0], cut=words_of)
        case _:
            return NumberCodec(task.vocab)


def _vocabulary(task: Task, folder: Path) -> Any:
    """Characters as one string, or a list of words."""
    try:
        return json.loads(read_spelling(folder, task)[VOCABULARY_FILE])
    except FileNotFoundError as error:
        raise ValueError(
            f"{error} Or look at a release of it, made where the data are: that can read a text "
            "without them."
        ) from error
