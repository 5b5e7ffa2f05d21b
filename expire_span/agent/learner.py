"""Learning: a block is read again, in one forward with gradient, and the weights are updated.

Memory from before the block is an input without gradient, as the recomputed one is for the next.
On a GPU forward, backward and clipping are replayed as one CUDA graph; the optimiser follows it.

Shapes: B rows, T steps of a block.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from expire_span.agent.graphs import capture, copy_all
from expire_span.agent.loss import ActorCritic, actor_critic_loss
from expire_span.agent.rollout import Block
from expire_span.checks import require_above_zero, require_not_negative, require_one_of
from expire_span.model.memory import Memory
from expire_span.model.transformer import Transformer
from expire_span.training.optim import parameter_groups
from expire_span.training.schedule import RateSchedule

Method = Literal["adam", "rmsprop"]


@dataclass(frozen=True, kw_only=True)
class AgentOptimizer:
    """How an agent's weights are updated."""

    method: Method = "adam"
    """Adam, or RMSProp as in the trainers of the paper's authors."""
    rate: float = 5e-4
    """Peak learning rate."""
    schedule: RateSchedule = field(default_factory=RateSchedule)
    """How the rate changes over the run."""
    span_rate: float = 1.0
    """Rate of the parameters that learn spans, as a multiple of the others'."""
    clip: float | None = None
    """Largest norm of all gradients together; larger ones are scaled down to it."""
    rmsprop_decay: float = 0.97
    """Share of RMSProp's mean of squared gradients that stays at each update."""
    rmsprop_epsilon: float = 1e-6
    """What RMSProp adds to the root of that mean."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Method), method=self.method)
        require_above_zero(rate=self.rate, clip=self.clip)
        require_not_negative(span_rate=self.span_rate, rmsprop_epsilon=self.rmsprop_epsilon)
        if not 0 <= self.rmsprop_decay < 1:
            raise ValueError(
                f"rmsprop_decay must be at least 0 and below 1, but is {self.rmsprop_decay}."
            )


def build_optimizer(model: Transformer, config: AgentOptimizer) -> torch.optim.Optimizer:
    """An optimiser over all parameters; each group's `scale` multiplies the rate of the moment."""
    groups = parameter_groups(model, config.span_rate)
    if config.method == "rmsprop":
        decay, epsilon = config.rmsprop_decay, config.rmsprop_epsilon
        return torch.optim.RMSprop(groups, lr=config.rate, alpha=decay, eps=epsilon)
    return torch.optim.Adam(groups, lr=config.rate, fused=model.positions.is_cuda)


@dataclass(frozen=True)
class Lesson:
    """What reading a block again came to."""

    objective: Tensor
    """What is differentiated: the loss and the weighted penalty."""
    parts: dict[str, Tensor]
    """Numbers for the log, without gradient."""
    memory: Memory
    """What is remembered after it, without gradient."""


def read_again(
    model: Transformer, block: Block, memory: Memory, weight: Tensor, settings: ActorCritic
) -> Lesson:
    """The block in one forward.

    Args:
        model: the agent.
        block: what was done, by the very weights that the model still has.
        memory: from before the block.
        weight: of the penalty, a scalar.
        settings: of the loss.
    """
    step = model(block.observations, memory, starts=block.starts, attached=False)
    loss = actor_critic_loss(model.head(step.hidden), block, settings)
    return Lesson(
        objective=loss.total + weight * step.penalty,
        parts={**loss.parts(), "penalty": step.penalty.detach(), **vars(step.stats)},
        memory=step.memory.detach(),
    )


class Learner:
    """Updates a model's weights, block by block."""

    def __init__(self, model: Transformer, settings: ActorCritic, optimizer: AgentOptimizer):
        self.optimizer = build_optimizer(model, optimizer)
        self._model = model
        self._settings = settings
        self._largest = math.inf if optimizer.clip is None else optimizer.clip
        self._replay: _Replay | None = None

    def learn(self, block: Block, memory: Memory, weight: float | Tensor) -> Lesson:
        """Update the weights once; the rate has been set."""
        given = torch.zeros((), device=memory.origin.device) + weight
        if memory.origin.is_cuda:
            if self._replay is None:
                self._replay = _Replay(self._differentiate, self._model, block, memory, given)
            lesson = self._replay.learn(block, memory, given)
        else:
            lesson = self._differentiate(block, memory, given)
        _step(self.optimizer, lesson.parts["gradient_norm"])
        self.optimizer.zero_grad()
        self._model.clamp_parameters()
        return lesson

    def _differentiate(self, block: Block, memory: Memory, weight: Tensor) -> Lesson:
        """Read the block again, and leave the gradients, clipped, with the parameters."""
        lesson = read_again(self._model, block, memory, weight, self._settings)
        lesson.objective.backward()
        norm = _clip(list(self._model.parameters()), self._largest)
        return replace(lesson, parts={**lesson.parts, "gradient_norm": norm})


class _Replay:
    """Forward, backward and clipping of a block as a CUDA graph, with the buffers that it uses."""

    def __init__(
        self,
        differentiate: Callable[[Block, Memory, Tensor], Lesson],
        model: Transformer,
        block: Block,
        memory: Memory,
        weight: Tensor,
    ):
        self._parameters = list(model.parameters())
        self._block = block.clone()
        self._memory = memory.clone()
        self._weight = weight.clone()

        def read() -> Lesson:
            model.zero_grad()
            return differentiate(self._block, self._memory, self._weight)

        self._graph, self._lesson = capture(read)
        self._gradients = [parameter.grad for parameter in self._parameters]

    def learn(self, block: Block, memory: Memory, weight: Tensor) -> Lesson:
        """The clipped gradients of a block are then those of the parameters."""
        copy_all(block.tensors(), self._block.tensors())
        copy_all(memory.tensors(), self._memory.tensors())
        self._weight.copy_(weight)
        self._graph.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        lesson = self._lesson
        steps = block.actions.shape[1]
        return Lesson(
            objective=lesson.objective,
            parts={name: part.clone() for name, part in lesson.parts.items()},
            memory=replace(lesson.memory, clock=memory.clock + steps),
        )


def _clip(parameters: list[torch.nn.Parameter], largest: float) -> Tensor:
    """Scale gradients down to that norm, and to nothing if it is not finite; returns what it was.

    Nothing here waits for the device, so a fault is reported later; weights stay sound meanwhile.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    broken = ~torch.isfinite(norm)
    for gradient in gradients:
        gradient.masked_fill_(broken, 0)
    torch.nn.utils.clip_grads_with_norm_(parameters, largest, norm.nan_to_num(0, 0))
    return norm


def _step(optimizer: torch.optim.Optimizer, norm: Tensor) -> None:
    """Update the weights, unless the norm of the gradients is not finite."""
    sound = torch.isfinite(norm)
    if norm.is_cuda:  # without waiting for it: Adam asks there, RMSProp moves nothing by zeros
        optimizer.found_inf = (~sound).float()  # type: ignore[attr-defined]
        optimizer.step()
    elif sound:
        optimizer.step()
