"""Nothing that is not finite reaches a weight, and what it was is named.

Whether a loss or a gradient is finite is known on the device first. The optimiser asks there (its
`found_inf`), and leaves the weights alone if not; the host reads the same flag one step later, when
it no longer has to wait for it: the gradients of the next step have been computed by then, but they
have not been applied.

Shapes: B rows, T steps, P parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from expire_span.model.memory import Memory
from expire_span.model.transformer import MemoryStats
from expire_span.training.distributed import Ranks


class NotFinite(ArithmeticError):
    """A loss, a gradient or a weight is nan or infinite; no update was made with it."""


class LateReading:
    """Numbers on their way from the device; asking for them late means not having to wait."""

    def __init__(self, numbers: Tensor):
        self._event = None
        self._numbers = numbers.detach()
        if numbers.device.type == "cuda":
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers.detach(), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def values(self) -> list[float]:
        """The numbers, once they have arrived."""
        if self._event is not None:
            self._event.synchronize()
        return self._numbers.tolist()


@dataclass(frozen=True)
class Evidence:
    """What is known of one step, enough to name a fault in it."""

    step: int
    """Number of the update, from 1."""
    position: int
    """Steps of the stream that each row had read before the block."""
    rows: range
    """Rows of this rank."""
    nll: Tensor
    """Losses that count, [B, T]."""
    layers: Tensor
    """Whether what each layer was given is finite, bool [layers]; see `finite_layers`."""
    penalty: Tensor
    """Price of memory, a scalar."""
    norms: Tensor
    """Norm of each parameter's gradient, [P]."""
    names: Sequence[str]
    """Names of those parameters."""

    def fault(self, model: nn.Module) -> tuple[int, str] | None:
        """What is not finite here, with a number that is smaller the more it explains.

        Args:
            model: with the weights of this step.
        """
        where = (
            f"rows {self.rows[0]} to {self.rows[-1]}, positions {self.position} to "
            f"{self.position + self.nll.shape[1] - 1}"
        )
        weights = [n for n, p in model.named_parameters() if not torch.isfinite(p).all()]
        if weights:
            return 0, f"the weight {_some(weights)} is not finite ({where})"
        bad = torch.nonzero(~torch.isfinite(self.nll))
        if len(bad):
            row, time = bad[0].tolist()
            return 1, (
                f"the loss is {self.nll[row, time].item()} in row {self.rows[row]} at position "
                f"{self.position + time}, {self._origin()}"
            )
        if not torch.isfinite(self.penalty):
            return 2, f"the penalty on memory is {self.penalty.item()} ({where})"
        finite = torch.isfinite(self.norms).tolist()
        gradients = [name for name, fine in zip(self.names, finite, strict=True) if not fine]
        if gradients:
            return 3, f"the gradient of {_some(_from_the_loss(gradients))} is not finite ({where})"
        return None

    def _origin(self) -> str:
        """In which layer it began."""
        sound = self.layers.tolist()
        if all(sound):
            return f"first seen behind layer {len(sound) - 1}, the last"
        first = sound.index(False)
        return f"first seen behind layer {first - 1}" if first else "first in the input of layer 0"


def finite_layers(memories: Sequence[Memory], stats: MemoryStats, length: int) -> Tensor:
    """Whether what each layer was given in a step is finite, bool [layers], for nobody to wait for.

    The newest states of its memory are that, and spans are predicted from it. To be asked before
    the next step: a replayed block writes the memory of the one before again.

    Args:
        memories: what the step left behind, of every part of the block.
        stats: how much was remembered.
        length: of the block; older states were looked at in their time.
    """
    layers = zip(*(memory.layers for memory in memories), strict=True)
    kept = [tensor for parts in layers for part in parts for tensor in part.tensors().values()]
    dense = [t for t in kept if t.is_floating_point() and t.ndim == 3]
    # The largest of all: it is not finite if any is not, and overflows in no type. Where there is
    # nothing yet, as in slots at the beginning, there is none; the same parts of all layers.
    newest = [t[:, -length:] for t in dense if t.numel()]
    largest = torch.stack([torch.linalg.vector_norm(t, torch.inf) for t in newest])
    by_layer = largest.view(len(stats.mean_span), -1).amax(dim=1)
    return torch.isfinite(by_layer + stats.mean_span)


class Guard:
    """Reads, one step late, whether a step was sound."""

    def __init__(self, model: nn.Module, ranks: Ranks):
        self._model = model
        self._ranks = ranks
        self._open: tuple[LateReading, Evidence] | None = None
        self.stop = False
        """Whether some rank had been asked to stop, as all of them came to know."""

    def note(self, signals: Tensor, evidence: Evidence) -> None:
        """A step has been made: `signals` are [not finite, asked to stop], the same everywhere."""
        self._open = (LateReading(signals), evidence)

    def look(self) -> None:
        """Raise `NotFinite` if the last step that was noted was not sound."""
        if self._open is None:
            return
        (reading, evidence), self._open = self._open, None
        unsound, stop = reading.values()
        self.stop = self.stop or stop > 0
        if unsound:
            found = self._ranks.gather(evidence.fault(self._model))
            named = [fault for fault in found if fault is not None]
            _, what = min(named, default=(0, "the norm of all gradients together is not finite"))
            raise NotFinite(f"Step {evidence.step} was stopped before its update: {what}.")


def _from_the_loss(names: Sequence[str]) -> list[str]:
    """Parameters in the order in which the backward pass comes to them: the head, then layers."""
    head = [name for name in names if name.startswith("head.")]
    return [*head, *(name for name in reversed(names) if name not in head)]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"
