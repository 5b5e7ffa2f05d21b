"""Memory policies: one room each. A new one is registered by its name in `AnyMemory`."""

from typing import get_args

from expire_span.model.memory.adaptive_span import AdaptiveSpan
from expire_span.model.memory.base import (
    Deadlines,
    Keeper,
    Kept,
    LayerMemory,
    MemoryPolicy,
    Settling,
    StateSet,
)
from expire_span.model.memory.compressive import Compressive
from expire_span.model.memory.expire_span import ExpireSpan
from expire_span.model.memory.fixed_span import FixedSpan
from expire_span.model.memory.memory import Memory
from expire_span.model.memory.window import Window

__all__ = [
    "POLICIES",
    "AdaptiveSpan",
    "AnyMemory",
    "Compressive",
    "Deadlines",
    "ExpireSpan",
    "FixedSpan",
    "Keeper",
    "Kept",
    "LayerMemory",
    "Memory",
    "MemoryPolicy",
    "Settling",
    "StateSet",
    "Window",
]

AnyMemory = ExpireSpan | FixedSpan | AdaptiveSpan | Compressive

POLICIES: dict[str, type[MemoryPolicy]] = {cls.__name__: cls for cls in get_args(AnyMemory)}
