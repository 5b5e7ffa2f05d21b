"""Forward and backward of a block as CUDA graphs, so that the host has next to nothing to do.

A block through twelve compiled layers is some two thousand kernels, which take the host longer to
launch than the GPU to run. They are launched in the same way as long as all shapes stay the same,
and shapes change seldom: memory has room to spare. So when shapes come again, what the host
launches for such a block is captured, and from then on replayed with other numbers. A block of new
shapes runs as usual, and so do the first ones of a stream, which are not compiled.

The memory and the spans that a replay returns lie in buffers which the next one writes again: they
are to be used before that, as a training loop does, or cloned. Memory that is yet to be settled
also reads what the replay was given.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from expire_span.model.memory import Memory, Settling
from expire_span.model.transformer import MemoryStats, Transformer
from expire_span.state import State
from expire_span.tasks import Batch


@dataclass(frozen=True)
class Pass:
    """What reading a block came to.

    Args:
        objective: what is differentiated: the loss and the weighted penalty.
        loss: the block's share in the loss.
        penalty: price of memory, weighted by the policy, not yet by the schedule.
        nll: [B, T], zero where nothing is scored.
        predictions: [B, T], if the metric asks for them.
        stats: how much is remembered.
        spans: of each layer, in any shape.
        settling: what each layer keeps.
        frame: the next memory without its layers.
    """

    objective: Tensor
    loss: Tensor
    penalty: Tensor
    nll: Tensor
    predictions: Tensor | None
    stats: MemoryStats
    spans: tuple[Tensor, ...]
    settling: Settling
    frame: Memory

    def memory(self) -> Memory:
        """What is remembered, for the next block; ask for it when all else is under way."""
        return replace(self.frame, layers=self.settling.detach().finish())

    def kept(self) -> "Pass":
        """The same in buffers of its own, which no later replay writes again."""
        memory = self.memory().clone()
        return replace(
            self,
            objective=self.objective.detach(),
            spans=tuple(spans.clone() for spans in self.spans),
            settling=Settling.of(memory.layers),
            frame=replace(memory, layers=()),
        )


@dataclass(frozen=True)
class Work(State):
    """What one block is read from.

    Args:
        batch: the next steps of some rows.
        memory: what is remembered of them.
        scored: positions that count in the loss, of all rows.
        weight: of the penalty.
        limit: the distance at which spans are cut this time, if they are; int64.
    """

    batch: Batch
    memory: Memory
    scored: Tensor
    weight: Tensor
    limit: Tensor | None = None

    def shapes(self) -> tuple[Any, ...]:
        """What must be equal for one block to be read as another was, but for numbers."""
        return tuple((name, *t.shape, t.dtype) for name, t in self.tensors().items())


LATELY = 16
"""Blocks over which it is counted how often shapes come."""

Read = Callable[[Work], Pass]
"""Reads a block; the gradients are left to the caller."""


class Replay:
    """Reads blocks and leaves their gradients, by replaying earlier blocks of the same shapes.

    Args:
        model: whose gradients are wanted; it must have none yet when a block is read.
        read: reads one block; must do the same every time but for the numbers in its tensors.
        most: graphs to have at a time.
        patience: how many of the last blocks must have had the same shapes for a capture.
    """

    def __init__(self, model: Transformer, read: Read, most: int = 4, patience: int = 1):
        self._read = read
        self._filled = model.filled
        self._parameters = list(model.parameters())
        self._period = model.config.memory.period()
        self._most = most
        self._patience = patience
        self._lately: deque[Any] = deque(maxlen=LATELY)  # shapes of the last blocks
        self._graphs: dict[Any, Captured] = {}
        self._pool: Any = None
        self.blocks = 0
        """Blocks that were read so far."""
        self.replayed = 0
        """Blocks of these that were replayed."""
        self._told = (0, 0)  # both numbers at the last look at their share

    def __call__(self, work: Work) -> Pass:
        """Read a block; the gradients of its objective are then those of the parameters."""
        self.blocks += 1
        if self._filled(work.memory):
            shapes = (*work.shapes(), work.memory.clock % self._period)
            if self.worth_capturing(shapes):
                self._graphs[shapes] = self._capture(work)
            self._lately.append(shapes)
            if shapes in self._graphs:
                self.replayed += 1
                return self._graphs[shapes].replay(work)
        done = self._read(work)
        done.objective.backward()
        return done

    def share_since_last(self) -> float:
        """Share of the blocks since the last look that were replayed; then count from here."""
        blocks, replayed = self._told
        self._told = (self.blocks, self.replayed)
        return (self.replayed - replayed) / max(self.blocks - blocks, 1)

    def forget(self) -> None:
        """Give back the memory of all graphs."""
        self._graphs.clear()
        self._lately.clear()

    def worth_capturing(self, shapes: Any) -> bool:
        """Whether blocks of these shapes come again, and there is or can be made place for them.

        A graph gives way only if it has not been used lately: capturing takes as long as several
        blocks, so it must not become a habit.
        """
        if shapes in self._graphs or self._lately.count(shapes) < self._patience:
            return False
        unused = [other for other in self._graphs if other not in self._lately]
        if len(self._graphs) >= self._most and unused:
            del self._graphs[unused[0]]
        return len(self._graphs) < self._most

    def _capture(self, work: Work) -> "Captured":
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return Captured(self._read, self._parameters, work, self._pool)


class Captured:
    """The kernels of one block, and the buffers they read and write.

    Forward and backward are two graphs, so that the host can go on with what it needs to know of
    the one while the GPU is busy with the other.
    """

    def __init__(self, read: Read, parameters: list[nn.Parameter], work: Work, pool: Any):
        self._parameters = parameters
        self._work = work.clone()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._rehearse(read)
        with torch.cuda.graph(self._forward, pool=pool):
            self._done = read(self._work)
        with torch.cuda.graph(self._backward, pool=pool):
            self._done.objective.backward()
        self._gradients = [parameter.grad for parameter in parameters]
        # Nothing must hold on to what autograd had made for this stream.
        done = self._done
        self._done = replace(
            done, objective=done.objective.detach(), settling=done.settling.detach()
        )

    def _rehearse(self, read: Read) -> None:
        """Compile and load all that these very buffers need: there is no time for that later."""
        state = torch.cuda.get_rng_state()
        read(self._work).objective.backward()
        for parameter in self._parameters:
            parameter.grad = None
        torch.cuda.set_rng_state(state)

    def replay(self, work: Work) -> Pass:
        """The same block with other numbers."""
        with torch.no_grad():
            own, given = (list(each.tensors().values()) for each in (self._work, work))
            torch._foreach_copy_(own, given)
        self._forward.replay()
        settling = self._done.settling.begin()
        self._backward.replay()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        done = self._done
        return replace(
            done,
            loss=done.loss.clone(),
            penalty=done.penalty.clone(),
            nll=done.nll.clone(),
            predictions=None if done.predictions is None else done.predictions.clone(),
            stats=done.stats.clone(),
            settling=settling,
            frame=replace(done.frame, clock=work.memory.clock + work.batch.inputs.shape[1]),
        )
