"""Grid worlds as batched tensor programs; a new one is registered by its name in `AnyWorld`."""

from typing import get_args

from expire_span.worlds.corridor import Corridor
from expire_span.worlds.portal import Portal
from expire_span.worlds.world import Game, Measure, Outcome, World, WorldState

__all__ = [
    "WORLDS",
    "AnyWorld",
    "Corridor",
    "Game",
    "Measure",
    "Outcome",
    "Portal",
    "World",
    "WorldState",
]

AnyWorld = Corridor | Portal

WORLDS: dict[str, type[World]] = {cls.__name__: cls for cls in get_args(AnyWorld)}
