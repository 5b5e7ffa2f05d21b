"""A very long stream through a model whose memory must not grow: speed and memory along the way.

    python benchmarks/stream.py                            10M tokens, a small model on the CPU
    python benchmarks/stream.py --device cuda              the 12-layer model of train_step.py
    python benchmarks/stream.py --memory fixed --tokens 1_000_000

Reads random tokens, made on the fly, without gradient; memory is carried from the first block to
the last. Spans are heavy-tailed by default: most memories expire within a few steps, some stay for
thousands. `resident` is the memory of the whole process (of the allocated tensors, on a GPU).

Before anything is reported, the first blocks are compared with the reference in double precision;
where they differ by more than rounding, the exit status is 1. Prints some 20 lines on the way, a
verdict on whether resident memory stayed flat over the last half (exit status 1 if not), and one
JSON line.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from turns import my_turn

import expire_span as es
from expire_span.training.evaluation import autocast
from expire_span.training.metrics import Means, memory_metrics
from train_step import MARGIN, experiment, set_spans

LINES = 20  # printed along the way
FLAT = 0.02  # growth of resident memory over the last half that still counts as none
COMPARED_STEPS = 4096  # of each row, with the reference
COMPARED_ROWS = 2


def arguments() -> argparse.Namespace:
    """The command line, with sizes that depend on the device filled in."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--memory", default="expire", help="expire, fixed, adaptive, compressive")
    parser.add_argument("--spans", default="heavy:-4,2", help="fixed:STEPS or heavy:MEAN,DEVIATION")
    parser.add_argument("--max-span", type=int, help="by default 4096 on a CPU, 16384 on a GPU")
    parser.add_argument("--budget", type=int)
    parser.add_argument("--batch", type=int, help="by default 16 on a CPU, 64 on a GPU")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--threads", type=int, help="of the CPU; by default as PyTorch chooses")
    parser.add_argument("--minutes", type=float, help="stop about then, whatever is left to read")
    args = parser.parse_args()
    on_cpu = args.device == "cpu"
    args.max_span = args.max_span or (4096 if on_cpu else 16384)
    args.batch = args.batch or (16 if on_cpu else 64)
    args.layers, args.dropout = 2 if on_cpu else 12, 0.0
    return args


def configuration(args: argparse.Namespace) -> es.TransformerConfig:
    """The model of train_step.py; on a CPU a small one, with shorter blocks and ramps."""
    config = experiment(args, Path()).model
    if args.device != "cpu":
        return config
    memory = config.memory
    if isinstance(memory, es.ExpireSpan | es.AdaptiveSpan):
        memory = replace(memory, ramp=32)
    return replace(config, width=64, heads=2, feedforward=128, block=64, memory=memory)


def build(args: argparse.Namespace, config: es.TransformerConfig) -> es.Transformer:
    """The model, with the wanted spans; always the same weights."""
    torch.manual_seed(0)
    model = es.Transformer(config)
    set_spans(model, args.spans, args.max_span)
    return model.to(args.device).eval()


def random_blocks(config: es.TransformerConfig, batch: int, device: str) -> Iterator[Tensor]:
    """Random tokens [B, K], for ever."""
    generator = torch.Generator(device).manual_seed(1)
    while True:
        yield torch.randint(config.vocab, (batch, config.block), generator=generator, device=device)


def hidden_of(model: es.Transformer, blocks: list[Tensor], precision: str) -> Tensor:
    """Final states of the stream's first blocks."""
    memory, hidden = model.start(len(blocks[0])), []
    for tokens in blocks:
        with autocast(tokens.device, precision):
            step = model(tokens, memory)
        memory = step.memory
        hidden.append(step.hidden.double())
    return torch.cat(hidden, dim=1)


def compare(args: argparse.Namespace, model: es.Transformer) -> tuple[float, float]:
    """Relative errors against the reference in float64: of the model, of the reference as it is."""
    config = model.config
    source = random_blocks(config, COMPARED_ROWS, args.device)
    blocks = [next(source) for _ in range(COMPARED_STEPS // config.block)]
    plain = build(args, replace(config, attention="reference"))
    got, rough = (hidden_of(one, blocks, "auto") for one in (model, plain))
    truth = hidden_of(plain.double(), blocks, "float32")
    error, rounding = (((one - truth).norm() / truth.norm()).item() for one in (got, rough))
    return error, rounding


def machine(device: str) -> str:
    """Name of the processor."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    about = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in about if line.startswith("model name")]
    return f"{names[0] if names else 'CPU'}, {torch.get_num_threads()} threads"


def resident_bytes(device: str) -> int:
    """Memory of the process, or of the tensors on the GPU."""
    if device == "cuda":
        return torch.cuda.memory_allocated()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Progress:
    """How the stream went since the last line."""

    tokens: int
    tokens_per_second: float
    live: float
    held: float
    resident_mb: float

    def line(self) -> str:
        """One line of the table."""
        return (
            f"{self.tokens:>12,} {self.tokens_per_second:>12,.0f} {self.live:>8.1f} "
            f"{self.held:>8.1f} {self.resident_mb:>12.1f}"
        )


def read_stream(
    args: argparse.Namespace, model: es.Transformer
) -> tuple[list[Progress], list[int]]:
    """Read all tokens; what was seen on the way, and resident memory after each block."""
    per_block = args.batch * model.config.block
    count = max(-(-args.tokens // per_block), 1)
    marks = {(n + 1) * count // LINES for n in range(LINES)}
    blocks = random_blocks(model.config, args.batch, args.device)
    memory, means = model.start(args.batch), Means()
    progress: list[Progress] = []
    resident: list[int] = []
    told, since = 0, time.perf_counter()
    end = since + 60 * args.minutes if args.minutes else math.inf
    for block in range(1, count + 1):
        with autocast(model.positions.device, "auto"):
            step = model(next(blocks), memory)
        memory = step.memory
        means.add(**vars(step.stats))
        resident.append(resident_bytes(args.device))
        if block not in marks:
            continue
        found = memory_metrics(means.take())  # waits for the device
        now = time.perf_counter()
        speed = (block - told) * per_block / (now - since)
        told, since = block, now
        progress.append(
            Progress(block * per_block, speed, found["live"], found["held"], resident[-1] / 1e6)
        )
        print(progress[-1].line(), flush=True)
        if now > end:
            break
    return progress, resident


def growth(resident: list[int]) -> float:
    """Trend of resident memory over the last half of the stream, as a share of its mean."""
    last_half = np.array(resident[len(resident) // 2 :], dtype=float)
    if len(last_half) < 2:
        return 0.0
    slope = np.polyfit(np.arange(len(last_half)), last_half, 1)[0]
    return float(slope * (len(last_half) - 1) / last_half.mean())


@torch.no_grad()
def main() -> int:
    """Compare, read, judge."""
    args = arguments()
    if args.threads:
        torch.set_num_threads(args.threads)
    model = build(args, configuration(args))
    if args.device == "cuda" and not args.no_compile:
        model.compile_layers()
    error, rounding = compare(args, model)
    torch.compiler.reset()  # what was compiled for the few rows compared
    if not error < MARGIN * rounding:
        print(f"not reported: off by {error:.1e}, where rounding explains {rounding:.1e}")
        return 1
    print(f"{'tokens':>12} {'tokens/s':>12} {'live':>8} {'held':>8} {'resident MB':>12}")
    my_turn()
    progress, resident = read_stream(args, model)
    grown = growth(resident)
    flat = abs(grown) < FLAT
    print(
        f"resident memory {'is' if flat else 'is NOT'} flat: "
        f"{grown:+.2%} over the last half of {progress[-1].tokens:,} tokens"
    )
    result = {
        "benchmark": "stream",
        "machine": machine(args.device),
        **{name: value for name, value in vars(args).items() if value is not None},
        "tokens_read": progress[-1].tokens,
        "difference": error,
        "rounding": rounding,
        "tokens_per_second": float(np.median([one.tokens_per_second for one in progress])),
        "live": progress[-1].live,
        "held": progress[-1].held,
        "most_held": max(one.held for one in progress),
        "resident_mb": progress[-1].resident_mb,
        "most_resident_mb": max(resident) / 1e6,
        "growth_over_last_half": grown,
        "flat": flat,
    }
    print(json.dumps(result))
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
