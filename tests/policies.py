"""Every memory policy with easy and hard settings, and small double-precision models to try them.

A new policy joins by an entry in `CASES`; the shared contract (`model/test_contract.py`) is crossed
with all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from torch import Tensor, nn

from expire_span import (
    AdaptiveSpan,
    Compressive,
    ExpireSpan,
    FixedSpan,
    Memory,
    Step,
    Transformer,
    TransformerConfig,
)
from expire_span.model.memory import AnyMemory, adaptive_span, packed
from expire_span.model.memory.adaptive_span import AdaptiveSpanKeeper
from expire_span.model.memory.expire_span import ExpireSpanKeeper
from expire_span.model.memory.room import in_chunks

VOCAB = 11


@dataclass(frozen=True)
class Case:
    """A policy, and the block length it is tried with."""

    memory: AnyMemory
    block: int


CASES = {
    "expire": Case(ExpireSpan(20, 4, penalty=0.1, initial=0.5), block=8),
    "expire-odd": Case(ExpireSpan(37, 5, penalty=3.0, initial=0.3, divisor=5.0), block=7),
    "expire-long": Case(ExpireSpan(23, 1, penalty=0.1, initial=0.95, shorten=True), block=5),
    "expire-short": Case(ExpireSpan(60, 3, penalty=0.1, initial=0.001), block=6),
    "expire-ramp-over-block": Case(ExpireSpan(9, 11, penalty=0.1, initial=0.6), block=3),
    "expire-all-positions": Case(ExpireSpan(18, 3, 0.1, 0.6, positions="all"), block=5),
    "expire-block-charge": Case(ExpireSpan(18, 3, 0.1, 0.4, charge="block"), block=6),
    "expire-budget": Case(ExpireSpan(40, 4, 0.1, 0.5, budget=4), block=5),
    "expire-no-budget": Case(ExpireSpan(40, 4, 0.1, 0.5, budget=0), block=5),
    "fixed-one": Case(FixedSpan(1), block=3),
    "fixed-under-block": Case(FixedSpan(5), block=8),
    "fixed-over-block": Case(FixedSpan(19), block=7),
    "adaptive-closed": Case(AdaptiveSpan(21, 4, penalty=0.1), block=6),
    "adaptive": Case(AdaptiveSpan(21, 5, penalty=0.1, initial=0.37), block=7),
    "adaptive-open": Case(AdaptiveSpan(13, 3, penalty=0.1, initial=1.0), block=5),
    "compressive": Case(Compressive(8, 3, 4), block=8),
    "compressive-rate-1": Case(Compressive(3, 2, 1), block=5),
    "compressive-under-block": Case(Compressive(3, 2, 3), block=9),
    "compressive-over-block": Case(Compressive(12, 4, 2), block=4),
}

# A budget takes what is over it at the end of each call, so what is seen depends on the calls.
UNBUDGETED = {
    name: case for name, case in CASES.items() if getattr(case.memory, "budget", None) is None
}

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
unbudgeted_case = pytest.mark.parametrize("case", UNBUDGETED.values(), ids=UNBUDGETED.keys())
both_norms = pytest.mark.parametrize("norm", ["post", "pre"])
both_starts = pytest.mark.parametrize("start", ["empty", "zeros"])


def make_model(case: Case, *, seed: int = 1, **settings: Any) -> Transformer:
    """A small float64 model in evaluation mode, whose spans differ from state to state."""
    torch.manual_seed(seed)
    sizes = {"vocab": VOCAB, "layers": 2, "width": 8, "heads": 2, "feedforward": 12}
    sizes |= {"block": case.block, "memory": case.memory, "attention": "reference"}
    model = Transformer(TransformerConfig(**sizes | settings)).double().eval()
    for module in model.modules():
        _scatter(module)
    return model


@torch.no_grad()
def _scatter(module: nn.Module) -> None:
    """Move what initialisation leaves at 0 or 1 to somewhere less special."""
    if isinstance(module, nn.LayerNorm):
        module.weight.add_(0.2 * torch.randn_like(module.weight))
        module.bias.add_(0.2 * torch.randn_like(module.bias))
    if isinstance(module, ExpireSpanKeeper):
        module.predictor.weight.normal_().mul_(0.5 * module.policy.divisor)
    if isinstance(module, AdaptiveSpanKeeper) and 0 < module.ratio[0] < 1:
        module.ratio.add_(0.2 * torch.randn_like(module.ratio)).clamp_(0, 1)


def room_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory have the room that it has there."""
    for module in (packed, adaptive_span):
        monkeypatch.setattr(module, "offers", in_chunks)


def count_graphs(model: Transformer) -> torch._dynamo.testing.CompileCounter:
    """Compile the layers to what they were; counts how often that is done."""
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounter()
    for layer in model.stack():
        sizes = model.config.memory.symbolic_sizes()
        layer.compile(fullgraph=True, dynamic=sizes, backend=counter)
    return counter


def random_tokens(batch: int, steps: int, seed: int = 2) -> Tensor:
    return torch.randint(VOCAB, (batch, steps), generator=torch.Generator().manual_seed(seed))


def full_blocks(steps: int, block: int) -> list[int]:
    """Lengths of calls that read `steps` in full blocks, with what remains at the end."""
    return [block] * (steps // block) + ([steps % block] if steps % block else [])


def ragged_calls(steps: int, block: int, seed: int = 3) -> list[int]:
    """Lengths of calls, 1 to `block` at random, that read `steps` in all."""
    generator = torch.Generator().manual_seed(seed)
    lengths: list[int] = []
    while (left := steps - sum(lengths)) > 0:
        lengths.append(min(left, int(torch.randint(1, block + 1, (), generator=generator))))
    return lengths


def read(
    model: Transformer,
    tokens: Tensor,
    lengths: Sequence[int] | None = None,
    *,
    memory: Memory | None = None,
    starts: Tensor | None = None,
    limit: int | None = None,
) -> list[Step]:
    """Read a stream [B, S] in calls of these lengths (full blocks by default)."""
    lengths = lengths or full_blocks(tokens.shape[1], model.config.block)
    memory = memory or model.start(len(tokens))
    steps: list[Step] = []
    for n, part in enumerate(tokens.split(list(lengths), dim=1)):
        begins = None if starts is None else starts.split(list(lengths), dim=1)[n]
        steps.append(model(part, memory, starts=begins, limit=limit))
        memory = steps[-1].memory
    return steps


def hidden_of(steps: Sequence[Step]) -> Tensor:
    """Final states of all calls, [B, S, D]."""
    return torch.cat([step.hidden for step in steps], dim=1)


def assert_same(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal up to rounding in double precision."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, check_dtype=False)


def gradients(loss: Tensor, model: Transformer) -> dict[str, Tensor]:
    """Gradient of every parameter, zeros where there is none."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(
        loss, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return dict(zip(names, found, strict=True))
