"""Ragged memory: each row keeps as many states as it needs, all rows packed one after another.

Shapes: B rows, M states of all rows, D model width.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.model.memory.room import offers
from expire_span.model.ops.ramp import NEVER
from expire_span.model.ops.rows import take_rows
from expire_span.model.ops.span_attention import rows_of
from expire_span.state import State

MOST_SPARE = 16
"""Chunks, of a quarter block in each row: so much does the largest memory of a layer on enwik8 grow
and shrink within a few dozen blocks."""


@dataclass(frozen=True)
class PackedStates(State):
    """States of all rows, with their times; row b owns entries offsets[b] to offsets[b + 1].

    Example: offsets [0, 2, 2, 5] is three rows with 2, 0 and 3 states. Entries after the last row's
    only take up room: their time is -NEVER, so whatever their span, it has ended.
    """

    states: Tensor  # [M, D]
    times: Tensor  # int64 [M], counted from the first query of the next block
    rows: Tensor  # int64 [M]
    offsets: Tensor  # int64 [B + 1]

    @classmethod
    def empty(cls, like: Tensor) -> "PackedStates":
        """No states in any row; `like` is [B, 0, D]."""
        batch, _, width = like.shape
        times = torch.zeros(0, dtype=torch.int64, device=like.device)
        return cls(like.new_zeros(0, width), times, times, times.new_zeros(batch + 1))

    def with_room(self, count: int) -> "PackedStates":
        """The same with room for at least `count` states of all rows together."""
        more = count - len(self.times)
        if more <= 0:
            return self
        return PackedStates(
            states=F.pad(self.states, (0, 0, 0, more)),
            times=F.pad(self.times, (0, more), value=-NEVER),
            rows=F.pad(self.rows, (0, more)),
            offsets=self.offsets,
        )

    def select(self, rows: Tensor, emptied: Tensor | None = None) -> "PackedStates":
        """The given rows (int64) in that order; a row may be taken twice.

        Args:
            rows: which rows.
            emptied: bool, for each of them, whether it comes without its states.
        """
        counts = self.offsets.diff()[rows]
        if emptied is not None:
            counts = counts.masked_fill(emptied, 0)
        offsets = _begins(counts)
        owner = rows_of(offsets, int(offsets[-1]))
        place = torch.arange(len(owner), device=rows.device) - offsets[owner]
        index = self.offsets[rows[owner]] + place
        return PackedStates(self.states[index], self.times[index], owner, offsets)


@dataclass(frozen=True)
class Candidates(State):
    """States that might stay: some were packed before, others leave a dense tier only now.

    Their times and rows are listed together: first the packed ones, then the leaving, row by row.
    """

    packed: Tensor  # [.., D]
    offsets: Tensor  # int64 [B + 1], of the packed ones
    leaving: Tensor  # [B, .., D]
    times: Tensor  # int64 [M], counted from the first query of the next block
    rows: Tensor  # int64 [M]

    def choose(self, worth: Tensor, stays: Tensor, most: int | None = None) -> "Pool":
        """Keep those that may stay, of each row the `most` worthiest; nothing is read or moved."""
        packed, leaving = stays.split([len(self.packed), len(stays) - len(self.packed)])
        counts = count_by_row(packed, self.offsets) + leaving.view(self.leaving.shape[:2]).sum(1)
        if most is None:
            order = about_best_first(self.rows, worth, stays, len(self.leaving))
        else:  # only where some have to go does it depend on the last digits which ones
            order, counts = keep_first(best_first(self.rows, worth, stays), counts, most)
        return Pool(self, order, _begins(counts))


@dataclass(frozen=True)
class Pool(State):
    """Candidates, and on the device alone which of them stay.

    How many stay is not known on the host before it has been read; `order` puts those first, sorted
    by row, so that the number is all that `take` needs.
    """

    candidates: Candidates
    order: Tensor  # int64 [M]
    offsets: Tensor  # int64 [B + 1]; the last is the number that stay

    def offer(self, chunk: int, most: int | None = None) -> Tensor:
        """How many stay, and how many can be taken, to choose from; see `room.offers`.

        Args:
            chunk: sizes are multiples of it.
            most: that can ever stay.
        """
        now = len(self.candidates.packed)
        offered = offers(self.offsets[-1], now, chunk, MOST_SPARE)
        return offered if most is None else offered.clamp(max=-(-most // chunk) * chunk)

    def take(self, count: int) -> PackedStates:
        """The states that stay; what `count` leaves room for beside them is long gone."""
        index, all_ = self.order[:count], self.candidates
        stays = torch.arange(len(index), device=index.device) < self.offsets[-1]
        taken = PackedStates(
            states=take_rows(all_.packed, all_.leaving, index),
            times=torch.where(stays, all_.times[index], -NEVER),
            rows=all_.rows[index],
            offsets=self.offsets,
        )
        return taken.with_room(count)


def best_first(rows: Tensor, worth: Tensor, stays: Tensor) -> Tensor:
    """The order that brings together what stays of each row, the worthiest first.

    Example: rows [0, 1, 0, 0], worth [5., 1., 9., 7.], all but the last staying: [2, 0, 1, 3].
    """
    # One sort by one number: rows in its high half, bits that rise with the worth in its low one.
    row = torch.where(stays, rows, torch.full_like(rows, 2**30))  # after all others
    return torch.argsort(row * 2**32 - _rising(worth), stable=True)


def about_best_first(rows: Tensor, worth: Tensor, stays: Tensor, batch: int) -> Tensor:
    """The same but for the last digits of the worth, in half the time.

    Attention passes over memories that have expired if those stand together, nearly so or exactly.
    """
    digits = 31 - (batch + 1).bit_length()  # what the numbers of rows leave of 31 bits
    row = torch.where(stays, rows, batch).int()  # after all others
    return torch.argsort(row * 2**digits - (_rising(worth) >> (32 - digits)), stable=True)


def _rising(worth: Tensor) -> Tensor:
    """Whole numbers, int32, in the order of these."""
    bits = worth.float().view(torch.int32)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def keep_first(order: Tensor, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Of what stays, only the first `most` of each row: the new order and the new counts.

    Example: order [2, 0, 1, 3] with 2 and 1 entries in two rows, at most one: [2, 1, ..], [1, 1].
    """
    kept = counts.clamp(max=most)
    before, after = _begins(counts), _begins(kept)
    row = rows_of(after, len(order))
    place = torch.arange(len(order), device=order.device) + (before[:-1] - after[:-1])[row]
    return order[place.clamp(max=len(order) - 1)], kept


def count_by_row(marked: Tensor, offsets: Tensor) -> Tensor:
    """How many of the marked packed entries each row has: bool [M] -> int64 [B]."""
    return _begins(marked)[offsets].diff()


def _begins(counts: Tensor) -> Tensor:
    """Where each of so many begins, and where the last ends: [1, 2, 0] -> [0, 1, 3, 3]."""
    return F.pad(counts.cumsum(0), (1, 0))
