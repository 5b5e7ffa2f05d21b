"""What is captured and replayed gives what plain calls give; a CPU stands in for the GPU.

A stand-in for a CUDA graph runs the captured function again and leaves its results where those of
the first run were, which is what a replay does. Before the first replay they are nonsense, since
recording runs nothing. So it finds whatever is not read from the buffers, not copied into them,
changed by the runs before the capture, or looked at too early. That the GPU can capture it at all,
the tests marked `gpu` show.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agent.small_agents import (
    MEMORIES,
    WORLDS,
    every_memory,
    make_agent,
    with_dense_memory,
)
from expire_span import Transformer
from expire_span.agent import cached, learner
from expire_span.agent.cached import CachedActor, Carry, _Graphs
from expire_span.agent.dense import start_full
from expire_span.agent.learner import AgentOptimizer, Learner, _Replay, read_again
from expire_span.agent.loss import ActorCritic
from expire_span.agent.rollout import PlainActor, begin
from expire_span.agent.tally import Tally
from expire_span.model.memory import AnyMemory
from policies import assert_same

WORLD = WORLDS["corridor"]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor that a result is made of, in an order of its own."""
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)


class StandIn:
    """What `capture` gives, without a GPU."""

    def __init__(
        self,
        function: Callable[[], Any],
        before: Callable[[], Any],
        parameters: Sequence[nn.Parameter],
    ):
        self._function = function
        self._parameters = parameters
        self._kept: list[Tensor] = []
        for _ in range(3):
            before()
            self.result = function()
            earlier, self._kept = self._kept, [*tensors_in(self.result), *self._gradients()]
        for one, kept in zip(earlier, self._kept, strict=True):
            if one.data_ptr() != kept.data_ptr():  # it is a result, not something given
                kept.detach().fill_(torch.nan if kept.is_floating_point() else 2**40)

    def replay(self) -> None:
        """Run again; the results of the first run take on the new numbers."""
        again = [*tensors_in(self._function()), *self._gradients()]
        with torch.no_grad():
            for kept, new in zip(self._kept, again, strict=True):
                kept.detach().copy_(new.detach())

    def _gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]


@pytest.fixture
def stand_in(monkeypatch):
    """Capture without a GPU; returns a function that names parameters whose gradients count."""
    counted: list[nn.Parameter] = []

    def capture(
        function: Callable[[], Any], before: Callable[[], Any] = lambda: None
    ) -> tuple[StandIn, Any]:
        graph = StandIn(function, before, counted)
        return graph, graph.result

    for module in (cached, learner):
        monkeypatch.setattr(module, "capture", capture)
    return counted.extend


def dense_agent(memory: AnyMemory, block: int = 20) -> Transformer:
    """A small agent with memory of fixed shape."""
    return with_dense_memory(WORLD, make_agent(WORLD, memory, block))


@every_memory
def test_replayed_steps_are_the_steps(memory, stand_in):
    assert_same_steps(dense_agent(memory))


def test_replayed_steps_are_the_steps_in_blocks_of_one(stand_in):
    assert_same_steps(dense_agent(MEMORIES["expire"], block=1))


@torch.no_grad()
def assert_same_steps(model: Transformer) -> None:
    """Three blocks by plain calls and by replays."""
    game = WORLD.play()
    plain = CachedActor(model, game, 4)
    captured = CachedActor(model, game, 4, compiled=False)
    situation, now, tally = begin(game, 4, 0), start_full(model, 4), Tally.empty(game)
    zero = torch.zeros_like(situation.time)
    other, other_tally = situation, tally
    graphs = _Graphs(captured, Carry(situation, zero, now.origin, tally), now)
    for _ in range(3):
        block, situation, tally = plain.act_block(situation, now, tally)
        carry, value = graphs.act_block(Carry(other, zero, now.origin, other_tally), now)
        other, other_tally = carry.situation, carry.tally
        for name, tensor in situation.tensors().items():
            assert torch.equal(tensor, other.tensors()[name]), name
        assert torch.equal(tally.sums, other_tally.sums)
        assert_same(value, block.next_value)
        for name, tensor in captured._recorded.items():
            assert_same(tensor.transpose(0, 1), vars(block)[name])
        now = model(block.observations, now, starts=block.starts).memory


@every_memory
def test_a_replayed_lesson_is_the_lesson(memory, stand_in):
    model, game, settings = dense_agent(memory), WORLD.play(), ActorCritic()
    parameters = list(model.parameters())
    stand_in(parameters)
    situation, now, tally = begin(game, 4, 0), start_full(model, 4), Tally.empty(game)
    actor, replay, clip = PlainActor(model, game), None, 0.01
    learner = Learner(model, settings, AgentOptimizer(clip=clip))
    for weight in (torch.tensor(0.0), torch.tensor(0.7), torch.tensor(1.0)):
        block, situation, tally = actor.act_block(situation, now, tally)
        if replay is None:
            replay = _Replay(learner._differentiate, model, block, now, weight)
        lesson = replay.learn(block, now, weight)
        found = [parameter.grad.clone() for parameter in parameters]
        model.zero_grad()
        expected = read_again(model, block, now, weight, settings)
        expected.objective.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
        assert norm > clip
        for name, part in {**expected.parts, "gradient_norm": norm}.items():
            assert_same(lesson.parts[name], part)
        for gradient, parameter in zip(found, parameters, strict=True):
            assert_same(gradient, parameter.grad)
        assert lesson.memory.about() == expected.memory.about()
        for name, tensor in expected.memory.tensors().items():
            assert_same(lesson.memory.tensors()[name], tensor)
        now = expected.memory
