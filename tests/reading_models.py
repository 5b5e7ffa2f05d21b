"""A small model that reads bytes, for the tests of analyses and of the page."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from expire_span import ExpireSpan
from expire_span.analysis.codec import ByteCodec
from expire_span.analysis.subject import Reader
from expire_span.model.memory import AnyMemory
from expire_span.tasks import Text
from policies import Case, make_model
from small_runs import small_experiment

EXPIRING = ExpireSpan(60, 8, initial=0.4)


def reading_subject(memory: AnyMemory = EXPIRING, name: str = "small", block: int = 16) -> Reader:
    """Its spans differ from byte to byte; nothing was learned."""
    torch.manual_seed(3)
    model = make_model(Case(memory, block), vocab=256, attention="auto").float()
    return Reader(name, model, ByteCodec(), small_experiment(Text("any.txt")), Path("any"))


def text_of_some_length(folder: Path) -> Path:
    """A file with markup, names and a character of several bytes."""
    path = folder / "text.txt"
    line = "The '''café''' of [[Humpty Dumpty]] opened in 1869.\n== Menu ==\n* tea & cake\n"
    path.write_text(line * 6, encoding="utf-8")
    return path


def byte_level_tokenizer(path: Path) -> int:
    """Write a tokenizer of bytes and a few words; gives the number of its tokens.

    Bytes are written as letters: é is Ã©, a space Ġ. One token ends in the middle of a character.
    """
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("f", "Ã"), ("Ġ", "E"), ("ĠE", "g")]
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    vocabulary = {word: token for token, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path))
    return len(words)
