"""Text against plain slices of the bytes."""

import bz2
import gzip
import lzma
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expire_span.tasks import SPLITS, Documents, Split, Text, corpus

QUICK = settings(deadline=None, derandomize=True, max_examples=60)


def numbered(size: int) -> bytes:
    """Bytes in which neighbours and far places differ."""
    return bytes((7 * place + place // 256) % 256 for place in range(size))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("text") / "some.txt"


def plain_split(data: bytes, split: Split) -> bytes:
    train, valid = round(0.9 * len(data)), round(0.95 * len(data))
    return {"train": data[:train], "valid": data[train:valid], "test": data[valid:]}[split]


def test_splits_follow_one_another_and_cover_the_file(path: Path) -> None:
    data = numbered(1037)
    path.write_bytes(data)
    parts = []
    for split in SPLITS:
        stream = Text(str(path)).stream(split, batch=1, seed=0)
        whole = stream.read(10_000 if stream.length else len(plain_split(data, split)) - 1)
        parts.append(bytes([*whole.inputs[0].tolist(), int(whole.targets[0, -1])]))
    assert parts == [plain_split(data, split) for split in SPLITS]
    assert b"".join(parts) == data


@QUICK
@given(size=st.integers(60, 900), batch=st.integers(1, 9), block=st.integers(1, 40))
def test_a_finite_split_is_covered_exactly_once(
    path: Path, size: int, batch: int, block: int
) -> None:
    data = numbered(size)
    path.write_bytes(data)
    part = plain_split(data, "test")
    task = Text(str(path))
    if len(part) < batch + 1:
        with pytest.raises(
            ValueError, match=f"test split of .* has {len(part)} tokens but {batch}"
        ):
            task.stream("test", batch, seed=0)
        return
    stream = task.stream("test", batch, seed=0)
    rows: list[list[tuple[int, int]]] = [[] for _ in range(batch)]
    read = 0
    while stream.remaining:
        got = stream.read(block)
        read += got.inputs.shape[1]
        for row, pairs in enumerate(rows):
            here = zip(got.inputs[row].tolist(), got.targets[row].tolist(), strict=True)
            pairs += [pair for pair, kept in zip(here, got.scored[row], strict=True) if kept]
        assert got.starts is None
    assert read == stream.length == max(map(len, rows))
    assert min(map(len, rows)) >= stream.length - 1
    assert list(chain(*rows)) == list(pairwise(part))
    with pytest.raises(EOFError, match=f"ended after {stream.length} steps: ask its task for"):
        stream.read(1)


@QUICK
@given(size=st.integers(20, 300), batch=st.integers(1, 9), steps=st.integers(1, 700))
def test_train_rows_run_through_the_whole_split_and_wrap(
    path: Path, size: int, batch: int, steps: int
) -> None:
    data = numbered(size)
    path.write_bytes(data)
    part = plain_split(data, "train")
    got = Text(str(path)).stream("train", batch, seed=0).read(steps)
    assert got.scored.all()
    for row in range(batch):
        place = row * len(part) // batch
        for step in range(steps):
            assert got.inputs[row, step] == part[place]
            assert got.targets[row, step] == part[place + 1]
            place = 0 if place + 2 == len(part) else place + 1


def test_a_finite_stream_resumes_with_the_steps_it_had_left(path: Path) -> None:
    path.write_bytes(numbered(2000))
    stream = Text(str(path)).stream("valid", batch=3, seed=0)
    stream.read(20)
    fresh = Text(str(path)).stream("valid", batch=3, seed=0)
    fresh.restore(stream.state())
    assert fresh.remaining == stream.remaining == stream.length - 20
    assert fresh.read(99).inputs.equal(stream.read(99).inputs)


@pytest.mark.parametrize("size", [3000, 5_000_000])
def test_the_position_in_a_changed_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes(bytes(size))
    state = Text(str(path)).stream("train", batch=2, seed=0).state()
    for changed in (bytes(size - 1) + b"x", b"x" + bytes(size - 1), bytes(size + 1)):
        path.write_bytes(changed)
        stream = Text(str(path)).stream("train", batch=2, seed=0)
        with pytest.raises(ValueError, match=r"some.txt has changed since this position was saved"):
            stream.restore(state)


def test_a_small_file_is_fingerprinted_whole() -> None:
    data = np.zeros(corpus.SAMPLES * corpus.SAMPLE_SIZE - 777, dtype=np.uint8)
    before = corpus.fingerprint(data)
    for place in range(0, len(data), 501):
        data[place] = 1
        assert corpus.fingerprint(data) != before
        data[place] = 0


def test_a_file_may_move_but_shares_may_not(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_bytes(numbered(500))
    stream = Text(str(tmp_path / "one")).stream("train", batch=2, seed=0)
    stream.read(30)
    moved = Text(str(tmp_path / "other")).stream("train", batch=2, seed=0)
    moved.restore(stream.state())
    assert moved.read(30).inputs.equal(stream.read(30).inputs)
    recut = Text(str(tmp_path / "one"), train_share=0.5).stream("train", batch=2, seed=0)
    with pytest.raises(ValueError, match=r"another stream, with train_share 0.9 where .* 0.5"):
        recut.restore(stream.state())


def test_the_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    """A hole of 64 GB, more than a reader of everything would get through."""
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(2**36)
    stream = Text(str(path)).stream("train", batch=4, seed=0)
    assert not stream.read(512).inputs.any()


def test_files_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"There is no file .*absent: check the path .--task.path"
    ):
        Text(str(tmp_path / "absent")).stream("train", batch=2, seed=0)
    with pytest.raises(IsADirectoryError, match="is a directory: give the path of one file"):
        Text(str(tmp_path)).stream("train", batch=2, seed=0)
    path = tmp_path / "small"
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="small is empty"):
        Text(str(path)).stream("train", batch=2, seed=0)
    path.write_bytes(b"abc")
    with pytest.raises(ValueError, match="has 3 tokens but 8 rows need at least 9: use a larger"):
        Text(str(path)).stream("train", batch=8, seed=0)


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ((0.0, 0.5), "train_share must be above 0 and valid_share at least 0, not 0.0 and 0.5"),
        ((0.5, -0.1), "valid_share at least 0, not 0.5 and -0.1"),
        ((0.9, 0.2), "must not exceed 1 together, as 0.9 and 0.2 do"),
    ],
)
def test_senseless_shares_are_refused(shares: tuple[float, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Text("any", *shares)


@pytest.mark.parametrize("begin", [b"BZhang wrote this. ", b"PK: a name. ", b"\xfd7z"])
def test_what_only_looks_compressed_is_read(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "some.txt"
    data = begin + numbered(900)
    path.write_bytes(data)
    assert bytes(Text(str(path)).stream("train", 1, 0).read(9).inputs[0].tolist()) == data[:9]


@pytest.mark.parametrize(
    ("kind", "pack"),
    [("gzip", gzip.compress), ("xz", lzma.compress), ("bzip2", bz2.compress)],
)
@pytest.mark.parametrize("task", [Text, Documents])
def test_what_is_compressed_is_not_read_as_text(tmp_path: Path, task, kind: str, pack) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes(pack(numbered(9000)))
    with pytest.raises(ValueError, match=rf"some\.txt is compressed \({kind}\): unpack it"):
        task(str(path)).stream("train", batch=1, seed=0)
