"""Both ends of an agent: observations come in, decisions go out.

Between them stands the same Transformer with the same memory policies as in every other experiment.

Shapes: B rows, T steps, V words, D model width, A actions.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expire_span.model.config import TransformerConfig
from expire_span.model.transformer import Transformer
from expire_span.worlds import World

CELLS = 9  # in view


class Decision(NamedTuple):
    """What an agent makes of a state."""

    logits: Tensor
    """[..., A], of the actions."""
    value: Tensor
    """[...], discounted reward that it expects from here on."""


class ObservationInput(nn.Module):
    """A learned vector for each word in each cell of the view, summed."""

    def __init__(self, words: int, width: int):
        super().__init__()
        self.linear = nn.Linear(CELLS * words, width)

    def forward(self, observations: Tensor) -> Tensor:
        """uint8 [B, T, 3, 3, V] -> [B, T, D]"""
        words = self.linear.in_features // CELLS
        if observations.ndim != 5 or observations.shape[2:] != (3, 3, words):
            raise ValueError(
                f"This agent sees observations [rows, steps, 3, 3, {words}], but these are "
                f"{[*observations.shape]}: give it those of a world with as many words, and for a "
                "single step an axis of length 1."
            )
        return self.linear(observations.flatten(-3).to(self.linear.weight.dtype))


class ActorCriticHead(nn.Module):
    """Linear maps to the logits of the actions and to the value."""

    def __init__(self, width: int, actions: int):
        super().__init__()
        self.policy = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)
        with torch.no_grad():  # begin with nearly the same probability for every action
            self.policy.weight.mul_(0.01)
            self.policy.bias.zero_()

    def forward(self, hidden: Tensor) -> Decision:
        """[..., D] -> decision [...]"""
        # One product for both: for the few states of a step, two would take twice as long.
        weight = torch.cat([self.policy.weight, self.value.weight])
        found = F.linear(hidden, weight, torch.cat([self.policy.bias, self.value.bias]))
        return Decision(found[..., :-1], found[..., -1])


def build_agent(world: World, config: TransformerConfig) -> Transformer:
    """A Transformer that sees a world and acts in it."""
    drops = (config.dropout, config.edge_dropout, config.layer_drop)
    if any(drops) or getattr(config.memory, "shorten", False):
        raise ValueError(
            "An agent learns from the very probabilities it acted with, so nothing may be dropped "
            "at random: set dropout, edge_dropout and layer_drop to 0, and shorten to False."
        )
    if config.start != "empty":
        raise ValueError("Episodes begin inside blocks, so an agent needs start='empty'.")
    return Transformer(
        config,
        inputs=ObservationInput(len(world.words), config.width),
        head=ActorCriticHead(config.width, len(world.actions)),
    )
