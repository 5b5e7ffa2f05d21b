"""ReLU and dropout that keep one tensor, against plain PyTorch with the same mask."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from expire_span.model.config import TransformerConfig
from expire_span.model.layer import FeedForward
from expire_span.model.memory import FixedSpan
from expire_span.model.ops.relu import (
    ROWS_TOGETHER,
    dropped_relu,
    fused_relu_backward,
    linear_relu,
    product_relu,
    reference_dropped_relu,
    reference_linear_relu,
    reference_relu_backward,
    relu_backward,
)

CONFIG = TransformerConfig(
    vocab=8, layers=1, width=64, heads=1, feedforward=256, block=8, memory=FixedSpan(8)
)


def learned(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
def test_result_and_gradients_are_those_of_the_plain_form(dropout: float) -> None:
    hidden, bias = learned(3, 5, 16), learned(16)
    found = []
    for form in (dropped_relu, reference_dropped_relu):
        torch.manual_seed(1)
        out = form(hidden, bias, dropout)
        found.append((out, *torch.autograd.grad(out.sin().sum(), (hidden, bias))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert 0 < (found[0][0] > 0).double().mean() < 0.65


def test_a_product_that_ends_with_its_relu_is_the_plain_one() -> None:
    given = learned(3, 5, 6), learned(16, 6), learned(16)
    found = []
    for form in (linear_relu, reference_linear_relu):
        out = form(*given)
        found.append((out, *torch.autograd.grad(out.sin().sum(), given)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
    assert 0 < (found[0][0] > 0).double().mean() < 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by PyTorch's own tracer
def test_a_product_that_ends_with_its_relu_is_in_the_type_of_products() -> None:
    given = [learned(*shape, dtype=torch.float32) for shape in ((3, 5, 6), (16, 6), (16,))]
    found = []
    for form in (linear_relu, torch.compile(linear_relu, backend="aot_eager", fullgraph=True)):
        with torch.autocast("cpu", torch.bfloat16):
            out = form(*given)
        assert out.dtype == torch.bfloat16
        found.append(torch.autograd.grad(out.float().sin().sum(), given))
        assert {gradient.dtype for gradient in found[-1]} == {torch.float32}
    torch.testing.assert_close(*found)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(out, reference_linear_relu(*given))


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_bias_that_was_added_before_gets_the_gradient_it_should(dropout: float) -> None:
    states, weight, bias = learned(4, 6), learned(8, 6), learned(8)
    torch.manual_seed(3)
    out = dropped_relu(states @ weight.T + bias.detach(), bias, dropout)
    found = torch.autograd.grad(out.cos().sum(), (states, weight, bias))
    mask = out.detach() > 0
    plain = torch.where(mask, (states @ weight.T + bias) / (1 - dropout), 0)
    torch.testing.assert_close(plain, out)
    expected = torch.autograd.grad(plain.cos().sum(), (states, weight, bias))
    torch.testing.assert_close(found, expected)


def test_only_the_result_is_kept_for_the_backward() -> None:
    kept = []
    hidden, bias = learned(4, 8), learned(8)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = dropped_relu(hidden, bias, 0.3)
    assert len(kept) == 1
    assert torch.equal(kept[0], out)


@pytest.mark.parametrize("dropout", [0.1, 0.3, 0.5])
def test_as_much_is_kept_as_should_be_and_means_stay(dropout: float) -> None:
    torch.manual_seed(2)
    out = dropped_relu(torch.ones(512, 512), torch.zeros(512), dropout)
    kept = (out > 0).double()
    spread = (dropout * (1 - dropout) / kept.numel()) ** 0.5
    assert abs(kept.mean() - (1 - dropout)) < 4 * spread
    assert out.mean() == pytest.approx(1, abs=4 * spread / (1 - dropout))


def test_what_is_not_a_number_is_not_hidden() -> None:
    hidden, bias = torch.full((64, 64), torch.nan, requires_grad=True), torch.zeros(64)
    out = dropped_relu(hidden, bias, 0.5)
    (gradient,) = torch.autograd.grad(out.sum(), hidden)
    assert out.isnan().any()
    assert (gradient != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("count", "width"), [(1, 1), (17, 40), (ROWS_TOGETHER, 256), (2 * ROWS_TOGETHER + 3, 300)]
)
def test_the_kernel_gives_what_plain_torch_does(dtype: torch.dtype, count: int, width: int) -> None:
    torch.manual_seed(count)
    grad, out = torch.randn(count, width).to(dtype), torch.randn(count, width).relu().to(dtype)
    if count > 4:
        out[3, 1] = torch.nan
    passed, sums = fused_relu_backward(grad, out, 0.7)
    expected, expected_sums = reference_relu_backward(grad, out, 0.7)
    assert passed.dtype == dtype
    torch.testing.assert_close(passed, expected)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-4, atol=1e-4 * count**0.5)


def test_the_kernel_reads_tensors_that_are_not_contiguous() -> None:
    grad, out = torch.randn(40, 8).T, torch.randn(40, 8).relu().T
    found, expected = (
        form(grad, out, 1.0) for form in (fused_relu_backward, reference_relu_backward)
    )
    torch.testing.assert_close(found, expected)


def test_nothing_gives_nothing() -> None:
    passed, sums = fused_relu_backward(torch.ones(0, 4), torch.ones(0, 4), 1.0)
    assert passed.shape == (0, 4)
    assert torch.equal(sums, torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [1.0, 0.7])
def test_it_is_a_proper_operator(dtype: torch.dtype, kept: float) -> None:
    grad, out = torch.randn(5, 4, dtype=dtype).T, torch.randn(4, 5, dtype=dtype).relu()
    torch.library.opcheck(relu_backward, (grad, out, kept))
    torch.library.opcheck(product_relu, (grad, out, torch.randn(4, dtype=dtype)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by PyTorch's own tracer
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_traced_it_gives_the_same_gradients(dropout: float) -> None:
    module = FeedForward(replace(CONFIG, dropout=dropout))
    states = learned(2, 6, 64, dtype=torch.float32)

    def gradients(form: FeedForward) -> tuple[Tensor, ...]:
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            out = form(states)
        return torch.autograd.grad(out.float().sin().sum(), [states, *module.parameters()])

    traced = torch.compile(module, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(traced), gradients(module))
    for gradient, parameter in zip(gradients(traced)[1:], module.parameters(), strict=True):
        assert gradient.dtype == parameter.dtype


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@on_a_gpu
@pytest.mark.gpu
def test_on_a_gpu_it_is_right_and_the_same_twice() -> None:
    grad = torch.randn(32_768 + 5, 2048, device="cuda", dtype=torch.bfloat16)
    out = torch.randn_like(grad).relu()
    passed, sums = fused_relu_backward(grad, out, 0.7)
    expected, expected_sums = reference_relu_backward(grad, out, 0.7)
    torch.testing.assert_close(passed, expected)
    torch.testing.assert_close(sums, expected_sums, rtol=1e-4, atol=1e-2)
    again, sums_again = fused_relu_backward(grad, out, 0.7)
    assert torch.equal(passed, again)
    assert torch.equal(sums, sums_again)


@on_a_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_a_product_ends_with_its_relu(dtype: torch.dtype) -> None:
    shapes = (4096, 512), (2048, 512), (2048,)
    states, weight, bias = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in shapes)
    expected = reference_linear_relu(states, weight, bias)
    torch.testing.assert_close(product_relu(states, weight, bias), expected, rtol=2e-2, atol=2e-2)
    assert product_relu(states * torch.nan, weight, bias).isnan().all()  # which is not hidden


@on_a_gpu
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what the compiler says of itself
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiled_on_a_gpu_it_gives_the_same_gradients(dropout: float) -> None:
    module = FeedForward(replace(CONFIG, dropout=dropout)).cuda()
    states = torch.randn(4, 32, 64, device="cuda", requires_grad=True)
    wanted = [states, *module.parameters()]

    def gradients() -> list[Tensor]:
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16):
            out = module(states)
        return list(torch.autograd.grad(out.float().sin().sum(), wanted))

    eager = gradients()
    module.compile(fullgraph=True)
    torch.testing.assert_close(gradients(), eager, rtol=2e-2, atol=2e-2)
