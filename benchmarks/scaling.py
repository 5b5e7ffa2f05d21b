"""What a training step costs as memory grows: against live memories, and against the maximum span.

    python benchmarks/scaling.py                             both sweeps, a table and a plot
    python benchmarks/scaling.py --points live               0.5k to 32k live memories
    python benchmarks/scaling.py --points span               L 16k to 1M, 946 live memories
    python benchmarks/scaling.py --points live:8192,span:1048576

The model is that of train_step.py with 16 rows: 12 layers, D 512, 8 heads, feed-forward 2048, K
512, dropout 0.3, R 128; Expire-Span with every span held at one length. So many memories are live
as the span has steps, and R - 1 more on the ramp. The cost should follow the live memories, and not
depend on L.

Before a case is timed, losses and gradients of a smaller batch are compared with the reference; a
case that differs is not timed, and the exit status is 1. Prints a line of a table and one of JSON
per case, and draws a plot.
"""

import argparse
import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from expire_span.training.trainer import Trainer
from train_step import MARGIN, compare, experiment, measured, set_spans

RAMP, BLOCK = 128, 512
LIVE = (512, 1024, 2048, 4096, 8192, 16384, 32768)
LIVE_MAX_SPAN = 65536  # where live memories differ
MAX_SPANS = (16384, 65536, 262144, 1048576)
SPAN = 819  # where the maximum span differs
SETTLED = 0.02  # how far live memories may be from what the spans say


@dataclass(frozen=True)
class Case:
    """One point of a sweep."""

    sweep: str  # live or span
    span: int  # steps that every memory is kept for
    max_span: int

    @property
    def expected_live(self) -> int:
        """Memories with weight above 0, once memory no longer grows."""
        return self.span + RAMP - 1


@dataclass(frozen=True)
class Result:
    """What a case cost."""

    benchmark: str
    machine: str
    sweep: str
    span: int
    max_span: int
    batch: int
    compiled: bool
    difference: float
    rounding: float
    live: float
    held: float
    ms: float
    peak_gb: float
    tokens_per_second: float

    def line(self) -> str:
        """One line of the table."""
        return (
            f"{self.sweep:6} {self.max_span:>9,} {self.span:>7,} {self.live:>8.0f} "
            f"{self.held:>8.0f} {self.ms:>8.1f} {self.peak_gb:>7.2f}"
        )


HEADER = f"{'sweep':6} {'L':>9} {'span':>7} {'live':>8} {'held':>8} {'ms':>8} {'GB':>7}"


def arguments() -> argparse.Namespace:
    """The command line, with what train_step.py asks for besides."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--points", default="live,span", help="live, span, live:MEMORIES, span:L; several by commas"
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--attention", default="fused")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    results = Path(__file__).resolve().parent / "results"
    parser.add_argument("--out", type=Path, default=results / "scaling.png")
    args = parser.parse_args()
    args.memory, args.budget, args.dropout = "expire", None, 0.3
    return args


def cases(points: str) -> list[Case]:
    """The chosen points, those of one L together."""
    chosen: list[Case] = []
    for point in points.split(","):
        sweep, _, number = point.partition(":")
        if sweep not in ("live", "span"):
            raise SystemExit(f"There is no sweep {sweep!r}: choose live or span.")
        if sweep == "live":
            sizes = [int(number)] if number else LIVE
            chosen += [Case(sweep, live - RAMP + 1, LIVE_MAX_SPAN) for live in sizes]
        else:
            chosen += [Case(sweep, SPAN, one) for one in ([int(number)] if number else MAX_SPANS)]
    return sorted(chosen, key=lambda case: (case.max_span, case.span))


def settings(args: argparse.Namespace, case: Case) -> argparse.Namespace:
    """The case as train_step.py takes it."""
    own = {"spans": f"fixed:{case.span}", "max_span": case.max_span}
    return argparse.Namespace(**vars(args) | own)


def fresh_device() -> None:
    """Free what is no longer used, and forget what was compiled for another L."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.compiler.reset()


def measure(
    trainer: Trainer, args: argparse.Namespace, case: Case, errors: tuple[float, float]
) -> Result:
    """Fill memory, then time steps."""
    if trainer.replay is not None:
        trainer.replay.forget()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    set_spans(trainer.model, f"fixed:{case.span}", case.max_span)
    trainer.memories = (trainer.model.start(args.batch),)
    for _ in range(-(-(case.span + RAMP) // BLOCK) + 4):
        trainer.update()
    ms, peak, found = measured(trainer, args.steps)
    return Result(
        benchmark="scaling",
        machine=torch.cuda.get_device_name(),
        **asdict(case),
        batch=args.batch,
        compiled=not args.no_compile,
        difference=errors[0],
        rounding=errors[1],
        live=found["live"],
        held=found["held"],
        ms=ms,
        peak_gb=peak,
        tokens_per_second=args.batch * BLOCK / ms * 1000,
    )


def run_group(args: argparse.Namespace, group: Sequence[Case], path: Path) -> list[Result]:
    """Cases of one L, by one trainer; those that cannot be trusted are left out."""
    errors = {}
    for case in group:
        fresh_device()
        errors[case] = compare(settings(args, case), path)
    fresh_device()
    trainer = Trainer(experiment(settings(args, group[0]), path))
    results = []
    for case in group:
        difference, rounding = errors[case]
        if not difference < MARGIN * rounding:
            print(f"not timed: {case} is off by {difference:.1e}, rounding by {rounding:.1e}")
            continue
        result = measure(trainer, args, case, errors[case])
        if abs(result.live / case.expected_live - 1) > SETTLED:
            print(f"not reported: {case} has {result.live:.0f} live, not {case.expected_live}")
            continue
        print(result.line(), json.dumps(asdict(result)), sep="\n", flush=True)
        results.append(result)
    return results


def draw(results: Sequence[Result], path: Path) -> None:
    """Time above, memory below; against live memories on the left, against L on the right."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.5), sharex="col", layout="constrained")
    for column, sweep in enumerate(("live", "span")):
        points = [one for one in results if one.sweep == sweep]
        along = [one.live if sweep == "live" else one.max_span for one in points]
        _curve(axes[0, column], along, [one.ms for one in points], "ms per step")
        _curve(axes[1, column], along, [one.peak_gb for one in points], "peak memory (GB)")
    axes[1, 0].set_xlabel("live memories per row and layer")
    axes[1, 1].set_xlabel("maximum span L (steps)")
    axes[1, 1].set_xscale("log", base=2)
    for axis, ticks in ((axes[1, 0], range(0, 32769, 8192)), (axes[1, 1], MAX_SPANS)):
        axis.set_xticks(ticks, [_short(tick) for tick in ticks])
    axes[0, 0].set_title(f"L = {_short(LIVE_MAX_SPAN)}")
    axes[0, 1].set_title(f"every span {SPAN} steps")
    first = results[0]
    figure.suptitle(f"One training step, {first.batch} rows of {BLOCK}, {first.machine}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _curve(axes: Axes, x: Sequence[float], y: Sequence[float], label: str) -> None:
    axes.plot(x, y, color="black", marker="o", markersize=5, linewidth=1.2)
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.25 * max(y, default=1))
    axes.grid(color="0.85", linewidth=0.6)


def _short(steps: int) -> str:
    """8192 is 8k, 1048576 is 1M."""
    if steps < 1 << 10:
        return str(steps)
    return f"{steps >> 20}M" if steps >= 1 << 20 else f"{steps >> 10}k"


def spread(results: Sequence[Result]) -> str:
    """How far apart the steps of the sweep over L are."""
    times = [one.ms for one in results if one.sweep == "span"]
    if len(times) < 2:
        return ""
    return f"over L, the slowest step takes {max(times) / min(times) - 1:.1%} more than the fastest"


def main() -> int:
    """Compare, time, print, draw."""
    args = arguments()
    chosen, results = cases(args.points), []
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bytes"
        path.write_bytes(torch.randint(256, (8_000_000,), dtype=torch.uint8).numpy().tobytes())
        for _, group in groupby(chosen, key=lambda case: case.max_span):
            results += run_group(args, list(group), path)
    print(spread(results))
    if results:
        draw(results, args.out)
        print(f"drawn: {args.out.name}")
    return 0 if len(results) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
