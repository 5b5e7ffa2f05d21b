"""Where along a text a model does badly.

Shapes: B rows, T steps of a block.
"""

import torch
from torch import Tensor
from tqdm import tqdm

from expire_span.model.transformer import Transformer
from expire_span.tasks import Split, Task
from expire_span.training.evaluation import autocast


@torch.no_grad()
def loss_along(
    model: Transformer,
    task: Task,
    split: Split,
    *,
    batch: int,
    blocks: int | None = None,
    precision: str = "auto",
    progress: bool = False,
) -> list[float]:
    """Mean loss of each block in nats, in the order of the text.

    Rows of a corpus begin evenly spaced over it, so one row after another is the whole text.

    Args:
        model: put into evaluation mode meanwhile.
        task: a text with an end.
        split: which part of it.
        batch: rows read side by side; each begins without memory.
        blocks: most blocks of each row; None for all.
        precision: type of matrix products.
        progress: whether to show a bar.
    """
    stream = task.stream(split, batch, seed=0)
    if stream.length is None:
        raise ValueError("This stream never ends: only a text that does has places to compare.")
    device, block = model.positions.device, model.config.block
    whole = -(-stream.length // block)
    total = whole if blocks is None else min(blocks, whole)
    memory, head = model.start(batch), model.sequence_head()
    was_training = model.training
    model.eval()
    found: list[Tensor] = []
    for _ in tqdm(range(total), desc=f"loss along {split}", disable=not progress, leave=False):
        read = stream.read(block).to(device)
        with autocast(device, precision):
            step = model(read.inputs, memory, starts=read.starts)
            nll = head.nll(step.hidden, read.targets)
        memory = step.memory
        count = read.scored.sum(dim=1).clamp(min=1)
        found.append(nll.masked_fill(~read.scored, 0).sum(dim=1) / count)
    model.train(was_training)
    return torch.stack(found, dim=1).flatten().tolist()
