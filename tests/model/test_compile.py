"""Compiled layers: no graph breaks, one graph however memory grows, and the same numbers."""

import pytest
import torch
import torch._dynamo.testing

from expire_span.model.memory import Memory, adaptive_span, packed
from expire_span.model.memory.room import in_chunks
from expire_span.model.transformer import Transformer
from policies import CASES, Case, make_model, random_tokens

PICKED = ("expire", "expire-budget", "adaptive", "fixed-over-block", "compressive-over-block")
BLOCKS = 9


@pytest.mark.filterwarnings("ignore")  # what the compiler trips over in its own code
@pytest.mark.parametrize("case", [CASES[name] for name in PICKED], ids=PICKED)
def test_one_graph_of_a_layer_serves_every_memory_size(case: Case, monkeypatch):
    for module in (packed, adaptive_span):  # as on a GPU
        monkeypatch.setattr(module, "offers", in_chunks)
    torch.compiler.reset()
    compiled, eager = make_model(case, layers=2), make_model(case, layers=2)
    counter = torch._dynamo.testing.CompileCounter()
    for layer in compiled.stack():
        sizes = case.memory.symbolic_sizes()
        layer.compile(fullgraph=True, dynamic=sizes, backend=counter)
    # Learning, then being judged with as many rows and with more: one each, not one for each of two
    # layers, a beginning, and the sizes that follow.
    for graphs, (batch, learns) in enumerate([(2, True), (2, False), (3, False)], start=1):
        with torch.set_grad_enabled(learns):
            read_side_by_side(compiled, eager, random_tokens(batch, BLOCKS * case.block))
        assert counter.frame_count == graphs
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def read_side_by_side(compiled: Transformer, eager: Transformer, tokens: torch.Tensor) -> None:
    """Whole blocks with episodes, learned from if gradients are on; both give the same."""
    models, block = (compiled, eager), compiled.config.block
    memories = [model.start(len(tokens)) for model in models]
    for part in tokens.split(block, dim=1):
        starts = part == 0
        pairs = zip(models, memories, strict=True)
        steps = [model(part, memory, starts=starts) for model, memory in pairs]
        for step in steps:
            if torch.is_grad_enabled():
                (step.hidden.square().mean() + step.penalty).backward()
        memories = [step.memory.detach() for step in steps]
        torch.testing.assert_close(steps[0].hidden, steps[1].hidden)
        torch.testing.assert_close(steps[0].stats.live, steps[1].stats.live)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_filled_memory_has_the_form_it_keeps(case: Case, monkeypatch):
    for module in (packed, adaptive_span):
        monkeypatch.setattr(module, "offers", in_chunks)
    model = make_model(case).float()
    memory, forms = model.start(2), []
    for block in random_tokens(2, 16 * case.block).split(case.block, dim=1):
        if model.filled(memory):
            forms.append(form(memory, growing=case.memory.symbolic_sizes() is not False))
        with torch.autocast("cpu", torch.bfloat16):
            memory = model(block, memory).memory
    assert len(forms) > 3
    assert all(one == forms[0] for one in forms)


def form(memory: Memory, growing: bool) -> list[tuple[object, ...]]:
    """What a compiler cannot leave open: types, and sizes but for those above one that may grow."""
    grown = [(t.data_ptr(), axis) for layer in memory.layers for t, axis in layer.growing()]
    return [
        (
            name,
            tensor.dtype,
            *(
                "any" if growing and size > 1 and (tensor.data_ptr(), axis) in grown else size
                for axis, size in enumerate(tensor.shape)
            ),
        )
        for name, tensor in memory.tensors().items()
    ]


def test_without_fused_attention_nothing_is_compiled():
    model = make_model(CASES["expire"])
    model.compile_layers()
    assert all(layer._compiled_call_impl is None for layer in model.stack())
