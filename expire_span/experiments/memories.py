"""The memories that are compared, with all that the paper does not publish about the baselines.

| | published | ours |
|---|---|---|
| Transformer-XL | the span | |
| Adaptive-Span | the longest span | ramp 32, weight 5e-7, as in its own paper; starts closed [1] |
| Compressive | how far it reaches | 1,024 single states, then means of 4 (enwik8) or 8 (others) |
| Expire-Span | L, R, alpha | share of L to start with, where the original's scripts say none |

[1] On collision and instruction, at `single` scale, spans of both kinds start long.
"""

from expire_span.model.memory import AdaptiveSpan, Compressive

UNPOOLED = 1024


def adaptive_span(max_span: int, penalty: float = 5e-7) -> AdaptiveSpan:
    """Adaptive-Span up to this distance."""
    return AdaptiveSpan(max_span, ramp=32, penalty=penalty)


def compressive(reach: int, rate: int) -> Compressive:
    """Compressive memory that reaches back this far: single states, then means of `rate`."""
    return Compressive(UNPOOLED, (reach - UNPOOLED) // rate, rate)
