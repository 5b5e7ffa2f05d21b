"""A run that stopped and went on equals one that never stopped, bit for bit."""

import torch

from agent.small_agents import every_memory, every_world, tiny_experiment
from expire_span.agent.trainer import AgentTrainer

CPU = torch.device("cpu")


@every_world
@every_memory
def test_going_on_from_a_saved_state_makes_the_same_updates(memory, world):
    experiment = tiny_experiment(world, memory=memory)
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
