"""Muon against its definition by singular values, and as part of a run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from expire_span import Transformer
from expire_span.training import checkpoint as checkpoints
from expire_span.training.experiment import OptimizerConfig
from expire_span.training.muon import ENTRY, MOMENTUM, ORTHOGONAL, Muon, orthogonal
from expire_span.training.optim import build_optimizer
from expire_span.training.trainer import Trainer
from small_runs import same_checkpoints, small_experiment


def nearest(matrix: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


@pytest.mark.parametrize("shape", [(8, 8), (16, 48), (48, 16)])
def test_matrices_become_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(5, *shape), full_matrices=False)
    some_much_larger = torch.linspace(0.05, 1, min(shape))
    sizes = torch.tensor([1e-8, 1e-3, 1, 1e3, 1e8])[:, None, None]
    matrices = sizes * (left * some_much_larger) @ right
    for matrix, found in zip(matrices, orthogonal(matrices), strict=True):
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.3
        assert values.max() < 1.3
        cosine = (found * nearest(matrix)).sum() / found.norm() / nearest(matrix).norm()
        assert cosine > 0.95


def test_nothing_stays_nothing() -> None:
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def test_an_update_is_what_it_is_said_to_be() -> None:
    torch.manual_seed(0)
    matrix, vector = nn.Parameter(torch.randn(6, 24)), nn.Parameter(torch.randn(5))
    start, plain = matrix.detach().clone(), nn.Parameter(vector.detach().clone())
    muon = Muon([{"params": [vector]}, {"params": [matrix], ORTHOGONAL: True}], lr=0.1, fused=True)
    adam = torch.optim.Adam([plain], lr=0.1, fused=True)
    momentum = torch.zeros_like(start)
    for _ in range(3):
        matrix.grad, vector.grad = torch.randn(6, 24), torch.randn(5)
        plain.grad = vector.grad.clone()
        momentum = MOMENTUM * momentum + (1 - MOMENTUM) * matrix.grad
        ahead = MOMENTUM * momentum + (1 - MOMENTUM) * matrix.grad
        start -= 0.1 * ENTRY * 24**0.5 * orthogonal(ahead[None])[0]
        muon.step()
        adam.step()
        assert torch.allclose(matrix, start, atol=1e-5)
        assert torch.equal(vector, plain)


def test_what_is_unsound_changes_nothing() -> None:
    matrix = nn.Parameter(torch.ones(3, 3))
    muon = Muon([{"params": [matrix], ORTHOGONAL: True}], lr=0.1, fused=True)
    for gradient, unsound in ((1.0, 0.0), (torch.nan, 1.0)):
        before, momentum = matrix.detach().clone(), muon.state.get(matrix, {}).get("momentum")
        momentum = None if momentum is None else momentum.clone()
        matrix.grad = torch.full((3, 3), gradient)
        muon.found_inf = torch.tensor(unsound)  # type: ignore[attr-defined]
        muon.step()
        assert torch.equal(matrix, before) == bool(unsound)
    assert torch.equal(muon.state[matrix]["momentum"], momentum)


def test_it_takes_the_matrices_of_the_layers() -> None:
    experiment = small_experiment()
    model = Transformer(experiment.model)
    optimizer = build_optimizer(model, replace(experiment.optimizer, method="muon"))
    names = {parameter: name for name, parameter in model.named_parameters()}
    turned = {
        names[parameter]
        for group in optimizer.param_groups
        if group.get(ORTHOGONAL)
        for parameter in group["params"]
    }
    kinds = ("query", "key", "value", "out", "inner", "outer")
    assert {name.split(".")[3] for name in turned} == set(kinds)
    assert len(turned) == len(kinds) * experiment.model.layers
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


def test_a_run_with_it_learns_and_a_stop_is_invisible(tmp_path: Path) -> None:
    experiment = small_experiment()
    optimizer = replace(experiment.optimizer, method="muon")
    experiment = replace(experiment, optimizer=optimizer, steps=60)
    losses = []

    def run(trainer: Trainer, steps: int) -> Trainer:
        while trainer.step < steps:
            trainer.update()
            if trainer.step % 10 == 0:
                losses.append(trainer.report()["loss"])
        return trainer

    unbroken = run(Trainer(experiment), 60).checkpoint()
    assert losses[-1] < 0.9 * losses[0]
    path = checkpoints.save(run(Trainer(experiment), 20).checkpoint(), tmp_path, 20)
    resumed = Trainer(experiment)
    resumed.restore(checkpoints.load(path))
    assert same_checkpoints(unbroken, run(resumed, 60).checkpoint())


def test_another_method_is_refused() -> None:
    with pytest.raises(ValueError, match="method must be one of adam, muon, but is 'sgd'"):
        OptimizerConfig(method="sgd")  # type: ignore[arg-type]
