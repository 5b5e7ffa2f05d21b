"""State that goes in and comes out: frozen dataclasses of tensors with a few common verbs."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """A frozen dataclass whose fields are tensors, other states, tuples of states, or plain values.

    Nothing is ever changed in place: each method returns a new state.
    """

    def map(self, function: Callable[[str, Tensor], Tensor]) -> Self:
        """The same state with `function(name, tensor)` in place of each tensor."""
        values = {f.name: _map(f.name, getattr(self, f.name), function) for f in fields(self)}
        return replace(self, **values)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name, such as `layers.0.far.times`."""
        found: dict[str, Tensor] = {}

        def note(name: str, tensor: Tensor) -> Tensor:
            found[name] = tensor
            return tensor

        self.map(note)
        return found

    def detach(self) -> Self:
        """The same numbers without the history that gradients would flow back through."""
        return self.map(lambda _, tensor: tensor.detach())

    def to(self, device: torch.device | str) -> Self:
        """The same state on another device."""
        return self.map(lambda _, tensor: tensor.to(device))


def _map(name: str, value: Any, function: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, State):
        return value.map(lambda inner, tensor: function(f"{name}.{inner}", tensor))
    if isinstance(value, tuple):
        return tuple(_map(f"{name}.{i}", part, function) for i, part in enumerate(value))
    return value
