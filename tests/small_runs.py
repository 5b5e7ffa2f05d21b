"""Small experiments that train in a second, for the tests of what surrounds the model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, TransformerConfig
from expire_span.model.memory import AnyMemory
from expire_span.tasks import (
    AnyTask,
    Collision,
    CollisionEasy,
    Copy,
    Documents,
    Instruction,
    Recall,
    Text,
)
from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint, Shard
from expire_span.training.distributed import Ranks
from expire_span.training.experiment import (
    EvaluationConfig,
    Experiment,
    OptimizerConfig,
)
from expire_span.training.folder import CHECKPOINTS
from expire_span.training.schedule import PenaltySchedule, RateSchedule

MEMORIES: dict[str, AnyMemory] = {
    "expire": ExpireSpan(24, 4, penalty=1e-2, initial=0.5, shorten=True),
    "expire-budget": ExpireSpan(40, 4, penalty=1e-2, initial=0.7, budget=5),
    "fixed": FixedSpan(12),
    "adaptive": AdaptiveSpan(16, 4, penalty=1e-3, initial=0.3),
    "compressive": Compressive(8, 2, 4),
}


STREAMS = ["recall", "copy", "text", "collision", "easy collision", "instruction", "documents"]


def tasks(folder: Path) -> dict[str, AnyTask]:
    """One of each kind of stream; what is read is written into the folder."""
    path, documents = folder / "text.txt", folder / "documents.jsonl"
    path.write_bytes(bytes(range(32, 127)) * 40)
    documents.write_text("".join(json.dumps({"text": "a word " * n}) + "\n" for n in range(90)))
    found: dict[str, AnyTask] = {
        "recall": Recall(period=16),
        "copy": Copy(max_distance=10, restart=True),
        "text": Text(str(path)),
        "collision": Collision(),
        "easy collision": CollisionEasy(),
        "instruction": Instruction(distance=10),
        "documents": Documents(str(documents)),
    }
    assert list(found) == STREAMS
    return found


def last_of(folder: Path, rank: int = 0, ranks: int = 1) -> Checkpoint:
    """The newest checkpoint of a run, as one of its ranks sees it."""
    newest = checkpoints.latest(folder / CHECKPOINTS)
    assert newest is not None
    return checkpoints.load(newest, Ranks(rank, ranks))


def same_checkpoints(one: Checkpoint, other: Checkpoint) -> bool:
    """Weights, optimiser, memory, random state, stream position and all else, bit for bit."""
    pairs = [(one.shared, other.shared), (one.own, other.own)]
    return all(_same(a, b) for a, b in pairs if a is not None and b is not None)


def _same(one: Shard, other: Shard) -> bool:
    return (
        one.values == other.values
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )


def small_experiment(task: AnyTask | None = None, **changes: Any) -> Experiment:
    """A few steps of a tiny model, with every random draw that training can make."""
    task = task or Recall(period=16)
    memory = changes.pop("memory", MEMORIES["expire"])
    experiment = Experiment(
        task=task,
        model=TransformerConfig(
            vocab=task.vocab,
            layers=2,
            width=16,
            heads=2,
            feedforward=16,
            block=8,
            memory=memory,
            dropout=0.1,
            layer_drop=0.2,
        ),
        optimizer=OptimizerConfig(
            rate=1e-2,
            schedule=RateSchedule(warmup=3, decay="cosine"),
            span_rate=2.0,
            clip=0.5,
        ),
        penalty=PenaltySchedule(delay=2, warmup=4),
        evaluation=EvaluationConfig(every=100, batch=2, blocks=3),
        batch=4,
        steps=12,
        log_every=5,
        save_every=4,
        device="cpu",
    )
    return replace(experiment, **changes)


@contextmanager
def refused_waits() -> Iterator[None]:
    """While it lasts, PyTorch raises wherever the host would wait for the GPU to be done."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
