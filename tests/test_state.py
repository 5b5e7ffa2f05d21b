"""What every state of tensors can do, whatever it is a state of."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from expire_span.state import State


@dataclass(frozen=True)
class Inner(State):
    number: Tensor
    missing: Tensor | None = None


@dataclass(frozen=True)
class Outer(State):
    first: Inner
    several: tuple[Inner, ...]
    clock: int


def outer() -> Outer:
    """Nested both ways, with a plain value and fields that are not given."""
    one, two, three = (torch.full((2,), float(n)) for n in (1, 2, 3))
    return Outer(Inner(one), (Inner(two), Inner(three, missing=one)), clock=7)


def test_tensors_are_named_by_where_they_are():
    names = ["first.number", "several.0.number", "several.1.number", "several.1.missing"]
    found = outer().tensors()
    assert list(found) == names
    assert [float(found[name][0]) for name in names] == [1, 2, 3, 1]


def test_a_function_is_applied_to_every_tensor_and_to_nothing_else():
    mapped = outer().map(lambda tensor: tensor * 10)
    assert [float(t[0]) for t in mapped.tensors().values()] == [10, 20, 30, 10]
    assert mapped.clock == 7
    assert mapped.first.missing is None


def test_a_state_is_rebuilt_from_its_tensors():
    given = {name: tensor + 1 for name, tensor in outer().tensors().items()}
    rebuilt = outer().like(given)
    assert all(torch.equal(tensor, given[name]) for name, tensor in rebuilt.tensors().items())
    with pytest.raises(KeyError):
        outer().like({})


def test_a_copy_shares_no_memory_even_where_the_state_does():
    state = outer()
    copy = state.clone()
    assert torch.equal(copy.several[1].missing, state.first.number)
    places = [t.data_ptr() for s in (state, copy) for t in s.tensors().values()]
    assert len(set(places[4:])) == 4
    assert not set(places[4:]) & set(places[:4])


def test_what_is_detached_has_no_history():
    weight = torch.ones(2, requires_grad=True)
    state = outer().map(lambda tensor: tensor * weight)
    assert all(tensor.requires_grad for tensor in state.tensors().values())
    assert not any(tensor.requires_grad for tensor in state.detach().tensors().values())
