"""What the live page asks for: read a text, or go on writing it.

Shapes: T tokens of the text, V vocabulary.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from expire_span.analysis.recording import Recorder, read_block, record, text_batches
from expire_span.analysis.subject import Subject
from expire_span.analysis.view import view_data
from expire_span.serve.limits import within
from expire_span.tasks import Batch


@dataclass(frozen=True)
class Wish:
    """How a continuation is to be drawn."""

    length: int
    temperature: float = 1.0
    seed: int = 0


def read(subject: Subject, text: str, seconds: float) -> dict[str, Any]:
    """What is remembered of a text, as the page wants it."""
    tokens = _tokens(subject, text)
    batches = text_batches(tokens, subject.model.config.block, subject.ahead)
    recording = record(
        subject.model,
        within(seconds, batches),
        name=subject.name,
        rows=1,
        steps=len(tokens),
        ahead=subject.ahead,
    )
    return view_data(recording, subject.codec.pieces(tokens.tolist()), subject.codec)


def write_on(subject: Subject, text: str, wish: Wish) -> Iterator[dict[str, Any]]:
    """The text as it is read, then token by token a continuation and what each makes forgotten."""
    model, codec = subject.model, subject.codec
    if subject.ahead == 0:
        raise ValueError("This model answers what it reads, and cannot go on writing: read only.")
    tokens = _tokens(subject, text)
    block = model.config.block
    recorder = Recorder(
        model,
        subject.name,
        rows=1,
        steps=len(tokens) + wish.length,
        calls=-(-len(tokens) // block) + wish.length,
    )
    memory, step = model.start(1), None
    for batch in text_batches(tokens, block):
        step, nll = read_block(model, batch, memory)
        recorder.add(batch, step, nll)
        memory = step.memory
        yield {}  # a moment to look at the clock
    assert step is not None
    pieces = codec.pieces(tokens.tolist())
    yield {"text": view_data(recorder.so_far(), pieces, codec)}
    generator = torch.Generator().manual_seed(wish.seed)
    spell = codec.speller()
    for _ in range(wish.length):
        token, bits = _draw(step.logits[0, -1].detach().cpu(), wish.temperature, generator)
        inputs = torch.tensor([[token]])
        batch = Batch(inputs, inputs, torch.zeros(1, 1, dtype=torch.bool))
        step, nll = read_block(model, batch, memory)
        recorder.add(batch, step, nll)
        memory = step.memory
        kept, place = recorder.recording, recorder.clock - 1
        yield {
            "piece": spell(token),
            "loss": bits,
            "spans": kept.spans[:, 0, place].tolist(),
            "live": step.stats.live.tolist(),
            "deleted": np.argwhere(kept.deleted[:, 0] == recorder.clock).tolist(),
            "pooled": np.argwhere(kept.pooled[:, 0] == recorder.clock).tolist(),
        }


def _tokens(subject: Subject, text: str) -> np.ndarray[Any, Any]:
    tokens = subject.codec.encode(text)
    if not len(tokens):
        raise ValueError("There is nothing to read yet: type some text.")
    return tokens


def _draw(
    logits: torch.Tensor, temperature: float, generator: torch.Generator
) -> tuple[int, float]:
    """A token drawn from logits [V], and what it would have cost to predict it, in bits."""
    shares = torch.softmax(logits.double() / temperature, dim=-1)
    token = int(torch.multinomial(shares, 1, generator=generator))
    return token, float(-torch.log_softmax(logits.double(), dim=-1)[token] / math.log(2))
