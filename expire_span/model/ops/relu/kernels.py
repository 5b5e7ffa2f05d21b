"""The kernel behind `relu_backward`; names as in `span_attention.kernels`."""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=("N",))
def relu_backward_kernel(
    grad,
    out,
    passed,
    sums,
    N,
    D,
    kept,
    DROPOUT: tl.constexpr,
    ROWS: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """BC columns of ROWS rows, and their sums."""
    i_r, i_c = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_c = i_c * BC + tl.arange(0, BC)
    m_c = (o_c < D)[None, :]
    b_sum = tl.zeros([BR, BC], dtype=sums.dtype.element_ty)
    for start in range(0, ROWS, BR):
        o_r = i_r * ROWS + start + tl.arange(0, BR)
        mask = (o_r < N)[:, None] & m_c
        offset = o_r[:, None] * D + o_c[None, :]
        b_grad = tl.load(grad + offset, mask=mask, other=0.0).to(b_sum.dtype)
        b_out = tl.load(out + offset, mask=mask, other=0.0)
        if DROPOUT:
            b_grad /= kept
        # Where `out` is not a number, the gradient passes: it must not be hidden.
        b_passed = tl.where(b_out <= 0, 0.0, b_grad)
        tl.store(passed + offset, b_passed.to(passed.dtype.element_ty), mask=mask)
        b_sum += b_passed
    tl.store(sums + i_r * D + o_c, tl.sum(b_sum, axis=0), mask=o_c < D)
