"""Copy over very long distances (`tab:copy`)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from expire_span.experiments.memories import adaptive_span, compressive
from expire_span.experiments.scale import Scale, smoke
from expire_span.experiments.table import Line, Table
from expire_span.model.config import TransformerConfig
from expire_span.model.memory import AdaptiveSpan, AnyMemory, ExpireSpan, FixedSpan
from expire_span.tasks import Copy
from expire_span.training.experiment import EvaluationConfig, Experiment, OptimizerConfig
from expire_span.training.schedule import PenaltySchedule, RateSchedule

DISTANCE: dict[Scale, int] = {"smoke": 128 * 1024, "single": 16 * 1024, "paper": 128 * 1024}


def expire_span(reach: int) -> ExpireSpan:
    """Spans up to this far, nearly all of it at first; what is published is only how far.

    A whole span costs the same, however long it is.
    """
    return ExpireSpan(reach, ramp=128, penalty=0.05 / reach, initial=0.9)


def open_adaptive_span(reach: int) -> AdaptiveSpan:
    """Heads that see a quarter of this far at first: they see every state up to there, which takes
    time, and can learn to look further."""
    return replace(adaptive_span(reach), initial=0.25)


def long_copy(
    memory: Callable[[int], AnyMemory] = expire_span, share: int = 1, scale: Scale = "single"
) -> Experiment:
    """Up to 8 A's, up to 128k B's (16k at `single`), then the A's again. One GPU.

    The paper, share of answers right on distances up to 128k: Transformer-XL 2k 26.7 %, Expire-Span
    16k 29.4 %, Expire-Span 128k 52.1 %. It says nothing else of the task or the models, which are
    ours: distances are log-uniform, since few answers come from far away, so that the numbers to
    compare with are those of `Copy.oracle`, a perfect reader with as much memory. Memory begins
    anew with each episode: distances beyond a block have no positions, so the A's of an episode
    could not be told from those of earlier ones (`docs/log.md`). Nearly everything is remembered
    at first (by Adaptive-Span a quarter of the distance); it costs something once, and only while,
    three answers of four are right.

    Args:
        memory: makes a memory that reaches so many steps back.
        share: how many times shorter that is than the longest distance.
        scale: smoke, single or paper.
    """
    distance = DISTANCE[scale]
    task = Copy(max_distance=distance, distances="log", restart=True)
    experiment = Experiment(
        task=task,
        model=TransformerConfig(
            vocab=task.vocab,
            layers=4,
            width=256,
            heads=4,
            feedforward=1024,
            block=512,
            memory=memory(distance // share),
            norm="pre",
        ),
        optimizer=OptimizerConfig(
            rate=5e-4,
            schedule=RateSchedule(warmup=200, decay="cosine", final=0.05),
            span_rate=3.0,
            clip=0.2,
        ),
        penalty=PenaltySchedule(after_metric=0.75, while_metric=0.75, warmup=300),
        evaluation=EvaluationConfig(every=5000, batch=64, blocks=1024),
        batch=64,
        steps=50_000,
    )
    if scale == "smoke":
        return smoke(experiment, replace(task, max_distance=24), blocks=16)
    if scale == "single":
        evaluation = replace(experiment.evaluation, blocks=256)
        return replace(experiment, evaluation=evaluation, steps=4000)
    return experiment


def _line(label: str, memory: Callable[[int], AnyMemory], share: int, **paper: float | str) -> Line:
    name = f"copy/{label.split(',')[0].lower()}-{share}"
    return Line(name, label, partial(long_copy, memory, share), paper)


COPY = Table(
    label="tab:copy",
    title="Copy, share of answers right",
    metric="accuracy",
    lines=(
        _line("Transformer-XL, 1/64 of the distance (2k)", FixedSpan, 64, accuracy=0.267),
        _line("Compressive, all of the distance", partial(compressive, rate=8), 1),
        _line("Adaptive-Span, all of the distance", open_adaptive_span, 1),
        _line("Expire-Span, 1/8 of the distance (16k)", expire_span, 8, accuracy=0.294),
        _line("Expire-Span, all of the distance (128k)", expire_span, 1, accuracy=0.521),
    ),
    columns=("oracle", "live", "peak_gb", "milliseconds"),
    remark="Distances up to 128k in the paper, up to 16k at `single` scale, and log-uniform.",
)
