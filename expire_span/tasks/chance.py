"""Chance without a generator: a number is a hash of its place, the same on every device.

A generator that is drawn from in order can neither be entered in the middle nor moved to a GPU.
Here whoever knows the place (seed, split, row, step, purpose) knows the number. The hash is the
output function of SplitMix64 (Steele, Lea and Flood, 2014), in wrapping 64-bit arithmetic.
"""

import torch
from torch import Tensor

BITS = 16  # of one field
FIELDS = 64 // BITS
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def hashed(*place: Tensor | int) -> Tensor:
    """64 random bits for every place, int64; whole numbers that broadcast against each other."""
    mixed = torch.zeros((), dtype=torch.int64)
    for part in place:
        if isinstance(part, Tensor):
            mixed = mixed.to(part.device) + (part + 1) * _signed(_GOLDEN)
        else:
            mixed = mixed + _signed((part + 1) * _GOLDEN)
        mixed = _mix(mixed)
    return mixed


def fields(bits: Tensor) -> tuple[Tensor, ...]:
    """Four independent whole numbers below 2**16 out of 64 bits."""
    return tuple((bits >> (BITS * place)) & (2**BITS - 1) for place in range(FIELDS))


def below(field: Tensor, count: int) -> Tensor:
    """A field as a uniform whole number below `count`, which is small against 2**16."""
    return (field * count) >> BITS


def happens(field: Tensor, probability: float) -> Tensor:
    """A field as an event of this probability, to the nearest 2**-16."""
    return field < round(probability * 2**BITS)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(_FACTORS[0])
    x = (x ^ _shifted(x, 27)) * _signed(_FACTORS[1])
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, places: int) -> Tensor:
    """To the right, filled with zeros; `>>` alone would repeat the sign."""
    return (x >> places) & (2 ** (64 - places) - 1)


def _signed(x: int) -> int:
    """The signed number with the same last 64 bits."""
    return (x + 2**63) % 2**64 - 2**63
