"""An experiment: everything that defines a run, in nested frozen dataclasses.

The same experiment gives the same numbers. Its fields are the command line's options.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

import tyro

from expire_span.checks import (
    require_above_zero,
    require_at_least,
    require_not_negative,
    require_one_of,
)
from expire_span.model.config import TransformerConfig
from expire_span.tasks import AnyTask
from expire_span.training.schedule import PenaltySchedule, RateSchedule

Scale = Literal["smoke", "single", "paper"]
"""Sizes in which experiments come: seconds on a CPU, minutes on one GPU, the paper's."""
Method = Literal["adam", "muon"]
Precision = Literal["auto", "float32", "bfloat16"]
Tracker = Literal["none", "wandb", "trackio"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """What moves the weights, without weight decay, and what surrounds an update."""

    method: Method = "adam"
    """Adam for everything, or Muon for the matrices of the layers and Adam for the rest."""
    rate: float = 7e-4
    """Peak learning rate."""
    schedule: RateSchedule = field(default_factory=RateSchedule)
    """How the rate changes over the run."""
    span_rate: float = 1.0
    """Rate of the parameters that learn spans, as a multiple of the others'."""
    beta1: float = 0.9
    """Decay of Adam's mean of gradients."""
    beta2: float = 0.999
    """Decay of Adam's mean of squared gradients."""
    clip: float | None = None
    """Largest norm of all gradients together; larger ones are scaled down to it."""

    def __post_init__(self) -> None:
        require_one_of(get_args(Method), method=self.method)
        require_above_zero(rate=self.rate, clip=self.clip)
        require_not_negative(span_rate=self.span_rate)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How a model is judged: memory is carried across the whole stream."""

    every: int = 1000
    """Updates between evaluations."""
    batch: int = 16
    """Rows read side by side."""
    blocks: int | None = None
    """Blocks read of each row; None reads a finite stream to its end."""

    def __post_init__(self) -> None:
        require_at_least(1, every=self.every, batch=self.batch, blocks=self.blocks)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A task, a model, and how the one is fitted to the other."""

    task: Annotated[AnyTask, tyro.conf.AvoidSubcommands]
    """What is learned."""
    model: TransformerConfig
    """What learns it."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How its weights are updated."""
    penalty: PenaltySchedule = field(default_factory=PenaltySchedule)
    """When the price of memory comes in; how high it is, the memory policy says."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """How it is judged on the way and at the end."""
    batch: int = 64
    """Rows read side by side in training, by all ranks together."""
    accumulate: int = 1
    """Parts in which a rank reads its rows, one after another, adding up their gradients: the same
    update in less memory."""
    steps: int = 10_000
    """Updates, one per block."""
    seed: int = 0
    """Fixes initial weights, data and every random draw."""
    log_every: int = 50
    """Updates between lines of metrics."""
    save_every: int = 1000
    """Updates between checkpoints."""
    precision: Precision = "auto"
    """Type of matrix products; auto takes bfloat16 on a GPU that has it."""
    compile: bool = True
    """On a GPU, compile the layers if attention is fused (a minute at the start), and replay blocks
    of the same shapes as CUDA graphs (not with layer_drop or shortlist)."""
    device: str = "auto"
    """Where to compute: auto, cpu, cuda, cuda:1 ..."""
    tracker: Tracker = "none"
    """Where metrics go besides metrics.jsonl and TensorBoard: none, wandb or trackio."""

    def __post_init__(self) -> None:
        require_at_least(
            1,
            batch=self.batch,
            accumulate=self.accumulate,
            steps=self.steps,
            log_every=self.log_every,
            save_every=self.save_every,
        )
        require_at_least(0, seed=self.seed)
        require_one_of(get_args(Precision), precision=self.precision)
        require_one_of(get_args(Tracker), tracker=self.tracker)
        if self.model.vocab < self.task.vocab:
            raise ValueError(
                f"The task has {self.task.vocab} tokens, but the model's vocab is only "
                f"{self.model.vocab}: raise model.vocab."
            )
