"""Chance without a generator: a number is a hash of its place, the same on every device.

A generator that is drawn from in order can neither be entered in the middle nor moved to a GPU.
Here whoever knows the place (seed, row, step, purpose) knows the number: there is no random state
to keep, and what happens in one row does not depend on how many others there are. The hash is
SplitMix64 (Steele, Lea and Flood, 2014), in wrapping 64-bit arithmetic.

Shapes: all functions are elementwise over tensors that broadcast together.
"""

from enum import IntEnum
from functools import reduce
from numbers import Integral

import torch
from torch import Tensor

BITS = 16  # of one field, unless told
WORD = 64
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_FLOAT_BITS = 24  # that float32 holds exactly


def hashed(*place: Tensor | int) -> Tensor:
    """64 random bits for every place, int64; a place is some whole numbers in their order."""
    return reduce(draw, place, torch.zeros((), dtype=torch.int64))


def draw(key: Tensor, counter: Tensor | int) -> Tensor:
    """64 random bits for each key and counter, int64; a key is itself 64 bits that `hashed` gave.

    They are the numbers that SplitMix64 gives from the state `key` on.
    """
    after = counter + 1
    step = after * _signed(_GOLDEN) if isinstance(after, Tensor) else _signed(after * _GOLDEN)
    return _mix(key + step)


def fields(bits: Tensor, width: int = BITS) -> tuple[Tensor, ...]:
    """Independent whole numbers below 2**width out of 64 bits, as many as there are."""
    return tuple((bits >> place) & (2**width - 1) for place in range(0, WORD, width))


def below(field: Tensor, count: int, width: int = BITS) -> Tensor:
    """A field as a uniform whole number below `count`, which is small against 2**width."""
    return (field * count) >> width


def happens(field: Tensor, probability: float) -> Tensor:
    """A field of 16 bits as an event of this probability, to the nearest 2**-16."""
    return field < round(probability * 2**BITS)


def unit(bits: Tensor) -> Tensor:
    """64 bits as a float32 from 0 to below 1."""
    return _shifted(bits, WORD - _FLOAT_BITS).float() * 2.0**-_FLOAT_BITS


class Purpose(IntEnum):
    """What the rows of a batch need chance for; keys for one have nothing to do with another's."""

    WORLDS = 0
    SCRIPTED_POLICIES = 1
    ACTIONS = 2


def row_keys(seed: int, batch: int, purpose: Purpose, device: torch.device) -> Tensor:
    """A key for each row of a batch, the same whatever the batch, int64 [batch].

    Args:
        seed: whole number from 0 to 2**63 - 1.
        batch: rows.
        purpose: what it is for.
        device: where they will be used.
    """
    return hashed(whole_seed(seed), purpose, torch.arange(batch, device=device))


def whole_seed(seed: object) -> int:
    """A seed, if it is one."""
    whole = int(seed) if isinstance(seed, Integral) else -1
    if not 0 <= whole < 2**63:
        raise ValueError(f"A seed is a whole number from 0 to 2**63 - 1, but is {seed!r}.")
    return whole


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(_FACTORS[0])
    x = (x ^ _shifted(x, 27)) * _signed(_FACTORS[1])
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, places: int) -> Tensor:
    """To the right, filled with zeros; `>>` alone would repeat the sign."""
    return (x >> places) & (2 ** (WORD - places) - 1)


def _signed(x: int) -> int:
    """The signed number with the same last 64 bits."""
    return (x + 2**63) % 2**64 - 2**63
