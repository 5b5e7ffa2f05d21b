"""ReLU and dropout that keep one tensor, against plain PyTorch with the same mask."""

import pytest
import torch

from expire_span.model.ops.dropout import dropped_relu, reference_dropped_relu


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_result_and_gradient_are_those_of_the_plain_form(dropout: float) -> None:
    states = torch.randn(3, 5, 16, dtype=torch.float64, requires_grad=True)
    found = []
    for form in (dropped_relu, reference_dropped_relu):
        torch.manual_seed(1)
        out = form(states, dropout)
        found.append((out, *torch.autograd.grad(out.sin().sum(), states)))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    assert 0 < (found[0][0] > 0).double().mean() < 0.5


def test_only_the_result_is_kept_for_the_backward() -> None:
    kept = []
    states = torch.randn(4, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = dropped_relu(states, 0.3)
    assert len(kept) == 1
    assert torch.equal(kept[0], out)


@pytest.mark.parametrize("dropout", [0.1, 0.3, 0.5])
def test_as_much_is_kept_as_should_be_and_means_stay(dropout: float) -> None:
    torch.manual_seed(2)
    out = dropped_relu(torch.ones(512, 512), dropout)
    kept = (out > 0).double()
    spread = (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(kept.mean() - (1 - dropout)) < 4 * spread
    assert out.mean() == pytest.approx(1, abs=4 * spread / (1 - dropout))


def test_what_is_not_a_number_is_not_hidden() -> None:
    states = torch.full((64, 64), torch.nan, requires_grad=True)
    out = dropped_relu(states, 0.5)
    (gradient,) = torch.autograd.grad(out.sum(), states)
    assert out.isnan().any()
    assert (gradient != 0).any()
