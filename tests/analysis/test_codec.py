"""Pieces of a text joined are the text."""

import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from expire_span.analysis.codec import (
    ENWIK8_BYTES,
    ByteCodec,
    CharacterCodec,
    NumberCodec,
    Places,
    TokenizerCodec,
    WordCodec,
    codec_of,
)
from expire_span.tasks import Documents, Enwik8, Instruction, Recall, Text
from reading_models import byte_level_tokenizer

CODECS = {
    "bytes": ByteCodec(),
    "characters": CharacterCodec("abc né\n"),
    "words": WordCodec(["<eos>", "<unk>", "a", "rose"], "<eos>", "<unk>"),
    "numbers": NumberCodec(12),
}


@given(st.text())
def test_bytes_keep_every_text(text):
    codec = ByteCodec()
    tokens = codec.encode(text).tolist()
    assert "".join(codec.pieces(tokens)) == text
    assert bytes(tokens) == text.encode()
    spell = codec.speller()
    assert "".join(spell(token) for token in tokens) == text


@given(st.binary())
def test_any_bytes_have_pieces(data):
    assert len(ByteCodec().pieces(list(data))) == len(data)


@pytest.mark.parametrize(
    ("name", "text", "seen"),
    [
        ("characters", "a né z", "a né �"),
        ("words", "a rose is\na rose\n", "a rose <unk> \na rose \n"),
        ("numbers", "3 11 0", "3 11 0 "),
    ],
)
def test_other_codecs_show_what_the_model_sees(name, text, seen):
    codec = CODECS[name]
    tokens = codec.encode(text)
    assert "".join(codec.pieces(tokens.tolist())) == seen
    np.testing.assert_array_equal(codec.encode(seen), tokens)


@pytest.mark.parametrize(
    ("text", "ends"), [("a rose", 0), ("a rose\n", 1), ("a rose\r\n\na", 2), ("", 0), ("\n", 1)]
)
def test_only_a_line_that_has_ended_ends(text, ends):
    """Or nothing could be written on in the middle of a line."""
    assert CODECS["words"].encode(text).tolist().count(0) == ends


def test_instructions_are_cut_into_words_as_in_training(tmp_path):
    codec = codec_of(Instruction(), tmp_path)
    tokens = codec.encode("The old cook asks: can you tell the young miller?")
    assert 0 not in tokens  # the unknown word
    seen = "the old cook asks : can you tell the young miller ? "
    assert "".join(codec.pieces(tokens.tolist())) == seen


def test_what_has_no_token_is_refused():
    with pytest.raises(ValueError, match="no token for"):
        ByteCodec(ENWIK8_BYTES).encode("a \x07 bell")
    with pytest.raises(ValueError, match="numbers from 0 to 11"):
        NumberCodec(12).encode("3 12")
    with pytest.raises(ValueError, match="no word 'tulip'"):
        WordCodec(["rose"]).encode("rose tulip")


def test_enwik8_has_as_many_bytes_as_its_task_says(tmp_path):
    assert len(set(ENWIK8_BYTES)) == len(ENWIK8_BYTES) == Enwik8().vocab
    assert codec_of(Enwik8(), tmp_path).encode("\t").tolist() == [0]


def test_tasks_have_their_codecs(tmp_path):
    assert codec_of(Text("any"), tmp_path).unit == "byte"
    assert codec_of(Documents("any.jsonl"), tmp_path).unit == "byte"
    assert codec_of(Recall(), tmp_path).pieces([1, 2]) == ["1 ", "2 "]
    stories = Instruction(distance=10)
    tokens = stories.stream("valid", 1, 0).read(200).inputs[0].tolist()
    codec = codec_of(stories, tmp_path)
    story = "".join(codec.pieces(tokens))
    assert codec.encode(story).tolist() == tokens
    assert codec.encode("a word_that_is_in_no_story").tolist()[1] == 0
    assert " the " in story


def test_a_tokenizer_speaks_for_itself(tmp_path):
    vocabulary = {"[UNK]": 0, "a": 1, "rose": 2}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    codec = codec_of(Documents("any.jsonl", tokenizer=str(path), vocabulary=3), tmp_path)
    assert codec.encode("a rose").tolist() == [1, 2]
    assert "".join(codec.pieces([1, 2])) == "a rose"
    spell = codec.speller()
    assert spell(1) + spell(2) == "a rose"


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    return TokenizerCodec(path, byte_level_tokenizer(path))


def test_characters_of_several_tokens_stand_where_they_are_whole(byte_level):
    tokens = byte_level.encode("café the 😀").tolist()
    assert byte_level.pieces(tokens) == ["c", "a", "", "fé", " the", " ", "", "", "", "😀"]
    assert byte_level.pieces([]) == []


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("the é😀�"), max_size=100))
@example("�" * 100 + "é")
def test_a_tokenizer_of_bytes_keeps_every_text(byte_level, text):
    tokens = byte_level.encode(text).tolist()
    assert "".join(byte_level.pieces(tokens)) == text
    spell = byte_level.speller()
    assert "".join(spell(token) for token in tokens) == text.rstrip("�")


@given(st.lists(st.integers(0, 255), max_size=100))
def test_a_tokenizer_of_bytes_has_pieces_of_any_tokens(byte_level, tokens):
    pieces = byte_level.pieces(tokens)
    assert len(pieces) == len(tokens)
    assert "".join(pieces) == byte_level._tokenizer.decode(tokens)


def test_a_tokenizer_that_cannot_be_had_is_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    task = Documents("any.jsonl", tokenizer=str(path), vocabulary=10)
    with pytest.raises(FileNotFoundError, match=r"There is no file .*tokenizer\.json: check"):
        codec_of(task, tmp_path)
    byte_level_tokenizer(path)
    with pytest.raises(ValueError, match=r"up to 261, but vocabulary is 10"):
        codec_of(task, tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match="needs the package tokenizers: pip install"):
        codec_of(task, tmp_path)


@given(st.text(max_size=20), st.text(min_size=1, max_size=5), st.text(max_size=20))
def test_places_find_every_byte_of_a_passage(before, passage, after):
    codec = ByteCodec()
    pieces = codec.pieces(codec.encode(before + passage + after).tolist())
    found = Places(pieces).tokens(len(before), len(before + passage))
    first = len(before.encode())
    assert found == range(first, first + len(passage.encode()))
    assert len(Places(pieces).tokens(len(before), len(before))) == 0
