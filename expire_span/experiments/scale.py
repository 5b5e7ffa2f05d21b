"""The three sizes of every experiment, and what they have in common.

smoke    seconds on a CPU, with data that comes along: shows that everything works
single   meant for 8 minutes a model on one H200: the same models with less training
paper    the paper's sizes; where it is silent, the choice is ours and said in the docstring
"""

from dataclasses import replace
from pathlib import Path
from typing import get_args

from expire_span.model.memory import AdaptiveSpan, AnyMemory, Compressive, ExpireSpan, FixedSpan
from expire_span.tasks import AnyTask
from expire_span.training.experiment import EvaluationConfig, Experiment, Scale
from expire_span.training.schedule import RateSchedule

SCALES: tuple[Scale, ...] = get_args(Scale)

PATIENT_RATE = 3.6e-5
"""Of what predicts spans, in models of text: at 7e-4 most layers' spans of enwik8 shrank to nothing
in 200 updates, before any had learned to look far (`docs/log.md`)."""

SAMPLES = Path(__file__).parent / "samples"
"""A few pages of a book (`books/`), and the same cut into words (`words/`)."""


def smoke(experiment: Experiment, task: AnyTask, *, block: int = 16, blocks: int = 4) -> Experiment:
    """The same experiment, small enough for a test, on another task of the same kind.

    Args:
        experiment: what is made small.
        task: what to learn instead; needs nothing that does not come along.
        block: block length.
        blocks: blocks to evaluate on.
    """
    model = replace(
        experiment.model,
        vocab=task.vocab,
        layers=2,
        width=16,
        heads=2,
        feedforward=16,
        block=block,
        memory=tiny(experiment.model.memory),
        shortlist=None if experiment.model.shortlist is None else task.vocab // 4,
    )
    schedule = replace(experiment.optimizer.schedule, warmup=2)
    return replace(
        experiment,
        task=task,
        model=model,
        optimizer=replace(experiment.optimizer, schedule=schedule),
        evaluation=EvaluationConfig(every=100, batch=2, blocks=blocks),
        batch=2,
        accumulate=1,
        steps=4,
        log_every=2,
        save_every=2,
        device="cpu",
    )


def by_our_recipe(experiment: Experiment) -> Experiment:
    """What small models are known to learn fast by, at `single` scale.

    Norms before the sublayers, with residual branches scaled down by depth, so that the rate may be
    high; Muon for the matrices; a shorter memory of squared gradients for the rest; a rate that
    rises for 200 updates and falls along a line to nothing. Spans keep about the rate that they
    have by Adam, so that memory changes no faster than what reads it.
    """
    optimizer = replace(
        experiment.optimizer,
        method="muon",
        rate=6e-3,
        span_rate=0.12,
        beta2=0.95,
        clip=1.0,
        schedule=RateSchedule(
            warmup=min(experiment.optimizer.schedule.warmup, 200), decay="linear"
        ),
    )
    return replace(experiment, model=replace(experiment.model, norm="pre"), optimizer=optimizer)


def with_patient_spans(experiment: Experiment) -> Experiment:
    """Learned spans begin with a block; those of states, of many weights each, learn slowly.

    In the large-L form they have the rate that they had: the form is there to slow them down, and a
    rate that made up for its divisor would, by Adam, all but undo it.
    """
    model, optimizer = experiment.model, experiment.optimizer
    memory = model.memory
    if not isinstance(memory, ExpireSpan | AdaptiveSpan):
        return experiment
    if isinstance(memory, ExpireSpan) and memory.divisor == 1:
        optimizer = replace(optimizer, span_rate=PATIENT_RATE / optimizer.rate)
    memory = replace(memory, initial=model.block / memory.max_span)
    return replace(experiment, model=replace(model, memory=memory), optimizer=optimizer)


def tiny(memory: AnyMemory) -> AnyMemory:
    """A memory of the same kind that reaches over a few dozen steps."""
    match memory:
        case ExpireSpan():
            reach = max(memory.max_span // 512, 8)
            return replace(memory, max_span=reach, ramp=4, divisor=min(memory.divisor, 4.0))
        case AdaptiveSpan():
            return replace(memory, max_span=max(memory.max_span // 512, 8), ramp=4)
        case FixedSpan():
            return FixedSpan(max(memory.span // 64, 4))
        case Compressive():
            return Compressive(8, 4, 4)
