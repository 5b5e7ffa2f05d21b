"""The kernel behind `finish_layer`; names as in `span_attention.kernels`."""

# mypy: disable-error-code="no-untyped-def, import-untyped, import-not-found, untyped-decorator"

import triton
import triton.language as tl

from expire_span.model.ops.norm.kernels import normed

# Three products of matrix units in place of one: as precise as float32, and several times faster.
PRECISION = tl.constexpr("tf32x3")


@triton.jit(do_not_specialize=("N",))
def finish_kernel(
    states,
    attended,
    result,
    projection,
    attention_weight,
    attention_bias,
    feedforward_weight,
    feedforward_bias,
    inner_weight,
    inner_bias,
    outer_weight,
    outer_bias,
    N,
    F,
    epsilon,
    D: tl.constexpr,
    PRE_NORM: tl.constexpr,
    BR: tl.constexpr,
    BF: tl.constexpr,
):
    """BR states through the end of a layer, the feed-forward by BF of its inner units at a time."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    o_d = tl.arange(0, D)
    o_rd = o_r[:, None] * D + o_d[None, :]
    m_rd = (o_r < N)[:, None]
    b_attended = tl.load(attended + o_rd, mask=m_rd, other=0.0)
    b_projection = tl.load(projection + o_d[:, None] * D + o_d[None, :])
    b_x = tl.load(states + o_rd, mask=m_rd, other=0.0)
    b_x += tl.dot(b_attended, tl.trans(b_projection), input_precision=PRECISION)
    if PRE_NORM:
        b_read = normed(b_x, feedforward_weight, feedforward_bias, o_d, epsilon, D)
    else:
        b_x = normed(b_x, attention_weight, attention_bias, o_d, epsilon, D)
        b_read = b_x

    b_added = tl.zeros([BR, D], dtype=tl.float32)
    for f in range(0, F, BF):
        o_f = f + tl.arange(0, BF)
        m_f = o_f < F
        o_inner = o_f[:, None] * D + o_d[None, :]
        b_inner = tl.load(inner_weight + o_inner, mask=m_f[:, None], other=0.0)
        b_hidden = tl.dot(b_read, tl.trans(b_inner), input_precision=PRECISION)
        b_hidden += tl.load(inner_bias + o_f, mask=m_f, other=0.0)
        b_hidden = tl.where(b_hidden <= 0, 0.0, b_hidden)  # what is not a number stays
        o_outer = o_d[:, None] * F + o_f[None, :]
        b_outer = tl.load(outer_weight + o_outer, mask=m_f[None, :], other=0.0)
        b_added = tl.dot(b_hidden, tl.trans(b_outer), b_added, input_precision=PRECISION)

    b_x += b_added + tl.load(outer_bias + o_d)
    if not PRE_NORM:
        b_x = normed(b_x, feedforward_weight, feedforward_bias, o_d, epsilon, D)
    tl.store(result + o_rd, b_x, mask=m_rd)
