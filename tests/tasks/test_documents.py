"""Documents against plain reading of their lines."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from expire_span.tasks import BitsPerByte, Documents, Perplexity, documents
from expire_span.training.experiment import Experiment, OptimizerConfig
from expire_span.training.loop import train
from reading_models import byte_level_tokenizer
from small_runs import small_experiment

TEXTS = ["Ein Haus.", "", "Ein Baum, ein é.\nNoch einer.", "Ω" * 30, "last"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "some.jsonl"
    lines = [json.dumps({"id": n, "text": text}) for n, text in enumerate(TEXTS)]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def whole(task: Documents) -> tuple[list[int], list[bool]]:
    """All tokens of the train split, and where documents begin."""
    stream = task.stream("train", batch=1, seed=0)
    size = len(np.memmap(task.files()[0], dtype=np.uint32))
    read = stream.read(round(size * task.train_share) - 1)
    starts = [] if read.starts is None else read.starts[0].tolist()
    return [*read.inputs[0].tolist(), int(read.targets[0, -1])], starts


def test_json_lines_are_read_one_after_another(path: Path) -> None:
    tokens, starts = whole(Documents(str(path), train_share=1.0, valid_share=0.0))
    texts = [text.encode() for text in TEXTS]
    assert bytes(tokens) == b"".join(texts)
    places = np.cumsum([0, *map(len, texts)])
    expected = {int(place) for place, text in zip(places, texts, strict=False) if text}
    assert {place for place, start in enumerate(starts) if start} == expected
    assert whole(Documents(str(path), restart=False))[1] == []


def test_splits_follow_one_another_with_their_own_beginnings(path: Path) -> None:
    task = Documents(str(path), train_share=0.3, valid_share=0.3)
    data = "".join(TEXTS).encode()
    first, second = round(0.3 * len(data)), round(0.6 * len(data))
    places = np.cumsum([0, *(len(text.encode()) for text in TEXTS)])
    for split, begin, end in (("valid", first, second), ("test", second, len(data))):
        read = task.stream(split, batch=1, seed=0).read(1000)
        assert bytes([*read.inputs[0].tolist(), int(read.targets[0, -1])]) == data[begin:end]
        assert read.starts is not None
        found = [begin + step for step, start in enumerate(read.starts[0].tolist()) if start]
        assert found == [p for p in dict.fromkeys(places.tolist()) if begin <= p < end - 1]


def test_a_plain_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("first line\nsecond line é\n\nlast")
    tokens, starts = whole(Documents(str(path), train_share=1.0, valid_share=0.0))
    assert bytes(tokens) == path.read_bytes()
    assert starts == [True] + [False] * (len(starts) - 1)


LONG_LINES = [
    "some words é, some more Ω " * 20,
    "one_word_without_an_end" * 30,
    "\n \n" + "x" * 31 + " " + "Ω" * 90 + "\r\n  two  blanks   three \n" * 3,
    "a" * 64,
]


@pytest.mark.parametrize("text", LONG_LINES)
@pytest.mark.parametrize("piece", [16, 64])
def test_long_lines_are_read_in_pieces(
    text: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never much more at once; the bytes are the same, and no word is cut that is not longer."""
    monkeypatch.setattr(documents, "PIECE", piece)
    path = tmp_path / "long.txt"
    path.write_bytes(text.encode())
    texts, begins = zip(*documents.read_texts(path, "text"), strict=True)
    assert "".join(texts) == text
    assert max(len(text.encode()) for text in texts) <= 2 * piece
    assert begins == (True, *[False] * (len(begins) - 1))
    if max(map(len, text.split())) < piece // 2:
        assert [word for text in texts for word in text.split()] == text.split()
    tokens, _ = whole(Documents(str(path), train_share=1.0, valid_share=0.0))
    assert bytes(tokens) == text.encode()


def test_a_tokenizer_finds_the_same_words_in_pieces(tmp_path: Path, monkeypatch) -> None:
    path, file = tmp_path / "long.txt", tmp_path / "tokenizer.json"
    path.write_text("the café  and the cat " * 30)
    size = byte_level_tokenizer(file)
    task = Documents(str(path), "text", str(file), size, train_share=1.0, valid_share=0.0)
    in_one = whole(task)
    monkeypatch.setattr(documents, "PIECE", 32)
    monkeypatch.setenv("EXPIRE_SPAN_CACHE", str(tmp_path / "again"))
    assert whole(task) == in_one


def test_what_is_not_utf8_is_named_by_its_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 16)
    path = tmp_path / "bad.txt"
    for number, ending in ((2, b"word " * 9 + b"\xc3\n"), (3, b"\nword " * 1 + b"\xc3")):
        path.write_bytes(b"first line, a long one\n" + ending)
        with pytest.raises(ValueError, match=rf"Line {number} of .*bad\.txt is not text in UTF-8"):
            list(documents.read_texts(path, "text"))


def test_the_metric_follows_the_tokens(path: Path) -> None:
    assert isinstance(Documents(str(path)).score(), BitsPerByte)
    task = Documents(str(path), tokenizer="some.json", vocabulary=30)
    assert isinstance(task.score(), Perplexity)
    assert task.vocab == 30


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ('{"text": "x"}\nno json', r"Line 2 of .* is not a JSON object with a text under 'text'"),
        ('{"body": "x"}', r"Line 1 of .* is not a JSON .* \('text'\): mend or remove it"),
        ('{"text": 3}', r"Line 1 of .* is not a JSON .* \(it is int\): mend or remove it"),
        (
            '{"text": "x"}\n{"text": "a \\ud83d b"}',
            r"Line 2 of .*bad\.jsonl is not a JSON .*surrogates not allowed\): mend or remove it",
        ),
        ("[1]", r"Line 1 of .* is not a JSON object .*: mend or remove it"),
        ("[" * 200_000, r"Line 1 of .* is not a JSON object .*: mend or remove it"),
        ('{"text": ""}', r"There is no text in .*bad\.jsonl: give a file with some"),
    ],
)
def test_lines_that_cannot_be_read_are_named(tmp_path: Path, lines: str, sentence: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=sentence):
        Documents(str(path)).stream("train", 1, 0)


def test_what_cannot_serve_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*nowhere: check the path"):
        Documents(str(tmp_path / "nowhere")).stream("train", 1, 0)
    broken = tmp_path / "broken.txt"
    broken.write_bytes(b"fine\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"Line 2 of .*broken\.txt is not text in UTF-8"):
        Documents(str(broken)).stream("train", 1, 0)
    with pytest.raises(
        ValueError, match="vocabulary must be a whole number of at least 256, but is 255"
    ):
        Documents("some", vocabulary=255)
    with pytest.raises(ValueError, match="must not exceed 1 together"):
        Documents("some", train_share=0.9, valid_share=0.2)


def test_a_tokenizer_is_used_as_it_is(path: Path, tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"Ein": 0, "Haus": 1, ".": 2, "?": 3}, unk_token="?")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    file = tmp_path / "tokenizer.json"
    tokenizer.save(str(file))
    settings = {"train_share": 1.0, "valid_share": 0.0, "tokenizer": str(file)}
    tokens, starts = whole(Documents(str(path), vocabulary=4, **settings))
    expected = [token for text in TEXTS for token in tokenizer.encode(text).ids]
    assert tokens == expected
    assert starts[:4] == [True, False, False, True]
    with pytest.raises(ValueError, match=r"up to 3, but vocabulary is 3: set it to 4"):
        Documents(str(path), vocabulary=3, **settings).stream("train", 1, 0)
    file.write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer\.json .*: check"):
        Documents(str(path), vocabulary=4, **settings).stream("train", 1, 0)


def test_tokens_with_gaps_in_their_numbers_need_room_for_the_largest(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    words = tokenizers.models.WordLevel({"a": 0, "b": 900, "?": 1}, unk_token="?")
    tokenizers.Tokenizer(words).save(str(file))
    with pytest.raises(ValueError, match=r"up to 900, but vocabulary is 256: set it to 901"):
        documents.load_tokenizer(file, 256)
    documents.load_tokenizer(file, 901)


def test_a_text_that_a_tokenizer_cannot_read_is_a_sentence(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"Ein": 0})).save(str(file))
    task = Documents(str(path), tokenizer=str(file), vocabulary=4)
    with pytest.raises(ValueError, match=r"has no tokens for 'Ein Haus\.' \(.*\): take one that"):
        task.stream("train", 1, 0)


@pytest.mark.parametrize("name", ["some.JSONL", "some.ndjson"])
def test_json_lines_are_known_by_any_of_their_endings(path: Path, name: str) -> None:
    other = path.with_name(name)
    other.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # and with a byte-order mark
    assert list(documents.read_texts(other, "text")) == [(text, True) for text in TEXTS]


def test_a_run_goes_on_where_its_file_and_its_tokenizer_have_moved(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    (before / "some.jsonl").write_text(json.dumps({"text": "the café " * 100}))
    size = byte_level_tokenizer(before / "tokenizer.json")

    def experiment(folder: Path, steps: int) -> Experiment:
        path, tokenizer = str(folder / "some.jsonl"), str(folder / "tokenizer.json")
        task = Documents(path, tokenizer=tokenizer, vocabulary=size)
        schedule = OptimizerConfig(rate=1e-2)  # does not depend on the number of steps
        return small_experiment(task, steps=steps, optimizer=schedule)

    train(experiment(before, 2), tmp_path / "run", progress=False)
    before.rename(after)
    train(experiment(after, 3), tmp_path / "run", resume=True, progress=False)
    (after / "tokenizer.json").write_text(_swapped(after / "tokenizer.json"))
    with pytest.raises(ValueError, match="has changed since the checkpoint was saved"):
        train(experiment(after, 4), tmp_path / "run", resume=True, progress=False)


def _swapped(path: Path) -> str:
    """A tokenizer in which two letters have each other's tokens."""
    saved = json.loads(path.read_text())
    words = saved["model"]["vocab"]
    words["t"], words["c"] = words["c"], words["t"]
    return json.dumps(saved)


def test_a_missing_package_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"needs the package tokenizers: pip install"):
        Documents(str(path), tokenizer=str(path), vocabulary=4).stream("train", 1, 0)
