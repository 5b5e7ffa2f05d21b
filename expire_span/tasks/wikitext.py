"""WikiText, word by word: WikiText-103 (tab:wiki103) or its small sister WikiText-2.

The data are a folder (or archive) with one file of tokens for each split, `wiki.train.tokens` and
so on, or `train.txt`. Words stand between spaces; the end of a line is the word `<eos>`. The
vocabulary is what occurs in the train file, the most frequent first, which adaptive input and
softmax rely on; any other word becomes `<unk>`. Whoever knows nothing has a perplexity of the
vocabulary's size.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from expire_span.checks import require_at_least
from expire_span.tasks.base import Perplexity, Task
from expire_span.tasks.corpus import Corpus, CorpusStream, fingerprint, map_file
from expire_span.tasks.files import VOCABULARY_FILE, Source, made_once, unpacked
from expire_span.tasks.stream import SPLITS, Split, split_number

SOURCE = Source(
    "WikiText",
    ("wikitext-103", "wikitext-103-v1", "wikitext103", "wikitext-2", "wikitext-2-v1", "wikitext2"),
    "get https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip "
    "(md5 9ddaacaf6af0710eda8c456decff7832)",
)
END_OF_LINE, UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True)
class WikiText(Task):
    """The settings."""

    path: str = ""
    """Folder or archive; if empty, looked for in the folder in EXPIRE_SPAN_DATA."""
    vocabulary: int = 267_735
    """Most words; the rarer ones become <unk>. This is the number in all of WikiText-103."""

    def __post_init__(self) -> None:
        require_at_least(2, vocabulary=self.vocabulary)

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return self.vocabulary

    def stream(self, split: Split, batch: int, seed: int) -> CorpusStream:
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The files are opened here, so that a task can be described where they are not.
        """
        split_number(split)
        folder = prepared(self.path, self.vocabulary)
        tokens = map_file(folder / f"{split}.tokens", np.int32)
        corpus = Corpus(tokens, f"WikiText in {folder}", fingerprint(tokens))
        source = self._source()
        del source["path"]  # Files may move, but not change.
        return CorpusStream(corpus, source, split, batch, seed)

    def files(self) -> tuple[Path, ...]:
        """The tokens of every split, as they were prepared."""
        folder = prepared(self.path, self.vocabulary)
        return tuple(folder / f"{split}.tokens" for split in SPLITS)

    def spelling(self) -> dict[str, bytes]:
        """The words."""
        folder = prepared(self.path, self.vocabulary)
        return {VOCABULARY_FILE: (folder / VOCABULARY_FILE).read_bytes()}

    def score(self) -> Perplexity:
        """Perplexity of a word."""
        return Perplexity()


def prepared(path: str, vocabulary: int) -> Path:
    """The folder with the tokens of every split and `vocabulary.json`, made at the first call."""
    root = unpacked(SOURCE.find(path), SOURCE)
    files = {split: _file_of(root, split) for split in SPLITS}

    def prepare(folder: Path) -> None:
        words = _vocabulary(files["train"], vocabulary)
        (folder / VOCABULARY_FILE).write_text(json.dumps(words))
        tokens = {word: token for token, word in enumerate(words)}
        for split in SPLITS:
            _encode(files[split], tokens, folder / f"{split}.tokens")

    settings = f"vocabulary {vocabulary}"
    return made_once("wikitext", list(files.values()), prepare, settings)


def _file_of(root: Path, split: Split) -> Path:
    """The one file of a split, in this folder or one below it."""
    patterns = (f"wiki.{split}.*tokens", f"{split}.txt", f"{split}.tokens")
    found = [path for pattern in patterns for path in sorted(root.rglob(pattern))]
    if len(found) != 1:
        what = f"more than one {split} file" if found else f"no file {' or '.join(patterns)}"
        raise SOURCE.broken(root, f"does not hold WikiText ({what})")
    return found[0]


def _lines(path: Path) -> Iterator[list[str]]:
    """The words of each line, with its end."""
    bar = tqdm(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, leave=False)
    with path.open("rb") as file, bar:
        for line in file:
            bar.update(len(line))
            try:
                yield [*line.decode("utf-8").split(), END_OF_LINE]
            except UnicodeDecodeError as error:
                raise SOURCE.broken(path, f"is not a text in UTF-8 ({error})") from error


def _vocabulary(path: Path, most: int) -> list[str]:
    """The most frequent words, by frequency and then by name; `<unk>` is always among them."""
    counts: Counter[str] = Counter()
    for words in _lines(path):
        counts.update(words)
    counts[UNKNOWN] += 0
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if len(ranked) > most:
        ranked = [word for word in ranked if word != UNKNOWN][: most - 1]
        ranked.append(UNKNOWN)  # it now stands for all that were left out
    return ranked


def _encode(path: Path, tokens: dict[str, int], target: Path) -> None:
    """Write the tokens of a file."""
    unknown = tokens[UNKNOWN]
    with target.open("wb") as file:
        for words in _lines(path):
            np.array([tokens.get(word, unknown) for word in words], dtype=np.int32).tofile(file)
