"""Which steps of the stream a layer's memory still holds, read off the memory it returned.

Shapes: B rows, M entries.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from expire_span.model.memory import Compressive, LayerMemory, MemoryPolicy
from expire_span.model.memory.compressive import CompressiveMemory
from expire_span.model.memory.expire_span import ExpiringMemory
from expire_span.model.memory.recent import RecentMemory


@dataclass(frozen=True)
class Held:
    """Steps of the stream by row and absolute time; those before its beginning are left out."""

    rows: Tensor  # int64 [M]
    times: Tensor  # int64 [M], in no particular order


@dataclass(frozen=True)
class LayerHeld:
    """What a layer holds as states of their own, and what only as part of a pooled one."""

    single: Held
    pooled: Held | None = None


def held_steps(memory: LayerMemory, clock: int, policy: MemoryPolicy) -> LayerHeld:
    """What a memory holds after `clock` steps.

    Example: after 10 steps, a window of 4 states holds the times 6, 7, 8 and 9 in every row.
    """
    match memory:
        case RecentMemory():
            return LayerHeld(_last(len(memory.states), memory.states.shape[1], clock))
        case ExpiringMemory():
            near = _last(len(memory.near), memory.near.shape[1], clock)
            # On a GPU, entries after the last row's only take up room.
            count = int(memory.far.offsets[-1])
            times = memory.far.times[:count].cpu() + clock
            rows = torch.cat([near.rows, memory.far.rows[:count].cpu()])
            return LayerHeld(_since_start(rows, torch.cat([near.times, times])))
        case CompressiveMemory():
            assert isinstance(policy, Compressive)
            single = _last(len(memory.states), memory.states.shape[1], clock)
            # The stored slots end just before the newest one that the next query sees.
            newest = (clock - policy.span) // policy.rate
            end = newest * policy.rate
            size = memory.slots.shape[1] * policy.rate
            return LayerHeld(single, _last(len(memory.slots), size, end))
        case _:
            raise ValueError(f"What a {type(memory).__name__} holds is not known to `held_steps`.")


def _last(batch: int, count: int, end: int) -> Held:
    """The `count` steps before time `end`, of every row."""
    times = torch.arange(end - count, end).expand(batch, count)
    rows = torch.arange(batch)[:, None].expand(batch, count)
    return _since_start(rows.flatten(), times.flatten())


def _since_start(rows: Tensor, times: Tensor) -> Held:
    there = times >= 0
    return Held(rows[there], times[there])
