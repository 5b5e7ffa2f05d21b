"""The kernel behind `weighted_sum`; names as in `span_attention.kernels`."""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("M",))
def weighted_sum_kernel(
    states,
    weights,
    sums,
    M,
    D,
    ROWS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BC columns of ROWS rows, each row times its weight, added up."""
    i_r, i_c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = (o_c < D)[None, :]
    b_sum = tl.zeros([BR, BC], dtype=tl.float32)
    for start in range(0, ROWS, BR):
        o_r = i_r * ROWS + start + tl.arange(0, BR)
        m_r = o_r < M
        b_weight = tl.load(weights + o_r, mask=m_r, other=0.0)
        b_state = tl.load(
            states + o_r[:, None] * D + o_c[None, :], mask=m_r[:, None] & m_c, other=0.0
        )
        b_sum += b_state.to(tl.float32) * b_weight[:, None]
    tl.store(sums + i_r * D + o_c, tl.sum(b_sum, axis=0), mask=o_c < D)
