"""Layer norm by kernels, against PyTorch's in double precision."""

import pytest
import torch
from torch import Tensor, nn

from expire_span.model.ops import norm
from expire_span.model.ops.norm import ROWS_AT_ONCE, ROWS_TOGETHER, WIDTHS, LayerNorm

pytest.importorskip("triton", reason="kernels need Triton")

BOUNDARIES = [0, 1, ROWS_AT_ONCE + 1, ROWS_TOGETHER, 2 * ROWS_TOGETHER + 3]


def result_and_gradients(layer: nn.LayerNorm, states: Tensor, pull: Tensor) -> list[Tensor]:
    states = states.detach().requires_grad_()
    out = layer(states)
    assert ("FusedNorm" in type(out.grad_fn).__name__) == isinstance(layer, LayerNorm)
    return [out, *torch.autograd.grad((out * pull).sum(), [states, layer.weight, layer.bias])]


def check(shape: tuple[int, int], device: str) -> None:
    ours = LayerNorm(shape[-1]).to(device)
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    plain = nn.LayerNorm(shape[-1]).to(device).double()
    plain.load_state_dict(ours.state_dict())
    states = 3 + 2 * torch.randn(shape, device=device)
    pull = torch.randn(shape[::-1], device=device).T  # no gradient need be contiguous
    found = result_and_gradients(ours, states, pull)
    expected = result_and_gradients(plain, states.double(), pull.double())
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == torch.float32
        # Sums over many states may come near 0: so the error counts by the size of all together.
        assert (mine - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted without a GPU only")
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("states", BOUNDARIES)
def test_it_is_the_plain_norm(monkeypatch, states, width):
    monkeypatch.setattr(norm, "_fits", lambda states: True)
    check((states, width), "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("states", [*BOUNDARIES, 100_000])
def test_on_a_gpu_it_is_the_plain_norm(states, width):
    check((states, width), "cuda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted without a GPU only")
def test_many_axes_and_gaps_between_states_change_nothing(monkeypatch):
    monkeypatch.setattr(norm, "_fits", lambda states: True)
    layer = LayerNorm(16)
    states = torch.randn(3, 8, 16)[:, 2:7]
    torch.testing.assert_close(layer(states), torch.layer_norm(states, (16,)))


def test_on_a_cpu_it_is_pytorchs_own():
    states = torch.randn(5, 16)
    assert torch.equal(LayerNorm(16)(states), nn.LayerNorm(16)(states))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernels_are_for_some_types_and_widths():
    def fused(width: int, dtype: torch.dtype = torch.float32, **how: bool) -> bool:
        layer = LayerNorm(width, **how).to("cuda", dtype)
        out = layer(torch.ones(2, width, device="cuda", dtype=dtype))
        return "FusedNorm" in type(out.grad_fn).__name__

    assert fused(64)
    assert not fused(48)
    assert not fused(64, torch.float64)
    assert not fused(64, bias=False)
