"""A run that stopped and went on equals one that never stopped, bit for bit."""

from dataclasses import replace

import pytest
import torch

from agent.small_agents import every_memory, every_world, tiny_experiment
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.learner import AgentOptimizer
from expire_span.agent.trainer import AgentTrainer
from expire_span.training.schedule import PenaltySchedule

CPU = torch.device("cpu")


@every_world
@every_memory
def test_going_on_from_a_saved_state_makes_the_same_updates(memory, world):
    assert_it_resumes_exactly(tiny_experiment(world, memory=memory))


@pytest.mark.parametrize(
    "penalty",
    [
        PenaltySchedule(delay=1, target_live=6.0),
        PenaltySchedule(after_metric=-1.0, while_metric=-1.0, rest_after=6),
        PenaltySchedule(after_metric=-1.0, while_metric=2.0, while_band=1.0, spans_wait=True),
    ],
)
def test_going_on_as_penalties_are_steered_and_by_rmsprop(penalty):
    optimizer = AgentOptimizer(method="rmsprop", rate=1e-2, clip=0.5, span_rate=2.0)
    assert_it_resumes_exactly(replace(tiny_experiment(), penalty=penalty, optimizer=optimizer))


def assert_it_resumes_exactly(experiment: AgentExperiment) -> None:
    whole = AgentTrainer(experiment, CPU)
    for _ in range(5):
        whole.update()
    whole.report()
    for _ in range(2):
        whole.update()
    tensors = {
        part: {name: tensor.clone() for name, tensor in named.items()}
        for part, named in whole.tensors().items()
    }
    values = whole.values()
    torch.manual_seed(123)
    resumed = AgentTrainer(experiment, CPU)
    resumed.restore(tensors, values)
    assert resumed.metric == whole.metric is not None
    for trainer in (whole, resumed):
        for _ in range(3):
            trainer.update()
    assert whole.report() == resumed.report()
    for part, named in whole.tensors().items():
        for name, tensor in named.items():
            assert torch.equal(tensor, resumed.tensors()[part][name]), f"{part}.{name}"
