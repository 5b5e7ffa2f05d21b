"""One training step of the paper's enwik8 model: time, memory, and what it could be at best.

    python benchmarks/train_step.py                                  Expire-Span, every span 819
    python benchmarks/train_step.py --spans fixed:328
    python benchmarks/train_step.py --spans heavy:-4,2 --budget 4096
    python benchmarks/train_step.py --memory fixed --max-span 2048   Transformer-XL
    python benchmarks/train_step.py --profile                        where the time goes, by kernel

Sizes are the paper's: 12 layers, D 512, 8 heads, feed-forward 2048, B 64, K 512, dropout 0.3, L
16,384, R 128. A step is all of it: data, forward, backward, clipping, Adam, memory. Spans are held
where the case wants them by giving their parameters a rate of zero; memory is first filled until it
no longer grows. The floor, measured in the same run, is plain layers with stock flash attention
over as many old states as are live, without mask, positions or dropout.

Before anything is timed, losses and gradients of a smaller batch are compared with the reference;
afterwards those of the timed model as it is replayed with those of the same block launched. A case
that differs is not reported, and the exit status is 1. Prints a table and one JSON line.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from turns import my_turn

import expire_span as es
from expire_span.model.memory import AnyMemory
from expire_span.model.memory.expire_span import ExpireSpanKeeper, ExpiringMemory
from expire_span.tasks import Text
from expire_span.training.evaluation import autocast
from expire_span.training.experiment import Experiment, OptimizerConfig
from expire_span.training.trainer import Trainer

RAMP = 128
COMPRESSIVE_REACH = 5120  # 1,024 single states and 1,024 slots of 4
MARGIN = 1.5  # how far off a step may be, as a multiple of what bfloat16 does to the reference


class Refused(Exception):
    """Why a case is not reported."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--memory", default="expire", choices=("expire", "fixed", "adaptive", "compressive")
    )
    parser.add_argument("--spans", default="fixed:819", help="fixed:STEPS or heavy:MEAN,DEVIATION")
    parser.add_argument("--max-span", type=int, default=16384)
    parser.add_argument("--budget", type=int)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--attention", default="fused")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--fill", type=int, help="steps before timing; enough to fill memory if 0")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--no-floor", action="store_true")
    return parser.parse_args()


def policy(args: argparse.Namespace) -> AnyMemory:
    """The memory policy of the case."""
    span = args.max_span
    if args.memory == "fixed":
        return es.FixedSpan(span)
    if args.memory == "adaptive":
        return es.AdaptiveSpan(span, RAMP, penalty=1e-6, initial=0.1)
    if args.memory == "compressive":
        return es.Compressive(1024, 1024, 4)
    return es.ExpireSpan(span, RAMP, penalty=1e-6, initial=0.02, budget=args.budget)


def steps_until_full(args: argparse.Namespace) -> int:
    """Steps after which memory no longer grows, and some more until sizes have repeated."""
    kind, _, span = args.spans.partition(":")
    reached = COMPRESSIVE_REACH if args.memory == "compressive" else args.max_span
    if args.memory == "expire" and kind == "fixed":
        reached = math.ceil(float(span)) + RAMP
    return max(reached + 1024, 4096)


def experiment(args: argparse.Namespace, path: Path) -> Experiment:
    """The paper's small enwik8 model."""
    return Experiment(
        task=Text(str(path)),
        model=es.TransformerConfig(
            vocab=256,
            layers=args.layers,
            width=512,
            heads=8,
            feedforward=2048,
            block=512,
            memory=policy(args),
            dropout=args.dropout,
            attention=args.attention,
        ),
        optimizer=OptimizerConfig(rate=1e-5, span_rate=0.0, clip=0.3),
        batch=args.batch,
        compile=not args.no_compile,
        device="cuda",
    )


@torch.no_grad()
def set_spans(model: es.Transformer, spans: str, max_span: int) -> None:
    """Give the predictors weights that make the wanted spans."""
    kind, _, numbers = spans.partition(":")
    for layer in model.stack():
        if not isinstance(layer.keeper, ExpireSpanKeeper):
            return
        predictor = layer.keeper.predictor
        if kind == "fixed":
            share = float(numbers) / max_span
            predictor.bias.fill_(math.log(share / (1 - share)))
        else:
            mean, deviation = map(float, numbers.split(","))
            # States are normed: w . h has the deviation of w's norm.
            predictor.weight.normal_(std=deviation / predictor.in_features**0.5)
            predictor.bias.fill_(mean)


def gradients(trainer: Trainer, spans: str, max_span: int) -> Tensor:
    """Losses of a few blocks and all their gradients, in one vector."""
    torch.manual_seed(1)
    set_spans(trainer.model, spans, max_span)
    (memory,), losses = trainer.memories, []
    for _ in range(6):
        batch = trainer.stream.read(512).to("cuda")
        with autocast(trainer.device, trainer.experiment.precision):
            step = trainer.model(batch.inputs, memory)
            nll = trainer.model.head.nll(step.hidden, batch.targets)
        losses.append(nll.mean() + step.penalty)
        losses[-1].backward()
        memory = step.memory.detach()
    grads = [
        torch.cat([p.grad.flatten() for p in own])
        for module in trainer.model.modules()
        if (own := [p for p in module.parameters(recurse=False) if p.grad is not None])
    ]
    parts = [torch.stack(losses).detach(), *(g / g.norm() for g in grads if g.any())]
    return torch.cat(parts).double()


def compare(args: argparse.Namespace, path: Path) -> tuple[float, float]:
    """Relative errors against the reference in float32: of this step, of the reference's own bf16.

    Each module's gradient counts alike, whatever its size. Layers are not compiled for this:
    that compiled ones equal eager ones is for `tests/training/test_gpu.py` to show.
    """
    ours = replace(experiment(args, path), batch=2, precision="bfloat16", compile=False)
    ours = replace(ours, model=replace(ours.model, dropout=0.0, layers=2))
    plain = replace(ours, model=replace(ours.model, attention="reference"))
    exact = replace(plain, precision="float32")
    got, rough, truth = (
        gradients(Trainer(each), args.spans, args.max_span) for each in (ours, plain, exact)
    )
    return tuple(((g - truth).norm() / truth.norm()).item() for g in (got, rough))  # type: ignore[return-value]


def replay_agrees(trainer: Trainer) -> bool:
    """Whether a block that is replayed leaves the very gradients that a launched one leaves."""
    replay = trainer.replay
    if replay is None:
        return True
    batch = trainer.stream.read(512).to("cuda")
    # A replay writes where the one before left its memory.
    trainer.memories = tuple(m.clone() for m in trainer.memories)
    state = torch.cuda.get_rng_state()

    def gradients_left() -> list[Tensor]:
        torch.cuda.set_rng_state(state)
        trainer.learn(batch, batch.scored.sum())
        found = [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]
        trainer.optimizer.zero_grad()
        return found

    gradients_left()  # now sizes like these have been seen
    before = replay.replayed
    replayed = gradients_left()
    trainer.replay = None
    launched = gradients_left()
    trainer.replay = replay
    same = all(torch.equal(one, other) for one, other in zip(replayed, launched, strict=True))
    return same and replay.replayed == before + 1


def most_far(trainer: Trainer) -> int:
    """Far memories of the row and layer that has most of them; 0 for policies without any."""
    layers = (layer for memory in trainer.memories for layer in memory.layers)
    far = [layer.far for layer in layers if isinstance(layer, ExpiringMemory)]
    return max((int(packed.offsets.diff().max()) for packed in far), default=0)


def timed(step: Callable[[], object], count: int) -> float:
    """Median milliseconds of a step."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in pairwise(events)]
    return sorted(times)[count // 2]


def measured(trainer: Trainer, steps: int) -> tuple[float, float, dict[str, float]]:
    """Milliseconds of a step, peak gigabytes, and what the trainer reports of those steps alone.

    The peak is that since it was last reset, which shall be before the trainer was made: what a
    replayed graph uses is allocated when it is captured, and not seen afterwards.
    """
    trainer.report()
    ms = timed(trainer.update, steps)
    return ms, torch.cuda.max_memory_allocated() / 1e9, trainer.report()


class PlainLayer(nn.Module):
    """A layer over old states with nothing but matrix products, norms and stock attention."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (
            nn.Linear(512, 512, bias=False) for _ in range(4)
        )
        self.inner, self.outer = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.norms = nn.ModuleList([nn.LayerNorm(512), nn.LayerNorm(512)])

    def forward(self, x: Tensor, old: Tensor) -> Tensor:
        """[B, T, D] over [B, N, D]."""
        context = torch.cat([old, x], dim=1)
        q, k, v = (
            f(y).unflatten(-1, (8, 64)).transpose(1, 2)
            for f, y in ((self.query, x), (self.key, context), (self.value, context))
        )
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        x = self.norms[0](x + self.out(attended))
        return self.norms[1](x + self.outer(F.relu(self.inner(x))))


def floor(args: argparse.Namespace, old_states: int) -> tuple[float, float]:
    """Milliseconds and peak gigabytes of plain layers over so many old states."""
    layers = nn.ModuleList(PlainLayer() for _ in range(args.layers)).cuda()
    embedding, head = nn.Embedding(256, 512).cuda(), nn.Linear(512, 256).cuda()
    parameters = [p for m in (layers, embedding, head) for p in m.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-5, fused=True)
    old = [torch.randn(args.batch, old_states, 512, device="cuda") for _ in layers]
    tokens = torch.randint(256, (args.batch, 513), device="cuda")
    for layer in layers:
        layer.compile()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            x = embedding(tokens[:, :-1])
            for layer, states in zip(layers, old, strict=True):
                x = layer(x, states)
            logits = head(x)
        F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.3)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(5):
        step()
    torch.cuda.reset_peak_memory_stats()
    return timed(step, args.steps), torch.cuda.max_memory_allocated() / 1e9


def room(trainer: Trainer) -> float:
    """For how many states each row has room, mean over layers: those held, and what is spare."""
    layers = trainer.memories[0].layers
    return sum(layer.held() for layer in layers) / len(layers)


def profile(step: Callable[[], object]) -> str:
    """The kernels that take most of a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    averages = found.key_averages()
    return averages.table(sort_by="self_device_time_total", row_limit=40, max_name_column_width=70)


def trained(args: argparse.Namespace, path: Path) -> dict[str, float]:
    """A trained model's step, timed once it agrees with the reference and memory is full."""
    difference, rounding = compare(args, path)
    if not difference < MARGIN * rounding:
        raise Refused(f"off by {difference:.1e}, where rounding explains {rounding:.1e}")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(experiment(args, path))
    set_spans(trainer.model, args.spans, args.max_span)
    for _ in range(args.fill or steps_until_full(args) // 512 + 2):
        trainer.update()
    my_turn()
    ms, peak, found = measured(trainer, args.steps)
    reserved = torch.cuda.max_memory_reserved() / 1e9
    if not replay_agrees(trainer):
        raise Refused("a replayed block leaves other gradients than a launched one")
    most = most_far(trainer)
    if args.budget is not None and most > args.budget:
        raise Refused(f"a row has {most} far memories, more than its budget")
    if args.profile:
        print(profile(trainer.update))
    return {
        "difference": difference,
        "rounding": rounding,
        "ms": ms,
        "tokens_per_second": args.batch * 512 / ms * 1000,
        "peak_gb": peak,
        "reserved_gb": reserved,
        "live": found["live"],
        "held": found["held"],
        "most_held": max(v for k, v in found.items() if k.startswith("held/")),
        "most_far_of_a_row": most,
        "room": room(trainer),
    }


def show(args: argparse.Namespace, result: dict[str, Any]) -> None:
    """The table and the JSON line of a case."""
    of_its_own = {"expire": args.spans, "compressive": COMPRESSIVE_REACH}
    name = f"{args.memory} {of_its_own.get(args.memory, args.max_span)}"
    columns = ("ms", "Mtok/s", "GB", "live", "held", "room", "floor ms")
    print(f"{'case':36} {' '.join(f'{title:>8}' for title in columns)}")
    print(
        f"{name:36} {result['ms']:8.1f} {result['tokens_per_second'] / 1e6:8.3f} "
        f"{result['peak_gb']:8.1f} {result['live']:8.0f} {result['held']:8.0f} "
        f"{result['room']:8.0f} {result['floor_ms']:8.1f}"
    )
    print(json.dumps(result))


def main() -> int:
    """Compare, fill, time, print."""
    args = arguments()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bytes"
        path.write_bytes(torch.randint(256, (8_000_000,), dtype=torch.uint8).numpy().tobytes())
        try:
            found = trained(args, path)
        except Refused as why:
            print(f"not reported: {why}")
            return 1
    torch.cuda.empty_cache()
    old = round(found["live"] / 512) * 512
    floor_ms, floor_gb = (math.nan, math.nan) if args.no_floor else floor(args, old)
    settings = {name: value for name, value in vars(args).items() if value is not None}
    case = {"benchmark": "train_step", "machine": torch.cuda.get_device_name(), **settings}
    show(args, {**case, **found, "floor_ms": floor_ms, "floor_gb": floor_gb})
    return 0


if __name__ == "__main__":
    sys.exit(main())
