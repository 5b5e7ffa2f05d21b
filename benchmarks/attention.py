"""Fused span attention against stock flash attention, on one CUDA device.

    python benchmarks/attention.py            all cases, a table and one JSON line per case
    python benchmarks/attention.py --quick    only some 2,048 live keys
    python benchmarks/attention.py --tune     other tile shapes of each kernel
    python benchmarks/attention.py --tune near short
                                              the same for such keys only
    python benchmarks/attention.py --quick --score-bytes 67108864
                                              position scores of fewer rows at a time

A case has so many keys that each query sees on average (`live`). A share of those fades within the
block: their deadlines are spread evenly from a ramp before it to its end. Rows are even or ragged
(a quarter to seven quarters of the mean). Stock attention (PyTorch's own flash attention, and that
of cuDNN) is given `live` keys in every row, without mask, positions or dropout, so it is the same
number of pairs. TFLOP/s count live pairs: 4 E operations for the forward, 10 E for the backward.
Times are those of the device; `host_ms` is what the host takes to launch forward and backward.

Before a case is timed, its output and every gradient are compared with the reference in double
precision on three of its rows; a case that differs is not timed, and the exit status is 1.

Shapes: B rows, T queries, H heads, E head width, M keys of all rows.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from expire_span.model.ops.dropout import odd_words
from expire_span.model.ops.ramp import NEVER, steps_seen
from expire_span.model.ops.span_attention import KeySet, Visibility, fused, reference

BATCH, LENGTH, HEADS, WIDTH, RAMP = 64, 512, 8, 64, 128
TOLERANCE = 1.5e-2  # of bfloat16, against double precision
DTYPE = torch.bfloat16
SEED = 7  # of dropout, where its mask is replayed


@dataclass(frozen=True)
class Case:
    """What is measured."""

    keys: int  # live for a query, on average
    fading: float = 0.0  # share of them whose ramp lies in the block
    spread: str = "even"  # or ragged
    kind: str = "far"  # packed far keys; near: the block and 512 states before it, with positions;
    # short: the same, most of which fade early; fixed: the last `keys` states, with positions at
    # every distance
    dropout: float = 0.0


CASES = [
    *(Case(keys, fading) for keys in (1024, 2048, 4096, 8192) for fading in (0.0, 0.5)),
    *(Case(keys, fading, "ragged") for keys in (1024, 2048, 4096) for fading in (0.0, 0.5)),
    *(Case(2048, fading, dropout=0.3) for fading in (0.0, 0.5)),
    *(Case(768, kind="near", dropout=dropout) for dropout in (0.0, 0.3)),
    *(Case(2048, kind="fixed", dropout=dropout) for dropout in (0.0, 0.3)),
]
QUICK = [case for case in CASES if case.keys in (768, 2048)]


# ---- inputs ------------------------------------------------------------------------------------


def normal(*shape: int) -> Tensor:
    """Random numbers that have a gradient."""
    return torch.randn(shape, device="cuda").to(DTYPE).requires_grad_()


def far_keys(case: Case) -> KeySet:
    """Packed keys, stored in the order of deadlines predicted a little differently."""
    # A fading key is seen by this share of the queries: the mean of min(U(0, T + R), T) / T.
    seen_share = (LENGTH / 2 + RAMP) / (LENGTH + RAMP)
    sizes = torch.full((BATCH,), 1.0)
    if case.spread == "ragged":
        sizes = torch.linspace(0.25, 1.75, BATCH)[torch.randperm(BATCH)]
    deadlines = []
    for size in sizes.tolist():
        fading = round(case.keys * size * case.fading / seen_share)
        whole = round(case.keys * size * (1 - case.fading))
        row = torch.cat([
            LENGTH + torch.rand(whole) * LENGTH,
            torch.rand(fading) * (LENGTH + RAMP) - RAMP,
        ])  # fmt: skip
        order = (row + torch.randn(len(row))).argsort(descending=True)
        deadlines.append(row[order])
    counts = torch.tensor([0, *map(len, deadlines)])
    deadline = torch.cat(deadlines).cuda().requires_grad_()
    offsets = counts.cumsum(0).cuda()
    total = len(deadline)
    seen = Visibility(
        first=torch.full((total,), -LENGTH, device="cuda"),
        last=torch.full((total,), NEVER, device="cuda"),
        offsets=offsets,
    )
    return KeySet(normal(total, HEADS, WIDTH), normal(total, HEADS, WIDTH), seen, deadline)


def dense_keys(past: int, span: int | None, rows: int, spans: Tensor | None = None) -> KeySet:
    """The block and the states before it, in order, with positions.

    Args:
        past: how many before the block.
        span: the window of all, if they have one.
        rows: of the table of positions.
        spans: after how many steps each begins to fade, [B, 1, N], or one number; none do if None.
    """
    times = torch.arange(-past, LENGTH, device="cuda")
    last = torch.full_like(times, NEVER) if span is None else times + span
    seen = Visibility((times + 1)[None, None], last[None, None], begin=-past)
    shape = (BATCH, len(times), HEADS, WIDTH)
    deadline = None
    if spans is not None:
        deadline = (times + spans).expand(BATCH, 1, -1).contiguous().requires_grad_()
    return KeySet(normal(*shape), normal(*shape), seen, deadline, normal(rows, WIDTH))


def make(case: Case) -> tuple[Tensor, KeySet]:
    """Queries and keys of a case."""
    torch.manual_seed(case.keys)
    queries = normal(BATCH, LENGTH, HEADS, WIDTH)
    if case.kind == "near":
        return queries, dense_keys(LENGTH, None, LENGTH, torch.tensor(819.0, device="cuda"))
    if case.kind == "short":
        spans = torch.rand(BATCH, 1, 2 * LENGTH, device="cuda") * 2 * (case.keys - RAMP)
        return queries, dense_keys(LENGTH, None, LENGTH, spans)
    if case.kind == "fixed":
        return queries, dense_keys(case.keys, case.keys, case.keys)
    return queries, far_keys(case)


def learned(queries: Tensor, keys: KeySet) -> dict[str, Tensor]:
    """Everything that has a gradient, by name."""
    parts = {name: getattr(keys, name) for name in ("keys", "values", "deadline", "positions")}
    return {"queries": queries, **{name: part for name, part in parts.items() if part is not None}}


def live_keys(keys: KeySet) -> float:
    """Keys with weight above 0, mean over queries and rows."""
    steps = steps_seen(keys.seen.first, keys.seen.last, keys.deadline, RAMP, LENGTH)
    rows = BATCH if keys.seen.packed else steps.shape[0]
    return steps.sum().item() / (LENGTH * rows)


# ---- comparing ---------------------------------------------------------------------------------


def errors(case: Case, queries: Tensor, keys: KeySet) -> dict[str, float]:
    """Relative errors against the reference in double precision, on three rows of the case."""
    rows = [0, BATCH // 2, BATCH - 1]
    torch.manual_seed(SEED)
    out = fused.fused_attention(queries, [keys], ramp=RAMP, dropout=case.dropout)
    grad = torch.zeros_like(out)
    grad[rows] = torch.randn_like(out[rows])  # the other rows add nothing to any gradient
    parts = learned(queries, keys)
    grads = torch.autograd.grad(out, list(parts.values()), grad)
    found = {"out": out.detach(), **dict(zip(parts, grads, strict=True))}

    worst = dict.fromkeys(found, 0.0)
    d_positions = torch.zeros((), device="cuda")
    for row in rows:
        where, one_query, one_set = one_row(queries, keys, row)
        keep = kept(case, queries, keys, row, where) if case.dropout else None
        with mock.patch.object(
            reference.F,
            "dropout",
            lambda share, p, keep=keep: share * keep / (1 - p) if p else share,
        ):
            one = reference.reference_attention(
                one_query, [one_set], ramp=RAMP, dropout=case.dropout
            )
        one_parts = learned(one_query, one_set)
        one_grads = torch.autograd.grad(one, list(one_parts.values()), grad[row : row + 1].double())
        truth = {"out": one.detach(), **dict(zip(one_parts, one_grads, strict=True))}
        d_positions = d_positions + truth.pop("positions", 0)
        for name, expected in truth.items():
            here = slice(row, row + 1) if name in ("out", "queries") else where
            worst[name] = max(worst[name], difference(found[name][here], expected))
    if "positions" in found:
        worst["positions"] = difference(found["positions"], d_positions)
    return worst


def difference(got: Tensor, expected: Tensor) -> float:
    """Relative error in norm; infinite if anything is not a number."""
    error = (got.double() - expected).norm() / expected.norm().clamp(min=1e-6)
    return error.item() if error.isfinite() else float("inf")


def one_row(queries: Tensor, keys: KeySet, row: int) -> tuple[slice, Tensor, KeySet]:
    """Where the keys of one row stand, and that row alone in double precision."""

    def leaf(tensor: Tensor | None, where: slice) -> Tensor | None:
        return None if tensor is None else tensor[where].detach().double().requires_grad_()

    seen, where = keys.seen, slice(row, row + 1)
    if seen.offsets is not None:
        where = slice(*seen.offsets[row : row + 2].tolist())
        ends = torch.tensor([0, where.stop - where.start], device="cuda")
        seen = replace(seen, first=seen.first[where], last=seen.last[where], offsets=ends)
    one = KeySet(
        leaf(keys.keys, where),
        leaf(keys.values, where),
        seen,
        leaf(keys.deadline, where),
        leaf(keys.positions, slice(None)),
    )
    return where, leaf(queries, slice(row, row + 1)), one


def kept(case: Case, queries: Tensor, keys: KeySet, row: int, where: slice) -> Tensor:
    """What dropout keeps of one row after `manual_seed(SEED)`, [1, H, T, N]."""
    torch.manual_seed(SEED)
    words = odd_words(BATCH, HEADS, LENGTH, device=queries.device)
    key_words = odd_words(keys.keys.shape[:-2].numel(), device=queries.device)
    if not keys.seen.packed:
        where = slice(row * keys.keys.shape[1], (row + 1) * keys.keys.shape[1])
    return fused.keep_mask(words[row : row + 1], key_words[where].contiguous(), case.dropout)


# ---- timing ------------------------------------------------------------------------------------


def median_ms(function: Callable[[], object], repeat: int = 25) -> float:
    """Median milliseconds on the device: replays of a captured graph, so host time is left out."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        function()
    cache = torch.empty(2**28, dtype=torch.int8, device="cuda")  # larger than any cache
    times = []
    for _ in range(repeat):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()
        begin.record()
        graph.replay()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times)


def host_ms(function: Callable[[], object], repeat: int = 10) -> float:
    """Milliseconds the host takes to launch a call."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeat):
        function()
    taken = time.perf_counter() - begin
    torch.cuda.synchronize()
    return taken / repeat * 1e3


def times_of(attend: Callable[[], Tensor], parts: list[Tensor]) -> tuple[float, float, float]:
    """Milliseconds of the forward, of the backward, and of the host for both."""
    with torch.cuda.stream(torch.cuda.Stream()):  # no other stream can be captured
        forward = median_ms(attend)
        out = attend()
        grad = torch.randn_like(out)

        def differentiate() -> object:
            return torch.autograd.grad(out, parts, grad, retain_graph=True)

        backward = median_ms(differentiate)
        return forward, backward, host_ms(attend) + host_ms(differentiate)


STOCK = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@cache
def stock_times(backend: str, count: int) -> tuple[float, float] | None:
    """Stock attention over `count` keys in every row; None if the backend cannot."""
    torch.manual_seed(0)
    query = normal(BATCH, HEADS, LENGTH, WIDTH)
    key, value = normal(BATCH, HEADS, count, WIDTH), normal(BATCH, HEADS, count, WIDTH)
    try:
        with sdpa_kernel(STOCK[backend]):
            return times_of(
                lambda: torch.nn.functional.scaled_dot_product_attention(query, key, value),
                [query, key, value],
            )[:2]
    except RuntimeError as error:
        print(f"{backend}: {error}", file=sys.stderr)
        return None


def measure(case: Case) -> dict[str, object]:
    """Errors of a case and, if they are small, its times beside those of stock attention."""
    queries, keys = make(case)
    found = errors(case, queries, keys)
    result: dict[str, object] = {
        **asdict(case),
        "errors": {name: float(f"{error:.2e}") for name, error in found.items()},
    }
    if max(found.values()) > TOLERANCE:
        return {**result, "wrong": True}
    live = live_keys(keys)
    forward, backward, host = times_of(
        lambda: fused.fused_attention(queries, [keys], ramp=RAMP, dropout=case.dropout),
        list(learned(queries, keys).values()),
    )
    pairs = BATCH * HEADS * LENGTH * live
    result |= {
        "live": round(live, 1),
        "forward_ms": round(forward, 4),
        "backward_ms": round(backward, 4),
        "host_ms": round(host, 3),
        "forward_tflops": round(4 * WIDTH * pairs / forward / 1e9, 1),
        "backward_tflops": round(10 * WIDTH * pairs / backward / 1e9, 1),
    }
    for backend in STOCK:
        stock = stock_times(backend, round(live))
        if stock is not None:
            result |= {
                f"{backend}_forward_ms": round(stock[0], 4),
                f"{backend}_backward_ms": round(stock[1], 4),
                f"of_{backend}_speed": round(sum(stock) / (forward + backward), 3),
            }
    return result


COLUMNS = (
    ("kind", "kind"), ("live", "live"), ("fading", "fading"), ("spread", "spread"),
    ("dropout", "drop"), ("forward_ms", "fwd ms"), ("backward_ms", "bwd ms"),
    ("forward_tflops", "fwd TF/s"), ("backward_tflops", "bwd TF/s"), ("host_ms", "host ms"),
    ("flash_forward_ms", "flash fwd"), ("flash_backward_ms", "flash bwd"),
    ("of_flash_speed", "of flash"), ("cudnn_forward_ms", "cudnn fwd"),
    ("cudnn_backward_ms", "cudnn bwd"), ("of_cudnn_speed", "of cudnn"),
)  # fmt: skip


def table(results: list[dict[str, object]]) -> Iterator[str]:
    """One line per case."""
    yield "".join(title.rjust(11) for _, title in COLUMNS)
    for result in results:
        missing = "WRONG" if "wrong" in result else "-"
        yield "".join(str(result.get(name, missing)).rjust(11) for name, _ in COLUMNS)


# ---- tuning ------------------------------------------------------------------------------------

TILES = {
    "forward": [(64, 128, 4, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 3)],
    "query": [(64, 128, 4, 2), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 3), (128, 64, 8, 3)],
    "key": [(64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 3), (64, 128, 8, 3)],
}
ORDERED_TILES = {
    "forward": [(64, 32, 4, 3), (64, 32, 4, 4), (64, 32, 4, 2), (64, 64, 4, 3), (128, 32, 8, 3)],
    "query": [(64, 16, 4, 4), (64, 16, 4, 3), (64, 32, 4, 3), (64, 32, 4, 4), (128, 32, 8, 3)],
    "key": [(32, 64, 4, 3), (32, 64, 4, 4), (32, 64, 4, 2), (16, 64, 4, 3), (64, 64, 8, 2)],
}
PRODUCT_TILES = {
    "scores": [(64, 64, 4, 3), (64, 64, 4, 1), (64, 128, 4, 3), (64, 256, 8, 3), (128, 64, 4, 3),
               (128, 64, 8, 3), (128, 128, 8, 3), (32, 128, 4, 3)],
    "by_scores": [(64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3),
                  (32, 64, 4, 4), (32, 128, 4, 3)],
    "table": [(64, 64, 4, 3), (64, 64, 4, 4), (128, 64, 4, 3), (128, 64, 8, 3), (64, 128, 4, 3),
              (32, 64, 4, 4), (32, 128, 4, 4)],
}  # fmt: skip
TUNED = {
    "far": (Case(2048, 0.5), TILES),
    "near": (Case(768, kind="near"), ORDERED_TILES | PRODUCT_TILES),
    "short": (Case(320, kind="short"), ORDERED_TILES),
}


@contextmanager
def tiles(kernel: str, shape: tuple[int, int, int, int]) -> Iterator[None]:
    """One kernel cut otherwise."""
    usual = fused.tile_of

    def chosen(name: str, *about: Any) -> fused.Tile:
        return fused.Tile(*shape) if name == kernel else usual(name, *about)

    with mock.patch.object(fused, "tile_of", chosen):
        yield


def try_tile(kernel: str, shape: tuple[int, int, int, int], case: Case, timed: bool) -> object:
    """Worst error, or milliseconds of what the kernel is part of, or what went wrong."""
    try:
        queries, keys = make(case)
        with tiles(kernel, shape):
            if not timed:
                return max(errors(case, queries, keys).values())
            forward, backward, _ = times_of(
                lambda: fused.fused_attention(queries, [keys], ramp=RAMP, dropout=case.dropout),
                list(learned(queries, keys).values()),
            )
            return {"forward": forward, "scores": forward + backward}.get(kernel, backward)
    except Exception as error:  # a tile too large for the chip is a result too
        return f"{type(error).__name__}: {str(error)[:60]}"


def tune(kinds: list[str], workers: int) -> None:
    """Try every tile of each kernel; several processes compile, then one times."""
    jobs = [
        (kernel, shape, case)
        for case, shapes in map(TUNED.__getitem__, kinds)
        for kernel in shapes
        for shape in shapes[kernel]
    ]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        checks = list(pool.map(try_tile, *zip(*jobs, strict=True), [False] * len(jobs)))
    for (kernel, shape, case), worst in zip(jobs, checks, strict=True):
        right = isinstance(worst, float) and worst < TOLERANCE
        took = try_tile(kernel, shape, case, timed=True) if right else "not timed"
        result = {"tune": kernel, "tile": shape, **asdict(case), "error": worst, "ms": took}
        print(json.dumps(result), flush=True)


def main() -> int:
    """Measure, print, and say whether everything was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only some 2,048 live keys")
    parser.add_argument("--tune", nargs="*", choices=TUNED, help="try other tile shapes")
    parser.add_argument("--workers", type=int, default=8, help="processes that compile when tuning")
    parser.add_argument("--score-bytes", type=int, help="of position scores, if not as usual")
    options = parser.parse_args()
    if options.score_bytes is not None:
        fused._POSITION_BYTES = options.score_bytes
    if options.tune is not None:
        tune(options.tune or list(TUNED), options.workers)
        return 0
    results = []
    for case in QUICK if options.quick else CASES:
        results.append(measure(case))
        print(json.dumps(results[-1]), flush=True)
        torch.cuda.empty_cache()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print("\n".join(table(results)))
    return int(any("wrong" in result for result in results))


if __name__ == "__main__":
    sys.exit(main())
