"""The kernels behind `LayerNorm`; names as in `span_attention.kernels`."""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def standardised(b_x, epsilon, D: tl.constexpr):
    """States [BR, D], each brought to mean 0 and deviation 1, and what it was multiplied by."""
    b_x -= tl.sum(b_x, axis=1)[:, None] / D
    b_scale = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / D + epsilon)
    return b_x * b_scale[:, None], b_scale


@triton.jit
def normed(b_x, weight, bias, o_d, epsilon, D: tl.constexpr):
    """Layer norm of states [BR, D]."""
    b_x, _ = standardised(b_x, epsilon, D)
    return b_x * tl.load(weight + o_d) + tl.load(bias + o_d)


@triton.jit(do_not_specialize=("N",))
def norm_kernel(states, weight, bias, out, N, epsilon, D: tl.constexpr, BR: tl.constexpr):
    """BR states."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, D)
    offset, mask = o_r[:, None] * D + o_d[None, :], (o_r < N)[:, None]
    b_x = tl.load(states + offset, mask=mask, other=0.0)
    tl.store(out + offset, normed(b_x, weight, bias, o_d, epsilon, D), mask=mask)


@triton.jit(do_not_specialize=("N",))
def norm_backward_kernel(
    grad,
    states,
    weight,
    to_states,
    sums,
    N,
    epsilon,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BR: tl.constexpr,
):
    """Gradients of ROWS states, and their share in those of weight and bias."""
    i_p = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, D)
    b_weight = tl.load(weight + o_d)[None, :]
    b_to_weight = tl.zeros([BR, D], dtype=tl.float32)
    b_to_bias = tl.zeros([BR, D], dtype=tl.float32)
    for start in range(0, ROWS, BR):
        o_r = i_p * ROWS + start + tl.arange(0, BR)
        offset, mask = o_r[:, None] * D + o_d[None, :], (o_r < N)[:, None]
        b_grad = tl.load(grad + offset, mask=mask, other=0.0)
        b_x, b_scale = standardised(tl.load(states + offset, mask=mask, other=0.0), epsilon, D)
        b_to_weight += b_grad * b_x
        b_to_bias += b_grad
        b_grad *= b_weight
        b_mean = tl.sum(b_grad, axis=1) / D
        b_along = tl.sum(b_grad * b_x, axis=1) / D
        b_grad -= b_mean[:, None] + b_x * b_along[:, None]
        tl.store(to_states + offset, b_grad * b_scale[:, None], mask=mask)
    tl.store(sums + i_p * 2 * D + o_d, tl.sum(b_to_weight, axis=0))
    tl.store(sums + (i_p * 2 + 1) * D + o_d, tl.sum(b_to_bias, axis=0))
