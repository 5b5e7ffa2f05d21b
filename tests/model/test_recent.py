"""What stays of the last states: the same from their parts as from the whole."""

import pytest
import torch

from expire_span.model.memory.recent import keep_recent, last_states, recent_states
from expire_span.model.memory.window import Window
from policies import CASES, make_model, random_tokens


@pytest.mark.parametrize("past", [0, 1, 5])
@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 20])
def test_the_last_states_are_those_of_the_joined_ones_in_values_and_gradients(past, count):
    torch.manual_seed(past)
    parts = [torch.randn(2, length, 3, requires_grad=True) for length in (past, 4)]
    window = Window(length=4, clock=0, origin=torch.zeros(2, dtype=torch.int64))
    joined = recent_states(*parts, window, None, 4)
    found = []
    for kept in (keep_recent(joined, count), last_states(joined.states, count)):
        gradients = torch.autograd.grad(
            kept.sin().sum(), parts, retain_graph=True, materialize_grads=True
        )
        found.append((kept, *gradients))
    torch.testing.assert_close(*found)
    assert found[0][0].shape[1] == min(count, past + 4)


@pytest.mark.parametrize("name", ["expire", "fixed-under-block"])
def test_memory_shares_nothing_with_what_passes_through_the_layers(name, tmp_path):
    """A layer that is dropped passes its input on, to be remembered twice."""
    case = CASES[name]
    model = make_model(case, layers=3, layer_drop=0.99).train()
    tokens = random_tokens(2, 2 * case.block)
    memory = model.start(2)
    for block in tokens.split(case.block, dim=1):
        step = model(block, memory, generator=torch.Generator().manual_seed(1))
        memory = step.memory.detach()
    kept = [tensor for tensor in memory.tensors().values() if tensor.numel()]
    places = [tensor.untyped_storage().data_ptr() for tensor in (step.hidden, *kept)]
    assert len(set(places)) == len(places)
    memory.save(tmp_path / "memory.safetensors")
    restored = model.load_memory(tmp_path / "memory.safetensors")
    for ours, theirs in zip(restored.tensors().values(), memory.tensors().values(), strict=True):
        assert torch.equal(ours, theirs)
