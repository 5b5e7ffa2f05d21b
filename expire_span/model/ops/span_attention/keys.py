"""What a block attends to: keys and values, and for each key who may see it and until when.

Shapes
    B rows, H heads, E head width, P position rows
    N keys of a row in a dense set, M keys of all rows in a packed set
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Visibility:
    """The query times that may see each key of a set.

    Args:
        first: earliest query time, int64; dense [1, 1, N], packed [M].
        last: latest query time, int64; dense [B or 1, 1, N], packed [M].
        stride: steps that share one position row, counted from `first`.
        offsets: int64 [B + 1] for a packed set: row b owns keys offsets[b] to offsets[b + 1], and
            keys after the last of them are nobody's. None for a dense set.
        begin: time of the first key, if the keys of a dense set stand at consecutive times, each
            seen from the step after its own; None if nothing is known of that. It changes no
            result: kernels that know it read positions faster.
    """

    first: Tensor
    last: Tensor
    stride: int = 1
    offsets: Tensor | None = None
    begin: int | None = None

    @property
    def packed(self) -> bool:
        """Whether the keys of all rows stand one after another."""
        return self.offsets is not None


@dataclass(frozen=True)
class KeySet:
    """Keys with their values, visibility, deadlines and positions.

    Args:
        keys: dense [B, N, H, E], packed [M, H, E].
        values: shaped as keys.
        seen: who may see each key.
        deadline: time at which each key starts to fade, or None if it never does;
            dense: broadcasts to [B, H, N], packed [M].
        positions: [P, E], row r belongs to queries `r * stride` steps after `first`; or None.
    """

    keys: Tensor
    values: Tensor
    seen: Visibility
    deadline: Tensor | None = None
    positions: Tensor | None = None


def rows_of(offsets: Tensor, count: int) -> Tensor:
    """Row of each packed key: offsets [0, 2, 2, 5] give [0, 0, 2, 2, 2]."""
    # A key's row is the number of rows that begin, after the first one, at or before it.
    begins = offsets.new_zeros(count + 1)
    begins = begins.scatter_add(0, offsets[1:-1], torch.ones_like(offsets[1:-1]))
    return begins.cumsum(0)[:count]
