"""What an agent is taught: choose what led to more than was expected, and expect what came.

Shapes: B rows, T steps of a block, A actions.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.agent.ports import Decision
from expire_span.agent.rollout import Block, log_prob_of
from expire_span.checks import require_not_negative, require_one_of

CutOff = Literal["ended", "expected"]


@dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Settings of the actor-critic loss."""

    discount: float = 0.99
    """What a reward is worth one step earlier (gamma)."""
    trace: float = 1.0
    """How far returns follow what came, step by step, before they rely on the expected value
    (lambda): 1 to the end of the episode or block, 0 for a single step."""
    value_weight: float = 0.05
    """Weight of the squared error of values."""
    entropy_weight: float = 0.0005
    """Weight of the entropy of the choice of actions, which keeps it open."""
    cut_off: CutOff = "ended"
    """What an episode cut off at the limit of steps counts as: ended there, as in the trainers of
    the paper's authors, or worth what was expected of it at its last step."""
    normalise: bool = False
    """Whether what actions led to beyond expectation is brought to mean 0 and deviation 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.discount <= 1:
            raise ValueError(f"discount must lie between 0 and 1, but is {self.discount}.")
        if not 0 <= self.trace <= 1:
            raise ValueError(f"trace must lie between 0 and 1, but is {self.trace}.")
        require_not_negative(value_weight=self.value_weight, entropy_weight=self.entropy_weight)
        require_one_of(get_args(CutOff), cut_off=self.cut_off)


@dataclass(frozen=True)
class Loss:
    """The loss and what it is made of; all scalars, means over rows and steps."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy: Tensor
    drift: Tensor
    """Largest difference of log-probabilities from those that were acted with: `docs/method.md`."""

    def parts(self) -> dict[str, Tensor]:
        """By names for the log."""
        return {
            "loss": self.total,
            "policy_loss": self.policy,
            "value_loss": self.value,
            "entropy": self.entropy,
            "log_prob_drift": self.drift,
        }


def discounted_returns(block: Block, expected: Tensor, settings: ActorCritic) -> Tensor:
    """What each step led to, [B, T], partly as it came and partly as it is expected to go on.

    R_t = r_t + discount (1 - done_t) (trace R_{t+1} + (1 - trace) V_{t+1}); the last R is the value
    V expected after the block. An episode that was cut off ended, or its last R is what was
    expected there.

    Args:
        block: what was done.
        expected: V at each of its steps, [B, T], without gradient.
        settings: of the loss.
    """
    ahead = torch.cat([expected[:, 1:], block.next_value[:, None]], dim=1)
    share = settings.discount * (~block.done).to(ahead.dtype)
    returns = block.rewards + (1 - settings.trace) * share * ahead
    if settings.cut_off == "expected":
        returns = torch.where(block.cut, expected, returns)
    returns = torch.cat([returns, block.next_value[:, None]], dim=1)
    share = F.pad(settings.trace * share, (0, 1))
    # First each step with the one after it, then with the two after these, then with four: sums
    # over any number of steps take few operations, where step by step they would take hundreds.
    reach = 1
    while reach < returns.shape[1]:
        returns = returns + share * _later(returns, reach)
        share = share * _later(share, reach)
        reach *= 2
    return returns[:, :-1]


def _later(values: Tensor, steps: int) -> Tensor:
    """What stands so many steps later, 0 beyond the last; [B, N] -> [B, N]."""
    return F.pad(values[:, steps:], (0, steps))


def actor_critic_loss(decision: Decision, block: Block, settings: ActorCritic) -> Loss:
    """The loss of a block that was read again, with gradient: decision [B, T]."""
    log_probs = decision.logits.log_softmax(dim=-1)
    chosen = log_prob_of(log_probs, block.actions)
    surprise = discounted_returns(block, decision.value.detach(), settings) - decision.value
    advantage = surprise.detach()
    if settings.normalise:
        advantage = (advantage - advantage.mean()) / advantage.std().clamp(min=1e-8)
    policy = -(chosen * advantage).mean()
    value = surprise.square().mean()
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1).mean()
    total = policy + settings.value_weight * value - settings.entropy_weight * entropy
    drift = (chosen.detach() - block.log_probs).abs().max()
    return Loss(total, policy.detach(), value.detach(), entropy.detach(), drift)
