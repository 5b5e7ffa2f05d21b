"""Compiled layers: no graph breaks, few graphs however memory grows, and the same numbers."""

import pytest
import torch
from torch import Tensor

from expire_span.model.memory import Memory
from expire_span.model.transformer import Transformer
from policies import (
    CASES,
    Case,
    both_norms,
    count_graphs,
    every_case,
    make_model,
    random_tokens,
    room_as_on_a_gpu,
)

PICKED = ("expire", "expire-budget", "adaptive", "fixed-over-block", "compressive-over-block")
BLOCKS = 9

pytestmark = pytest.mark.filterwarnings("ignore")  # what the compiler trips over in its own code


@pytest.fixture(autouse=True)
def room(monkeypatch) -> None:
    room_as_on_a_gpu(monkeypatch)


def read(model: Transformer, tokens: Tensor) -> list[Tensor]:
    """A stream with episodes from its beginning, learned from if gradients are on."""
    memory, hidden = model.start(len(tokens)), []
    for part in tokens.split(model.config.block, dim=1):
        with torch.autocast("cpu", torch.bfloat16):
            step = model(part, memory, starts=part == 0)
        if torch.is_grad_enabled():
            (step.hidden.float().square().mean() + step.penalty).backward()
        memory = step.memory.detach()
        hidden.append(step.hidden.detach())
    return hidden


@pytest.mark.parametrize("case", [CASES[name] for name in PICKED], ids=PICKED)
def test_one_graph_of_a_layer_serves_all_that_is_learned(case: Case):
    model, plain = make_model(case).float(), make_model(case).float()
    counter = count_graphs(model)
    tokens = random_tokens(2, BLOCKS * case.block)
    for _ in range(2):
        torch.testing.assert_close(read(model, tokens), read(plain, tokens))
        # Not one for each of two layers, a beginning, and the sizes that follow.
        assert counter.frame_count == 1
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_is_judged_is_not_compiled_for():
    model = make_model(CASES["expire"]).float()
    counter = count_graphs(model)
    with torch.no_grad():
        read(model, random_tokens(3, BLOCKS * 8 + 5))
    assert counter.frame_count == 0


def test_far_memory_that_comes_late_and_dropped_layers_take_a_graph_more_each():
    model = make_model(CASES["expire"], layer_drop=0.5).float().train()
    counter = count_graphs(model)
    biases = [layer.keeper.predictor.bias.data for layer in model.stack()]
    tokens = random_tokens(2, 2 * BLOCKS * 8)
    for bias in biases:
        bias.sub_(1000)  # spans of 0
    read(model, tokens)
    assert counter.frame_count == 2
    for bias in biases:
        bias.add_(1000)
    read(model, tokens)
    assert counter.frame_count == 4


def test_hooks_of_a_layer_are_called_in_every_block():
    model = make_model(CASES["fixed-over-block"]).float()
    count_graphs(model)
    called = []
    model.stack()[0].register_forward_hook(lambda *_: called.append(1))
    with torch.no_grad():
        read(model, random_tokens(2, BLOCKS * 7))
    assert len(called) == BLOCKS


@every_case
def test_a_filled_memory_has_the_form_it_keeps(case: Case):
    model = make_model(case).float()
    memory, forms = model.start(2), []
    for block in random_tokens(2, 16 * case.block).split(case.block, dim=1):
        if model.filled(memory):
            forms.append(form(memory, symbolic=case.memory.symbolic_sizes() is not False))
        with torch.autocast("cpu", torch.bfloat16):
            memory = model(block, memory).memory
    assert len(forms) > 3
    assert all(one == forms[0] for one in forms)


def form(memory: Memory, symbolic: bool) -> list[object]:
    """What a compiler cannot leave open: types, and sizes but for those above one that may grow."""
    types = [(name, tensor.dtype, tensor.ndim) for name, tensor in memory.tensors().items()]
    if not symbolic:
        return [*types, *(tensor.shape for tensor in memory.tensors().values())]
    grown = [t.shape[axis] for layer in memory.layers for t, axis in layer.growing()]
    return [*types, *(min(size, 2) for size in grown)]


def test_without_fused_attention_nothing_is_compiled():
    model = make_model(CASES["expire"])
    model.compile_layers()
    assert all(layer._compiled_call_impl is None for layer in model.stack())


@both_norms
def test_the_compiler_knows_all_that_it_is_asked_for(norm, monkeypatch):
    """It refuses options that it has no name for."""
    monkeypatch.setattr(Transformer, "_implementation", lambda model: "fused")
    model = make_model(CASES["expire"], norm=norm)
    model.compile_layers()
    assert all(layer._compiled_call_impl is not None for layer in model.stack())
