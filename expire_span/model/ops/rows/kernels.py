"""The kernel behind `take_rows`; names as in `span_attention.kernels`."""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("R", "M", "N"))
def take_rows_kernel(
    first,
    second,
    index,
    out,
    R,
    M,
    N,
    stride_m,
    stride_b,
    stride_n,
    D,
    BR: tl.constexpr,
    BD: tl.constexpr,
):
    """BR rows of the result."""
    o_r = tl.program_id(0) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, BD)
    m_r = o_r < R
    m_d = (o_d < D)[None, :]
    o_i = tl.load(index + o_r, mask=m_r, other=0)
    m_first, m_second = m_r & (o_i < M), m_r & (o_i >= M)
    o_s = o_i - M
    p_first = first + (o_i * stride_m)[:, None] + o_d[None, :]
    p_second = second + ((o_s // N) * stride_b + (o_s % N) * stride_n)[:, None] + o_d[None, :]
    b_first = tl.load(p_first, mask=m_first[:, None] & m_d, other=0.0)
    b_second = tl.load(p_second, mask=m_second[:, None] & m_d, other=0.0)
    p_out = out + o_r.to(tl.int64)[:, None] * D + o_d[None, :]
    tl.store(p_out, tl.where(m_first[:, None], b_first, b_second), mask=m_r[:, None] & m_d)
