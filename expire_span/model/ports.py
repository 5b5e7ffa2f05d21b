"""How tokens come in and predictions go out; both ends of the Transformer can be replaced.

An input module maps whatever the task gives to states [B, T, D]; a head reads the final states.

Shapes: B rows, T steps, D model width, V vocabulary.
"""

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expire_span.model.ops.embedding import embed
from expire_span.model.ops.precision import at_least_float32


class SequenceHead(nn.Module, ABC):
    """The outgoing end of a model of token sequences: each answer is formed only when asked for.

    `forward` gives the logits [..., V] of states [..., D].
    """

    @abstractmethod
    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood of each target [B, T], in nats and at least float32."""

    @abstractmethod
    def predict(self, hidden: Tensor) -> Tensor:
        """The likeliest token of each state, [B, T]."""


def token_ids(tokens: Tensor, vocab: int) -> Tensor:
    """Ids of tokens as int64 [B, T], from any whole numbers; refuses what are none.

    They are checked where that is free, on a CPU; on a GPU it would stop the stream of work.
    """
    if tokens.ndim != 2:
        raise ValueError(f"Token ids must be [rows, steps], but have shape {[*tokens.shape]}.")
    if tokens.is_floating_point() or tokens.dtype == torch.bool:
        raise ValueError(f"Token ids must be whole numbers, but are {tokens.dtype}.")
    if tokens.device.type == "cpu" and tokens.numel():
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= vocab:
            raise ValueError(
                f"Token ids must lie between 0 and {vocab - 1}, but range from {low} to {high}."
            )
    return tokens.long()


class TokenInput(nn.Module):
    """A learned vector for each token."""

    def __init__(self, vocab: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Ids [B, T] -> [B, T, D]"""
        return embed(self.embedding.weight, token_ids(tokens, self.embedding.num_embeddings))


class TokenHead(SequenceHead):
    """A linear map to one logit per token."""

    def __init__(self, width: int, vocab: int):
        super().__init__()
        self.linear = nn.Linear(width, vocab)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] -> [..., V]"""
        return self.linear(hidden)

    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """[B, T]"""
        logits = self(hidden)
        precise = logits.to(at_least_float32(logits))
        return F.cross_entropy(precise.flatten(0, -2), targets.flatten(), reduction="none").view(
            targets.shape
        )

    def predict(self, hidden: Tensor) -> Tensor:
        """[B, T]"""
        return self(hidden).argmax(dim=-1)
