"""State that goes in and comes out: frozen dataclasses of tensors with a few common verbs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class State:
    """A frozen dataclass whose fields are tensors, other states, tuples of states, or plain values.

    Nothing is ever changed in place: each method returns a new state.
    """

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `function(tensor)` in place of each tensor."""
        return self.map_named(lambda _, tensor: function(tensor))

    def map_named(self, function: Callable[[str, Tensor], Tensor]) -> Self:
        """The same, of a function that is told each tensor's name as well."""
        values = {f.name: _map(f.name, getattr(self, f.name), function) for f in fields(self)}
        return replace(self, **values)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its dotted name, such as `layers.0.far.times`."""
        found: dict[str, Tensor] = {}

        def note(name: str, tensor: Tensor) -> Tensor:
            found[name] = tensor
            return tensor

        self.map_named(note)
        return found

    def like(self, tensors: Mapping[str, Tensor]) -> Self:
        """The same state with other tensors, by the names of its own and on their devices."""
        return self.map_named(lambda name, old: tensors[name].to(old.device))

    def clone(self) -> Self:
        """A copy of which no two tensors share memory, to be written into."""
        return self.map(torch.clone)

    def detach(self) -> Self:
        """The same numbers without the history that gradients would flow back through."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> Self:
        """The same state on another device."""
        return self.map(lambda tensor: tensor.to(device))


def _map(name: str, value: Any, function: Callable[[str, Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, State):
        return value.map_named(lambda inner, tensor: function(f"{name}.{inner}", tensor))
    if isinstance(value, tuple):
        return tuple(_map(f"{name}.{i}", part, function) for i, part in enumerate(value))
    return value
