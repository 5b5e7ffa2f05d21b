"""Vectors of tokens: as PyTorch's, but with the same gradient every time."""

import pytest
import torch
import torch.nn.functional as F

from expire_span.model.ops.embedding import SMALL_VOCABULARY, _Embed, embed, sum_by_token


@pytest.mark.parametrize("vocab", [7, SMALL_VOCABULARY + 1])
def test_gradients_are_those_of_the_stock_embedding(vocab: int) -> None:
    weight = torch.randn(vocab, 5, dtype=torch.float64, requires_grad=True)
    tokens, pull = torch.randint(vocab, (3, 40)), torch.randn(3, 40, 5, dtype=torch.float64)
    ours, stock = _Embed.apply(weight, tokens), F.embedding(tokens, weight)
    assert torch.equal(ours, stock)
    found, expected = (torch.autograd.grad((x * pull).sum(), weight)[0] for x in (ours, stock))
    torch.testing.assert_close(found, expected)


def test_tokens_that_do_not_occur_have_no_gradient() -> None:
    for vocab in (9, 2 * SMALL_VOCABULARY):
        found = sum_by_token(torch.ones(4, 2), torch.tensor([3, 3, 0, 3]), vocab)
        assert found[:, 0].tolist() == [1, 0, 0, 3] + [0] * (vocab - 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("vocab", [256, 20_000])
def test_gradients_of_many_tokens_have_the_same_bits_twice(vocab: int) -> None:
    weight = torch.randn(vocab, 64, device="cuda", requires_grad=True)
    tokens = torch.randint(vocab, (64, 512), device="cuda") ** 2 // vocab  # some much more often
    pull = torch.randn(64, 512, 64, device="cuda")
    first, second = (
        torch.autograd.grad((embed(weight, tokens) * pull).sum(), weight)[0] for _ in range(2)
    )
    assert torch.equal(first, second)
