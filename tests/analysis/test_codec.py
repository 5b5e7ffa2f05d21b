"""Pieces of a text joined are the text."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expire_span.analysis.codec import (
    ENWIK8_BYTES,
    ByteCodec,
    CharacterCodec,
    NumberCodec,
    Places,
    WordCodec,
    codec_of,
)
from expire_span.tasks import Documents, Enwik8, Instruction, Recall, Text

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


def test_what_has_no_token_is_refused():
    with pytest.raises(ValueError, match="no token for"):
        ByteCodec(ENWIK8_BYTES).encode("a \x07 bell")
    with pytest.raises(ValueError, match="numbers from 0 to 11"):
        NumberCodec(12).encode("3 12")
    with pytest.raises(ValueError, match="no word 'tulip'"):
        WordCodec(["rose"]).encode("rose tulip")


def test_enwik8_has_as_many_bytes_as_its_task_says():
    assert len(set(ENWIK8_BYTES)) == len(ENWIK8_BYTES) == Enwik8().vocab
    assert codec_of(Enwik8()).encode("\t").tolist() == [0]


def test_tasks_have_their_codecs(tmp_path):
    assert codec_of(Text("any")).unit == "byte"
    assert codec_of(Documents("any.jsonl")).unit == "byte"
    assert codec_of(Recall()).pieces([1, 2]) == ["1 ", "2 "]
    stories = Instruction(distance=10)
    tokens = stories.stream("valid", 1, 0).read(200).inputs[0].tolist()
    codec = codec_of(stories)
    story = "".join(codec.pieces(tokens))
    assert codec.encode(story).tolist() == tokens
    assert codec.encode("a word_that_is_in_no_story").tolist()[1] == 0
    assert " the " in story


def test_a_tokenizer_speaks_for_itself(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"[UNK]": 0, "a": 1, "rose": 2}
    model = tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    assert json.loads(path.read_text())
    codec = codec_of(Documents("any.jsonl", tokenizer=str(path), vocabulary=3))
    assert codec.encode("a rose").tolist() == [1, 2]
    assert "".join(codec.pieces([1, 2])) == "a rose"
    spell = codec.speller()
    assert spell(1) + spell(2) == "a rose"


@given(st.text(max_size=20), st.text(min_size=1, max_size=5), st.text(max_size=20))
def test_places_find_every_byte_of_a_passage(before, passage, after):
    codec = ByteCodec()
    pieces = codec.pieces(codec.encode(before + passage + after).tolist())
    found = Places(pieces).tokens(len(before), len(before + passage))
    first = len(before.encode())
    assert found == range(first, first + len(passage.encode()))
    assert len(Places(pieces).tokens(len(before), len(before))) == 0
