"""A vector for each token, whose gradient has the same bits every time.

PyTorch's own adds up the gradients of a token on a GPU in whatever order they come.

Shapes: N tokens in any shape, V vocabulary, D width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

SMALL_VOCABULARY = 1024
"""Up to here gradients are added up by a matrix product, which is quick if tokens come often."""


def embed(weight: Tensor, tokens: Tensor) -> Tensor:
    """The rows of a table: [V, D], int64 [..] -> [.., D]."""
    return _Embed.apply(weight, tokens) if weight.is_cuda else F.embedding(tokens, weight)


def sum_by_token(vectors: Tensor, tokens: Tensor, vocab: int) -> Tensor:
    """Sum of the vectors of each token, always in the same order: [N, D], int64 [N] -> [V, D]."""
    if vocab <= SMALL_VOCABULARY:
        is_token = tokens == torch.arange(vocab, device=tokens.device)[:, None]
        return is_token.to(vectors.dtype) @ vectors
    return vectors.new_zeros(vocab, vectors.shape[1]).index_put((tokens,), vectors, accumulate=True)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(tokens)
        ctx.vocab = len(weight)
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        (tokens,) = ctx.saved_tensors
        return sum_by_token(gradient.flatten(0, -2), tokens.flatten(), ctx.vocab), None
