"""Adaptive input and softmax against dense computation, and against PyTorch's own module."""

import pytest
import torch
from torch import Tensor
from torch.nn import AdaptiveLogSoftmaxWithLoss

from expire_span import ExpireSpan, Transformer, TransformerConfig
from expire_span.model.adaptive_softmax import AdaptiveHead, AdaptiveInput, band_edges

SIZES = [(50, 16, 5), (50, 16, 20), (50, 16, 49), (50, 16, 50), (50, 6, 80), (3, 4, 1)]
every_size = pytest.mark.parametrize(("vocab", "width", "shortlist"), SIZES)


def ends(vocab: int, width: int, shortlist: int) -> tuple[AdaptiveInput, AdaptiveHead]:
    inputs = AdaptiveInput(vocab, width, shortlist).double()
    return inputs, AdaptiveHead(inputs).double()


def some_states(width: int) -> tuple[Tensor, Tensor]:
    return torch.randn(3, 40, width, dtype=torch.float64), torch.arange(3 * 40).view(3, 40)


def dense_table(inputs: AdaptiveInput) -> Tensor:
    """Every word's vector at full width, word after word."""
    rows = []
    for word in range(inputs.edges[-1]):
        band = max(b for b, edge in enumerate(inputs.edges[:-1]) if edge <= word)
        vector = inputs.vectors[band][word - inputs.edges[band]]
        rows.append(vector if band == 0 else vector @ inputs.widen[band - 1])
    return torch.stack(rows)


def dense_log_probabilities(inputs: AdaptiveInput, head: AdaptiveHead, state: Tensor) -> Tensor:
    """Of one state [D]: softmax over shortlist and gates, times softmax within the band."""
    logits = dense_table(inputs) @ state
    edges = inputs.edges
    first = torch.cat([logits[: edges[1]], head.gates @ state]).softmax(dim=0)
    parts = [first[: edges[1]]]
    for band in range(1, len(edges) - 1):
        within = logits[edges[band] : edges[band + 1]].softmax(dim=0)
        parts.append(first[edges[1] + band - 1] * within)
    return torch.cat(parts).log()


@every_size
def test_inputs_equal_rows_of_a_dense_table(vocab: int, width: int, shortlist: int) -> None:
    inputs, _ = ends(vocab, width, shortlist)
    tokens = torch.arange(60).view(4, 15) % vocab
    torch.testing.assert_close(inputs(tokens), dense_table(inputs)[tokens] * width**0.5)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_losses_of_half_precision_are_summed_in_single(precision: torch.dtype) -> None:
    inputs, head = ends(5000, 32, 500)
    states, targets = some_states(32)
    targets = targets * 41
    states = states.to(precision)
    inputs, head = inputs.to(precision), head.to(precision)
    found, logits = head.nll(states, targets), head(states)
    assert found.dtype == logits.dtype == torch.float32
    inputs, head = inputs.double(), head.double()
    wanted = head.nll(states.double(), targets)
    error = (found - wanted).norm() / wanted.norm()
    assert error < 2e-3  # of logits alone: sums in half precision would be off by more
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(3, 40), rtol=0, atol=1e-4)


@every_size
def test_losses_predictions_and_gradients_equal_the_dense_ones(
    vocab: int, width: int, shortlist: int
) -> None:
    inputs, head = ends(vocab, width, shortlist)
    states, targets = some_states(width)
    targets = targets % vocab
    dense = torch.stack([dense_log_probabilities(inputs, head, s) for s in states.flatten(0, 1)])
    torch.testing.assert_close(dense.exp().sum(dim=-1), torch.ones(120).double())
    torch.testing.assert_close(head(states).flatten(0, 1), dense)
    expected = -dense.gather(1, targets.view(-1, 1)).view(3, 40)
    torch.testing.assert_close(head.nll(states, targets), expected)
    assert head.predict(states).flatten().equal(dense.argmax(dim=-1))

    parameters = [*inputs.parameters(), *head.parameters()]
    ours = torch.autograd.grad(head.nll(states, targets).sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(expected.sum(), parameters, allow_unused=True)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_losses_equal_those_of_pytorch_with_the_same_weights() -> None:
    inputs, head = ends(60, 16, 10)
    stock = AdaptiveLogSoftmaxWithLoss(16, 60, cutoffs=[10, 30], div_value=4).double()
    with torch.no_grad():
        stock.head.weight.copy_(torch.cat([inputs.vectors[0], head.gates]))
        for tail, widen, vectors in zip(stock.tail, inputs.widen, inputs.vectors[1:], strict=True):
            tail[0].weight.copy_(widen)
            tail[1].weight.copy_(vectors)
    states, targets = some_states(16)
    targets = targets % 60
    expected = -stock(states.flatten(0, 1), targets.flatten()).output.view(3, 40)
    torch.testing.assert_close(head.nll(states, targets), expected)
    torch.testing.assert_close(head(states[0]), stock.log_prob(states[0]))


def test_bands_cover_the_vocabulary() -> None:
    assert band_edges(267_735, 20_000) == [0, 20_000, 60_000, 267_735]
    assert band_edges(60_000, 20_000) == [0, 20_000, 60_000]
    assert band_edges(20_000, 20_000) == [0, 20_000]


@torch.no_grad()
def test_inputs_and_logits_have_unit_variance_at_first() -> None:
    inputs, head = ends(3000, 64, 500)
    assert inputs(torch.arange(3000)[None]).std() == pytest.approx(1, abs=0.1)
    logits = dense_table(inputs) @ torch.randn(64, 200).double()
    for begin, end in ((0, 500), (500, 1500), (1500, 3000)):
        assert logits[begin:end].std() == pytest.approx(1, abs=0.25)
    assert head.gates.std() == pytest.approx(1 / 8, rel=0.3)


def model(**settings) -> Transformer:
    return Transformer(
        TransformerConfig(
            vocab=40, layers=1, width=8, heads=2, feedforward=8, block=4,
            memory=ExpireSpan(16, 2), **settings,
        )
    )  # fmt: skip


def test_a_model_with_a_shortlist_has_one_set_of_vectors() -> None:
    for init in ("torch", "glorot"):
        small = model(shortlist=6, init=init)
        names = [name for name in small.state_dict() if "vectors" in name or "widen" in name]
        assert names == [f"inputs.vectors.{n}" for n in range(3)] + [
            f"inputs.widen.{n}" for n in range(2)
        ]
        assert small.inputs.vectors[0].std() < 0.6  # its own scale, whatever the other weights'
        small = small.double()
        step = small(torch.arange(8).view(2, 4), small.start(2))
        nll = small.sequence_head().nll(step.hidden, torch.arange(8).view(2, 4) + 30)
        nll.sum().backward()
        assert all(p.grad is not None for n, p in small.named_parameters() if "keeper" not in n)
        torch.testing.assert_close(step.logits.exp().sum(-1), torch.ones(2, 4).double())


def test_dropout_at_the_edges_acts_in_training_only() -> None:
    tokens = torch.arange(8).view(2, 4)
    with_dropout, without = model(edge_dropout=0.5), model()
    with_dropout.load_state_dict(without.state_dict())
    torch.manual_seed(0)
    trained = with_dropout(tokens, with_dropout.start(2)).hidden
    assert 0.2 < (trained == 0).double().mean() < 0.8
    for one in (with_dropout, without):
        one.eval()
    expected = without(tokens, without.start(2)).hidden
    assert with_dropout(tokens, with_dropout.start(2)).hidden.equal(expected)


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="shortlist must be a whole number of at least 1"):
        model(shortlist=0)
    with pytest.raises(ValueError, match="edge_dropout is a probability from 0 to below 1"):
        model(edge_dropout=1.0)
    inputs, head = ends(50, 16, 5)
    config = model(shortlist=5).config
    for ports in ({"inputs": inputs}, {"head": head}):
        with pytest.raises(ValueError, match="share their weights: give both of your own, or"):
            Transformer(config, **ports)
    with pytest.raises(ValueError, match="between 0 and 49, but range from 3 to 50"):
        inputs(torch.tensor([[3, 50]]))
