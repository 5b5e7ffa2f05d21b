"""enwik8, PG-19 and WikiText against plain Python, and against files that are something else."""

import errno
import hashlib
import json
import lzma
import os
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import log
from pathlib import Path
from threading import Barrier
from time import sleep

import numpy as np
import pytest
import torch

from expire_span.tasks import (
    PG19,
    Enwik8,
    Instruction,
    Task,
    WikiText,
    enwik8,
    files,
    pg19,
    wikitext,
)
from expire_span.tasks.files import Source, made_once
from expire_span.training.records import from_record, to_record

SMALL = bytes((7 * place + place // 256) % 97 for place in range(20_000))
BOOKS = {
    "train": {"2.txt": "zwei: ein Haus.\n", "1.txt": "eins: ein é, ein Baum.\n", "3.txt": ""},
    "validation": {"9.txt": "ein Ω.\r\n"},
    "test": {"7.txt": "Baum\n", "8.txt": "Haus\n"},
}
LINES = {
    "train": " \n = Title = \n \n the cat sat on the mat . \n the dog <unk> . \n",
    "valid": " the cat \n a dog \n",
    "test": " mat . \n",
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("EXPIRE_SPAN_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def small_enwik8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is taken for enwik8, of 20,000 bytes with 97 values."""
    md5 = hashlib.md5(SMALL).hexdigest()
    monkeypatch.setattr(enwik8, "RELEASE", enwik8.Release(len(SMALL), md5, 1000, 97))
    enwik8.verified_codes.cache_clear()
    path = tmp_path / "enwik8"
    path.write_bytes(SMALL)
    return path


@pytest.fixture
def books(tmp_path: Path) -> Path:
    root = tmp_path / "pg19"
    for split, texts in BOOKS.items():
        (root / split).mkdir(parents=True)
        for name, text in texts.items():
            (root / split / name).write_text(text, encoding="utf-8", newline="")
    return root


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    root = tmp_path / "wikitext-103"
    root.mkdir()
    for split, text in LINES.items():
        (root / f"wiki.{split}.tokens").write_text(text)
    return root


def everything(task: Task, split) -> list[int]:
    """All tokens of a split, read in one row."""
    stream = task.stream(split, batch=1, seed=0)
    endless = 17_999 if isinstance(task, Enwik8) else 18  # or it would begin again
    steps = endless if split == "train" else 10**6
    batch = stream.read(steps)
    return [*batch.inputs[0].tolist(), int(batch.targets[0, -1])]


# enwik8


def packed(path: Path, suffix: str) -> Path:
    target = path.with_name(f"enwik8{suffix}")
    if suffix == ".xz":
        target.write_bytes(lzma.compress(path.read_bytes()))
    else:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(path, "enwik8")
    path.unlink()
    return target


@pytest.mark.parametrize("suffix", ["", ".xz", ".zip"])
def test_enwik8_is_cut_into_the_usual_splits(small_enwik8: Path, suffix: str) -> None:
    path = packed(small_enwik8, suffix) if suffix else small_enwik8
    task = Enwik8(str(path))
    values = sorted(set(SMALL))
    expected = [values.index(byte) for byte in SMALL]
    assert everything(task, "train") == expected[:18_000]
    assert everything(task, "valid") == expected[18_000:19_000]
    assert everything(task, "test") == expected[19_000:]
    assert task.vocab == len(values) == 97


def test_enwik8_has_the_size_and_vocabulary_that_everybody_uses() -> None:
    assert Enwik8().vocab == 205
    assert enwik8.RELEASE.size == 100_000_000
    assert enwik8.RELEASE.held_out == 5_000_000


def test_a_file_is_found_in_a_folder_or_where_the_environment_says(
    small_enwik8: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(small_enwik8.parent)
    assert everything(Enwik8(folder), "test")
    monkeypatch.setenv("EXPIRE_SPAN_DATA", folder)
    assert everything(Enwik8(), "test")


@pytest.mark.parametrize("suffix", ["", ".xz", ".zip"])
def test_a_folder_of_its_name_is_looked_into(small_enwik8: Path, suffix: str) -> None:
    data = small_enwik8.parent / "data"
    path = packed(small_enwik8, suffix) if suffix else small_enwik8
    inside = data / "enwik8"
    inside.mkdir(parents=True)
    path.rename(inside / path.name)
    assert everything(Enwik8(str(data)), "test")
    assert everything(Enwik8(str(inside)), "test")


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def altered(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def in_headers(path: Path, offset: int, value: int) -> None:
    """Change a number in both headers of a zip's first file; in the second it lies 2 bytes on."""
    data = bytearray(path.read_bytes())
    for mark, further in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        data[data.index(mark) + offset + further] = value
    path.write_bytes(data)


def encrypted(path: Path) -> None:
    in_headers(path, 6, 1)


def packed_otherwise(path: Path) -> None:
    in_headers(path, 8, 99)


def foreign(path: Path) -> None:
    path.write_bytes(b"something else altogether " * 100)


@pytest.mark.parametrize(
    ("suffix", "harm", "sentence"),
    [
        ("", cut_off, r"has 10,000 bytes, not the 20,000 of enwik8: download http.*enwik8.zip"),
        ("", altered, "is not enwik8: its size is right, but not its checksum: download"),
        ("", foreign, "has 2,600 bytes, not the 20,000 of enwik8: download"),
        (".xz", cut_off, r"enwik8\.xz is cut off or damaged \(.*\): download"),
        (".xz", altered, r"enwik8\.xz is cut off or damaged \(.*\): download"),
        (".xz", foreign, r"enwik8\.xz is cut off or damaged \(.*\): download"),
        (".zip", cut_off, r"enwik8\.zip is cut off or damaged \(.*\): download"),
        (".zip", altered, r"enwik8\.zip is cut off or damaged \(.*\): download"),
        (".zip", foreign, r"enwik8\.zip is cut off or damaged \(.*\): download"),
        (".zip", encrypted, r"enwik8\.zip is cut off or damaged \(.*encrypted.*\): download"),
        (".zip", packed_otherwise, r"enwik8\.zip is cut off .*\(.*not supported\): download"),
    ],
)
def test_what_is_not_enwik8_is_refused(
    small_enwik8: Path, suffix: str, harm: Callable[[Path], None], sentence: str, own_cache: Path
) -> None:
    path = packed(small_enwik8, suffix) if suffix else small_enwik8
    harm(path)
    with pytest.raises(ValueError, match=sentence):
        Enwik8(str(path)).stream("train", 2, 0)
    assert not list(own_cache.glob("enwik8-*"))


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EACCES", "EROFS", "EIO"])
def test_a_full_disk_and_the_like_are_not_blamed_on_the_file(
    small_enwik8: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    path, number = packed(small_enwik8, ".xz"), getattr(errno, code)

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(enwik8.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        Enwik8(str(path)).stream("train", 2, 0)


def test_a_zip_without_enwik8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "enwik8.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("enwik9", "x")
    with pytest.raises(ValueError, match=r"it holds enwik9, but no enwik8"):
        Enwik8(str(path)).stream("train", 2, 0)


@pytest.mark.parametrize("task", [Enwik8, PG19, WikiText])
def test_a_missing_data_set_is_named_with_what_to_do(task, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("EXPIRE_SPAN_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # whatever data there may be where the tests are run
    with pytest.raises(
        FileNotFoundError,
        match=r"There is no .* in nowhere \(looked for .*, packed or not\): .*name",
    ):
        task("nowhere").stream("train", 2, 0)
    with pytest.raises(FileNotFoundError, match=r"There is no .* in data .*EXPIRE_SPAN_DATA"):
        task().stream("train", 2, 0)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match=r"empty (is a folder without|does not hold)"):
        task(str(empty)).stream("train", 2, 0)


# PG-19


def plain_characters(limit: int) -> str:
    """By frequency in the train books, then by code point."""
    counts = Counter("".join(BOOKS["train"].values()))
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return "".join(ranked)[: limit - 1]


@pytest.mark.parametrize("limit", [3506, 5])
def test_characters_are_numbered_by_frequency(books: Path, limit: int) -> None:
    task = PG19(str(books), vocabulary=limit)
    characters = plain_characters(limit)
    for split, folder in (("train", "train"), ("valid", "validation"), ("test", "test")):
        text = "".join(text for _, text in sorted(BOOKS[folder].items())).replace("\r\n", "\n")
        expected = [characters.find(character) + 1 for character in text]
        assert (
            everything(task, split)[: len(expected)] == expected[: 19 if split == "train" else None]
        )
    assert task.vocab == limit
    saved = json.loads((pg19.prepared(str(books), limit) / "vocabulary.json").read_text())
    assert saved == characters


def test_memory_can_begin_anew_with_each_book(books: Path) -> None:
    first, second = (len(BOOKS["train"][name]) for name in ("1.txt", "2.txt"))
    batch = PG19(str(books)).stream("train", batch=2, seed=0).read(3 * (first + second))
    pairs = first + second - 1
    assert batch.starts is not None
    for row in range(2):
        place = row * (first + second) // 2
        for step in range(batch.starts.shape[1]):
            assert bool(batch.starts[row, step]) == (place in (0, first))
            place = (place + 1) % pairs
    assert PG19(str(books), restart=False).stream("train", 2, 0).read(30).starts is None


def test_an_archive_of_books_is_unpacked_once(books: Path, tmp_path: Path, own_cache: Path) -> None:
    archive = tmp_path / "books.tar.xz"
    with tarfile.open(archive, "w:xz") as file:
        file.add(books, arcname="some_books")
    expected = everything(PG19(str(books)), "test")
    assert everything(PG19(str(archive)), "test") == expected
    made = {path.name: path.stat().st_mtime_ns for path in own_cache.iterdir()}
    assert everything(PG19(str(archive)), "test") == expected
    assert made == {path.name: path.stat().st_mtime_ns for path in own_cache.iterdir()}
    for harm in (cut_off, foreign):
        harm(archive)
        with pytest.raises(ValueError, match=r"books\.tar\.xz is cut off or damaged .*: get the"):
            PG19(str(archive)).stream("train", 2, 0)


def test_a_book_that_moves_to_another_split_is_read_there(books: Path) -> None:
    """Its name, size and time stay the same, and so does the order of all books."""
    (books / "train" / "3.txt").write_text("drei: ein Tier.\n")
    before = everything(PG19(str(books)), "valid")
    (books / "train" / "3.txt").rename(books / "validation" / "3.txt")
    after = everything(PG19(str(books)), "valid")
    assert len(after) == len(before) + len("drei: ein Tier.\n")


def test_what_is_not_a_book_is_refused(books: Path) -> None:
    (books / "test" / "8.txt").write_bytes(b"\xff\xfe broken")
    with pytest.raises(ValueError, match=r"8\.txt is not a text in UTF-8 .*: get the folders"):
        PG19(str(books)).stream("train", 2, 0)
    for path in (books / "validation").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"pg19 has no books \(\.txt\) for valid: get the folders"):
        PG19(str(books)).stream("train", 2, 0)
    (books / "books.csv").write_text("x")
    with pytest.raises(ValueError, match=r"books\.csv is neither a folder nor an archive"):
        PG19(str(books / "books.csv")).stream("train", 2, 0)
    with pytest.raises(
        ValueError, match="vocabulary must be a whole number of at least 2, but is 1"
    ):
        PG19(vocabulary=1)


# WikiText


def plain_words(split: str) -> list[str]:
    return [word for line in LINES[split].splitlines() for word in [*line.split(), "<eos>"]]


def plain_vocabulary() -> list[str]:
    counts = Counter(plain_words("train"))
    return sorted(counts, key=lambda word: (-counts[word], word))


def test_words_are_numbered_by_frequency(lines: Path) -> None:
    words = plain_vocabulary()
    task = WikiText(str(lines), vocabulary=50)
    unknown = words.index("<unk>")
    for split in ("train", "valid", "test"):
        expected = [words.index(w) if w in words else unknown for w in plain_words(split)]
        found = everything(task, split)
        assert found[: len(expected)] == expected[: len(found)]
        assert len(found) >= min(19, len(expected))


def test_rare_words_are_unknown_in_a_small_vocabulary(lines: Path) -> None:
    task = WikiText(str(lines), vocabulary=4)
    kept = [word for word in plain_vocabulary() if word != "<unk>"][:3]
    expected = [kept.index(word) if word in kept else 3 for word in plain_words("train")]
    assert everything(task, "train") == expected[:19]
    assert set(expected) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["{}.txt", "wiki.{}.tokens", "wiki.{}.some.tokens"])
def test_files_may_have_any_of_their_usual_names(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "below"
    folder.mkdir(parents=True)
    for split, text in LINES.items():
        (folder / name.format(split)).write_text(text)
    assert len(everything(WikiText(str(folder.parent)), "valid")) == 6


def test_what_is_not_wikitext_is_refused(lines: Path) -> None:
    (lines / "test.txt").write_text("again")
    with pytest.raises(
        ValueError, match=r"does not hold WikiText-103 \(more than one test file\): get"
    ):
        WikiText(str(lines)).stream("train", 2, 0)
    (lines / "test.txt").unlink()
    (lines / "wiki.valid.tokens").write_bytes(b"\xff\xff\n")
    with pytest.raises(ValueError, match=r"wiki\.valid\.tokens is not a text in UTF-8 .*: get"):
        WikiText(str(lines)).stream("train", 2, 0)
    (lines / "wiki.valid.tokens").unlink()
    with pytest.raises(ValueError, match=r"does not hold WikiText-103 \(no file wiki\.valid\.\*t"):
        WikiText(str(lines)).stream("train", 2, 0)
    with pytest.raises(
        ValueError, match="vocabulary must be a whole number of at least 2, but is 0"
    ):
        WikiText(vocabulary=0)
    with pytest.raises(ValueError, match="edition must be one of 103, 2, but is '3'"):
        WikiText(edition="3")  # type: ignore[arg-type]


def test_of_two_editions_the_one_that_is_asked_for_is_taken(lines: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    lines.rename(data / "wikitext-103")
    whole = everything(WikiText(str(data / "wikitext-103")), "valid")
    assert everything(WikiText(str(data)), "valid") == whole
    with pytest.raises(
        ValueError, match=r"does not hold WikiText-2 \(but another edition\): .*wikitext-2-v1\.zip"
    ):
        WikiText(str(data), edition="2").stream("valid", 1, 0)
    small = data / "wikitext-2"
    small.mkdir()
    for split, text in LINES.items():
        (small / f"wiki.{split}.tokens").write_text(text * 2)
    assert len(everything(WikiText(str(data), edition="2"), "valid")) == 2 * len(whole)
    assert everything(WikiText(str(data)), "valid") == whole


def test_the_archive_that_everybody_uses_is_verified(
    lines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    path = tmp_path / "wikitext-103-v1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in lines.iterdir():
            archive.write(file, f"wikitext-103/{file.name}")
    with pytest.raises(
        ValueError, match=r"v1\.zip is not the archive of that name, whose md5 is 9"
    ):
        WikiText(str(path)).stream("valid", 1, 0)
    assert not list(own_cache.glob("WikiText*"))
    real = replace(wikitext.SOURCES["103"], md5=hashlib.md5(path.read_bytes()).hexdigest())
    with monkeypatch.context() as patch:
        patch.setitem(wikitext.SOURCES, "103", real)
        assert everything(WikiText(str(path)), "valid")
    own = path.rename(tmp_path / "own.zip")
    assert everything(WikiText(str(own)), "valid")


@pytest.mark.parametrize("task", [PG19, WikiText, Enwik8, partial(Instruction, "light")])
def test_an_archive_of_something_else_is_named_and_not_kept(
    task: Callable[..., Task], tmp_path: Path, own_cache: Path
) -> None:
    (tmp_path / "novel.txt").write_text("It was a dark and stormy night.")
    archive = tmp_path / "mine.tar.xz"
    with tarfile.open(archive, "w:xz") as file:
        file.add(tmp_path / "novel.txt", arcname="deep/down/train.txt")
    with pytest.raises(ValueError, match=r"^\S*mine\.tar\.xz (does not hold|has [\d,]+ bytes)"):
        task(path=str(archive)).stream("train", 1, 0)
    assert not [path for path in own_cache.iterdir() if path.is_dir()]


def test_words_of_another_edition_or_text_are_called_that(
    lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(wikitext.PUBLISHED, "2", wikitext.Published(1, *judged_by()))
    assert WikiText(str(lines), edition="2").subset() == ""
    for split in ("valid", "test"):
        path = lines / f"wiki.{split}.tokens"
        path.write_text(LINES[split].replace(" ", "  "))
        assert WikiText(str(lines), edition="2").subset() == ""
        path.write_text(LINES[split][: len(LINES[split]) // 2])
        assert "not WikiText-2 as it was published" in WikiText(str(lines), edition="2").subset()
        path.write_text(LINES[split])
    (lines / "wiki.valid.tokens").write_text(LINES["valid"].replace("dog", "<unk>"))
    assert "not WikiText-2 as it was published" in WikiText(str(lines), edition="2").subset()


def judged_by() -> list[str]:
    """Checksums of the words of valid and test."""
    return [
        hashlib.md5(" ".join([*plain_words(split), ""]).encode()).hexdigest()
        for split in ("valid", "test")
    ]


def test_a_part_of_a_data_set_says_so(
    lines: Path, books: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = len(plain_words("train"))
    assert WikiText(str(lines)).subset() == (
        f"not WikiText-103 as it was published ({words} train words)"
    )
    monkeypatch.setitem(wikitext.PUBLISHED, "103", wikitext.Published(103_227_021, *judged_by()))
    assert WikiText(str(lines)).subset() == (
        f"WikiText-103 subset ({words} of 103,227,021 train words)"
    )
    monkeypatch.setitem(wikitext.PUBLISHED, "103", wikitext.Published(words, *judged_by()))
    assert WikiText(str(lines)).subset() == ""
    monkeypatch.setattr(pg19, "TEST_BOOKS", {"7", "8"})
    assert PG19(str(books)).subset() == (
        "PG-19 subset (2 of 28,602 train books, 1 of 50 valid books, 2 of 100 test books)"
    )  # one is empty
    monkeypatch.setattr(pg19, "ALL_BOOKS", {"train": 2, "valid": 1, "test": 3})
    assert PG19(str(books)).subset() == "PG-19 subset (2 of 3 test books)"
    monkeypatch.setattr(pg19, "ALL_BOOKS", {"train": 2, "valid": 1, "test": 2})
    assert PG19(str(books)).subset() == ""


def test_other_books_are_not_taken_for_pg19(books: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither others to be judged by, nor those of test to learn from, nor what has no number."""
    assert len(pg19.TEST_BOOKS) == 100
    for known, strange in (
        ({"7"}, "8.txt in test"),
        ({"7", "8", "2"}, "2.txt in train"),
        ({"7", "8", "9"}, "9.txt in valid"),
    ):
        monkeypatch.setattr(pg19, "TEST_BOOKS", known)
        said = f"not PG-19 as it was published ({strange})"
        assert PG19(str(books)).subset() == said
    monkeypatch.setattr(pg19, "TEST_BOOKS", {"7", "8"})
    (books / "train" / "mine.txt").write_text("mein Haus\n")
    said = "not PG-19 as it was published (mine.txt in train)"
    assert PG19(str(books)).subset() == said


def test_a_run_from_before_there_were_editions_can_be_read(lines: Path) -> None:
    task = WikiText(str(lines))
    record = to_record(task)
    del record["edition"]
    assert from_record(record) == task
    state = task.stream("valid", 1, 0).state()
    assert "edition" not in state["stream"]
    WikiText(str(lines), edition="2").stream("valid", 1, 0).restore(state)


def test_perplexity_is_the_exponential_of_the_mean_loss(lines: Path) -> None:
    task = WikiText(str(lines), vocabulary=50)
    score = task.score()
    batch = task.stream("valid", 1, 0).read(9)
    score.update(batch, torch.full(batch.targets.shape, log(50)))
    assert score.result()["perplexity"] == pytest.approx(50)
    score.update(batch, torch.full(batch.targets.shape, 1e5))
    assert np.isfinite(score.result()["perplexity"])


# What is made of data


def test_changed_data_are_prepared_anew_and_unchanged_ones_are_not(lines: Path) -> None:
    task = WikiText(str(lines))
    before = everything(task, "valid")
    stream = task.stream("valid", 1, 0)
    (lines / "wiki.valid.tokens").write_text(LINES["valid"] + " mat \n")
    assert len(everything(task, "valid")) == len(before) + 2
    with pytest.raises(ValueError, match=r"WikiText in .* has changed since this position was"):
        task.stream("valid", 1, 0).restore(stream.state())


def test_a_damaged_folder_is_made_again(lines: Path, own_cache: Path) -> None:
    expected = everything(WikiText(str(lines)), "valid")
    (made,) = (path for path in own_cache.iterdir() if path.is_dir())
    cut_off(made / "valid.tokens")
    assert everything(WikiText(str(lines)), "valid") == expected
    (made / "made.json").write_text("{")
    assert everything(WikiText(str(lines)), "valid") == expected


def test_nothing_is_left_of_what_was_made_only_in_part(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "some"
    path.write_text("x")

    def stopped(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made_once("thing", [path], stopped)
    assert {path.suffix for path in own_cache.iterdir()} == {".lock"}
    folder = made_once("thing", [path], lambda folder: (folder / "part").write_text("whole"))  # type: ignore[arg-type,return-value]
    assert (folder / "part").read_text() == "whole"


def test_what_a_killed_process_left_is_removed(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "some"
    path.write_text("x")
    made = made_once("thing", [path], lambda folder: (folder / "part").touch())
    shutil.rmtree(made)
    for number in (os.getpid(), 7):  # in a container every process may have the same
        left = own_cache / f".{made.name}-{number}"
        left.mkdir()
        (left / "part").write_text("half")
    assert made_once("thing", [path], lambda folder: (folder / "part").touch()) == made
    assert {one.name for one in own_cache.iterdir()} == {made.name, f".{made.name}.lock"}


def test_what_several_ask_for_at_once_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "some"
    path.write_text("x")
    made, together = [], Barrier(4)

    def make(folder: Path) -> None:
        made.append(folder)
        sleep(0.2)  # all others are waiting by now
        (folder / "part").write_text("whole")

    def ask(_: int) -> Path:
        together.wait()
        return made_once("thing", [path], make)

    with ThreadPoolExecutor(4) as threads:
        (folder,) = set(threads.map(ask, range(4)))
    assert len(made) == 1
    assert (folder / "part").read_text() == "whole"


def test_the_cache_is_in_the_home_folder_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXPIRE_SPAN_CACHE")
    assert files.cache_folder() == Path(os.path.expanduser("~/.cache/expire-span"))


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar.gz"
    (tmp_path / "x").write_text("x")
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "x", arcname="../../escaped")
    with pytest.raises(ValueError, match="is cut off or damaged"):
        files.unpacked(archive, Source("Evil", (), "do not use it"), list)
    assert not list(tmp_path.rglob("escaped"))
