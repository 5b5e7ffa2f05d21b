"""Expire-Span (Sukhbaatar et al., 2021): every memory learns how long it is worth keeping.

The state h of time i gets a span e = L sigmoid((w . h + b) / divisor), the same for all heads of a
layer. It starts to fade at i + e, is gone R steps later, and is then deleted, row by row.

Memory has two tiers. `near` holds the last K states of every row, dense and in order, because they
have positions; none of them is deleted early. `far` holds what is still alive of everything older,
ragged and without order, because beyond distance K only deadlines matter.

Example: R 4, a state of time 0 with span 10. It is whole for queries up to 10, has weights 3/4, 1/2
and 1/4 at 11, 12 and 13, and is gone at 14. With blocks of 8 it is near in the blocks that begin at
0 and 8, far in none: the block from 16 on would find nothing left of it.

Shapes
    B rows, T steps of the block, D model width
    N near states of a row, M far states of all rows
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import torch
from torch import Tensor, nn

from expire_span.checks import (
    require_above_zero,
    require_at_least,
    require_not_negative,
    require_one_of,
)
from expire_span.model.memory.base import (
    Deadlines,
    Keeper,
    LayerMemory,
    MemoryPolicy,
    StateSet,
)
from expire_span.model.memory.packed import Candidates, PackedStates, Pool
from expire_span.model.memory.recent import keep_recent, recent_states
from expire_span.model.memory.window import Window
from expire_span.model.ops.ramp import is_alive, ramp_charge
from expire_span.model.ops.score import score
from expire_span.model.ops.span_attention import Visibility
from expire_span.state import State

Positions = Literal["near", "all"]
Charge = Literal["ramp", "block"]


@dataclass(frozen=True)
class ExpireSpan(MemoryPolicy):
    """Learn a span for every memory, and delete it when it has expired."""

    max_span: int
    """Longest possible span (the paper's L)."""
    ramp: int
    """Steps over which a memory fades after its span (R)."""
    penalty: float = 0.0
    """Weight of the spans in the loss (alpha)."""
    initial: float = 0.1
    """Share of `max_span` that every memory starts with."""
    divisor: float = 1.0
    """What w . h + b is divided by; the paper takes the ramp where `max_span` is very large."""
    shorten: bool = False
    """Whether a training step cuts all spans at a random distance."""
    budget: int | None = None
    """Most far memories a row may hold; those with the earliest deadline go first."""
    positions: Positions = "near"
    """Distances with a position: up to the block length, or all (an ablation)."""
    charge: Charge = "ramp"
    """Who pays the penalty: memories on their ramp, or the states of the block (an ablation)."""

    def __post_init__(self) -> None:
        require_at_least(1, max_span=self.max_span, ramp=self.ramp)
        require_not_negative(penalty=self.penalty)
        if not 0 < self.initial < 1:
            raise ValueError(f"initial is a share between 0 and 1, but is {self.initial}.")
        require_above_zero(divisor=self.divisor)
        require_at_least(0, budget=self.budget)
        require_one_of(get_args(Positions), positions=self.positions)
        require_one_of(get_args(Charge), charge=self.charge)

    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""
        return ExpireSpanKeeper(self, width, block)

    def reach(self) -> int:
        """The longest span that a state can have, without the ramp on which it fades."""
        return self.max_span

    def position_rows(self, block: int) -> int:
        """One for each distance of the near tier, or for each at which a memory can be alive."""
        return block if self.positions == "near" else self.max_span + self.ramp

    def steps_to_fill(self, block: int) -> int:
        """A near tier, and then something behind it."""
        return 2 * block

    def longest_learned_span(self) -> int:
        """Spans reach from 0 to here."""
        return self.max_span

    def draw_limit(self, generator: torch.Generator | None) -> int | None:
        """A distance drawn from U(0, L), if spans are to be shortened at random."""
        if not self.shorten:
            return None
        return int(torch.rand((), generator=generator).item() * self.max_span)


@dataclass(frozen=True)
class ExpiringMemory(LayerMemory):
    """The last states of every row in order [B, N, D], and what is alive of all older ones."""

    near: Tensor
    far: PackedStates

    def held(self) -> float:
        """States physically stored, mean over rows."""
        return self.near.shape[1] + len(self.far.states) / len(self.near)

    def growing(self) -> list[tuple[Tensor, int]]:
        """The near tier until it is full, the far one for ever."""
        far = self.far
        return [(self.near, 1), (far.states, 0), (far.times, 0), (far.rows, 0)]

    def with_room(self, states: int) -> Self:
        """The same, with room for so many far states in each row."""
        return replace(self, far=self.far.with_room(states * len(self.near)))

    def clear(self, rows: Tensor) -> Self:
        """Zero the near states of the marked rows, and drop their far ones."""
        everyone = torch.arange(len(rows), device=rows.device)
        near = self.near.masked_fill(rows[:, None, None], 0)
        return replace(self, near=near, far=self.far.select(everyone, emptied=rows))

    def select(self, rows: Tensor) -> Self:
        """The memory of the given rows."""
        return replace(self, near=self.near[rows], far=self.far.select(rows))


@dataclass(frozen=True)
class UnsettledMemory(State):
    """What `ExpireSpanKeeper.keep` returns: only the device knows which older states stay.

    Until it is settled it reads the memory that the block was given.
    """

    near: Tensor
    pool: Pool
    offer: Tensor
    """How many older states stay or can be taken, of all rows together; see `room.offers`."""

    def held(self, number: Tensor) -> Tensor:
        """States kept if so many older ones stay, mean over rows."""
        return self.near.shape[1] + number / len(self.near)

    def settle(self, size: int) -> ExpiringMemory:
        """The memory with room for so many older states."""
        return ExpiringMemory(self.near, self.pool.take(size))


class ExpireSpanKeeper(Keeper):
    """Predicts spans, charges for them, and deletes what has expired."""

    def __init__(self, policy: ExpireSpan, width: int, block: int):
        super().__init__()
        self.policy = policy
        self.block = block
        self.ramp = policy.ramp
        self.predictor = nn.Linear(width, 1)
        nn.init.zeros_(self.predictor.weight)
        share = policy.divisor * math.log(policy.initial / (1 - policy.initial))
        nn.init.constant_(self.predictor.bias, share)

    def start(self, like: Tensor, zeros: bool) -> ExpiringMemory:
        """Nothing, or a block of zero states."""
        batch, _, width = like.shape
        near = like.new_zeros(batch, self.block if zeros else 0, width)
        return ExpiringMemory(near, PackedStates.empty(like))

    def read(self, memory: ExpiringMemory, states: Tensor, window: Window) -> tuple[StateSet, ...]:
        """The near tier with the block, and the far tier."""
        rows = self.policy.position_rows(self.block)
        near = recent_states(memory.near, states, window, None, rows)
        far = memory.far
        seen = Visibility(
            first=far.times + 1,
            last=window.last(far.times, far.rows),
            offsets=far.offsets,
        )
        positions = None if self.policy.positions == "near" else (0, rows)
        return near, StateSet(far.states.to(states.dtype), far.times, seen, positions, far.rows)

    def deadlines(self, sets: Sequence[StateSet], readable: Sequence[Tensor]) -> Deadlines:
        """i + e_i: near [B, 1, N], far [M]."""
        near, far = (
            states.times + self._predict(normed)
            for states, normed in zip(sets, readable, strict=True)
        )
        return near.unsqueeze(1), far

    def keep(
        self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window
    ) -> UnsettledMemory:
        """The last block of states, and of all older ones those alive when the next block begins.

        A cut span (`limit`) hides memories but deletes none, so it plays no part here.
        """
        near, far = sets
        leaving = max(near.states.shape[1] - self.block, 0)
        candidates = _candidates(near, far, leaving, window)
        deadline = _far_deadlines(deadlines, leaving)
        stays = is_alive(deadline, window.length, self.ramp)
        # The next block's first query stands at time 0 for the candidates, at T for this window.
        ends = window.episode_end(candidates.times + window.length, candidates.rows)
        pool = candidates.choose(deadline, stays & (ends >= window.length), self.policy.budget)
        recent = keep_recent(near, self.block)
        batch, held, _ = recent.shape
        most = None if self.policy.budget is None else batch * self.policy.budget
        return UnsettledMemory(recent, pool, pool.offer(batch * max(held // 4, 1), most))

    def spans(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """e of the block's own states, [B, T]."""
        deadline = deadlines[0]
        assert deadline is not None
        return (deadline.squeeze(1) - sets[0].times)[:, -window.length :]

    def penalty(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """Sum over ramp pairs of the span left, over ramp, queries and rows; weighted."""
        per_query = self.policy.penalty / (window.length * len(window.origin))
        if self.policy.charge == "block":
            return per_query * self.spans(sets, deadlines, window).sum()
        charge = window.origin.new_zeros((), dtype=torch.float32)
        for states, deadline in zip(sets, deadlines, strict=True):
            assert deadline is not None
            seen = states.seen
            each = ramp_charge(seen.first, seen.last, deadline, self.ramp, window.length)
            charge = charge + each.sum()
        return per_query * charge / self.ramp

    def _predict(self, readable: Tensor) -> Tensor:
        """e = L sigmoid((w . h + b) / divisor), never in less than float32."""
        weight, bias = self.predictor.weight, self.predictor.bias
        with torch.autocast(readable.device.type, enabled=False):
            logit = score(readable, weight[0])
            logit = logit + bias.to(logit.dtype)
        return self.policy.max_span * torch.sigmoid(logit / self.policy.divisor)


def _candidates(near: StateSet, far: StateSet, leaving: int, window: Window) -> Candidates:
    """The far states and the `leaving` oldest near ones."""
    batch, device = len(near.states), near.times.device
    assert near.parts is not None
    assert far.rows is not None
    assert far.seen.offsets is not None
    near_rows = torch.arange(batch, device=device)[:, None].expand(batch, leaving).flatten()
    near_times = near.times[:leaving].expand(batch, leaving).flatten()
    return Candidates(
        packed=far.states,
        offsets=far.seen.offsets,
        leaving=near.parts[0][:, :leaving],  # a block is no longer than what stays near
        times=torch.cat([far.times, near_times]) - window.length,
        rows=torch.cat([far.rows, near_rows]),
    )


def _far_deadlines(deadlines: Deadlines, leaving: int) -> Tensor:
    """Deadlines of the far states and of the `leaving` oldest near ones, without gradient."""
    near, far = deadlines
    assert near is not None
    assert far is not None
    return torch.cat([far, near[:, 0, :leaving].flatten()]).detach()
