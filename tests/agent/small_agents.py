"""Small agents in small worlds, and random views, for the tests of this folder."""

import os
import signal
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, Transformer
from expire_span.agent.dense import dense
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.experiments import agent_model
from expire_span.agent.learner import AgentOptimizer
from expire_span.agent.ports import build_agent
from expire_span.agent.run import AgentRun
from expire_span.model.memory import AnyMemory
from expire_span.training.schedule import PenaltySchedule
from expire_span.worlds import Corridor, Portal, World
from policies import _scatter

MEMORIES: dict[str, AnyMemory] = {
    "expire": ExpireSpan(40, 6, penalty=0.1, initial=0.4),
    "fixed": FixedSpan(30),
    "adaptive": AdaptiveSpan(30, 5, penalty=0.1, initial=0.4),
    "compressive": Compressive(20, 3, 10),
    "pooled soon": Compressive(4, 6, 2),
    "pooled alone": Compressive(5, 3, 1),
}
WORLDS: dict[str, World] = {
    "corridor": Corridor(longest=9, limit=30),
    "portal": Portal(rooms=4, shuffle=True, limit=40),
}
every_memory = pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())


def make_agent(world: World, memory: AnyMemory, block: int = 100, **settings: Any) -> Transformer:
    """A small double-precision agent, whose spans differ from state to state."""
    torch.manual_seed(1)
    sizes = {"width": 16, "heads": 2, "feedforward": 24, "attention": "reference"}
    config = replace(agent_model(world, memory, block), **sizes | settings)
    model = build_agent(world, config).double().eval()
    for module in model.modules():
        _scatter(module)
    torch.nn.init.normal_(
        model.head.policy.weight, std=0.3
    )  # some actions are likelier than others
    return model


def with_dense_memory(world: World, plain: Transformer) -> Transformer:
    """The same agent with memory of fixed shape."""
    full = build_agent(world, dense(plain.config)).to(plain.positions.dtype).eval()
    full.load_state_dict(plain.state_dict())
    return full


def random_views(world: World, batch: int, steps: int, seed: int = 2) -> Tensor:
    """Views of any kind, uint8 [B, T, 3, 3, V]."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, steps, 3, 3, len(world.words))
    return (torch.rand(shape, generator=generator) < 0.2).to(torch.uint8)


def tiny_experiment(world: World | None = None, **changes: Any) -> AgentExperiment:
    """A few updates that take a second."""
    world = world or WORLDS["corridor"]
    memory = changes.pop("memory", ExpireSpan(16, 4, penalty=1e-2, initial=0.5))
    model = replace(agent_model(world, memory, block=10), width=16, heads=2, feedforward=16)
    experiment = AgentExperiment(
        world=world,
        model=model,
        optimizer=AgentOptimizer(rate=1e-2, clip=0.5, span_rate=2.0),
        penalty=PenaltySchedule(delay=2, warmup=4),
        batch=6,
        steps=12,
        log_every=5,
        save_every=4,
        evaluation_rows=8,
        device="cpu",
    )
    return replace(experiment, **changes)


def stop_after_steps(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Whatever run has made so many steps sends this process a SIGTERM."""
    advance = AgentRun.advance

    def advance_or_stop(run: AgentRun) -> None:
        advance(run)
        if run.trainer.step == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(AgentRun, "advance", advance_or_stop)
