"""Everything that defines an agent's run, in nested frozen dataclasses."""

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from expire_span.agent.learner import AgentOptimizer
from expire_span.agent.loss import ActorCritic
from expire_span.checks import require_at_least
from expire_span.model.config import TransformerConfig
from expire_span.training.schedule import PenaltySchedule
from expire_span.worlds import AnyWorld

LARGEST_SEED = 2**63 - 2  # an agent is judged by the episodes of the next one


@dataclass(frozen=True, kw_only=True)
class AgentExperiment:
    """A world, an agent, and how it learns to live there."""

    world: Annotated[AnyWorld, tyro.conf.AvoidSubcommands]
    """Where it lives."""
    model: TransformerConfig
    """What it is; a block is what it learns from at a time. `vocab` plays no part."""
    learning: ActorCritic = field(default_factory=ActorCritic)
    """What it is taught."""
    optimizer: AgentOptimizer = field(default_factory=AgentOptimizer)
    """How its weights are updated."""
    penalty: PenaltySchedule = field(default_factory=PenaltySchedule)
    """When the price of memory comes in; how high it is, the memory policy says."""
    batch: int = 64
    """Rows that act side by side."""
    steps: int = 1000
    """Updates, one for each block."""
    seed: int = 0
    """Fixes initial weights, worlds and actions."""
    log_every: int = 50
    """Updates between lines of metrics."""
    save_every: int = 500
    """Updates between checkpoints."""
    evaluation_rows: int = 1024
    """Whole episodes by which it is judged at the end."""
    compile: bool = True
    """Compile acting if it runs on a GPU; takes a minute at the start."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1 ..."""

    def __post_init__(self) -> None:
        require_at_least(
            1,
            batch=self.batch,
            steps=self.steps,
            log_every=self.log_every,
            save_every=self.save_every,
            evaluation_rows=self.evaluation_rows,
        )
        require_at_least(0, seed=self.seed)
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed must be at most 2**63 - 2, but is {self.seed}.")
