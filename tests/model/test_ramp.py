"""The ramp's closed forms against sums over every step of time, in values and gradients.

Deadlines lie on a grid of sixteenths, where floats are exact, whole numbers among them: the places
where an off-by-one would show.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from expire_span.model.ops.ramp import NEVER, is_alive, ramp_charge, soft_weight, steps_seen

times = st.integers(-30, 30)
edges = st.one_of(times, st.sampled_from([-NEVER, NEVER]))
deadlines = st.one_of(times, st.integers(-30 * 16, 30 * 16).map(lambda n: n / 16))
ramps = st.integers(1, 12)
lengths = st.integers(1, 20)


def tensors(first: int, last: int, deadline: float) -> tuple[Tensor, Tensor, Tensor]:
    precise = torch.tensor(deadline, dtype=torch.float64, requires_grad=True)
    return torch.tensor(first), torch.tensor(last), precise


def plain_weight(deadline: float, time: int, ramp: int) -> float:
    return min(max(1 + (deadline - time) / ramp, 0), 1)


@given(deadlines, times, ramps)
def test_weight_falls_from_one_to_zero_along_the_ramp(
    deadline: float, time: int, ramp: int
) -> None:
    weight = soft_weight(torch.tensor(deadline, dtype=torch.float64), torch.tensor(time), ramp)
    assert weight.item() == pytest.approx(plain_weight(deadline, time, ramp), abs=1e-14)


@given(deadlines, times, ramps)
def test_weight_has_gradient_strictly_inside_the_ramp_only(
    deadline: float, time: int, ramp: int
) -> None:
    precise = torch.tensor(deadline, dtype=torch.float64, requires_grad=True)
    soft_weight(precise, torch.tensor(time), ramp).backward()
    inside = deadline < time < deadline + ramp
    assert precise.grad is not None
    assert precise.grad.item() == (pytest.approx(1 / ramp) if inside else 0)


def test_weight_has_no_gradient_at_either_end() -> None:
    deadline = torch.tensor(5.0, requires_grad=True)
    at_ends = soft_weight(deadline, torch.tensor([5, 9]), ramp=4)
    assert at_ends.tolist() == [1, 0]
    at_ends.sum().backward()
    assert deadline.grad == 0


@given(deadlines, times, ramps)
def test_alive_means_weight_above_zero(deadline: float, time: int, ramp: int) -> None:
    precise = torch.tensor(deadline, dtype=torch.float64)
    weight = soft_weight(precise, torch.tensor(time), ramp)
    assert is_alive(precise, time, ramp) == (weight > 0)


@given(time=st.integers(0, 600), ramp=st.integers(1, 200), toward=st.sampled_from([-1.0, 1.0]))
def test_nothing_with_weight_left_is_called_dead_where_floats_round(
    time: int, ramp: int, toward: float
) -> None:
    deadline = torch.nextafter(torch.tensor(float(time - ramp)), torch.tensor(toward * torch.inf))
    weight = soft_weight(deadline, torch.tensor(time), ramp)
    assert is_alive(deadline, time, ramp) or weight == 0


@given(edges, edges, deadlines, ramps, lengths)
def test_steps_seen_counts_the_queries_with_weight(
    first: int, last: int, deadline: float, ramp: int, length: int
) -> None:
    count = sum(first <= t <= last and plain_weight(deadline, t, ramp) > 0 for t in range(length))
    assert steps_seen(*tensors(first, last, deadline), ramp, length) == count


@given(edges, edges, ramps, lengths)
def test_steps_seen_without_a_deadline_counts_the_window(
    first: int, last: int, ramp: int, length: int
) -> None:
    count = sum(first <= t <= last for t in range(length))
    assert steps_seen(torch.tensor(first), torch.tensor(last), None, ramp, length) == count


@given(edges, edges, deadlines, ramps, lengths)
def test_ramp_charge_is_the_sum_over_ramp_queries_and_its_gradient_their_number(
    first: int, last: int, deadline: float, ramp: int, length: int
) -> None:
    on_ramp = [
        t for t in range(length) if first <= t <= last and 0 < plain_weight(deadline, t, ramp) < 1
    ]
    first_, last_, deadline_ = tensors(first, last, deadline)
    charge = ramp_charge(first_, last_, deadline_, ramp, length)
    charge.backward()
    assert charge.item() == pytest.approx(sum(deadline - t for t in on_ramp), abs=1e-10)
    assert deadline_.grad == len(on_ramp)


def test_the_worked_example_of_ramp_charge_holds() -> None:
    first, last, deadline = tensors(-NEVER, NEVER, 2.5)
    charge = ramp_charge(first, last, deadline, ramp=4, length=10)
    charge.backward()
    assert charge == -8
    assert deadline.grad == 4


def test_the_worked_example_of_expire_span_holds() -> None:
    weights = soft_weight(torch.tensor(10.0), torch.arange(9, 16), ramp=4)
    assert weights.tolist() == [1, 1, 0.75, 0.5, 0.25, 0, 0]


def test_counts_are_elementwise_over_shapes_that_broadcast() -> None:
    first, last = torch.arange(-4, 2)[None, None], torch.full((2, 1, 6), 5)
    deadline = torch.linspace(-6, 8, 18).reshape(1, 3, 6).double()
    seen = steps_seen(first, last, deadline, ramp=3, length=4)
    charge = ramp_charge(first, last, deadline, ramp=3, length=4)
    assert seen.shape == charge.shape == (2, 3, 6)
    one = (0, 1, 2)
    assert seen[one] == steps_seen(first[0, 0, 2], last[0, 0, 2], deadline[one], 3, 4)
    assert charge[one] == ramp_charge(first[0, 0, 2], last[0, 0, 2], deadline[one], 3, 4)
