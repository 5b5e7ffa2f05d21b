"""What a memory policy is.

A policy is a small frozen dataclass of settings. It builds one `Keeper` per layer, which answers by
return value what this block may read, when each memory starts to fade, and what is kept for the
next block. Attention, positions and the Transformer around them are common code.

Shapes
    B rows, T steps of the block, D model width, H heads
    N states of a row in a dense set, M states of all rows in a packed set
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from expire_span.model.memory.room import agree
from expire_span.model.memory.window import Window
from expire_span.model.ops.ramp import steps_seen
from expire_span.model.ops.span_attention import Visibility
from expire_span.state import State


@dataclass(frozen=True)
class LayerMemory(State, ABC):
    """What one layer remembers of the past, as raw states: what the layer was given as input."""

    @abstractmethod
    def held(self) -> float:
        """States physically stored, per row; on a GPU with what there is room for beside them."""

    def growing(self) -> list[tuple[Tensor, int]]:
        """Tensors and those of their axes whose sizes change from block to block."""
        return []

    def with_room(self, states: int) -> Self:
        """The same, with room for so many states in each row if there is any to spare at all."""
        return self

    @abstractmethod
    def clear(self, rows: Tensor) -> Self:
        """The same memory with the marked rows (bool [B]) as they were at the very start."""

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """The memory of the given rows (int64), in that order; a row may be taken twice."""


class Unsettled(Protocol):
    """Memory of which only the device knows how much there is."""

    @property
    def offer(self) -> Tensor:
        """How many states stay, and what it can be settled with, int64 [4]; see `room.offers`."""
        ...

    def held(self, number: Tensor) -> Tensor:
        """States that are kept per row if that number stays."""
        ...

    def settle(self, size: int) -> LayerMemory:
        """The memory with that much room, once it is known how much that is."""
        ...

    def detach(self) -> Self:
        """The same without the history that gradients would flow back through."""
        ...


Kept = LayerMemory | Unsettled


@dataclass(frozen=True)
class Settling:
    """Memories of all layers, while the sizes that decide them are on their way to the host.

    The device goes on working meanwhile: the host waits for it only in `finish`, and then not for
    what it was given to do after `begin`.
    """

    kept: tuple[Kept, ...]
    sizes: Tensor  # int64, one for each unsettled memory
    arrival: torch.cuda.Event | None = None

    @classmethod
    def of(cls, kept: Sequence[Kept]) -> "Settling":
        """These memories, their sizes still on the device."""
        offered = [memory.offer for memory in kept if not isinstance(memory, LayerMemory)]
        sizes = agree(torch.stack(offered)) if offered else torch.empty(0, dtype=torch.int64)
        return cls(tuple(kept), sizes)

    def held(self, like: Tensor) -> Tensor:
        """States kept per row, of each layer, in the type of `like`; spare room does not count."""
        held = [
            like.new_full((), memory.held())
            if isinstance(memory, LayerMemory)
            else memory.held(memory.offer[0]).to(like.dtype)
            for memory in self.kept
        ]
        return torch.stack(held)

    def begin(self) -> "Settling":
        """Send the sizes on their way, all in one copy."""
        if not self.sizes.is_cuda:
            return self
        sizes = self.sizes.to("cpu", non_blocking=True)
        arrival = torch.cuda.Event()
        arrival.record()
        return Settling(self.kept, sizes, arrival)

    def detach(self) -> "Settling":
        """The same without the history that gradients would flow back through."""
        return replace(self, kept=tuple(memory.detach() for memory in self.kept))

    def finish(self) -> tuple[LayerMemory, ...]:
        """The settled memories."""
        if self.arrival is not None:
            self.arrival.synchronize()
        sizes = iter(self.sizes.tolist())
        return tuple(
            memory if isinstance(memory, LayerMemory) else memory.settle(next(sizes))
            for memory in self.kept
        )


@dataclass(frozen=True)
class StateSet:
    """States a block may read, before they become keys and values.

    Args:
        states: raw states; dense [B, N, D], packed [M, D].
        times: time of each state (of the oldest one in a pooled state), int64 [N] or [M].
        seen: who may see each of them.
        positions: first and number of the rows of the position table that belong to them, or None.
        rows: the row of each packed state, int64 [M]; None for a dense set.
        parts: the past [B, .., D] and the block's own states [B, T, D], if joined from these.
    """

    states: Tensor
    times: Tensor
    seen: Visibility
    positions: tuple[int, int] | None
    rows: Tensor | None = None
    parts: tuple[Tensor, Tensor] | None = None

    def detach(self) -> "StateSet":
        """The same states without the history that gradients would flow back through."""
        parts = None if self.parts is None else (self.parts[0].detach(), self.parts[1].detach())
        return StateSet(
            states=self.states.detach(),
            times=self.times,
            seen=self.seen,
            positions=self.positions,
            rows=self.rows,
            parts=parts,
        )


Deadlines = tuple[Tensor | None, ...]
"""One entry per state set: when each of its memories starts to fade, or None if they never do."""


class Keeper(nn.Module, ABC):
    """The memory of one layer at work, with what it learns.

    `ramp` is the number of steps over which a memory fades after its deadline.
    """

    ramp: int = 1

    @abstractmethod
    def start(self, like: Tensor, zeros: bool) -> LayerMemory:
        """Memory at the very start: nothing, or zero states; `like` is empty, [B, 0, D]."""

    @abstractmethod
    def read(self, memory: Any, states: Tensor, window: Window) -> tuple[StateSet, ...]:
        """What this block may read. The first set ends with the block's own states [B, T, D]."""

    @abstractmethod
    def keep(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Kept:
        """What remains of the sets for the next block."""

    @abstractmethod
    def spans(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """How far memories of this block are meant to reach, in steps, in any shape."""

    def deadlines(self, sets: Sequence[StateSet], readable: Sequence[Tensor]) -> Deadlines:
        """When each memory starts to fade; `readable` are the states as keys see them."""
        return (None,) * len(sets)

    def penalty(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """Weighted price of this block's memories, a scalar; of some only the gradient is meant."""
        return window.origin.new_zeros((), dtype=torch.float32)

    def clamp_parameters(self) -> None:
        """Bring learned parameters back into their allowed range after an update."""

    def live(self, sets: Sequence[StateSet], deadlines: Deadlines, window: Window) -> Tensor:
        """Memory size |C_t|: keys with weight above 0, mean over queries, rows and heads."""
        pairs = window.origin.new_zeros((), dtype=torch.float32)
        for states, deadline in zip(sets, deadlines, strict=True):
            seen = states.seen
            steps = steps_seen(seen.first, seen.last, deadline, self.ramp, window.length)
            heads = 1 if seen.packed else steps.shape[1]
            pairs = pairs + steps.sum() / heads
        return pairs / (window.length * len(window.origin))


class MemoryPolicy(ABC):
    """Settings of a memory policy; subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, width: int, heads: int, block: int) -> Keeper:
        """The policy at work in one layer."""

    @abstractmethod
    def position_rows(self, block: int) -> int:
        """Rows of the position table, which all layers and heads share."""

    @abstractmethod
    def reach(self) -> int:
        """How many steps back a memory can be seen in one layer, where none fades earlier."""

    def check(self, block: int) -> None:  # noqa: B027, most policies fit any block
        """Raise ValueError if the policy does not fit blocks of this length."""

    def period(self) -> int:
        """Steps after which the absolute time makes no difference any more."""
        return 1

    def steps_to_fill(self, block: int) -> int:
        """Steps that a stream takes to give memory a type and sizes that one graph can serve.

        Until then layers run uncompiled: what is compiled for a beginning serves nothing else.
        """
        return block

    def symbolic_sizes(self) -> bool | None:
        """Whether compiled layers should serve any memory size; None lets the compiler find out."""
        return None

    def stored(self) -> str:
        """What a memory of this policy is, so that no model reads another kind's."""
        return type(self).__name__

    def longest_learned_span(self) -> int | None:
        """The most that learned spans of single memories can reach; None if there are none."""
        return None

    def draw_limit(self, generator: torch.Generator | None) -> int | None:
        """A random distance cut for one training step, or None."""
        return None
