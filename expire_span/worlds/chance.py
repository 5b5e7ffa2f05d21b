"""Chance as a pure function of counters: the same on every device, whatever the batch.

Each row has a key of two 32-bit words. What chance decides for it is a hash of that key and of a
counter; nothing is used up, so there is no random state to keep beside the counters, and what
happens in one row does not depend on how many others there are.

All words are held in int64 and stay below 2**32; no product reaches 2**63, so nothing overflows.

Shapes: B rows.
"""

from typing import TypeVar

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
_SALT = 0x9E3779B9  # any number that sets the second word of a key apart from the first

Word = TypeVar("Word", int, Tensor)


def scramble(word: Word) -> Word:
    """A bijection of 32-bit words in which every bit of the result hangs on every bit given.

    Shifts and multipliers are those that Chris Wellons' hash-prospector found to have little bias.
    """
    word = word ^ (word >> 16)
    word = (word * 0x21F0AAAD) & MASK
    word = word ^ (word >> 15)
    word = (word * 0x735A2D97) & MASK
    return word ^ (word >> 15)


def row_keys(seeds: Tensor, rows: Tensor, purpose: int = 0) -> Tensor:
    """The keys of rows, int64 [B, 2].

    Args:
        seeds: int64 [B], not negative.
        rows: int64 [B], told apart under one seed.
        purpose: keys made for different purposes have nothing to do with each other.
    """
    low, high = seeds & MASK, seeds >> 32
    base = scramble(scramble(scramble(low) ^ high) ^ purpose)
    first = scramble((base + rows) & MASK)
    second = scramble((scramble(base ^ _SALT) + rows) & MASK)
    return torch.stack([first, second], dim=1)


def draw(key: Tensor, counter: Tensor) -> Tensor:
    """A 32-bit word for each row and counter: key [B, 2], counter int64 [..., B] -> [..., B]."""
    return scramble(scramble((key[:, 0] + counter) & MASK) ^ key[:, 1])


def below(word: Tensor, bits: int, count: int) -> Tensor:
    """A word of so many bits as a whole number from 0 to below `count`, all as likely."""
    return (word * count) >> bits


def unit(word: Tensor) -> Tensor:
    """A 32-bit word as a float32 from 0 to below 1."""
    return (word >> 8).float() * 2.0**-24


def seeds_of(seed: int, batch: int, device: torch.device) -> Tensor:
    """The same seed for every row, int64 [batch]."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"A seed is a whole number from 0 to 2**63 - 1, but is {seed}.")
    return torch.full((batch,), seed, dtype=torch.int64, device=device)
