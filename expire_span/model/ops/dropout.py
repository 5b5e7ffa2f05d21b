"""Dropout from few random words: whether a pair is kept is the product of its two words.

A word is a random odd number of 32 bits. Given one of a pair, their product modulo 2**32 is as
random as the other, and sums over rows, columns and rectangles of pairs behave as those of
independent draws do. A mask of a row by b columns then needs a + b draws instead of a b, and can be
computed again wherever it is needed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def odd_words(*shape: int, device: torch.device) -> Tensor:
    """Random odd words from torch's generator, int32."""
    return _odd_words(shape, device)


# An operator of its own, so that a compiler draws the few words once, and not anew for every pair.
@torch.library.custom_op(
    "expire_span::odd_words", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _odd_words(shape: Sequence[int], device: torch.device) -> Tensor:
    return torch.randint(-(2**31), 2**31, shape, dtype=torch.int32, device=device) | 1


@_odd_words.register_fake
def _(shape: Sequence[int], device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=torch.int32, device=device)


def threshold(dropout: float) -> int:
    """Signed 32-bit number that the product of two words reaches with probability 1 - dropout."""
    return min(round(dropout * 2**32), 2**32 - 1) - 2**31


def is_kept(words: Tensor, others: Tensor, dropout: float) -> Tensor:
    """Whether each pair is kept; `words` and `others` broadcast together."""
    return words * others >= threshold(dropout)
