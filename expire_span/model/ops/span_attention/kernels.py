"""Span attention as Triton kernels: the online softmax with soft weights, and its gradients.

For a query at time t and a key with window [first, last] and deadline d,

    s = (q . k + q . p[(t - first) // stride]) / sqrt(E)
    w = clamp(1 + (d - t) / ramp, 0, 1) * [first <= t <= last]
    u = exp(s) / Z,  Z = sum of w exp(s),  share = w u,  out = sum of kept(share) v

The weight multiplies after the exponential, so it needs no logarithm; the running maximum is taken
over visible keys only. `out` and lse = log2 Z are all that the backward needs:

    delta = dO . O                  dP = kept(dO . v)              g  = u (dP - delta)
    dS = w g                        dV = sum of kept(share) dO     dd = sum of g on the ramp / ramp
    dQ = sum of dS k / sqrt(E)      dK = sum of dS q / sqrt(E)

Keys of all rows stand one after another, row b owning offsets[b] to offsets[b + 1]; keys after the
last row are nobody's. They are cut into tiles row by row. For a block of queries a key tile is
*whole* (every pair has weight 1: no mask arithmetic), *partial*, or unseen (skipped). Each kernel
runs one loop over its distant tiles (whole ones without positions), one over its other whole tiles
and one over its partial tiles. Query-major kernels read which is
which from lists made by `span_lists_kernel`; along the query axis the three kinds are ranges, so
the key-major kernel finds them itself. Every output has one writer, so the same inputs give the
same bits.

The position term q . p is computed beforehand for all rows of the table (`qp`, [B, T, H, P]); a
pair reads or writes its own entry of it. For one query no two keys of a row may share an entry.

Where keys are ORDERED, key n of every row standing at time time0 + n, `qp` has another order, in
which pairs can be read many at a time: a query's entries stand by falling distance, thus by rising
time of the key, in a row of W = 8 W8 columns, shifted so that its columns 0, 8, 16 .. belong to
keys whose n is a multiple of 8. So column 0 is key n = ((t - P - time0) // 8) 8, and column c has

    distance P + lag - c,   table row P - 1 + lag - c,   lag = (t - P - time0) mod 8

Queries whose times agree modulo 8 have the same lag: they are a class, and all of a class take
part in the same matrix product.

Dropout keeps a pair if the product of its query's and its key's random word, both odd, reaches
`threshold`.

Names: i_ index of this program, o_ offsets, m_ mask, p_ pointer, b_ block in registers; BT queries
and BN keys of a tile; bos and eos, where a row's keys begin and end.

Shapes
    B rows, T queries, H heads, E head width, P position rows, M keys of all rows
    G deadlines of a key (1, or H if every head has its own)
    S slots: room for the tiles of all rows, see `first_slot`
    J times of a class: T / 8, rounded up
"""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl

# A time outside every block, far enough from the ends of int32 that differences cannot overflow.
FAR = tl.constexpr(2**30)
# The least weight a visible key has, so that rounding cannot make it vanish or turn negative.
LEAST = tl.constexpr(2.0**-24)

# Kinds of key tiles, in the order in which they are visited.
DISTANT, WHOLE, PARTIAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)

# Numbers that change from block to block: a kernel is not compiled anew for them.
VARYING = ("ramp", "threshold", "P", "W8", "time0", "M", "S", "B", "row0", "rows", "slot0")


# ---- one pair of query and key: each formula has its home here ---------------------------------


@triton.jit
def load_windows(first, last, deadline, o_n, m_n, ramp, HAS_DEADLINE: tl.constexpr):
    """First and last query that see each key at all, last that sees it whole, and its deadline."""
    b_first = tl.load(first + o_n, mask=m_n, other=FAR)
    b_end = tl.load(last + o_n, mask=m_n, other=-FAR)
    if HAS_DEADLINE:
        b_d = tl.load(deadline + o_n, mask=m_n, other=0.0)
        b_d = tl.minimum(tl.maximum(b_d, -1.0 * FAR), 1.0 * FAR)
        b_whole = tl.minimum(b_end, tl.floor(b_d).to(tl.int32))
        b_end = tl.minimum(b_end, tl.ceil(b_d + ramp).to(tl.int32) - 1)
    else:
        b_d = tl.zeros_like(b_end).to(tl.float32)
        b_whole = b_end
    return b_first, b_end, b_whole, b_d


@triton.jit
def height_of(b_d, t_begin, ramp):
    """Height of the ramp at the first query of a block, 1 + (d - t) / ramp, for each key."""
    return 1.0 + (b_d - t_begin) * (1.0 / ramp)


@triton.jit
def weight_of(b_height, b_fall):
    """What is left of a visible key where the ramp has fallen since the first query of a block."""
    return tl.minimum(tl.maximum(b_height - b_fall, LEAST), 1.0)


@triton.jit
def is_kept(b_qword, b_kword, threshold):
    """Whether dropout keeps a pair; see `ops.dropout`."""
    return b_qword * b_kword >= threshold


@triton.jit
def position_of(b_first, o_t, T, H, P, STRIDE: tl.constexpr):
    """Where the entry of each pair [BT, BN] stands in `qp`, and whether the table has it."""
    b_row = (o_t - b_first) // STRIDE
    return o_t * (H * P) + b_row, (o_t >= b_first) & (b_row < P) & (o_t < T)


@triton.jit
def load_positions(p_qp, o_row, m_row, BT: tl.constexpr, BN: tl.constexpr):
    """Entries of `qp`, [BT, BN].

    Neighbouring keys mostly are neighbours there, so neighbouring threads shall take them; the hint
    says so to the compiler, which can infer nothing else from it, since entries are not aligned.
    The third axis keeps it from laying these loads out like aligned ones of the same shape.
    """
    o_row = tl.max_contiguous(o_row[:, None, :], [1, 1, BN])
    b_qp = tl.load(p_qp + o_row, mask=m_row[:, None, :], other=0.0)
    return tl.reshape(b_qp, [BT, BN])


@triton.jit
def store_positions(p_dqp, o_row, m_row, b_dqp, BN: tl.constexpr):
    """Write entries [BT, BN], laid out as `load_positions` does."""
    o_row = tl.max_contiguous(o_row[:, None, :], [1, 1, BN])
    b_dqp = b_dqp.to(p_dqp.dtype.element_ty)
    tl.store(p_dqp + o_row, b_dqp[:, None, :], mask=m_row[:, None, :])


@triton.jit
def ordered_rows(o_t, T, H, P, W8, time0):
    """Where key 0 of each query's row stands in an ordered `qp`, or would stand.

    Queries after the last one share its row. All are multiples of 8, and the compiler can tell.
    """
    o_t = tl.minimum(o_t, T - 1)
    return o_t * (H * W8 * 8) - ((o_t - P - time0) >> 3) * 8


@triton.jit
def load_transposed(p_qp, i_t, o_n, T, H, P, W8, time0, BT: tl.constexpr):
    """Entries of an ordered `qp` for keys and a block of queries, [BN, BT]; see `add_ordered`."""
    o_row = ordered_rows(i_t * BT + tl.arange(0, BT), T, H, P, W8, time0)
    return tl.load(p_qp + o_row[None, :] + o_n[:, None])


@triton.jit
def add_ordered(b_x, b_qp, o_n, o_t, P, time0):
    """Scaled scores with those of positions added, where the table has one.

    Entries are read without a mask, since only then eight can be read at once; what a mask would
    have kept out is there, though it belongs to others. Keys of the future are left to the windows.
    Both the order of these operations and that scores are scaled before matter to the compiler: so
    it loads entries ahead of time, in the layout of the products.
    """
    return tl.where(o_n >= o_t - P - time0, b_x + b_qp.to(tl.float32), b_x)


@triton.jit
def store_ordered(p_dqp, o_row, o_n, o_t, b_dqp, T, P, W8, time0):
    """Write entries [BT, BN] of an ordered `qp`; each query writes in its own row only."""
    b_dqp = tl.where(o_n >= o_t - P - time0, b_dqp, 0.0).to(p_dqp.dtype.element_ty)
    o_zero = ((o_t - P - time0) >> 3) * 8
    m_own = (o_n >= o_zero) & (o_n < o_zero + W8 * 8) & (o_t < T)
    tl.store(p_dqp + o_row + o_n, b_dqp, mask=m_own)


@triton.jit
def clear_ordered(p_dqp, o_t, T, H, W8, BT: tl.constexpr, BN: tl.constexpr):
    """Zeros in the rows of a block, for the pairs that nobody visits."""
    for c in range(0, W8 * 8, BN):
        o_c = c + tl.arange(0, BN)
        m_c = (o_t < T)[:, None] & (o_c < W8 * 8)[None, :]
        p_c = p_dqp + o_t[:, None] * (H * W8 * 8) + o_c[None, :]
        tl.store(p_c, tl.zeros([BT, BN], dtype=p_dqp.dtype.element_ty), mask=m_c)
    tl.debug_barrier()  # other threads may write the same entries next


# ---- where tiles are ---------------------------------------------------------------------------


@triton.jit
def first_slot(bos, i_b, BN: tl.constexpr):
    """Slot of the first tile of row b; every row has room for its tiles before the next begins."""
    return bos // BN + i_b


@triton.jit
def row_of_slot(offsets, i_s, B, BN: tl.constexpr):
    """The last row whose first slot is not after this one."""
    low = i_s * 0
    high = low + B
    while high - low > 1:
        middle = (low + high) // 2
        before = first_slot(tl.load(offsets + middle), middle, BN) <= i_s
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit(do_not_specialize=VARYING)
def span_lists_kernel(
    first,
    last,
    deadline,
    offsets,
    tiles,
    counts,
    ramp,
    T,
    P,
    time0,
    M,
    S,
    B,
    HAS_DEADLINE: tl.constexpr,
    ORDERED: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    BC: tl.constexpr,
):
    """For each block of queries: which key tiles of its row are whole, which are partial.

    Writes tiles [G, T / BT, S], where a row's part holds its whole tiles from the front and its
    partial tiles from the back, both in order; if keys are ORDERED, unseen tiles stand between. And
    counts [G, T / BT, B, 3] of distant, whole and partial tiles: the distant ones are the first of
    the whole, too far back to have positions. BC tiles are looked at together.
    """
    i_t, i_b, i_g = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_gt = i_g * tl.num_programs(0) + i_t
    bos, eos = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
    n_tiles = tl.cdiv(eos - bos, BN)
    p_tiles = tiles + i_gt.to(tl.int64) * S + first_slot(bos, i_b, BN)
    t_first = i_t * BT
    t_last = tl.minimum(t_first + BT, T) - 1

    n_distant = n_tiles * 0
    n_whole = n_tiles * 0
    n_partial = n_tiles * 0
    n_unseen = n_tiles * 0
    for UNSEEN in tl.static_range(2 if ORDERED else 1):
        for i_c in range(0, n_tiles, BC):
            o_c = i_c + tl.arange(0, BC)
            o_n = bos + o_c[:, None] * BN + tl.arange(0, BN)[None, :]
            m_n = o_n < eos
            b_first, b_end, b_whole, _ = load_windows(
                first, last, deadline + i_g.to(tl.int64) * M, o_n, m_n, ramp, HAS_DEADLINE
            )
            b_seen = (b_first <= t_last) & (b_end >= t_first)
            b_full = (b_first <= t_first) & (b_whole >= t_last)
            m_whole = tl.min(b_full.to(tl.int32), axis=1)
            m_partial = tl.max(b_seen.to(tl.int32), axis=1) * (1 - m_whole)
            if UNSEEN:  # they come after the whole ones, whose number is known by now
                m_unseen = (1 - m_whole - m_partial) * (o_c < n_tiles).to(tl.int32)
                o_unseen = n_whole + n_unseen + tl.cumsum(m_unseen, axis=0) - 1
                tl.store(p_tiles + o_unseen, o_c, mask=m_unseen > 0)
                n_unseen += tl.sum(m_unseen, axis=0)
            else:
                o_whole = n_whole + tl.cumsum(m_whole, axis=0) - 1
                o_partial = n_tiles - n_partial - tl.cumsum(m_partial, axis=0)
                tl.store(p_tiles + o_whole, o_c, mask=m_whole > 0)
                tl.store(p_tiles + o_partial, o_c, mask=m_partial > 0)
                m_distant = m_whole * (o_c * BN + BN <= t_first - P - time0).to(tl.int32)
                n_distant += tl.sum(m_distant, axis=0)
                n_whole += tl.sum(m_whole, axis=0)
                n_partial += tl.sum(m_partial, axis=0)

    p_counts = counts + (i_gt * B + i_b) * 3
    tl.store(p_counts, n_distant if ORDERED else n_distant * 0)
    tl.store(p_counts + 1, n_whole)
    tl.store(p_counts + 2, n_partial)


# ---- forward -----------------------------------------------------------------------------------


@triton.jit(do_not_specialize=VARYING)
def span_fwd_kernel(
    q,
    k,
    v,
    first,
    last,
    deadline,
    offsets,
    qp,
    qword,
    kword,
    tiles,
    counts,
    before_out,
    before_lse,
    out,
    lse,
    scale,
    ramp,
    threshold,
    drop_scale,
    T,
    H,
    P,
    W8,
    time0,
    M,
    S,
    B,
    row0,
    E: tl.constexpr,
    STRIDE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    HAS_DEADLINE: tl.constexpr,
    PER_HEAD: tl.constexpr,
    POSITIONS: tl.constexpr,
    ORDERED: tl.constexpr,
    DROPOUT: tl.constexpr,
    CONTINUE: tl.constexpr,
):
    """out and lse of one block of queries, over one set of keys.

    With CONTINUE the softmax goes on from the out and lse of the sets before.
    """
    i_t, i_h, i_r = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b = i_r + row0
    i_g = i_h if PER_HEAD else i_h * 0
    bos, eos = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
    n_tiles = tl.cdiv(eos - bos, BN)
    i_gt = i_g * tl.num_programs(0) + i_t
    p_tiles = tiles + tl.cast(i_gt, tl.int64) * S + first_slot(bos, i_b, BN)
    n_distant = tl.load(counts + (i_gt * B + i_b) * 3)
    n_whole = tl.load(counts + (i_gt * B + i_b) * 3 + 1)
    n_partial = tl.load(counts + (i_gt * B + i_b) * 3 + 2)

    o_t = i_t * BT + tl.arange(0, BT)
    o_e = tl.arange(0, E)
    m_t = o_t < T
    b_fall = tl.arange(0, BT) * (1.0 / ramp)
    i_bh = i_b.to(tl.int64) * H + i_h
    p_bth = (i_b.to(tl.int64) * T * H + i_h) * E
    o_q = o_t[:, None] * (H * E) + o_e[None, :]
    b_q = tl.load(q + p_bth + o_q, mask=m_t[:, None], other=0.0)
    p_kv = (bos.to(tl.int64) * H + i_h) * E
    if ORDERED:
        p_qp = qp + (i_r.to(tl.int64) * T * H + i_h) * (W8 * 8)
        o_row = ordered_rows(o_t, T, H, P, W8, time0)[:, None]
    elif POSITIONS:
        p_qp = qp + (i_r.to(tl.int64) * T * H + i_h) * P
    if DROPOUT:
        b_qword = tl.load(qword + i_bh * T + o_t, mask=m_t, other=0)

    b_o = tl.zeros([BT, E], dtype=tl.float32)
    b_l = tl.zeros([BT], dtype=tl.float32)
    b_m = tl.full([BT], float("-inf"), dtype=tl.float32)
    if CONTINUE:
        b_o = tl.load(before_out + p_bth + o_q, mask=m_t[:, None], other=0.0).to(tl.float32)
        b_o /= drop_scale
        b_before = tl.load(before_lse + i_bh * T + o_t, mask=m_t, other=float("inf"))
        b_l = tl.where(b_before == float("inf"), 0.0, 1.0)
        b_m = tl.where(b_before == float("inf"), float("-inf"), b_before)

    for KIND in tl.static_range(DISTANT if ORDERED else WHOLE, PARTIAL + 1):
        begin = (n_tiles - n_partial) if KIND == PARTIAL else (n_distant if KIND == WHOLE else 0)
        end = n_tiles if KIND == PARTIAL else (n_whole if KIND == WHOLE else n_distant)
        i_n = tl.load(p_tiles + begin, mask=begin < end, other=0)
        for i in range(begin, end):
            o_n = i_n * BN + tl.arange(0, BN)
            m_n = o_n < eos - bos
            i_n = tl.load(p_tiles + i + 1, mask=i + 1 < end, other=0)  # ahead of the next turn
            p_k = k + p_kv + o_n[None, :] * (H * E) + o_e[:, None]
            p_v = v + p_kv + o_n[:, None] * (H * E) + o_e[None, :]
            if KIND == PARTIAL:
                b_k = tl.load(p_k, mask=m_n[None, :], other=0.0)
                b_v = tl.load(p_v, mask=m_n[:, None], other=0.0)
            else:
                b_k = tl.load(p_k)
                b_v = tl.load(p_v)
            b_s = tl.dot(b_q, b_k, input_precision="ieee")
            if KIND == PARTIAL or (POSITIONS and not ORDERED):
                b_first, b_end, _, b_d = load_windows(
                    first,
                    last,
                    deadline + tl.cast(i_g, tl.int64) * M,
                    bos + o_n,
                    m_n,
                    ramp,
                    HAS_DEADLINE,
                )
                if ORDERED and KIND > DISTANT:  # known without being loaded
                    b_first = tl.where(m_n, time0 + 1 + o_n, FAR)
            if ORDERED and KIND > DISTANT:
                b_qp = tl.load(p_qp + o_row + o_n[None, :])
                b_s = add_ordered(b_s * scale, b_qp, o_n[None, :], o_t[:, None], P, time0)
            elif POSITIONS and not ORDERED:
                o_row, m_row = position_of(b_first[None, :], o_t[:, None], T, H, P, STRIDE)
                b_s += load_positions(p_qp, o_row, m_row, BT, BN).to(tl.float32)
            unit = 1.0 if ORDERED and KIND > DISTANT else scale  # what is still to be multiplied
            if KIND == PARTIAL:
                m_s = (b_first[None, :] <= o_t[:, None]) & (o_t[:, None] <= b_end[None, :])
                b_s = tl.where(m_s, b_s, float("-inf"))
            b_most = tl.maximum(b_m, tl.max(b_s, axis=1) * unit)
            b_base = b_most
            if KIND == PARTIAL:  # a query that has seen nothing yet must not subtract infinities
                b_base = tl.where(b_most == float("-inf"), 0.0, b_most)
            b_p = tl.exp2(b_s * unit - b_base[:, None])
            if KIND == PARTIAL and HAS_DEADLINE:
                b_p *= weight_of(height_of(b_d, i_t * BT, ramp)[None, :], b_fall[:, None])
            b_fade = tl.exp2(b_m - b_base)
            b_l = b_l * b_fade + tl.sum(b_p, axis=1)
            b_o = b_o * b_fade[:, None]
            b_m = b_most
            if DROPOUT:
                b_kword = tl.load(kword + bos + o_n, mask=m_n, other=0)
                b_p = tl.where(is_kept(b_qword[:, None], b_kword[None, :], threshold), b_p, 0.0)
            b_o = tl.dot(b_p.to(b_v.dtype), b_v, b_o, input_precision="ieee")

    m_any = b_l > 0
    b_z = tl.where(m_any, b_l, 1.0)
    b_o = b_o * (drop_scale / b_z)[:, None]
    b_lse = tl.where(m_any, b_m + tl.log2(b_z), float("inf"))  # so that exp2(s - lse) is 0
    tl.store(out + p_bth + o_q, b_o.to(out.dtype.element_ty), mask=m_t[:, None])
    tl.store(lse + i_bh * T + o_t, b_lse, mask=m_t)


# ---- backward ----------------------------------------------------------------------------------


@triton.jit
def span_delta_kernel(out, do, delta, T, H, E: tl.constexpr, BT: tl.constexpr):
    """delta = dO . O, [B, H, T]."""
    i_t, i_h, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    o_t = i_t * BT + tl.arange(0, BT)
    m_t = o_t < T
    p_bth = (i_b.to(tl.int64) * T * H + i_h) * E
    o_o = o_t[:, None] * (H * E) + tl.arange(0, E)[None, :]
    b_o = tl.load(out + p_bth + o_o, mask=m_t[:, None], other=0.0).to(tl.float32)
    b_do = tl.load(do + p_bth + o_o, mask=m_t[:, None], other=0.0).to(tl.float32)
    tl.store(delta + (i_b.to(tl.int64) * H + i_h) * T + o_t, tl.sum(b_o * b_do, axis=1), mask=m_t)


@triton.jit(do_not_specialize=VARYING)
def span_bwd_q_kernel(
    q,
    k,
    v,
    first,
    last,
    deadline,
    offsets,
    qp,
    qword,
    kword,
    tiles,
    counts,
    do,
    lse,
    delta,
    dq,
    dqp,
    scale,
    ramp,
    threshold,
    drop_scale,
    T,
    H,
    P,
    W8,
    time0,
    M,
    S,
    B,
    row0,
    E: tl.constexpr,
    STRIDE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    HAS_DEADLINE: tl.constexpr,
    PER_HEAD: tl.constexpr,
    POSITIONS: tl.constexpr,
    ORDERED: tl.constexpr,
    DROPOUT: tl.constexpr,
    CONTINUE: tl.constexpr,
):
    """dQ of one block of queries over one set of keys, and dS of its pairs with a position.

    With CONTINUE it is added to the dQ of the sets before.
    """
    i_t, i_h, i_r = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    i_b = i_r + row0
    i_g = i_h if PER_HEAD else i_h * 0
    bos, eos = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
    n_tiles = tl.cdiv(eos - bos, BN)
    i_gt = i_g * tl.num_programs(0) + i_t
    p_tiles = tiles + tl.cast(i_gt, tl.int64) * S + first_slot(bos, i_b, BN)
    n_distant = tl.load(counts + (i_gt * B + i_b) * 3)
    n_whole = tl.load(counts + (i_gt * B + i_b) * 3 + 1)
    n_partial = tl.load(counts + (i_gt * B + i_b) * 3 + 2)

    o_t = i_t * BT + tl.arange(0, BT)
    o_e = tl.arange(0, E)
    m_t = o_t < T
    b_fall = tl.arange(0, BT) * (1.0 / ramp)
    i_bh = i_b.to(tl.int64) * H + i_h
    p_bth = (i_b.to(tl.int64) * T * H + i_h) * E
    o_q = o_t[:, None] * (H * E) + o_e[None, :]
    b_q = tl.load(q + p_bth + o_q, mask=m_t[:, None], other=0.0)
    b_do = tl.load(do + p_bth + o_q, mask=m_t[:, None], other=0.0)
    b_lse = tl.load(lse + i_bh * T + o_t, mask=m_t, other=float("inf"))
    b_delta = tl.load(delta + i_bh * T + o_t, mask=m_t, other=0.0)
    p_kv = (bos.to(tl.int64) * H + i_h) * E
    if ORDERED:
        p_qp = qp + (i_r.to(tl.int64) * T * H + i_h) * (W8 * 8)
        p_dqp = dqp + (i_r.to(tl.int64) * T * H + i_h) * (W8 * 8)
        o_row = ordered_rows(o_t, T, H, P, W8, time0)[:, None]
        # Where every column is that of a key, each entry is written once: by its tile.
        t_last = tl.minimum(i_t * BT + BT, T) - 1
        n_last = ((t_last - P - time0) >> 3) * 8 + W8 * 8
        if (i_t * BT < P + time0) | (n_last > n_tiles * BN):
            clear_ordered(p_dqp, o_t, T, H, W8, BT, BN)
        for i in range(n_whole, n_tiles - n_partial):  # unseen tiles
            o_n = tl.load(p_tiles + i) * BN + tl.arange(0, BN)
            b_none = tl.zeros([BT, BN], dtype=tl.float32)
            store_ordered(p_dqp, o_row, o_n[None, :], o_t[:, None], b_none, T, P, W8, time0)
    elif POSITIONS:
        p_qp = qp + (i_r.to(tl.int64) * T * H + i_h) * P
        p_dqp = dqp + (i_r.to(tl.int64) * T * H + i_h) * P
    if DROPOUT:
        b_qword = tl.load(qword + i_bh * T + o_t, mask=m_t, other=0)

    b_dq = tl.zeros([BT, E], dtype=tl.float32)
    for KIND in tl.static_range(DISTANT if ORDERED else WHOLE, PARTIAL + 1):
        begin = (n_tiles - n_partial) if KIND == PARTIAL else (n_distant if KIND == WHOLE else 0)
        end = n_tiles if KIND == PARTIAL else (n_whole if KIND == WHOLE else n_distant)
        i_n = tl.load(p_tiles + begin, mask=begin < end, other=0)
        for i in range(begin, end):
            o_n = i_n * BN + tl.arange(0, BN)
            m_n = o_n < eos - bos
            i_n = tl.load(p_tiles + i + 1, mask=i + 1 < end, other=0)  # ahead of the next turn
            p_k = k + p_kv + o_n[:, None] * (H * E) + o_e[None, :]
            p_v = v + p_kv + o_n[None, :] * (H * E) + o_e[:, None]
            if KIND == PARTIAL:
                b_k = tl.load(p_k, mask=m_n[:, None], other=0.0)
                b_v = tl.load(p_v, mask=m_n[None, :], other=0.0)
            else:
                b_k = tl.load(p_k)
                b_v = tl.load(p_v)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
            b_dp = tl.dot(b_do, b_v, input_precision="ieee")
            if KIND == PARTIAL or (POSITIONS and not ORDERED):
                b_first, b_end, _, b_d = load_windows(
                    first,
                    last,
                    deadline + tl.cast(i_g, tl.int64) * M,
                    bos + o_n,
                    m_n,
                    ramp,
                    HAS_DEADLINE,
                )
                if ORDERED and KIND > DISTANT:  # known without being loaded
                    b_first = tl.where(m_n, time0 + 1 + o_n, FAR)
            if POSITIONS and not ORDERED:
                o_row, m_row = position_of(b_first[None, :], o_t[:, None], T, H, P, STRIDE)
                b_s += load_positions(p_qp, o_row, m_row, BT, BN).to(tl.float32)
            b_x = b_s * scale - b_lse[:, None]
            if ORDERED and KIND > DISTANT:
                b_qp = tl.load(p_qp + o_row + o_n[None, :])
                b_x = add_ordered(b_x, b_qp, o_n[None, :], o_t[:, None], P, time0)
            if KIND == PARTIAL:
                m_s = (b_first[None, :] <= o_t[:, None]) & (o_t[:, None] <= b_end[None, :])
                b_x = tl.where(m_s, b_x, float("-inf"))
            b_p = tl.exp2(b_x)
            if KIND == PARTIAL and HAS_DEADLINE:
                b_p *= weight_of(height_of(b_d, i_t * BT, ramp)[None, :], b_fall[:, None])
            if DROPOUT:
                b_kword = tl.load(kword + bos + o_n, mask=m_n, other=0)
                m_kept = is_kept(b_qword[:, None], b_kword[None, :], threshold)
                b_dp = tl.where(m_kept, b_dp * drop_scale, 0.0)
            b_ds = b_p * (b_dp - b_delta[:, None])
            b_ds = b_ds.to(b_k.dtype)
            if ORDERED and KIND > DISTANT:
                store_ordered(p_dqp, o_row, o_n[None, :], o_t[:, None], b_ds, T, P, W8, time0)
            elif POSITIONS and not ORDERED:
                store_positions(p_dqp, o_row, m_row & m_n[None, :], b_ds, BN)
            b_dq = tl.dot(b_ds, b_k, b_dq, input_precision="ieee")

    b_dq *= scale * 0.6931471805599453  # scale = log2(e) / sqrt(E)
    if CONTINUE:
        b_dq += tl.load(dq + p_bth + o_q, mask=m_t[:, None], other=0.0).to(tl.float32)
    tl.store(dq + p_bth + o_q, b_dq.to(dq.dtype.element_ty), mask=m_t[:, None])


@triton.jit
def block_of(i, whole_begin, n_whole, PARTIAL: tl.constexpr):
    """The i-th block of queries, whole ones left out if PARTIAL."""
    return tl.where(i < whole_begin, i, i + n_whole) if PARTIAL else i


@triton.jit(do_not_specialize=VARYING)
def span_bwd_kv_kernel(
    q,
    k,
    v,
    first,
    last,
    deadline,
    offsets,
    qp,
    qword,
    kword,
    do,
    lse,
    delta,
    dk,
    dv,
    dd,
    scale,
    ramp,
    threshold,
    drop_scale,
    T,
    H,
    P,
    W8,
    time0,
    M,
    B,
    row0,
    rows,
    slot0,
    E: tl.constexpr,
    STRIDE: tl.constexpr,
    BT: tl.constexpr,
    BN: tl.constexpr,
    HAS_DEADLINE: tl.constexpr,
    PER_HEAD: tl.constexpr,
    POSITIONS: tl.constexpr,
    ORDERED: tl.constexpr,
    DROPOUT: tl.constexpr,
):
    """dK, dV and d deadline (for each head, [H, M]) of one tile of keys, over all queries.

    Blocks are transposed here: keys along the first axis, queries along the second.
    """
    i_s, i_h = tl.program_id(0) + slot0, tl.program_id(1)
    i_b = row_of_slot(offsets, i_s, B, BN)
    i_g = i_h if PER_HEAD else i_h * 0
    bos, eos = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
    i_n = (i_s - first_slot(bos, i_b, BN)) * BN
    n_stored = tl.where(i_b == B - 1, M, eos) - bos  # keys after the last row get zeros
    if (i_n >= n_stored) | (i_b < row0) | (i_b >= row0 + rows):
        return

    o_n = i_n + tl.arange(0, BN)
    o_e = tl.arange(0, E)
    m_n = o_n < eos - bos
    p_kv = (bos.to(tl.int64) * H + i_h) * E
    o_kv = o_n[:, None] * (H * E) + o_e[None, :]
    b_k = tl.load(k + p_kv + o_kv, mask=m_n[:, None], other=0.0)
    b_v = tl.load(v + p_kv + o_kv, mask=m_n[:, None], other=0.0)
    b_first, b_end, b_whole, b_d = load_windows(
        first, last, deadline + tl.cast(i_g, tl.int64) * M, bos + o_n, m_n, ramp, HAS_DEADLINE
    )
    b_end = tl.minimum(b_end, T - 1)
    b_fall = tl.arange(0, BT) * (1.0 / ramp)
    i_bh = i_b.to(tl.int64) * H + i_h
    p_bth = (i_b.to(tl.int64) * T * H + i_h) * E
    if ORDERED:
        p_qp = qp + ((i_b - row0).to(tl.int64) * T * H + i_h) * (W8 * 8)
    elif POSITIONS:
        p_qp = qp + ((i_b - row0).to(tl.int64) * T * H + i_h) * P
    if DROPOUT:
        b_kword = tl.load(kword + bos + o_n, mask=m_n, other=0)

    # Blocks of queries: [begin, end) see some key; [whole_begin, whole_end) are full blocks which
    # see all keys whole.
    t_begin = tl.maximum(tl.min(b_first, axis=0), 0)
    t_end = tl.max(b_end, axis=0) + 1
    begin = t_begin // BT
    end = tl.where(t_begin < t_end, tl.cdiv(t_end, BT), begin)
    t_whole = tl.min(tl.where(m_n, b_whole, FAR), axis=0) + 1
    whole_begin = tl.cdiv(tl.maximum(tl.max(tl.where(m_n, b_first, -FAR), axis=0), 0), BT)
    whole_end = tl.minimum(tl.maximum(t_whole, 0), T) // BT
    whole_begin = tl.minimum(whole_begin, end)
    whole_end = tl.maximum(tl.minimum(whole_end, end), whole_begin)
    whole_end = tl.where(i_n < eos - bos, whole_end, whole_begin)
    n_whole = whole_end - whole_begin

    b_dk = tl.zeros([BN, E], dtype=tl.float32)
    b_dv = tl.zeros([BN, E], dtype=tl.float32)
    b_dd = tl.zeros([BN, BT], dtype=tl.float32)  # summed over queries only at the end: faster
    distant = whole_end
    if ORDERED:  # from here on queries are too far from all keys to have positions
        distant = tl.maximum((i_n + BN - 1 + P + time0) // BT + 1, whole_begin)
        distant = tl.minimum(distant, whole_end)
    for KIND in tl.static_range(DISTANT if ORDERED else WHOLE, PARTIAL + 1):
        i_begin = begin if KIND == PARTIAL else (whole_begin if KIND == WHOLE else distant)
        i_end = (end - n_whole) if KIND == PARTIAL else (distant if KIND == WHOLE else whole_end)
        if ORDERED and KIND > DISTANT:
            # One turn ahead, which the compiler does not do for transposed blocks.
            i_t = block_of(i_begin, whole_begin, n_whole, KIND == PARTIAL)
            b_qp = load_transposed(p_qp, i_t, o_n, T, H, P, W8, time0, BT)
        for i in range(i_begin, i_end):
            i_t = block_of(i, whole_begin, n_whole, KIND == PARTIAL)
            o_t = i_t * BT + tl.arange(0, BT)
            m_t = o_t < T
            o_q = o_t[:, None] * (H * E) + o_e[None, :]
            if KIND == PARTIAL:
                b_q = tl.load(q + p_bth + o_q, mask=m_t[:, None], other=0.0)
                b_do = tl.load(do + p_bth + o_q, mask=m_t[:, None], other=0.0)
                b_lse = tl.load(lse + i_bh * T + o_t, mask=m_t, other=float("inf"))
                b_delta = tl.load(delta + i_bh * T + o_t, mask=m_t, other=0.0)
            else:
                b_q = tl.load(q + p_bth + o_q)
                b_do = tl.load(do + p_bth + o_q)
                b_lse = tl.load(lse + i_bh * T + o_t)
                b_delta = tl.load(delta + i_bh * T + o_t)
            b_s = tl.dot(b_k, tl.trans(b_q), input_precision="ieee")
            b_dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")
            if POSITIONS and not ORDERED:
                o_row, m_row = position_of(b_first[None, :], o_t[:, None], T, H, P, STRIDE)
                b_s += tl.trans(load_positions(p_qp, o_row, m_row, BT, BN)).to(tl.float32)
            b_x = b_s * scale - b_lse[None, :]
            if ORDERED and KIND > DISTANT:
                b_x = add_ordered(b_x, b_qp, o_n[:, None], o_t[None, :], P, time0)
                i_next = block_of(i + 1, whole_begin, n_whole, KIND == PARTIAL)
                b_qp = load_transposed(p_qp, i_next, o_n, T, H, P, W8, time0, BT)
            if KIND == PARTIAL:
                m_s = (b_first[:, None] <= o_t[None, :]) & (o_t[None, :] <= b_end[:, None])
                b_x = tl.where(m_s, b_x, float("-inf"))
            b_u = tl.exp2(b_x)
            if KIND == PARTIAL and HAS_DEADLINE:
                b_w = weight_of(height_of(b_d, i_t * BT, ramp)[:, None], b_fall[None, :])
                b_p = b_u * b_w
            else:
                b_p = b_u
            if DROPOUT:
                b_qword = tl.load(qword + i_bh * T + o_t, mask=m_t, other=0)
                m_kept = is_kept(b_qword[None, :], b_kword[:, None], threshold)
                b_kept = tl.where(m_kept, b_p * drop_scale, 0.0)
                b_dp = tl.where(m_kept, b_dp * drop_scale, 0.0)
            else:
                b_kept = b_p
            b_dv = tl.dot(b_kept.to(b_do.dtype), b_do, b_dv, input_precision="ieee")
            b_dp -= b_delta[None, :]
            b_ds = b_p * b_dp
            if KIND == PARTIAL and HAS_DEADLINE:
                m_ramp = o_t[None, :].to(tl.float32) > b_d[:, None]
                b_dd += tl.where(m_ramp, b_u * b_dp, 0.0)
            b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision="ieee")

    b_dk *= scale * 0.6931471805599453  # scale = log2(e) / sqrt(E)
    m_stored = o_n < n_stored
    b_dk = tl.where(m_n[:, None], b_dk, 0.0).to(dk.dtype.element_ty)
    b_dv = tl.where(m_n[:, None], b_dv, 0.0).to(dv.dtype.element_ty)
    tl.store(dk + p_kv + o_kv, b_dk, mask=m_stored[:, None])
    tl.store(dv + p_kv + o_kv, b_dv, mask=m_stored[:, None])
    if HAS_DEADLINE:
        b_dd = tl.where(m_n, tl.sum(b_dd, axis=1) / ramp, 0.0)
        tl.store(dd + i_h.to(tl.int64) * M + bos + o_n, b_dd, mask=m_stored)


# ---- position scores of ordered keys -----------------------------------------------------------


@triton.jit
def rows_of_class(i_x, i_c, rows, T, H, J, BX: tl.constexpr):
    """The i_x-th BX queries of a class: their (row, time, head), and whether there are so many."""
    o_x = i_x * BX + tl.arange(0, BX)
    o_bj = o_x // H
    o_t = (o_bj % J) * 8 + i_c
    o_bth = ((o_bj // J) * T + o_t) * H + o_x % H
    return o_bth.to(tl.int64), (o_bj < rows * J) & (o_t < T)


@triton.jit
def table_row(o_c, i_c, P, time0):
    """The row of the table in each column, for queries of a class; and whether there is one."""
    o_p = P - 1 + ((i_c - P - time0) & 7) - o_c
    return o_p, (o_p >= 0) & (o_p < P)


@triton.jit(do_not_specialize=VARYING)
def span_scores_kernel(
    q,
    table,
    qp,
    scale,
    T,
    H,
    P,
    W8,
    time0,
    rows,
    E: tl.constexpr,
    BX: tl.constexpr,
    BC: tl.constexpr,
):
    """An ordered `qp` of BX queries of a class, in all columns; zero where the table has no row."""
    i_x, i_c = tl.program_id(0), tl.program_id(1)
    o_bth, m_x = rows_of_class(i_x, i_c, rows, T, H, tl.cdiv(T, 8), BX)
    o_e = tl.arange(0, E)
    b_q = tl.load(q + o_bth[:, None] * E + o_e[None, :], mask=m_x[:, None], other=0.0)
    p_row = qp + o_bth[:, None] * (W8 * 8)
    for c in range(0, W8 * 8, BC):
        o_c = c + tl.arange(0, BC)
        o_p, m_p = table_row(o_c, i_c, P, time0)
        p_table = table + o_p[None, :] * E + o_e[:, None]
        b_table = tl.load(p_table, mask=m_p[None, :], other=0.0)
        b_qp = tl.dot(b_q, b_table, input_precision="ieee") * scale
        b_qp = b_qp.to(qp.dtype.element_ty)
        tl.store(p_row + o_c[None, :], b_qp, mask=m_x[:, None] & (o_c < W8 * 8)[None, :])


@triton.jit(do_not_specialize=VARYING)
def span_bwd_scores_kernel(
    dqp,
    table,
    before_dq,
    dq,
    factor,
    T,
    H,
    P,
    W8,
    time0,
    rows,
    E: tl.constexpr,
    BX: tl.constexpr,
    BC: tl.constexpr,
):
    """dQ of BX queries of a class: that before, and what their position scores are worth."""
    i_x, i_c = tl.program_id(0), tl.program_id(1)
    o_bth, m_x = rows_of_class(i_x, i_c, rows, T, H, tl.cdiv(T, 8), BX)
    o_e = tl.arange(0, E)
    p_row = dqp + o_bth[:, None] * (W8 * 8)
    b_dq = tl.zeros([BX, E], dtype=tl.float32)
    for c in range(0, W8 * 8, BC):
        o_c = c + tl.arange(0, BC)
        o_p, m_p = table_row(o_c, i_c, P, time0)
        m_c = m_x[:, None] & (o_c < W8 * 8)[None, :]
        b_dqp = tl.load(p_row + o_c[None, :], mask=m_c, other=0.0)
        p_table = table + o_p[:, None] * E + o_e[None, :]
        b_table = tl.load(p_table, mask=m_p[:, None], other=0.0)
        b_dq = tl.dot(b_dqp, b_table, b_dq, input_precision="ieee")
    o_dq = o_bth[:, None] * E + o_e[None, :]
    b_before = tl.load(before_dq + o_dq, mask=m_x[:, None], other=0.0).to(tl.float32)
    b_dq = b_before + b_dq * factor
    tl.store(dq + o_dq, b_dq.to(dq.dtype.element_ty), mask=m_x[:, None])


@triton.jit(do_not_specialize=VARYING)
def span_bwd_table_kernel(
    dqp,
    q,
    parts,
    T,
    H,
    W8,
    rows,
    E: tl.constexpr,
    PARTS: tl.constexpr,
    BX: tl.constexpr,
    BC: tl.constexpr,
):
    """Of one class and every PARTS-th BX of its queries: dP column by column, [8, PARTS, W, E]."""
    i_w, i_c, i_p = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    J = tl.cdiv(T, 8)
    o_c = i_w * BC + tl.arange(0, BC)
    o_e = tl.arange(0, E)
    m_c = o_c < W8 * 8
    b_dp = tl.zeros([BC, E], dtype=tl.float32)
    for i_x in range(i_p, tl.cdiv(rows * J * H, BX), PARTS):
        o_bth, m_x = rows_of_class(i_x, i_c, rows, T, H, J, BX)
        p_dqp = dqp + o_bth[:, None] * (W8 * 8) + o_c[None, :]
        b_dqp = tl.load(p_dqp, mask=m_x[:, None] & m_c[None, :], other=0.0)
        b_q = tl.load(q + o_bth[:, None] * E + o_e[None, :], mask=m_x[:, None], other=0.0)
        b_dp = tl.dot(tl.trans(b_dqp), b_q, b_dp, input_precision="ieee")
    p_part = parts + (i_c * PARTS + i_p) * (W8 * 8 * E)
    tl.store(p_part + o_c[:, None] * E + o_e[None, :], b_dp, mask=m_c[:, None])


@triton.jit(do_not_specialize=VARYING)
def span_sum_table_kernel(
    parts,
    dp,
    factor,
    P,
    W8,
    time0,
    E: tl.constexpr,
    PARTS: tl.constexpr,
    BP: tl.constexpr,
):
    """Add to dP of BP rows of the table what all parts of all classes hold for them."""
    o_p = tl.program_id(0) * BP + tl.arange(0, BP)
    o_pe = o_p[:, None] * E + tl.arange(0, E)[None, :]
    m_p = (o_p < P)[:, None]
    b_dp = tl.load(dp + o_pe, mask=m_p, other=0.0)
    o_part = tl.arange(0, PARTS)[:, None, None] * (W8 * 8 * E)
    for i_c in tl.static_range(8):
        o_c, _ = table_row(o_p, i_c, P, time0)  # its own inverse
        o_ce = o_c[:, None] * E + tl.arange(0, E)[None, :]
        p_part = parts + i_c * PARTS * (W8 * 8 * E) + o_part + o_ce[None, :, :]
        b_dp += tl.sum(tl.load(p_part, mask=m_p[None, :, :], other=0.0), axis=0) * factor
    tl.store(dp + o_pe, b_dp, mask=m_p)


@triton.jit
def span_keep_kernel(qword, kword, keep, threshold, Q, N, BT: tl.constexpr, BN: tl.constexpr):
    """Which pairs of Q query words and N key words dropout keeps, [Q, N]; for tests."""
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o_n = tl.program_id(1) * BN + tl.arange(0, BN)
    m_t = o_t < Q
    b_qword = tl.load(qword + o_t, mask=m_t, other=0)
    b_kword = tl.load(kword + o_n, mask=o_n < N, other=0)
    b_keep = is_kept(b_qword[:, None], b_kword[None, :], threshold)
    p_keep = keep + o_t.to(tl.int64)[:, None] * N + o_n[None, :]
    tl.store(p_keep, b_keep.to(tl.int8), mask=m_t[:, None] & (o_n < N)[None, :])
