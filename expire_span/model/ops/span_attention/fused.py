"""Span attention by Triton kernels: the same meaning as the reference, nothing of size pairs kept.

It is an operator of its own, `torch.ops.expire_span.span_attention`, with fake tensors and
autograd, so that `torch.compile` sees one opaque call. Key sets are brought to one flat form before
it: the keys of all rows one after another, whether they came dense or packed. The sets are taken in
turn, each going on from the softmax of the one before. See `kernels` for the mathematics.

Times and lengths never leave the device. For the backward only `out` and the log-sum-exp are kept;
where keys have positions, the scores of all position rows exist for a moment, for a few rows of the
batch at a time if they are large. Where keys stand in order of time, matrix products of our own
write and read these scores in an order that the attention kernels can read fast.

The kernels are imported when first used, so that this module can be imported without Triton.

Shapes
    B rows, T queries, H heads, E head width, P position rows
    N keys of a row in a dense set, M keys of all rows in any set
    G deadlines of a key: 0 (it never fades), 1, or H if every head has its own
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from expire_span.model.ops.dropout import odd_words, threshold
from expire_span.model.ops.span_attention.keys import KeySet

WIDTHS = (16, 32, 64, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# Times beyond this make no difference to any block; differences of two such fit 32-bit integers.
_FAR = 2**30
# The scores of all position rows may take this much for a moment.
_POSITION_BYTES = 2**30
_UNORDERED = _FAR  # stands for the time of the first key of a set that is not in order of time
_LARGEST_TILE = 128  # keys
_LISTED_TOGETHER = 16  # key tiles that `span_lists_kernel` looks at in one go
_TABLE_PARTS = 16  # sums of which the gradient of a table of positions is made, for each class


def fused_attention(
    queries: Tensor, key_sets: Sequence[KeySet], *, ramp: int, dropout: float
) -> Tensor:
    """Span attention by fused kernels; see `span_attention` for the arguments.

    Of the keys of one row, no two may share a position row for the same query: true of keys that
    stand at different times.
    """
    _check(queries)
    if not key_sets:
        return torch.zeros_like(queries)
    batch, length, heads, _ = queries.shape
    flat = [_flatten(keys, queries) for keys in key_sets]
    no_words = queries.new_empty(0, dtype=torch.int32)
    words = odd_words(batch, heads, length, device=queries.device) if dropout else no_words
    out, _ = _attend(
        queries.contiguous(),
        [one.keys for one in flat],
        [one.values for one in flat],
        [one.first for one in flat],
        [one.last for one in flat],
        [one.deadline for one in flat],
        [one.offsets for one in flat],
        [one.positions for one in flat],
        [one.stride for one in flat],
        [one.begin for one in flat],
        words,
        [odd_words(len(one.keys), device=queries.device) if dropout else no_words for one in flat],
        ramp,
        dropout,
    )
    return out


def keep_mask(query_words: Tensor, key_words: Tensor, dropout: float) -> Tensor:
    """Which pairs dropout keeps, bool [*query_words.shape, M]; only tests need it."""
    rows, count = query_words.numel(), len(key_words)
    keep = query_words.new_empty((rows, count), dtype=torch.int8)
    grid = (_cdiv(rows, 16), _cdiv(count, 64))
    _kernels().span_keep_kernel[grid](
        query_words, key_words, keep, threshold(dropout), rows, count, BT=16, BN=64
    )
    return keep.view(*query_words.shape, count).bool()


# ---- from key sets to flat tensors -------------------------------------------------------------


@dataclass(frozen=True)
class _FlatSet:
    """A key set of either kind, its rows one after another; an absent part is an empty tensor."""

    keys: Tensor  # [M, H, E]
    values: Tensor  # [M, H, E]
    first: Tensor  # int32 [M]
    last: Tensor  # int32 [M]
    deadline: Tensor  # float32 [G, M]
    offsets: Tensor  # int32 [B + 1]
    positions: Tensor  # [P, E]
    stride: int
    begin: int

    @property
    def ordered(self) -> bool:
        """Whether positions are read along aligned rows; see `kernels`."""
        return len(self.positions) > 0 and self.begin != _UNORDERED

    @property
    def columns(self) -> int:
        """Position scores of one query and head."""
        count = len(self.positions)
        return 16 * _cdiv(count + 7, 16) if self.ordered else count


def _flatten(keys: KeySet, queries: Tensor) -> _FlatSet:
    seen = keys.seen
    first, last = (times.clamp(-_FAR, _FAR).to(torch.int32) for times in (seen.first, seen.last))
    if seen.offsets is None:
        batch, count = keys.keys.shape[:2]
        offsets = torch.arange(batch + 1, device=queries.device, dtype=torch.int32) * count
        first, last = (times.expand(batch, 1, count).flatten() for times in (first, last))
    else:
        offsets = seen.offsets.to(torch.int32)
    positions = keys.positions
    if positions is None:
        positions = queries.new_empty(0, queries.shape[-1])
    begin = seen.begin if seen.offsets is None and seen.stride == 1 else None
    return _FlatSet(
        keys=_rows_joined(keys.keys, queries.dtype),
        values=_rows_joined(keys.values, queries.dtype),
        first=first.contiguous(),  # of one key in every row, what was expanded is still a view
        last=last.contiguous(),
        deadline=_flat_deadline(keys),
        offsets=offsets,
        positions=positions.to(queries.dtype).contiguous(),
        stride=seen.stride,
        begin=_UNORDERED if begin is None else begin,
    )


def _rows_joined(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., H, E] -> [M, H, E]"""
    return tensor.to(dtype).reshape(-1, *tensor.shape[-2:]).contiguous()


def _flat_deadline(keys: KeySet) -> Tensor:
    """[G, M], float32; every row and head its own where they differ."""
    if keys.deadline is None:
        count = keys.keys.shape[:-2].numel()
        return keys.keys.new_empty((0, count), dtype=torch.float32)
    deadline = keys.deadline.float()
    if keys.seen.packed:
        return deadline.unsqueeze(0).contiguous()
    batch, count = keys.keys.shape[:2]
    by_head = deadline.expand(batch, deadline.shape[-2], count).transpose(0, 1)
    return by_head.reshape(by_head.shape[0], batch * count).contiguous()


def _check(queries: Tensor) -> None:
    width = queries.shape[-1]
    if width not in WIDTHS:
        raise ValueError(
            f"Fused attention needs heads of width {', '.join(map(str, WIDTHS))}, not {width}."
        )
    if queries.dtype not in DTYPES:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"Fused attention computes in {names}, not in {queries.dtype}.")


def _check_device(queries: Tensor) -> None:
    if not queries.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(
            f"Fused attention needs tensors on a CUDA device, not on {queries.device}."
        )


# ---- the operator ------------------------------------------------------------------------------


@torch.library.custom_op("expire_span::span_attention", mutates_args=())
def _attend(
    queries: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    first: Sequence[Tensor],
    last: Sequence[Tensor],
    deadline: Sequence[Tensor],
    offsets: Sequence[Tensor],
    positions: Sequence[Tensor],
    stride: Sequence[int],
    begin: Sequence[int],
    query_words: Tensor,
    key_words: Sequence[Tensor],
    ramp: int,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """out [B, T, H, E] and the log-sum-exp, base 2, [B, H, T]."""
    _check_device(queries)
    call = _Call(queries, query_words, ramp, dropout)
    sets = _sets(keys, values, first, last, deadline, offsets, positions, stride, begin)
    return _forward(call, sets, key_words)


@_attend.register_fake
def _(queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(queries), _each_query(queries)


@torch.library.custom_op("expire_span::span_attention_backward", mutates_args=())
def _attend_backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    queries: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    first: Sequence[Tensor],
    last: Sequence[Tensor],
    deadline: Sequence[Tensor],
    offsets: Sequence[Tensor],
    positions: Sequence[Tensor],
    stride: Sequence[int],
    begin: Sequence[int],
    query_words: Tensor,
    key_words: Sequence[Tensor],
    ramp: int,
    dropout: float,
) -> list[Tensor]:
    """Gradients of the queries, then of the keys, values, deadlines and positions of each set."""
    call = _Call(queries, query_words, ramp, dropout)
    sets = _sets(keys, values, first, last, deadline, offsets, positions, stride, begin)
    return _backward(call, sets, key_words, grad.contiguous(), out, lse)


@_attend_backward.register_fake
def _(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    queries: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    first: Sequence[Tensor],
    last: Sequence[Tensor],
    deadline: Sequence[Tensor],
    offsets: Sequence[Tensor],
    positions: Sequence[Tensor],
    *_: Any,
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (queries, *keys, *values, *deadline, *positions)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    (queries, *lists, stride, begin, query_words, key_words, ramp, dropout) = inputs
    ctx.sets = len(stride)
    ctx.plain = (stride, begin, ramp, dropout)
    tensors = [tensor for group in lists for tensor in group]
    ctx.save_for_backward(*output, queries, query_words, *tensors, *key_words)
    ctx.set_materialize_grads(True)


def _autograd_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    n = ctx.sets
    stride, begin, ramp, dropout = ctx.plain
    out, lse, queries, query_words, *tensors = ctx.saved_tensors
    *lists, key_words = (tensors[i : i + n] for i in range(0, len(tensors), n))
    grads = _attend_backward(
        grad, out, lse, queries, *lists, stride, begin, query_words, key_words, ramp, dropout
    )
    d_keys, d_values, d_deadline, d_positions = (grads[i : i + n] for i in range(1, 4 * n + 1, n))
    none = [None] * n
    return (
        grads[0], d_keys, d_values, none, none, d_deadline, none, d_positions,
        None, None, None, none, None, None,
    )  # fmt: skip


_attend.register_autograd(_autograd_backward, setup_context=_setup_context)


# ---- launching ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """How one kernel is cut: BT queries by BN keys at a time, by so many warps and load stages."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class _Call:
    """What all key sets of one call share."""

    queries: Tensor
    words: Tensor
    ramp: int
    dropout: float

    @property
    def common(self) -> dict[str, Any]:
        batch, length, heads, width = self.queries.shape
        return {
            "scale": _scale(width),
            "ramp": self.ramp,
            "threshold": threshold(self.dropout),
            "drop_scale": 1 / (1 - self.dropout) if self.dropout < 1 else 0.0,
            "T": length,
            "H": heads,
            "B": batch,
            "E": width,
            "DROPOUT": self.dropout > 0,
        }


def tile_of(kernel: str, queries: Tensor, positions: bool, ordered: bool, fading: bool) -> Tile:
    """The tile of a kernel: "forward", its "step", or the gradients by "query" or by "key".

    Of keys in order of time also the products with positions: "scores", and their gradients for
    queries, "by_scores", and for the "table"; there BT are queries of a class, BN are columns.

    For half precision and width 64 they are the fastest that `benchmarks/attention.py --tune` found
    on an NVIDIA H200 (November 2026); where long and short spans want different ones, those of
    short spans. The others are the largest that stay in registers; for single steps by heads as
    narrow as an agent's, what is good for few rows and for many (`docs/log.md`).
    """
    width = queries.shape[-1]
    if kernel == "step":
        return Tile(1, 64, warps=1) if width == 16 else Tile(1, min(2048 // width, 64))
    if queries.dtype == torch.float32:
        return Tile(16, 16, stages=1) if width == 128 else Tile(32, 32, stages=1)
    if width == 128:
        return Tile(64, 64, stages=2)
    match kernel:
        case "scores":
            return Tile(64, 64)
        case "by_scores":
            return Tile(64, 64, stages=4)
        case "table":
            return Tile(32, 64, stages=4)
        case "key" if ordered:
            return Tile(32, 64, stages=2) if fading else Tile(16, 64)
        case "key":
            return Tile(32, 64)
        case "query" if ordered:
            return Tile(64, 16, stages=4) if fading else Tile(64, 64)
        case "forward" if ordered:
            return Tile(64, 32)
        case _ if positions:
            return Tile(64, 64, stages=2)
    return Tile(64, 128, stages=3 if kernel == "forward" else 2)


def _tile(kernel: str, queries: Tensor, keys: _FlatSet) -> Tile:
    positions, fading = len(keys.positions) > 0, len(keys.deadline) > 0
    return tile_of(kernel, queries, positions, keys.ordered, fading)


def _forward(
    call: _Call, sets: list[_FlatSet], key_words: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    queries = call.queries
    state = None
    read_set = _read_set if queries.shape[1] > 1 else _read_set_once
    taken = [i for i, keys in enumerate(sets) if len(keys.keys) and queries.numel()]
    for i in taken:
        dtype = queries.dtype if i == taken[-1] else torch.float32
        after = torch.empty_like(queries, dtype=dtype), _each_query(queries)
        read_set(call, sets[i], key_words[i], state, after)
        state = after
    if state is None:
        return torch.zeros_like(queries), _each_query(queries).fill_(float("inf"))
    return state


_State = tuple[Tensor, Tensor]  # out and log-sum-exp


def _read_set(
    call: _Call, keys: _FlatSet, words: Tensor, before: _State | None, after: _State
) -> None:
    """Go on with the softmax over one more set."""
    tile = _tile("forward", call.queries, keys)
    lists = _lists(call, keys, tile)
    for row, rows, scores in _position_scores(call, keys):
        _kernels().span_fwd_kernel[_query_grid(call, tile, rows)](
            *_inputs(call, keys, scores, words), *lists, *(before or after), *after,
            S=lists[0].shape[-1], row0=row, CONTINUE=before is not None,
            **call.common, **_about(keys), **_cut(tile),
        )  # fmt: skip


def _read_set_once(
    call: _Call, keys: _FlatSet, words: Tensor, before: _State | None, after: _State
) -> None:
    """The same for one query a row."""
    batch, _, heads, _ = call.queries.shape
    tile = _tile("step", call.queries, keys)
    _step_kernel()[(heads, batch)](
        *_inputs(call, keys, keys.positions, words), *(before or after), *after,
        CONTINUE=before is not None,
        **_without(call.common, "T", "B"), **_without(_about(keys), "W8", "time0", "ORDERED"),
        **_without(_cut(tile), "BT"),
    )  # fmt: skip


def _backward(
    call: _Call,
    sets: list[_FlatSet],
    key_words: Sequence[Tensor],
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
) -> list[Tensor]:
    queries = call.queries
    taken = [i for i, keys in enumerate(sets) if len(keys.keys) and queries.numel()]
    if not taken:
        return [torch.zeros_like(part) for part in (queries, *_learned(sets))]
    delta = torch.empty_like(lse)
    batch, length, heads, width = queries.shape
    _kernels().span_delta_kernel[(_cdiv(length, 64), heads, batch)](
        out, grad, delta, length, heads, E=width, BT=64
    )
    several = len(taken) > 1
    d_queries = torch.empty_like(queries, dtype=torch.float32 if several else queries.dtype)
    by_set = [
        () if i in taken else tuple(torch.zeros_like(part) for part in _learned([keys]))
        for i, keys in enumerate(sets)
    ]
    # Last comes the first set: where it has positions, adding theirs makes the final numbers.
    for i in reversed(taken):
        final = torch.empty_like(queries) if i == taken[0] and sets[i].ordered else d_queries
        about = _Gradients(grad, lse, delta, d_queries, final)
        by_set[i] = _backward_set(call, sets[i], key_words[i], about, add=i != taken[-1])
    return [
        final.to(queries.dtype),
        *(part for parts in zip(*by_set, strict=True) for part in parts),
    ]


@dataclass(frozen=True)
class _Gradients:
    """What the gradients of a set are made from, and where those of the queries go."""

    grad: Tensor  # of the output, [B, T, H, E]
    lse: Tensor  # [B, H, T]
    delta: Tensor  # [B, H, T]
    d_queries: Tensor  # [B, T, H, E], so far
    final: Tensor  # [B, T, H, E], once this set's positions have been added


def _learned(sets: list[_FlatSet]) -> Iterator[Tensor]:
    """Keys, values, deadlines and positions of all sets, in the order of their gradients."""
    for name in ("keys", "values", "deadline", "positions"):
        yield from (getattr(keys, name) for keys in sets)


def _backward_set(
    call: _Call,
    keys: _FlatSet,
    words: Tensor,
    about: "_Gradients",
    add: bool,
) -> tuple[Tensor, ...]:
    """Gradients of one set's keys, values, deadlines and positions; of the queries in place.

    With `add`, those of the queries are added to the ones that are there.
    """
    queries = call.queries
    about_out = about.grad, about.lse, about.delta
    batch, _, heads, _ = queries.shape
    query_tile, key_tile = (_tile(kernel, queries, keys) for kernel in ("query", "key"))
    d_keys, d_values = torch.empty_like(keys.keys), torch.empty_like(keys.values)
    each = heads if len(keys.deadline) else 0
    d_deadline = queries.new_empty((each, len(keys.keys)), dtype=torch.float32)
    d_positions = torch.zeros_like(keys.positions, dtype=torch.float32)
    lists = _lists(call, keys, query_tile)
    for row, rows, scores in _position_scores(call, keys):
        d_scores = (torch.empty_like if keys.ordered else torch.zeros_like)(scores)
        inputs = _inputs(call, keys, scores, words)
        _kernels().span_bwd_q_kernel[_query_grid(call, query_tile, rows)](
            *inputs, *lists, *about_out, about.d_queries, d_scores,
            S=lists[0].shape[-1], row0=row, CONTINUE=add,
            **call.common, **_about(keys), **_cut(query_tile),
        )  # fmt: skip
        slot, slots = _slots_of_rows(keys, batch, key_tile, row, rows)
        _kernels().span_bwd_kv_kernel[(slots, heads)](
            *inputs, *about_out, d_keys, d_values, d_deadline,
            row0=row, rows=rows, slot0=slot,
            **call.common, **_about(keys), **_cut(key_tile),
        )  # fmt: skip
        here = slice(row, row + rows)
        some = about.d_queries[here], about.final[here]
        _backward_positions(keys, d_scores, queries[here], *some, d_positions)
    if len(keys.deadline) == 1:
        d_deadline = d_deadline.sum(dim=0, keepdim=True)
    return d_keys, d_values, d_deadline, d_positions.to(keys.positions.dtype)


def _position_scores(call: _Call, keys: _FlatSet) -> Iterator[tuple[int, int, Tensor]]:
    """q . p for every row of the table, for some rows of the batch at a time.

    Yields the first of the rows, their number and their scores; without positions, all at once.
    """
    batch, length, heads, _ = call.queries.shape
    size = length * heads * keys.columns * call.queries.element_size()
    together = _cdiv(batch, _cdiv(batch * size, _POSITION_BYTES)) if size else batch
    for row in range(0, batch, together):
        some = call.queries[row : row + together]
        yield row, len(some), _scores(keys, some) if size else some.new_empty(0)


def _scores(keys: _FlatSet, queries: Tensor) -> Tensor:
    """q . p, [rows T H, P]; of ordered keys scaled and [rows T H, W], see `kernels`."""
    flat = queries.view(-1, queries.shape[-1])
    if not keys.ordered:
        return flat @ keys.positions.T
    rows, length, heads, width = queries.shape
    # Kernels read whole tiles, also where these begin before the first row or end after the last.
    oldest = -len(keys.positions) - keys.begin  # the key that the first query sees farthest back
    before = max(8 * (oldest // 8), 0)
    keys_of_row = len(keys.keys) // (len(keys.offsets) - 1)
    last_column = keys_of_row + _LARGEST_TILE - 8 * ((oldest + length - 1) // 8)
    after = max(last_column - keys.columns, 0)
    size = len(flat) * keys.columns
    scores = queries.new_empty(before + size + after)[before : before + size]
    tile = _tile("scores", queries, keys)
    _kernels().span_scores_kernel[_class_grid(queries, tile)](
        queries, keys.positions, scores, _scale(width), T=length, H=heads, rows=rows,
        **_columns(keys), E=width, **_product_cut(tile),
    )  # fmt: skip
    return scores.view(len(flat), keys.columns)


def _backward_positions(
    keys: _FlatSet,
    d_scores: Tensor,
    queries: Tensor,
    d_queries: Tensor,
    final: Tensor,
    d_positions: Tensor,
) -> None:
    """Add to the gradients of queries and positions what that of their scores is worth.

    Of the queries it is then `final`, unless keys are unordered.
    """
    rows, length, heads, width = queries.shape
    factor = 1 / math.sqrt(width)
    if not len(keys.positions):
        return
    if not keys.ordered:
        d_queries.view(-1, width).add_(d_scores @ keys.positions, alpha=factor)
        d_positions.add_(d_scores.T @ queries.view(-1, width), alpha=factor)
        return
    tile = _tile("by_scores", queries, keys)
    sizes = {"T": length, "H": heads, "rows": rows, "E": width}
    _kernels().span_bwd_scores_kernel[_class_grid(queries, tile)](
        d_scores, keys.positions, d_queries, final, factor, **sizes,
        **_columns(keys), **_product_cut(tile),
    )  # fmt: skip
    tile = _tile("table", queries, keys)
    parts = queries.new_empty((8, _TABLE_PARTS, keys.columns, width), dtype=torch.float32)
    _kernels().span_bwd_table_kernel[(_cdiv(keys.columns, tile.keys), 8, _TABLE_PARTS)](
        d_scores, queries, parts, **sizes,
        W8=keys.columns // 8, PARTS=_TABLE_PARTS, **_product_cut(tile),
    )  # fmt: skip
    _kernels().span_sum_table_kernel[(_cdiv(len(d_positions), 8),)](
        parts, d_positions, factor, **_columns(keys), E=width, PARTS=_TABLE_PARTS, BP=8
    )


def _product_cut(tile: Tile) -> dict[str, int]:
    cut = {"num_warps": tile.warps, "num_stages": tile.stages}
    return {"BX": tile.queries, "BC": tile.keys, **cut}


def _class_grid(queries: Tensor, tile: Tile) -> tuple[int, int]:
    """Programs for every tile of queries whose times agree modulo 8, for each of these classes."""
    rows, length, heads, _ = queries.shape
    return _cdiv(rows * _cdiv(length, 8) * heads, tile.queries), 8


def _columns(keys: _FlatSet) -> dict[str, int]:
    """How positions stand in the scores."""
    return {"P": len(keys.positions), "W8": keys.columns // 8, "time0": keys.begin}


def _lists(call: _Call, keys: _FlatSet, tile: Tile) -> tuple[Tensor, Tensor]:
    """For each block of queries, the key tiles to visit and how many; see `span_lists_kernel`."""
    batch, length, _, _ = call.queries.shape
    groups, blocks = max(len(keys.deadline), 1), _cdiv(length, tile.queries)
    slots = _slots(keys, batch, tile)
    tiles = keys.first.new_empty(groups, blocks, slots)
    counts = keys.first.new_empty(groups, blocks, batch, 3)
    _kernels().span_lists_kernel[(blocks, batch, groups)](
        keys.first, keys.last, keys.deadline, keys.offsets, tiles, counts,
        call.ramp, length, len(keys.positions), keys.begin, len(keys.keys), slots, batch,
        HAS_DEADLINE=len(keys.deadline) > 0, ORDERED=keys.ordered,
        BT=tile.queries, BN=tile.keys, BC=_LISTED_TOGETHER,
    )  # fmt: skip
    return tiles, counts


def _inputs(call: _Call, keys: _FlatSet, scores: Tensor, words: Tensor) -> tuple[Tensor, ...]:
    """What every kernel but the first reads of a set, in the kernels' order."""
    return (
        call.queries, keys.keys, keys.values, keys.first, keys.last, keys.deadline, keys.offsets,
        scores, call.words, words,
    )  # fmt: skip


def _about(keys: _FlatSet) -> dict[str, Any]:
    return {
        **_columns(keys),
        "M": len(keys.keys),
        "STRIDE": keys.stride,
        "HAS_DEADLINE": len(keys.deadline) > 0,
        "PER_HEAD": len(keys.deadline) > 1,
        "POSITIONS": len(keys.positions) > 0,
        "ORDERED": keys.ordered,
    }


def _without(arguments: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in names}


def _cut(tile: Tile) -> dict[str, int]:
    return {
        "BT": tile.queries,
        "BN": tile.keys,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def _query_grid(call: _Call, tile: Tile, rows: int) -> tuple[int, int, int]:
    _, length, heads, _ = call.queries.shape
    return _cdiv(length, tile.queries), heads, rows


def _slots(keys: _FlatSet, batch: int, tile: Tile) -> int:
    """Room for the tiles of all rows, however the keys are spread over them."""
    return len(keys.keys) // tile.keys + batch


def _slots_of_rows(keys: _FlatSet, batch: int, tile: Tile, row: int, rows: int) -> tuple[int, int]:
    """The first slot of some rows and their number; of all, if it is not known who has how many."""
    if not keys.ordered:
        return 0, _slots(keys, batch, tile)
    first, end = (n * (len(keys.keys) // batch) // tile.keys + n for n in (row, row + rows))
    return first, end - first


def _each_query(queries: Tensor) -> Tensor:
    """Room for one float32 for each query and head, [B, H, T]."""
    batch, length, heads, _ = queries.shape
    return queries.new_empty((batch, heads, length), dtype=torch.float32)


def _sets(*lists: Sequence[Any]) -> list[_FlatSet]:
    return [_FlatSet(*parts) for parts in zip(*lists, strict=True)]


def _scale(width: int) -> float:
    """Of scores, for exponentials of base 2."""
    return math.log2(math.e) / math.sqrt(width)


def _cdiv(count: int, size: int) -> int:
    return -(-count // size)


@cache
def _kernels() -> ModuleType:
    try:
        from expire_span.model.ops.span_attention import kernels
    except ImportError as error:
        raise RuntimeError("Fused attention needs Triton: pip install triton.") from error
    return kernels


@cache
def _step_kernel() -> Any:
    _kernels()  # or it says what is missing
    from expire_span.model.ops.span_attention.step_kernel import span_step_kernel

    return span_step_kernel
