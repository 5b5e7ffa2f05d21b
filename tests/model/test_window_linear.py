"""Linear maps of a window, whose gradient may reach the block alone, against plain PyTorch."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from expire_span.model.ops.linear import reference_window_linear, window_linear
from policies import CASES, Case, make_model, random_tokens


def case(
    rows: int, past: int, length: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(past)
    present = torch.randn(rows, length, 6, dtype=dtype, requires_grad=True)
    states = torch.cat([torch.randn(rows, past, 6, dtype=dtype), present.detach()], dim=1)
    return states, present, torch.randn(4, 6, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize(
    ("rows", "past", "length"), [(3, 7, 5), (1, 0, 4), (2, 9, 1), (2, 3, 3), (2, 0, 0)]
)
def test_result_and_gradients_are_those_of_the_plain_form(rows: int, past: int, length: int):
    states, present, weight = case(rows, past, length)
    found = []
    for form in (window_linear, reference_window_linear):
        out = form(states, weight, present)
        found.append((out, *torch.autograd.grad(out.sin().sum(), (present, weight))))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_states_may_lie_anywhere():
    states, present, weight = case(2, 3, 2)
    apart = torch.stack([states, states.neg()], dim=1)[:, 0]
    turned = states.transpose(1, 2).contiguous().transpose(1, 2)
    for same in (apart, turned):
        assert not same.is_contiguous()
        assert torch.equal(window_linear(same, weight, present), states @ weight.T)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by PyTorch's own tracer
def test_traced_in_half_precision_the_weight_keeps_its_own():
    states, present, weight = case(2, 5, 3, torch.float32)

    def halved(form: Callable[..., Tensor], present: Tensor) -> Tensor:
        return form(states.to(torch.bfloat16), weight, present.to(torch.bfloat16))

    def gradients(form: Callable[..., Tensor], call: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            out = call(form, present)
        assert out.dtype == torch.bfloat16
        return torch.autograd.grad(out.float().sin().sum(), (present, weight))

    traced = torch.compile(halved, backend="aot_eager", fullgraph=True)
    ours, plain = gradients(window_linear, traced), gradients(reference_window_linear, halved)
    assert ours[1].dtype == torch.float32
    torch.testing.assert_close(ours, plain, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # by PyTorch's own tracer
def test_all_states_learn_if_nothing_else_is_said():
    states, _, weight = case(3, 4, 2)
    states.requires_grad_()
    traced = torch.compile(window_linear, backend="aot_eager", fullgraph=True)
    found = []
    for form in (window_linear, traced, reference_window_linear):
        out = form(states, weight)
        found.append((out, *torch.autograd.grad(out.sin().sum(), (states, weight))))
    for ours, by_tracing, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close(by_tracing, theirs)


def test_a_second_derivative_is_refused():
    states, present, weight = case(2, 3, 2)
    out = window_linear(states, weight, present)
    (gradient,) = torch.autograd.grad(out.sin().sum(), weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_nothing_is_computed_for_the_past():
    states, present, weight = case(2, 30, 2)
    costs = []
    for form in (window_linear, reference_window_linear):
        out = form(states, weight, present)
        with FlopCounterMode(display=False) as counter:
            torch.autograd.grad(out.sum(), (present, weight))
        costs.append(counter.get_total_flops())
    product = 2 * 2 * 32 * 6 * 4
    assert costs == [product + product // 16, 2 * product]


@pytest.mark.parametrize("policy", list(CASES.values()), ids=list(CASES))
def test_a_model_learns_the_same_whether_memory_could_have_a_gradient_or_not(policy: Case):
    model = make_model(policy).double()
    tokens = random_tokens(2, 3 * policy.block)
    memory = model.start(2)
    *before, last = tokens.split(policy.block, dim=1)
    for block in before:
        memory = model(block, memory).memory.detach()

    def wants_gradients(tensor: Tensor) -> Tensor:
        return tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor

    found = []
    for given in (memory, memory.map(wants_gradients)):
        step = model(last, given)
        objective = step.hidden.sin().sum() + step.penalty
        found.append(torch.autograd.grad(objective, list(model.parameters()), allow_unused=True))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)
