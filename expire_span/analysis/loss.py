"""Where along a text a model does badly.

Shapes: B rows, T steps of a block.
"""

import torch
from torch import Tensor
from tqdm import tqdm

from expire_span.analysis.recording import read_block
from expire_span.model.transformer import Transformer
from expire_span.tasks import Split, Task
from expire_span.training.evaluation import count_blocks, evaluating


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
    """Mean loss of each block in nats, in the order of the text; NaN where nothing is scored.

    Rows of a corpus begin evenly spaced over it, so one row after another is the whole text. The
    longest of them decides about the number of blocks, of which the last of a shorter row may have
    nothing left to predict.

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
    total = count_blocks(stream, model.config.block, blocks)
    memory = model.start(batch)
    found: list[Tensor] = []
    bar = tqdm(range(total), desc=f"loss along {split}", disable=not progress, leave=False)
    with bar, evaluating(model):
        for _ in bar:
            read = stream.read(model.config.block)
            step, nll = read_block(model, read, memory, precision=precision)
            memory = step.memory
            scored = read.scored.to(nll.device)
            found.append(nll.masked_fill(~scored, 0).sum(dim=1) / scored.sum(dim=1))
    return torch.stack(found, dim=1).flatten().tolist()
