"""A number for each state, and the gradient of the vector behind it, against plain PyTorch."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from expire_span.model.ops.score import (
    ROWS_TOGETHER,
    fused_weighted_sum,
    reference_score,
    reference_weighted_sum,
    score,
    weighted_sum,
)


def states_and_weight(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(shape[0])
    states = torch.randn(shape, dtype=dtype, requires_grad=True)
    return states, torch.randn(shape[-1], dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 5, 8), (7, 4), (1, 1), (0, 4), (2, 0, 4)])
def test_result_and_gradients_are_those_of_the_plain_form(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    states, weight = states_and_weight(*shape, dtype=dtype)
    found = []
    for form in (score, reference_score):
        out = form(states, weight)
        found.append((out, *torch.autograd.grad(out.sin().sum(), (states, weight))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_half_precision_is_only_that_of_the_states() -> None:
    states, weight = states_and_weight(40, 16, dtype=torch.bfloat16)
    weight = weight.detach().float().requires_grad_()
    out = score(states, weight)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, (states.double() @ weight.double()).float())
    to_states, to_weight = torch.autograd.grad(out.sin().sum(), (states, weight))
    assert to_states.dtype == torch.bfloat16
    torch.testing.assert_close(to_weight, (out.double().cos() @ states.double()).float())


@pytest.mark.parametrize(("wanted", "made"), [("states", 1), ("weight", 0)])
def test_a_gradient_that_nobody_wants_is_not_computed(wanted: str, made: int) -> None:
    states, weight = states_and_weight(6, 4, dtype=torch.bfloat16)
    given = {"states": states, "weight": weight}
    out = score(*(one if name == wanted else one.detach() for name, one in given.items()))
    with Shapes() as found:
        torch.autograd.grad(out.sum(), given[wanted])
    assert sum(shape == (6, 4) and name == "aten::mul" for name, shape in found.seen) == made
    assert ("expire_span::weighted_sum" in {name for name, _ in found.seen}) == (not made)


class Shapes(TorchDispatchMode):
    """Notes every operator and the shape of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = operator(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.seen.append((operator._schema.name, tuple(out.shape)))
        return out


def test_states_of_full_precision_need_not_be_kept() -> None:
    states, weight = states_and_weight(6, 4)
    assert score(states, weight).grad_fn.name() == "SumBackward1"
    half = score(states.detach().bfloat16(), weight)
    assert half.grad_fn.name() != "SumBackward1"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("count", "width"), [(1, 1), (17, 40), (ROWS_TOGETHER, 256), (2 * ROWS_TOGETHER + 3, 300)]
)
def test_the_kernel_gives_what_plain_torch_does(dtype: torch.dtype, count: int, width: int) -> None:
    torch.manual_seed(count)
    states, weights = torch.randn(count, width).to(dtype), torch.randn(count)
    found = fused_weighted_sum(states, weights)
    expected = reference_weighted_sum(states, weights.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5 * count**0.5)


def test_nothing_adds_up_to_nothing() -> None:
    assert torch.equal(fused_weighted_sum(torch.ones(0, 4), torch.ones(0)), torch.zeros(4))


def test_what_is_not_a_number_is_not_hidden() -> None:
    states = torch.ones(20, 3)
    states[5, 1] = torch.nan
    assert fused_weighted_sum(states, torch.ones(20)).isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_a_proper_operator(dtype: torch.dtype) -> None:
    torch.library.opcheck(weighted_sum, (torch.randn(4, 5, dtype=dtype).T, torch.randn(5)))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by PyTorch's own tracer
def test_traced_it_gives_the_same_gradients() -> None:
    states, weight = states_and_weight(3, 6, 8, dtype=torch.bfloat16)
    traced = torch.compile(score, backend="aot_eager", fullgraph=True)
    found = [
        torch.autograd.grad(form(states, weight).sin().sum(), (states, weight))
        for form in (traced, score)
    ]
    torch.testing.assert_close(*found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.gpu
def test_on_a_gpu_it_is_right_and_the_same_twice() -> None:
    states = torch.randn(65_536 + 5, 512, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(len(states), device="cuda")
    found = fused_weighted_sum(states, weights)
    expected = reference_weighted_sum(states, weights.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-2)
    assert torch.equal(found, fused_weighted_sum(states, weights))
