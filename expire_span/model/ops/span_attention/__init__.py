"""Span attention: one attention for every memory policy.

Every key carries a window [first, last] of query times that may see it and, optionally, a deadline
from which it fades over the ramp:

    weight(t, key) = soft_weight(deadline, t) * [first <= t <= last]
    score(t, key)  = (q_t . k + q_t . p[(t - first) // stride]) / sqrt(E)
    out_t          = sum of weight * exp(score) * v  /  sum of weight * exp(score)

The position row p[...] is added only where the table has one. For an ordinary key of time i,
first = i + 1, so the row is the distance less one; for a compressed slot, stride is the number of
states in it. A query that sees nothing gets zeros.

Times count from the first query: queries stand at 0 .. T-1, memories at negative times.

Keys come as a sequence of key sets. A dense set has the same number of keys in every row; a packed
set has the keys of all rows one after another, with `offsets`. Everything that crosses this
interface is linear in queries or in keys, so that a fused kernel can stand behind it.

Shapes
    B rows, T queries, H heads, E head width, P position rows
    N keys of a row in a dense set, M keys of all rows in a packed set
"""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from expire_span.model.ops.found import has_triton
from expire_span.model.ops.span_attention.checks import check
from expire_span.model.ops.span_attention.fused import DTYPES, WIDTHS, fused_attention
from expire_span.model.ops.span_attention.keys import KeySet, Visibility, rows_of
from expire_span.model.ops.span_attention.reference import reference_attention
from expire_span.model.ops.span_attention.stock import stock_attention

__all__ = [
    "AUTOMATIC",
    "IMPLEMENTATIONS",
    "KeySet",
    "Visibility",
    "choose",
    "rows_of",
    "span_attention",
]


class Implementation(Protocol):
    """What stands behind `span_attention`; each takes the same arguments."""

    def __call__(
        self, queries: Tensor, key_sets: Sequence[KeySet], *, ramp: int, dropout: float
    ) -> Tensor: ...


IMPLEMENTATIONS: dict[str, Implementation] = {
    "reference": reference_attention,
    "fused": fused_attention,
    "stock": stock_attention,
}
AUTOMATIC = "auto"


def span_attention(
    queries: Tensor,
    key_sets: Sequence[KeySet],
    *,
    ramp: int = 1,
    dropout: float = 0.0,
    impl: str = "reference",
) -> Tensor:
    """Attend from each query to the keys it may see, weighted by what is left of them.

    Args:
        queries: [B, T, H, E]; query t stands at time t.
        key_sets: the keys, their values and what decides how far each is seen.
        ramp: steps over which a key fades after its deadline.
        dropout: probability of dropping an attention weight after normalisation.
        impl: which implementation computes it; never replaced silently by another. "auto" takes
            the fastest for the device and the shapes, and says once which that is.

    Returns:
        [B, T, H, E]
    """
    check(queries, key_sets, ramp)
    impl = choose(impl, queries.device, queries.dtype, queries.shape[-1])
    return IMPLEMENTATIONS[impl](queries, key_sets, ramp=ramp, dropout=dropout)


def choose(impl: str, device: torch.device, dtype: torch.dtype, width: int) -> str:
    """The implementation of that name; "auto" is the fastest for such queries."""
    if impl in IMPLEMENTATIONS:
        return impl
    if impl != AUTOMATIC:
        choices = ", ".join([AUTOMATIC, *IMPLEMENTATIONS])
        raise ValueError(f"Unknown attention {impl!r}: choose one of {choices}.")
    fastest = _fastest(device, dtype, width)
    _say_once(fastest, device.type)
    return fastest


def _fastest(device: torch.device, dtype: torch.dtype, width: int) -> str:
    if device.type == "cuda" and dtype in DTYPES and width in WIDTHS and has_triton():
        return "fused"
    return "stock" if device.type == "cpu" else "reference"


@cache
def _say_once(impl: str, device: str) -> None:
    slow = impl == "reference" and device == "cuda"
    level = logging.WARNING if slow else logging.INFO
    logging.getLogger("expire_span").log(level, "Span attention on %s: %s.", device, impl)
