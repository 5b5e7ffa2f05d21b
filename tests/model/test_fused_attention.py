"""The fused kernels against the reference in double precision: values and all five gradients.

Without a CUDA device the kernels run in Triton's interpreter at small sizes. With one, the tests
marked `gpu` run the same cases compiled, at real sizes and in every precision.

Shapes: B rows, T queries, H heads, E head width, N keys of a row, M packed keys of all rows.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from expire_span.model.ops.dropout import odd_words
from expire_span.model.ops.ramp import NEVER
from expire_span.model.ops.span_attention import KeySet, Visibility, fused, reference
from expire_span.model.ops.span_attention.fused import fused_attention, keep_mask
from expire_span.model.ops.span_attention.reference import reference_attention

CUDA = torch.cuda.is_available()
pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # the interpreter's own arithmetic
]
DEVICE = "cuda" if CUDA else "cpu"


@dataclass(frozen=True)
class Size:
    """How large a case is made."""

    batch: int
    length: int
    heads: int
    width: int
    past: int
    ramp: int


# The interpreter runs one program after another, so small cases have one head unless heads matter.
SMALL = Size(batch=2, length=19, heads=1, width=16, past=7, ramp=8)
HEADS = replace(SMALL, heads=2)
REAL = Size(batch=3, length=333, heads=4, width=64, past=517, ramp=64)


# ---- the cases ---------------------------------------------------------------------------------


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE)


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.rand(shape, device=DEVICE) * (high - low) + low


def recent(
    size: Size,
    deadline: Tensor | None = None,
    span: int = NEVER,
    rows: int = 0,
    last: Tensor | None = None,
) -> KeySet:
    """Dense keys of the past and the block, in order."""
    count = size.past + size.length
    times = torch.arange(-size.past, size.length, device=DEVICE)
    edge = (times + span).clamp(max=NEVER)[None, None]
    edge = edge if last is None else torch.minimum(edge, last)
    seen = Visibility((times + 1)[None, None], edge, begin=-size.past)
    shape = (size.batch, count, size.heads, size.width)
    positions = normal(rows, size.width) if rows else None
    return KeySet(normal(*shape), normal(*shape), seen, deadline, positions)


def packed(
    size: Size,
    counts: list[int],
    low: float,
    high: float,
    limit: int = NEVER,
    rows: int = 0,
    fades: bool = True,
) -> KeySet:
    """Packed keys older than `recent`'s, no two of a row at the same time."""
    offsets = torch.tensor([0, *counts], device=DEVICE).cumsum(0)
    total = sum(counts)
    times = [-size.past - 1 - torch.randperm(2 * count + 1)[:count] for count in counts]
    time = torch.cat(times).to(DEVICE)
    last = (time + limit).clamp(max=NEVER)
    seen = Visibility(time + 1, last, offsets=offsets)
    shape = (total, size.heads, size.width)
    positions = normal(rows, size.width) if rows else None
    deadline = uniform(low, high, total) if fades else None
    return KeySet(normal(*shape), normal(*shape), seen, deadline, positions)


def times_of(size: Size) -> Tensor:
    return torch.arange(-size.past, size.length, device=DEVICE)


def learned_spans(size: Size) -> list[KeySet]:
    """Near and far memories of Expire-Span, some rows longer than others."""
    near = times_of(size) + uniform(0, size.length, size.batch, 1, size.past + size.length)
    counts = [size.past * (i + 1) // 2 + i for i in range(size.batch)]
    return [
        recent(size, near, rows=size.length),
        packed(size, counts, -size.ramp, 2 * size.length),
    ]


def a_long_row_beside_an_empty_one(size: Size) -> list[KeySet]:
    counts = [0] * size.batch
    counts[1] = 20 * size.past
    return [packed(size, counts, -size.ramp, size.length)]


def all_expired(size: Size) -> list[KeySet]:
    far = packed(size, [size.past] * size.batch, -3 * size.ramp, -size.ramp - 0.01)
    return [far]


def all_live(size: Size) -> list[KeySet]:
    counts = [4 * size.past + i for i in range(size.batch)]
    return [packed(size, counts, size.length, 2 * size.length)]


def all_on_the_ramp(size: Size) -> list[KeySet]:
    """Every pair has a weight between 0 and 1: see `ramp_of`."""
    counts = [2 * size.past + i for i in range(size.batch)]
    return [packed(size, counts, -0.9 * size.length, -0.1)]


def ramp_of(case: Callable[[Size], list[KeySet]], size: Size) -> int:
    return 2 * size.length if case is all_on_the_ramp else size.ramp


def fading_whole_and_gone(size: Size) -> list[KeySet]:
    """Sorted by deadline, as memory is stored: whole tiles, then partial ones, then unseen ones."""
    counts = [12 * size.past, 7 * size.past, *[size.past] * (size.batch - 2)]
    far = packed(size, counts, -2 * size.ramp, 3 * size.length)
    deadline = torch.cat([d.sort(descending=True).values for d in far.deadline.split(counts)])
    return [replace(far, deadline=deadline)]


def deadlines_on_whole_steps(size: Size) -> list[KeySet]:
    """The two ends of the ramp are met exactly."""
    far = packed(size, [3 * size.past] * size.batch, -size.ramp, size.length)
    return [replace(far, deadline=far.deadline.round())]


def spans_of_heads(size: Size) -> list[KeySet]:
    """Adaptive-Span: one deadline for each head and key, the same in all rows."""
    span = torch.linspace(0, size.past, size.heads, device=DEVICE)[None, :, None]
    return [recent(size, times_of(size) + span + 1, span=size.past, rows=size.past)]


def fixed_span(size: Size) -> list[KeySet]:
    """Transformer-XL: nothing fades, a hard edge."""
    return [recent(size, span=size.past, rows=size.past)]


def episodes(size: Size) -> list[KeySet]:
    """Each row's episode ends at its own step."""
    ends = torch.arange(size.batch, device=DEVICE)[:, None, None] * 7 + 2
    times = times_of(size)
    last = torch.where(times < ends, ends - 1, NEVER)
    deadline = times + uniform(0, size.length, size.batch, 1, len(times))
    return [recent(size, deadline, rows=size.length, last=last)]


def cut_spans(size: Size) -> list[KeySet]:
    """A hard limit in the middle of what is alive, near and far."""
    near = times_of(size) + uniform(0, size.length, size.batch, 1, size.past + size.length)
    far = packed(size, [2 * size.past] * size.batch, 0, size.length, limit=2 * size.past + 3)
    return [recent(size, near, span=5, rows=size.length), far]


def compressed_slots(size: Size) -> list[KeySet]:
    """Slots of four states each; a position row serves four steps."""
    rate, slots = 4, size.past + 3
    first = (torch.arange(slots, device=DEVICE) - slots + 4) * rate
    last = (first + rate * (size.past // 2) + rate - 1)[None, None]
    shape = (size.batch, slots, size.heads, size.width)
    seen = Visibility(first[None, None], last, stride=rate)
    rows = normal(size.past // 2 + 1, size.width)
    return [
        recent(size, span=size.past, rows=size.past),
        KeySet(normal(*shape), normal(*shape), seen, None, rows),
    ]


def positions_everywhere(size: Size) -> list[KeySet]:
    """Expire-Span with positions at all distances: packed keys have them too."""
    near = times_of(size) + uniform(0, size.length, size.batch, 1, size.past + size.length)
    counts = [size.past * (i + 1) // 2 for i in range(size.batch)]
    far = packed(size, counts, -size.ramp, size.length, rows=3 * size.past)
    return [recent(size, near, rows=size.length), far]


def few_positions(size: Size) -> list[KeySet]:
    """Most keys that a query sees are older than the table reaches."""
    return [recent(replace(size, past=2 * size.past), span=2 * size.past, rows=3)]


def order_unknown(size: Size) -> list[KeySet]:
    """Keys in order of time, but nobody says so."""
    (keys,) = fixed_span(size)
    return [replace(keys, seen=replace(keys.seen, begin=None))]


def packed_that_never_fade(size: Size) -> list[KeySet]:
    return [packed(size, [size.past + i for i in range(size.batch)], 0, 0, fades=False)]


def first_block(size: Size) -> list[KeySet]:
    """No past and no far memories: the first query sees nothing."""
    fresh = replace(size, past=0)
    near = times_of(fresh) + uniform(0, size.length, size.batch, 1, size.length)
    return [recent(fresh, near, rows=size.length), packed(fresh, [0] * size.batch, 0, 1)]


CASES: list[Callable[[Size], list[KeySet]]] = [
    learned_spans,
    a_long_row_beside_an_empty_one,
    all_expired,
    all_live,
    all_on_the_ramp,
    fading_whole_and_gone,
    deadlines_on_whole_steps,
    spans_of_heads,
    fixed_span,
    episodes,
    cut_spans,
    compressed_slots,
    positions_everywhere,
    few_positions,
    order_unknown,
    packed_that_never_fade,
    first_block,
]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)


# ---- comparing ---------------------------------------------------------------------------------


def leaves(queries: Tensor, sets: list[KeySet]) -> dict[str, Tensor]:
    """Everything that can learn, by name."""
    found = {"queries": queries}
    for i, keys in enumerate(sets):
        for name in ("keys", "values", "deadline", "positions"):
            if getattr(keys, name) is not None:
                found[f"{name}.{i}"] = getattr(keys, name)
    return found


def cast(queries: Tensor, sets: list[KeySet], dtype: torch.dtype) -> tuple[Tensor, list[KeySet]]:
    """Fresh leaves in the given precision; deadlines never in less than float32."""
    wide = torch.promote_types(dtype, torch.float32)

    def leaf(tensor: Tensor | None, to: torch.dtype) -> Tensor | None:
        return None if tensor is None else tensor.detach().to(to, copy=True).requires_grad_()

    return leaf(queries, dtype), [
        KeySet(
            leaf(keys.keys, dtype),
            leaf(keys.values, dtype),
            keys.seen,
            leaf(keys.deadline, wide),
            leaf(keys.positions, dtype),
        )
        for keys in sets
    ]


def run(attention, queries, sets, ramp, dropout=0.0, seed=0) -> dict[str, Tensor]:
    """The output and the gradients of everything that can learn."""
    torch.manual_seed(seed)
    out = attention(queries, sets, ramp=ramp, dropout=dropout)
    torch.manual_seed(seed + 1)
    weight = torch.randn(out.shape, device=out.device).to(out.dtype)
    learned = leaves(queries, sets)
    grads = torch.autograd.grad(out, list(learned.values()), weight)
    return {"out": out.detach(), **dict(zip(learned, grads, strict=True))}


def assert_close(found: dict[str, Tensor], truth: dict[str, Tensor], tolerance: float) -> None:
    for name, expected in truth.items():
        got, expected = found[name].double(), expected.double()
        assert got.shape == expected.shape, name
        error = (got - expected).norm() / expected.norm().clamp(min=1e-3)
        assert error < tolerance, f"{name}: relative error {error:.2e}"  # NaN fails too


def check(case, size: Size, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(3)
    queries = normal(size.batch, size.length, size.heads, size.width)
    queries, sets = cast(queries, case(size), dtype)
    ramp = ramp_of(case, size)
    found = run(fused_attention, queries, sets, ramp)
    truth = run(reference_attention, *cast(queries, sets, torch.float64), ramp)
    assert_close(found, truth, tolerance)


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that the kernels take holds NaN, so that a number nobody wrote is seen."""

    def poison(make):
        def made(*args, **options):
            tensor = make(*args, **options)
            if sys._getframe(1).f_globals["__name__"] == fused.__name__:
                tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
            return tensor

        return made

    monkeypatch.setattr(torch, "empty_like", poison(torch.empty_like))
    monkeypatch.setattr(Tensor, "new_empty", poison(Tensor.new_empty))


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of which small cases have several, and few programs: they run one after another."""
    monkeypatch.setattr(fused, "tile_of", lambda *_: fused.Tile(16, 32, stages=1))
    monkeypatch.setattr(fused, "_TABLE_PARTS", 2)


# ---- tests -------------------------------------------------------------------------------------


@every_case
def test_equals_the_reference(case, small_tiles):
    with_heads = (learned_spans, spans_of_heads)
    check(case, HEADS if case in with_heads else SMALL, torch.float32, 2e-5)


def test_windows_of_a_single_key_in_every_row_are_each_rows_own():
    """Kernels read them one after another, also where all rows share one."""
    size = replace(SMALL, past=0, length=1)
    (keys, _), queries = first_block(size), normal(size.batch, 1, size.heads, size.width)
    flat = fused._flatten(keys, queries)
    for windows in (flat.first, flat.last):
        assert windows.shape == (size.batch,)
        assert windows.is_contiguous()


@every_case
def test_one_query_equals_the_reference(case, small_tiles):
    """It has a kernel of its own; gradients are those of many."""
    check(case, replace(HEADS, length=1), torch.float32, 2e-5)


def test_equals_the_reference_for_a_whole_tile_of_queries(small_tiles):
    check(learned_spans, replace(SMALL, length=16), torch.float32, 2e-5)


@pytest.mark.parametrize("width", [32, 64, 128])
def test_equals_the_reference_for_every_width(width, small_tiles):
    check(learned_spans, replace(SMALL, width=width, length=5), torch.float32, 2e-5)


def test_tiles_of_other_shapes_give_the_same(monkeypatch):
    monkeypatch.setattr(fused, "tile_of", lambda *_: fused.Tile(32, 16, stages=1))
    check(fading_whole_and_gone, SMALL, torch.float32, 2e-5)


@pytest.mark.parametrize(
    ("case", "rows", "room"),  # room in bytes: for one row, for two of them
    [(positions_everywhere, 2, 1), (few_positions, 3, 5000)],
)
def test_position_scores_may_be_made_for_few_rows_at_a_time(
    case, rows, room, monkeypatch, small_tiles
):
    monkeypatch.setattr(fused, "_POSITION_BYTES", room)
    check(case, replace(SMALL, batch=rows), torch.float32, 2e-5)


def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_gradient(small_tiles):
    torch.manual_seed(0)
    queries = normal(SMALL.batch, SMALL.length, SMALL.heads, SMALL.width)
    found = run(fused_attention, *cast(queries, all_expired(SMALL), torch.float32), SMALL.ramp)
    assert all(not tensor.any() for tensor in found.values())
    found = run(fused_attention, *cast(queries, first_block(SMALL), torch.float32), SMALL.ramp)
    assert not found["out"][:, 0].any()
    assert not found["queries"][:, 0].any()


def test_large_scores_of_invisible_keys_do_no_harm(small_tiles):
    """Neither to the maximum, which they must not raise, nor by overflow."""

    def loud(size: Size) -> list[KeySet]:
        (far,) = fading_whole_and_gone(size)
        gone = far.deadline < -size.ramp
        return [replace(far, keys=torch.where(gone[:, None, None], 1e4 * far.keys, far.keys))]

    check(loud, replace(SMALL, length=5), torch.float32, 2e-5)


def test_keys_after_the_last_row_are_nobodys(small_tiles):
    """Room for more keys than there are changes nothing, and gets no gradient."""
    torch.manual_seed(3)
    queries = normal(SMALL.batch, SMALL.length, SMALL.heads, SMALL.width)
    (whole,) = fading_whole_and_gone(SMALL)
    counts = [20, 9]
    offsets = torch.tensor([0, *counts], device=DEVICE).cumsum(0)
    roomy = replace(whole, seen=replace(whole.seen, offsets=offsets))
    used = slice(0, sum(counts))
    seen = replace(roomy.seen, first=whole.seen.first[used], last=whole.seen.last[used])
    tight = KeySet(whole.keys[used], whole.values[used], seen, whole.deadline[used])
    one, two = (
        run(fused_attention, *cast(queries, [keys], torch.float32), SMALL.ramp)
        for keys in (roomy, tight)
    )
    for name in ("out", "queries"):
        assert torch.equal(one[name], two[name])
    for name in ("keys.0", "values.0", "deadline.0"):
        assert torch.equal(one[name][used], two[name])
        assert not one[name][used.stop :].any()


def test_same_inputs_give_the_same_bits(small_tiles):
    check_same_bits(replace(SMALL, batch=1, length=5))


def check_same_bits(size: Size, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(5)
    queries = normal(size.batch, size.length, size.heads, size.width)
    queries, sets = cast(queries, learned_spans(size), dtype)
    one, two = (run(fused_attention, queries, sets, size.ramp, 0.3) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def replayed_mask(size: Size, sets: list[KeySet], dropout: float, seed: int) -> Tensor:
    """What dropout keeps after `manual_seed(seed)`, [B, H, T, N], as the reference orders keys."""
    torch.manual_seed(seed)
    words = odd_words(size.batch, size.heads, size.length, device=sets[0].keys.device)
    masks = []
    for keys in sets:
        count = keys.keys.shape[:-2].numel()
        keep = keep_mask(words, odd_words(count, device=keys.keys.device), dropout)  # [B, H, T, M]
        if keys.seen.offsets is None:
            ends = range(0, count + 1, count // size.batch)
        else:
            ends = keys.seen.offsets.tolist()
        longest = max(b - a for a, b in pairwise(ends))
        mask = keep.new_zeros(*keep.shape[:-1], longest)
        for row, (a, b) in enumerate(pairwise(ends)):
            mask[row, ..., : b - a] = keep[row, ..., a:b]
        masks.append(mask)
    return torch.cat(masks, dim=-1)


def check_dropout(monkeypatch, case, size: Size, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(3)
    queries = normal(size.batch, size.length, size.heads, size.width)
    queries, sets = cast(queries, case(size), dtype)
    found = run(fused_attention, queries, sets, size.ramp, dropout=0.3, seed=11)
    mask = replayed_mask(size, sets, 0.3, seed=11)
    monkeypatch.setattr(reference.F, "dropout", lambda share, p: share * mask / (1 - p))
    truth = run(reference_attention, *cast(queries, sets, torch.float64), size.ramp, 0.3, seed=11)
    assert_close(found, truth, tolerance)


@pytest.mark.parametrize("case", [learned_spans, compressed_slots], ids=lambda case: case.__name__)
def test_dropout_equals_the_reference_with_the_same_mask(monkeypatch, small_tiles, case):
    check_dropout(monkeypatch, case, SMALL, torch.float32, 2e-5)


def test_dropout_for_one_query_equals_the_reference_with_the_same_mask(monkeypatch, small_tiles):
    check_dropout(monkeypatch, learned_spans, replace(HEADS, length=1), torch.float32, 2e-5)


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_dropout_keeps_the_share_it_should_and_without_pattern(dropout):
    torch.manual_seed(1)
    words = odd_words(2, 512, device=DEVICE)
    keep = keep_mask(words[0], words[1], dropout).double().cpu()
    spread = (dropout * (1 - dropout) / keep.numel()) ** 0.5
    assert abs(keep.mean() - (1 - dropout)) < 4 * spread
    # Neither rows nor columns, nor pairs of them, lean to one side.
    centred = (keep - keep.mean()) / (dropout * (1 - dropout)) ** 0.5
    for matrix in (centred, centred.T):
        assert matrix.mean(dim=1).std() * 512**0.5 == pytest.approx(1, abs=0.15)
        likeness = matrix @ matrix.T / 512**0.5
        likeness.fill_diagonal_(0)
        assert likeness.std() == pytest.approx(1, abs=0.05)
        assert likeness.abs().max() < 6.5


def test_torch_seed_governs_dropout(small_tiles):
    torch.manual_seed(3)
    queries = normal(SMALL.batch, SMALL.length, SMALL.heads, SMALL.width)
    sets = fixed_span(SMALL)
    outs = []
    for seed in (1, 1, 4):
        torch.manual_seed(seed)
        outs.append(fused_attention(queries, sets, ramp=8, dropout=0.3))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def operator_inputs(case, size: Size, dropout: float) -> tuple:
    """The flat arguments with which `fused_attention` calls the operator."""
    torch.manual_seed(3)
    queries = normal(size.batch, size.length, size.heads, size.width)
    queries, sets = cast(queries, case(size), torch.float32)
    seen = []
    attend = fused._attend
    fused._attend = lambda *args: (seen.append(args), attend(*args))[1]
    try:
        fused_attention(queries, sets, ramp=size.ramp, dropout=dropout)
    finally:
        fused._attend = attend

    def leaf(value):
        if isinstance(value, list):
            return [leaf(one) for one in value]
        if isinstance(value, Tensor):
            return value.detach().requires_grad_(value.requires_grad)
        return value

    return tuple(leaf(value) for value in seen[0])


def test_operator_is_well_behaved(small_tiles):
    tiny = replace(SMALL, batch=1, length=3, past=2)
    inputs = operator_inputs(learned_spans, tiny, dropout=0.3)
    torch.library.opcheck(torch.ops.expire_span.span_attention.default, inputs)


def test_compiled_equals_eager(monkeypatch):
    monkeypatch.undo()  # the compiler cannot look into poisoned functions
    monkeypatch.setattr(fused, "_TABLE_PARTS", 2)
    check_compiled(replace(SMALL, batch=1, length=5), torch.float32, "aot_eager")


def check_compiled(size: Size, dtype: torch.dtype, backend: str) -> None:
    """In one graph, without breaks."""
    torch.manual_seed(5)
    queries = normal(size.batch, size.length, size.heads, size.width)
    queries, sets = cast(queries, learned_spans(size), dtype)
    compiled = torch.compile(fused_attention, fullgraph=True, backend=backend)
    eager = run(fused_attention, queries, sets, size.ramp)
    assert_close(run(compiled, queries, sets, size.ramp), eager, 1e-6)


def test_refuses_what_it_cannot_compute():
    queries = normal(1, 2, 1, 24)
    with pytest.raises(ValueError, match="width 16, 32, 64, 128, not 24"):
        fused_attention(queries, [], ramp=1, dropout=0.0)
    with pytest.raises(ValueError, match="not in torch"):
        fused_attention(normal(1, 2, 1, 16).double(), [], ramp=1, dropout=0.0)


def test_refuses_tensors_on_the_cpu_unless_interpreted(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(sys.modules[__name__], "DEVICE", "cpu")
    sets = [packed(SMALL, [3, 2], 0, 1)]
    queries = normal(SMALL.batch, SMALL.length, SMALL.heads, SMALL.width)
    with pytest.raises(ValueError, match="needs tensors on a CUDA device, not on cpu"):
        fused_attention(queries, sets, ramp=1, dropout=0.0)


# ---- the same, compiled, at real sizes ---------------------------------------------------------

gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device")]
TOLERANCE = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3, torch.float32: 2e-5}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@every_case
class TestOnDevice:
    pytestmark = gpu

    def test_equals_the_reference(self, case, dtype):
        check(case, REAL, dtype, TOLERANCE[dtype])

    def test_one_query_equals_the_reference(self, case, dtype):
        check(case, replace(REAL, length=1), dtype, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
class TestOnDeviceOnce:
    pytestmark = gpu

    @pytest.mark.parametrize("width", [16, 32, 128])
    def test_every_width(self, width, dtype):
        check(learned_spans, replace(REAL, width=width), dtype, TOLERANCE[dtype])

    @pytest.mark.parametrize("length", [64, 129])
    def test_any_number_of_queries(self, length, dtype):
        check(positions_everywhere, replace(REAL, length=length), dtype, TOLERANCE[dtype])

    def test_dropout(self, monkeypatch, dtype):
        check_dropout(monkeypatch, learned_spans, REAL, dtype, TOLERANCE[dtype])

    def test_same_bits(self, dtype):
        check_same_bits(REAL, dtype)

    def test_compiled_equals_eager(self, monkeypatch, dtype):
        monkeypatch.undo()  # the compiler cannot look into poisoned functions
        check_compiled(REAL, dtype, "inductor")
