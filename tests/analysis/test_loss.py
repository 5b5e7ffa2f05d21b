"""The loss along a text against reading it row by row."""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from expire_span import ExpireSpan, Transformer, TransformerConfig
from expire_span.analysis.figures import SMOOTH, Outcome, draw_stream
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


def test_where_nothing_is_scored_there_is_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes(bytes(range(68)))
    config = TransformerConfig(
        vocab=256, layers=1, width=8, heads=2, feedforward=8, block=16, memory=ExpireSpan(32, 4)
    )
    task = Text(str(path), train_share=0.5, valid_share=0.5)  # rows of 17 and of 16 pairs
    found = loss_along(Transformer(config), task, "valid", batch=2, precision="float32")
    assert [math.isnan(loss) for loss in found] == [False, False, False, True]
    assert min(found[:3]) > 1


def test_where_there_is_no_loss_nothing_is_drawn() -> None:
    figure, axes = plt.subplots()
    curve = [1.0] * SMOOTH + [math.nan] * SMOOTH + [math.nan, 2.0, 2.0, math.nan, 3.0]
    draw_stream(axes, [Outcome("some", [], [], curve=curve)], "bits")
    drawn = axes.lines[0].get_ydata() * math.log(2)
    plt.close(figure)
    np.testing.assert_allclose(drawn, [1.0, math.nan, 2.0, 3.0])


def test_a_stream_without_end_has_no_places() -> None:
    config = TransformerConfig(
        vocab=4, layers=1, width=8, heads=2, feedforward=8, block=16, memory=ExpireSpan(32, 4)
    )
    with pytest.raises(ValueError, match="never ends"):
        loss_along(Transformer(config), Copy(5), "valid", batch=2)
