"""Runs a model over a stream and collects how long it means to keep each token.

Shapes: B rows, T steps in all, layers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from expire_span.model.transformer import Step, Transformer
from expire_span.tasks import Stream


@dataclass(frozen=True)
class SpanRecord:
    """Tokens of a stream, and the span that each layer gave to each of them."""

    tokens: Tensor  # int64 [B, T]
    spans: Tensor  # [layers, B, T], in steps


@torch.no_grad()
def record_spans(model: Transformer, stream: Stream, blocks: int) -> SpanRecord:
    """Read `blocks` blocks of a stream with a model that learns a span for every memory."""
    device = model.positions.device
    memory = model.start(stream.batch)
    tokens, spans = [], []
    for _ in range(blocks):
        batch = stream.read(model.config.block).to(device)
        step = model(batch.inputs, memory, starts=batch.starts)
        memory = step.memory
        tokens.append(batch.inputs)
        spans.append(_block_spans(step, batch.inputs.shape[1]))
    return SpanRecord(torch.cat(tokens, dim=1).cpu(), torch.cat(spans, dim=2).cpu())


def _block_spans(step: Step, length: int) -> Tensor:
    """Spans of the block's own states, [layers, B, T]."""
    times = torch.arange(length, device=step.hidden.device)
    by_layer = []
    for deadlines in step.deadlines:
        recent = deadlines[0]
        if recent is None or recent.shape[1] != 1:
            raise ValueError("Only a model that learns a span for every memory can be recorded.")
        by_layer.append(recent[:, 0, -length:] - times)
    return torch.stack(by_layer)
