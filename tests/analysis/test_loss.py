"""The loss along a text against reading it row by row."""

from pathlib import Path

import pytest
import torch

from expire_span import ExpireSpan, Transformer, TransformerConfig
from expire_span.analysis.loss import loss_along
from expire_span.tasks import Copy, Text


def test_losses_stand_in_the_order_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes(bytes((place * place + place // 7) % 251 for place in range(2000)))
    task = Text(str(path))
    config = TransformerConfig(
        vocab=256, layers=1, width=8, heads=2, feedforward=8, block=16, memory=ExpireSpan(32, 4)
    )
    model = Transformer(config).double()
    found = loss_along(model, task, "valid", batch=2, precision="float32")
    assert model.training
    model.eval()
    expected = []
    text = torch.tensor(list(path.read_bytes()[1800:1900]))
    for first, last in ((0, 50), (50, 99)):  # inputs of each row
        memory = model.start(1)
        for begin in range(first, last, 16):
            end = min(begin + 16, last)
            step = model(text[None, begin:end], memory)
            memory = step.memory
            nll = model.sequence_head().nll(step.hidden, text[None, begin + 1 : end + 1])
            expected.append(nll.mean().item())
    assert found == pytest.approx(expected, rel=1e-6)
    assert len(loss_along(model, task, "valid", batch=2, blocks=3, precision="float32")) == 6


def test_a_stream_without_end_has_no_places() -> None:
    config = TransformerConfig(
        vocab=4, layers=1, width=8, heads=2, feedforward=8, block=16, memory=ExpireSpan(32, 4)
    )
    with pytest.raises(ValueError, match="never ends"):
        loss_along(Transformer(config), Copy(5), "valid", batch=2)
