"""Memory policies: one room each. A new one is registered by one line in `POLICIES`."""

from expire_span.model.memory.adaptive_span import AdaptiveSpan
from expire_span.model.memory.base import (
    Deadlines,
    Keeper,
    Kept,
    LayerMemory,
    MemoryPolicy,
    StateSet,
    settle_all,
)
from expire_span.model.memory.compressive import Compressive
from expire_span.model.memory.expire_span import ExpireSpan
from expire_span.model.memory.fixed_span import FixedSpan
from expire_span.model.memory.memory import Memory
from expire_span.model.memory.window import Window

__all__ = [
    "POLICIES",
    "AdaptiveSpan",
    "Compressive",
    "Deadlines",
    "ExpireSpan",
    "FixedSpan",
    "Keeper",
    "Kept",
    "LayerMemory",
    "Memory",
    "MemoryPolicy",
    "StateSet",
    "Window",
    "settle_all",
]

POLICIES: dict[str, type[MemoryPolicy]] = {
    "expire": ExpireSpan,
    "fixed": FixedSpan,
    "adaptive": AdaptiveSpan,
    "compressive": Compressive,
}
