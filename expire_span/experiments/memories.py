"""The memories that are compared, with all that the paper does not publish about the baselines.

| | published | ours |
|---|---|---|
| Transformer-XL | the span [1] | |
| Adaptive-Span | the longest [1] | ramp 32, weight 5e-7, as in its own paper; starts closed [2] |
| Compressive | its reach [1] | 1,024 single states, then means of 4 (enwik8) or 8 (others) |
| Expire-Span | L [3], R, alpha | first share of L [2], where the original's scripts say none |

[1] For collision, PG-19 and the Transformer-XL of copy. For the others on copy (all its distance),
enwik8 (512, 8k and 5k), instruction (1k, 4k and 4k) and WikiText (256) they are ours, and so are
all sizes in figures of performance over memory size.
[2] On copy both start long. At `single` scale they do on collision and instruction, too, and start
with a block on PG-19 and in the figure of enwik8 over memory sizes; Expire-Span's do so with
WikiText and in all else on enwik8, but for the speed runs of 8 minutes.
[3] But for instruction, where 4k is ours.
"""

from expire_span.model.memory import AdaptiveSpan, Compressive

UNPOOLED = 1024


def adaptive_span(max_span: int, penalty: float = 5e-7) -> AdaptiveSpan:
    """Adaptive-Span up to this distance."""
    return AdaptiveSpan(max_span, ramp=32, penalty=penalty)


def compressive(reach: int, rate: int) -> Compressive:
    """Compressive memory that reaches back this far: single states, then means of `rate`."""
    return Compressive(UNPOOLED, (reach - UNPOOLED) // rate, rate)
