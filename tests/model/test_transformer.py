"""The two replaceable ends of the Transformer, and the weights it begins with (METHOD.md 2.10)."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from expire_span import ExpireSpan, FixedSpan, Transformer, TransformerConfig
from policies import VOCAB, Case, assert_same, both_norms, make_model, random_tokens

CASE = Case(FixedSpan(4), block=6)


def big_model(**settings) -> Transformer:
    """Large enough for statistics of its weights."""
    sizes = {"vocab": 200, "layers": 3, "width": 64, "heads": 2, "feedforward": 128, "block": 40}
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**sizes, memory=ExpireSpan(50, 4), **settings))


@both_norms
def test_predictions_come_from_the_final_states(norm: str) -> None:
    model = make_model(CASE, norm=norm)
    tokens, targets = random_tokens(2, 6), random_tokens(2, 6, seed=5)
    step = model(tokens, model.start(2))
    assert_same(step.logits, step.hidden @ model.head.linear.weight.T + model.head.linear.bias)
    log_probability = F.log_softmax(step.logits, dim=-1).gather(-1, targets[..., None])
    assert_same(model.head.nll(step.hidden, targets), -log_probability.squeeze(-1))
    assert torch.equal(model.head.predict(step.hidden), step.logits.argmax(dim=-1))


def test_negative_log_likelihood_is_at_least_float32() -> None:
    model = make_model(CASE).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = model(random_tokens(2, 6), model.start(2))
        assert step.logits.dtype == torch.bfloat16
        assert model.head.nll(step.hidden, random_tokens(2, 6)).dtype == torch.float32


class CountingHead(nn.Module):
    """Counts how often it is asked."""

    asked = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.asked += 1
        return hidden.sum(dim=-1)


def test_logits_are_formed_once_and_only_when_asked_for() -> None:
    model = Transformer(make_model(CASE).config, head=CountingHead())
    step = model(random_tokens(2, 6), model.start(2))
    assert model.head.asked == 0
    assert step.logits.shape == (2, 6)
    assert step.logits is step.logits
    assert model.head.asked == 1


def test_inputs_may_be_anything_that_becomes_states() -> None:
    model = Transformer(make_model(CASE).config, inputs=nn.Linear(3, 8))
    step = model(torch.randn(2, 6, 3), model.start(2))
    assert step.hidden.shape == (2, 6, 8)


@both_norms
def test_the_last_projections_of_a_pre_norm_model_are_scaled_by_depth(norm: str) -> None:
    for layer in big_model(norm=norm).layers:
        scale = (2 * 3) ** -0.5 if norm == "pre" else 1
        for linear in (layer.attention.out, layer.feedforward.outer):
            bound = linear.in_features**-0.5  # of a linear layer as PyTorch draws it
            assert 0.95 * bound * scale < linear.weight.abs().max() <= bound * scale
        for linear in (layer.attention.query, layer.attention.key, layer.attention.value):
            assert linear.weight.abs().max() > 0.95 * 64**-0.5


def test_embeddings_and_positions_are_standard_normal() -> None:
    model = big_model()
    for table in (model.inputs.embedding.weight, model.positions):
        assert table.mean().item() == pytest.approx(0, abs=0.1)
        assert table.std().item() == pytest.approx(1, abs=0.1)


def test_glorot_draws_every_matrix_from_its_own_range_but_no_span() -> None:
    model = big_model(init="glorot")
    for name, parameter in model.named_parameters():
        if "keeper" in name:
            continue
        if parameter.ndim == 2:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.9 * bound < parameter.abs().max() <= bound, name
    for layer in model.layers:
        assert (layer.keeper.predictor.weight == 0).all()
        assert layer.keeper.predictor.bias.item() == pytest.approx(-2.1972246)


def test_one_position_table_serves_all_layers_and_heads() -> None:
    names = [name for name, _ in big_model().named_parameters() if "position" in name]
    assert names == ["positions"]
    assert big_model().positions.shape == (40, 32)


@both_norms
def test_only_a_pre_norm_model_has_a_final_norm(norm: str) -> None:
    names = {name for name, _ in big_model(norm=norm).named_parameters() if "final" in name}
    assert names == ({"final_norm.weight", "final_norm.bias"} if norm == "pre" else set())


@pytest.mark.parametrize("part", ["attention", "feedforward"])
def test_dropout_acts_on_both_sublayers_in_training_only(part: str) -> None:
    model = make_model(CASE, dropout=0.5)
    tokens, memory = random_tokens(2, 6), model.start(2)
    plain = make_model(CASE)
    assert torch.equal(model(tokens, memory).hidden, plain(tokens, memory).hidden)
    for layer in model.layers:
        layer.get_submodule(part).train()  # the other sublayer stays in evaluation mode
    outcomes = {tuple(model(tokens, memory).hidden.flatten().tolist()) for _ in range(3)}
    assert len(outcomes) == 3
    assert len(plain.train()(tokens, memory).logits[0, 0]) == VOCAB
