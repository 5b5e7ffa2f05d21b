"""Judges a model on a stream, carrying its memory from the first block to the last."""

from contextlib import AbstractContextManager, nullcontext

import torch
from tqdm import tqdm

from expire_span.model.transformer import Transformer
from expire_span.tasks import Split, Stream, Task
from expire_span.training.metrics import Means, memory_metrics


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The context in which matrix products have the wanted precision."""
    if precision == "auto":
        able = device.type == "cuda" and torch.cuda.is_bf16_supported()
        precision = "bfloat16" if able else "float32"
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@torch.no_grad()
def evaluate(
    model: Transformer,
    task: Task,
    split: Split,
    *,
    batch: int,
    blocks: int | None = None,
    seed: int = 0,
    precision: str = "auto",
    limit: int | None = None,
    progress: bool = False,
) -> dict[str, float]:
    """The task's metrics and the memory used, over `blocks` blocks or to the stream's end.

    Args:
        model: put into evaluation mode meanwhile.
        task: what is predicted and how it is scored.
        split: train, valid or test.
        batch: rows read side by side.
        blocks: blocks read of each row; an endless stream needs it.
        seed: which rows an endless stream gives.
        precision: type of matrix products.
        limit: distance beyond which nothing is seen, to find out what memory is worth.
        progress: whether to show a bar.
    """
    stream = task.stream(split, batch, seed)
    total = count_blocks(stream, model.config.block, blocks)
    device = model.positions.device
    score, means = task.score(), Means()
    head = model.sequence_head()
    memory = model.start(batch)
    was_training = model.training
    model.eval()
    for _ in tqdm(range(total), desc=split, unit="block", disable=not progress, leave=False):
        read = stream.read(model.config.block).to(device)
        with autocast(device, precision):
            step = model(read.inputs, memory, starts=read.starts, limit=limit)
            nll = head.nll(step.hidden, read.targets)
            predictions = head.predict(step.hidden) if score.needs_predictions else None
        memory = step.memory
        score.update(read, nll, predictions)
        means.add(**vars(step.stats))
    model.train(was_training)
    return score.result() | memory_metrics(means.take())


def count_blocks(stream: Stream, block: int, blocks: int | None) -> int:
    """How many blocks to read: as many as wanted, or to the end of a stream that has one."""
    if stream.remaining is None:
        if blocks is None:
            raise ValueError("This stream never ends: say how many blocks to evaluate.")
        return blocks
    whole = -(-stream.remaining // block)
    return whole if blocks is None else min(blocks, whole)
