"""The end of a layer by one kernel, against the layer's own plain form."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from expire_span.model.config import TransformerConfig
from expire_span.model.layer import Layer
from expire_span.model.memory import FixedSpan
from expire_span.model.ops.finish import can_finish
from expire_span.model.ops.norm import WIDTHS

pytest.importorskip("triton", reason="the kernel needs Triton")

interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are interpreted without a GPU only"
)
CONFIG = TransformerConfig(
    vocab=8, layers=1, width=64, heads=1, feedforward=256, block=8, memory=FixedSpan(8)
)


def on_gpu(test: Callable) -> Callable:
    needed = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return pytest.mark.gpu(needed(test))


def random_layer(device: str, **changes: object) -> Layer:
    layer = Layer(replace(CONFIG, **changes)).to(device).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.normal_(std=0.2)
    return layer


def check(layer: Layer, batch: int, device: str) -> None:
    width = len(layer.attention_norm.weight)
    states = torch.randn(batch, 1, width, device=device)
    attended = torch.randn(batch, 1, width, device=device)
    plain = layer.double().after_attention(states.double(), attended.double())
    found = layer.float().after_attention_of_step(states, attended)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), plain, rtol=2e-5, atol=2e-5)


@interpreted
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    ("width", "feedforward", "batch"), [(16, 64, 1), (32, 80, 16), (64, 256, 33), (128, 24, 5)]
)
def test_it_is_the_plain_form(norm, width, feedforward, batch):
    layer = random_layer("cpu", norm=norm, width=width, feedforward=feedforward)
    check(layer, batch, "cpu")


@on_gpu
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("batch", [1, 64, 1000])
def test_on_a_gpu_it_is_the_plain_form(norm, width, batch):
    layer = random_layer("cuda", norm=norm, width=width, feedforward=4 * width)
    check(layer, batch, "cuda")


def check_broken(place: int, device: str) -> None:
    """What is not a number in a state is in all of that one afterwards, and in no other."""
    for norm in ("pre", "post"):
        layer = random_layer(device, norm=norm)
        states, attended = torch.randn(2, 18, 64, device=device)
        states[place, 3] = float("nan")
        found = layer.after_attention_of_step(states, attended)
        assert found.isnan().all(dim=-1).tolist() == [row == place for row in range(18)]


@interpreted
@pytest.mark.parametrize("place", [0, 17])
def test_what_is_not_a_number_is_not_hidden(place):
    check_broken(place, "cpu")


@on_gpu
@pytest.mark.parametrize("place", [0, 17])
def test_on_a_gpu_what_is_not_a_number_is_not_hidden(place):
    check_broken(place, "cuda")


def test_the_kernel_is_not_for_a_cpu():
    assert not can_finish(torch.ones(1), 64)


@on_gpu
def test_the_kernel_is_for_some_types_and_widths():
    single, double = (
        torch.ones(1, dtype=dtype, device="cuda") for dtype in (torch.float32, torch.float64)
    )
    assert can_finish(single, 64)
    assert not can_finish(double, 64)
    assert not can_finish(single, 48)
