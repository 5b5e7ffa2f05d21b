"""WikiText, word by word: WikiText-103 (tab:wiki103) or its small sister WikiText-2.

The data are a folder (or archive) with one file of tokens for each split, `wiki.train.tokens` and
so on, or `train.txt`. Words stand between spaces; the end of a line is the word `<eos>`. The
vocabulary is what occurs in the train file, the most frequent first, which adaptive input and
softmax rely on; any other word becomes `<unk>`. Whoever knows nothing has a perplexity of the
vocabulary's size.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from expire_span.checks import require_at_least, require_one_of
from expire_span.tasks.base import Perplexity, Task
from expire_span.tasks.corpus import Corpus, CorpusStream, fingerprint, map_file
from expire_span.tasks.files import VOCABULARY_FILE, Source, made_once, unpacked
from expire_span.tasks.stream import SPLITS, Split, split_number

Edition = Literal["103", "2"]


def _source(edition: Edition, md5: str) -> Source:
    archive = f"wikitext-{edition}-v1.zip"
    return Source(
        f"WikiText-{edition}",
        (
            f"wikitext-{edition}",
            f"wikitext-{edition}-v1",
            f"wikitext{edition}",
            f"wikitext{edition}_partial",
        ),
        f"get https://wikitext.smerity.com/{archive} (md5 {md5})",
        archive,
        md5,
    )


SOURCES: dict[Edition, Source] = {
    "103": _source("103", "9ddaacaf6af0710eda8c456decff7832"),
    "2": _source("2", "542ccefacc6c27f945fb54453812b3cd"),
}


@dataclass(frozen=True)
class Published:
    """What a whole edition has, by which a part of it or another text is known."""

    train_words: int  # with the ends of lines
    valid_md5: str  # of all words of valid
    test_md5: str


PUBLISHED: dict[Edition, Published] = {
    "103": Published(
        103_227_021, "7c071ec8d55747197c74cfd169735edb", "c97d4e4bc3dca4892e0290525e6944bc"
    ),
    "2": Published(
        2_088_628, "000592717bfcedc7baad4a6ed579e549", "82e95ba446e92bc0131b31d248234da3"
    ),
}
END_OF_LINE, UNKNOWN = "<eos>", "<unk>"


@dataclass(frozen=True)
class WikiText(Task):
    """The settings."""

    path: str = ""
    """Folder or archive; if empty, looked for in the folder in EXPIRE_SPAN_DATA."""
    vocabulary: int = 267_735
    """Most words; the rarer ones become <unk>. This is the number in all of WikiText-103."""
    edition: Edition = "103"
    """Which of the two is looked for: WikiText-103 or WikiText-2."""

    def __post_init__(self) -> None:
        require_at_least(2, vocabulary=self.vocabulary)
        require_one_of(get_args(Edition), edition=self.edition)

    @property
    def vocab(self) -> int:
        """Number of different tokens."""
        return self.vocabulary

    def stream(self, split: Split, batch: int, seed: int) -> CorpusStream:
        """A new stream: endless for train, else once through the split. Nothing is left to chance.

        The files are opened here, so that a task can be described where they are not.
        """
        split_number(split)
        tokens = self._tokens(split)
        corpus = Corpus(tokens, f"WikiText in {self._prepared()}", fingerprint(tokens))
        source = self._source()
        del source["path"], source["edition"]  # Files may move, but not change: they say it all.
        return CorpusStream(corpus, source, split, batch, seed)

    def files(self) -> tuple[Path, ...]:
        """The tokens of every split, as they were prepared."""
        folder = self._prepared()
        return tuple(folder / f"{split}.tokens" for split in SPLITS)

    def subset(self) -> str:
        """How many words there are to learn from, if not all; or that it is another text."""
        source, published = SOURCES[self.edition], PUBLISHED[self.edition]
        words, all_words = len(self._tokens("train")), published.train_words
        found = _found(self.path, source)
        judged_by = [_md5_of_words(found[split], source) for split in ("valid", "test")]
        if judged_by != [published.valid_md5, published.test_md5]:
            return f"not {source.name} as it was published ({words:,} train words)"
        whole = words >= all_words
        return "" if whole else f"{source.name} subset ({words:,} of {all_words:,} train words)"

    def spelling(self) -> dict[str, bytes]:
        """The words."""
        return {VOCABULARY_FILE: (self._prepared() / VOCABULARY_FILE).read_bytes()}

    def score(self) -> Perplexity:
        """Perplexity of a word."""
        return Perplexity()

    def _tokens(self, split: Split) -> NDArray[np.integer]:
        return map_file(self._prepared() / f"{split}.tokens", np.int32)

    def _prepared(self) -> Path:
        return prepared(self.path, self.vocabulary, SOURCES[self.edition])


def prepared(path: str, vocabulary: int, source: Source) -> Path:
    """The folder with the tokens of every split and `vocabulary.json`, made at the first call."""
    files = _found(path, source)

    def prepare(folder: Path) -> None:
        words = _vocabulary(files["train"], vocabulary, source)
        (folder / VOCABULARY_FILE).write_text(json.dumps(words))
        tokens = {word: token for token, word in enumerate(words)}
        for split in SPLITS:
            _encode(_lines(files[split], source), tokens, folder / f"{split}.tokens")

    settings = f"vocabulary {vocabulary}"
    return made_once("wikitext", list(files.values()), prepare, settings)


def _found(path: str, source: Source) -> dict[Split, Path]:
    """The file of every split."""

    def look(root: Path) -> dict[Split, Path]:
        return {split: _file_of(root, split, source) for split in SPLITS}

    return look(unpacked(source.find(path), source, look))


def _file_of(root: Path, split: Split, source: Source) -> Path:
    """The one file of a split, in this folder or just below it, if not of another edition."""
    patterns = (f"wiki.{split}.*tokens", f"{split}.txt", f"{split}.tokens")
    others = {name for other in SOURCES.values() if other is not source for name in other.names}
    near = [f"{place}{pattern}" for place in ("", "*/") for pattern in patterns]
    there = [path for pattern in near for path in sorted(root.glob(pattern))]
    found = [path for path in there if others.isdisjoint(path.relative_to(root).parts)]
    if len(found) == 1:
        return found[0]
    if found:
        what = f"more than one {split} file"
    else:
        what = "but another edition" if there else f"no file {' or '.join(patterns)}"
    raise source.broken(root, f"does not hold {source.name} ({what})")


def _lines(path: Path, source: Source) -> Iterator[list[str]]:
    """The words of each line, with its end."""
    bar = tqdm(total=path.stat().st_size, desc=path.name, unit="B", unit_scale=True, leave=False)
    with path.open("rb") as file, bar:
        for line in file:
            bar.update(len(line))
            try:
                yield [*line.decode("utf-8").split(), END_OF_LINE]
            except UnicodeDecodeError as error:
                raise source.broken(path, f"is not a text in UTF-8 ({error})") from error


def _md5_of_words(path: Path, source: Source) -> str:
    """Checksum of a file's words, however many spaces are between them."""
    found = hashlib.md5()
    for words in _lines(path, source):
        found.update(" ".join([*words, ""]).encode())
    return found.hexdigest()


def _vocabulary(path: Path, most: int, source: Source) -> list[str]:
    """The most frequent words, by frequency and then by name; `<unk>` is always among them."""
    counts: Counter[str] = Counter()
    for words in _lines(path, source):
        counts.update(words)
    counts[UNKNOWN] += 0
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    if len(ranked) > most:
        ranked = [word for word in ranked if word != UNKNOWN][: most - 1]
        ranked.append(UNKNOWN)  # it now stands for all that were left out
    return ranked


def _encode(lines: Iterator[list[str]], tokens: dict[str, int], target: Path) -> None:
    """Write the tokens of all lines."""
    unknown = tokens[UNKNOWN]
    with target.open("wb") as file:
        for words in lines:
            np.array([tokens.get(word, unknown) for word in words], dtype=np.int32).tofile(file)
