"""Compiled layers: no graph breaks, few graphs however memory grows, and the same numbers."""

import pytest
import torch
import torch._dynamo.testing

from expire_span.model.memory import adaptive_span, packed
from expire_span.model.memory.room import in_chunks
from policies import CASES, Case, make_model, random_tokens

GRAPHS = 4
PICKED = ("expire-budget", "adaptive", "compressive")


@pytest.mark.filterwarnings("ignore")  # what the compiler trips over in its own code
@pytest.mark.parametrize("case", [CASES[name] for name in PICKED], ids=PICKED)
def test_a_layer_is_one_graph_and_few_of_them_serve_every_memory_size(case: Case, monkeypatch):
    for module in (packed, adaptive_span):  # as on a GPU
        monkeypatch.setattr(module, "offers", in_chunks)
    torch.compiler.reset()
    compiled, eager = make_model(case, layers=3), make_model(case, layers=3)
    counter = torch._dynamo.testing.CompileCounter()
    for layer in compiled.stack():
        sizes = case.memory.symbolic_sizes()
        layer.compile(fullgraph=True, dynamic=sizes, backend=counter)
    for batch in (2, 3):
        tokens = random_tokens(batch, 9 * case.block)
        memories = [model.start(batch) for model in (compiled, eager)]
        for block in tokens.split(case.block, dim=1):
            pairs = zip((compiled, eager), memories, strict=True)
            steps = [model(block, memory) for model, memory in pairs]
            for step in steps:
                (step.hidden.square().mean() + step.penalty).backward()
            memories = [step.memory.detach() for step in steps]
            torch.testing.assert_close(steps[0].hidden, steps[1].hidden)
            torch.testing.assert_close(steps[0].stats.live, steps[1].stats.live)
        # Not one for each of three layers and nine sizes, though some for each number of rows.
        assert counter.frame_count <= GRAPHS * (batch - 1)
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_without_fused_attention_nothing_is_compiled():
    model = make_model(CASES["expire"])
    model.compile_layers()
    assert all(layer._compiled_call_impl is None for layer in model.stack())
