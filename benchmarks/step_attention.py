"""Attention of one query a row, as an agent acts, by other tiles of its kernel; on a CUDA device.

    python benchmarks/step_attention.py            64 rows and 1,024, four heads of 16 numbers

Each row has 317 keys, of which its episode and their own deadlines leave 43 alive on average.
Before a tile is timed, its result is compared with the reference in double precision; one that
differs is not timed, and the exit status is 1. Prints a JSON line for each tile, with microseconds
of the kernel for each number of rows.

Shapes: B rows, N keys, H heads, E head width.
"""

import argparse
import json
import sys
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from expire_span.model.ops.ramp import NEVER
from expire_span.model.ops.span_attention import KeySet, Visibility, fused, reference

HEADS, WIDTH, RAMP = 4, 16, 16
HELD, BLOCK, STEP = 216, 100, 60  # states held, steps of a block, and the one that is made
TILES = [(32, 1), (64, 1), (128, 1), (64, 2), (128, 2), (64, 4)]  # keys and warps
TOLERANCE = 1e-6
CALLS = 30


def make(rows: int) -> tuple[Tensor, KeySet]:
    """Queries and keys of so many rows, each with an episode that began at a time of its own."""
    torch.manual_seed(0)
    times = torch.arange(-HELD, BLOCK + 1, device="cuda")
    count = len(times)
    began = STEP - torch.randint(0, 140, (rows, 1, 1), device="cuda")
    last = torch.where(times >= began, times + HELD, -NEVER)
    seen = Visibility((times + 1 - STEP)[None, None], last - STEP)
    spans = torch.where(torch.rand(rows, 1, count, device="cuda") < 0.3, 120.0, 20.0)
    keys, values = (torch.randn(rows, count, HEADS, WIDTH, device="cuda") for _ in range(2))
    table = torch.randn(BLOCK, WIDTH, device="cuda")
    queries = torch.randn(rows, 1, HEADS, WIDTH, device="cuda")
    return queries, KeySet(keys, values, seen, times + spans - STEP, table)


def error(queries: Tensor, keys: KeySet) -> float:
    """Relative error against the reference in double precision."""
    found = fused.fused_attention(queries, [keys], ramp=RAMP, dropout=0.0)
    precise = KeySet(
        keys.keys.double(),
        keys.values.double(),
        keys.seen,
        None if keys.deadline is None else keys.deadline.double(),
        None if keys.positions is None else keys.positions.double(),
    )
    wanted = reference.reference_attention(queries.double(), [precise], ramp=RAMP, dropout=0.0)
    return float((found - wanted).norm() / wanted.norm())


def microseconds(queries: Tensor, keys: KeySet) -> float:
    """Mean time of the kernel alone."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(CALLS):
            fused.fused_attention(queries, [keys], ramp=RAMP, dropout=0.0)
        torch.cuda.synchronize()
    return next(
        kernel.device_time_total / kernel.count
        for kernel in found.key_averages()
        if "span_step" in kernel.key
    )


@torch.no_grad()
def main() -> int:
    """Compare, time, report."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    wrong, cases = False, {rows: make(rows) for rows in (64, 1024)}
    for count, warps in TILES:
        tile = fused.Tile(1, count, warps=warps)
        with mock.patch.object(fused, "tile_of", lambda *_, tile=tile: tile):
            worst = max(error(*case) for case in cases.values())
            result = {"keys": count, "warps": warps, "error": worst}
            if worst < TOLERANCE:
                result |= {f"us_{rows}": microseconds(*case) for rows, case in cases.items()}
        wrong |= not worst < TOLERANCE
        print(json.dumps(result), flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
