"""Span attention of one query a row, as a Triton kernel: what goes step by step needs no more.

The formulas are those of `kernels`, the way is another. One query has no use for matrix products,
which would be of many queries that are not there; what takes time is to fetch keys and values. So
each program takes one row and head, asks who is seen, and fetches of keys and values only these.
The score of a position is that of its row of the table, added to the key: no table of scores.

Names as in `kernels`.

Shapes
    B rows, H heads, E head width, P position rows, M keys of all rows
    G deadlines of a key (1, or H if every head has its own)
"""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl

from expire_span.model.ops.span_attention.kernels import (
    VARYING,
    height_of,
    is_kept,
    load_windows,
    weight_of,
)


@triton.jit(do_not_specialize=VARYING)
def span_step_kernel(
    q,
    k,
    v,
    first,
    last,
    deadline,
    offsets,
    table,
    qword,
    kword,
    before_out,
    before_lse,
    out,
    lse,
    scale,
    ramp,
    threshold,
    drop_scale,
    H,
    P,
    M,
    E: tl.constexpr,
    STRIDE: tl.constexpr,
    BN: tl.constexpr,
    HAS_DEADLINE: tl.constexpr,
    PER_HEAD: tl.constexpr,
    POSITIONS: tl.constexpr,
    DROPOUT: tl.constexpr,
    CONTINUE: tl.constexpr,
):
    """out and lse of the query at time 0 of one row and head, over one set of keys.

    With CONTINUE the softmax goes on from the out and lse of the sets before.
    """
    i_h, i_b = tl.program_id(0), tl.program_id(1)
    i_g = i_h if PER_HEAD else i_h * 0
    i_bh = i_b.to(tl.int64) * H + i_h
    bos, eos = tl.load(offsets + i_b), tl.load(offsets + i_b + 1)
    o_e = tl.arange(0, E)
    b_q = tl.load(q + i_bh * E + o_e).to(tl.float32) * scale
    p_kv = (bos.to(tl.int64) * H + i_h) * E
    if DROPOUT:
        qword_bh = tl.load(qword + i_bh)

    b_o = tl.zeros([E], dtype=tl.float32)
    l_sum = 0.0
    most = float("-inf")
    if CONTINUE:
        before = tl.load(before_lse + i_bh)
        l_sum = tl.where(before == float("inf"), 0.0, 1.0)
        most = tl.where(before == float("inf"), float("-inf"), before)
        b_o = tl.load(before_out + i_bh * E + o_e).to(tl.float32) / drop_scale

    for i_n in range(0, eos - bos, BN):
        o_n = i_n + tl.arange(0, BN)
        b_first, b_end, _, b_d = load_windows(
            first,
            last,
            deadline + tl.cast(i_g, tl.int64) * M,
            bos + o_n,
            o_n < eos - bos,
            ramp,
            HAS_DEADLINE,
        )
        m_n = (b_first <= 0) & (b_end >= 0)
        if tl.max(m_n.to(tl.int32), axis=0) > 0:
            o_kv = o_n[:, None] * (H * E) + o_e[None, :]
            b_k = tl.load(k + p_kv + o_kv, mask=m_n[:, None], other=0.0).to(tl.float32)
            b_v = tl.load(v + p_kv + o_kv, mask=m_n[:, None], other=0.0).to(tl.float32)
            if POSITIONS:
                b_row = (0 - b_first) // STRIDE
                m_row = m_n & (b_row < P)
                p_row = table + b_row[:, None] * E + o_e[None, :]
                b_k += tl.load(p_row, mask=m_row[:, None], other=0.0).to(tl.float32)
            b_s = tl.where(m_n, tl.sum(b_k * b_q[None, :], axis=1), float("-inf"))
            before_most = most
            most = tl.maximum(most, tl.max(b_s, axis=0))
            b_p = tl.exp2(b_s - most)
            if HAS_DEADLINE:
                b_p *= weight_of(height_of(b_d, 0, ramp), 0.0)
            fade = tl.exp2(before_most - most)
            l_sum = l_sum * fade + tl.sum(b_p, axis=0)
            if DROPOUT:
                b_kword = tl.load(kword + bos + o_n, mask=m_n, other=0)
                b_p = tl.where(is_kept(qword_bh, b_kword, threshold), b_p, 0.0)
            b_o = b_o * fade + tl.sum(b_p[:, None] * b_v, axis=0)

    some = l_sum > 0
    z = tl.where(some, l_sum, 1.0)
    b_o *= drop_scale / z
    tl.store(out + i_bh * E + o_e, b_o.to(out.dtype.element_ty))
    tl.store(lse + i_bh, tl.where(some, most + tl.log2(z), float("inf")))
