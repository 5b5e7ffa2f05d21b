"""Ranks: the processes that train one model together, each with its share of the rows.

Every rank runs the same program on other rows. Weights, schedules and the draws that shape memory
are the same on all of them; gradients are added up before each update. One process alone is a rank
too, and then none of this costs anything.

    torchrun --nproc-per-node 8 -m expire_span train text --task.path FILE --out runs/mine
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# A rank may wait for another that reads, compiles or saves; torchrun notices one that has died.
PATIENCE = timedelta(hours=2)


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together."""

    rank: int = 0
    """Number of this process, from 0."""
    count: int = 1
    """How many there are."""
    host: Any = None
    """Group of processes for what goes from host to host; None for one process alone."""

    @property
    def alone(self) -> bool:
        """Whether there is nobody to talk to."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes logs and speaks to the user."""
        return self.rank == 0

    def rows(self, batch: int, name: str = "batch") -> range:
        """The rows of this rank, of `batch` rows in all."""
        if batch % self.count:
            raise ValueError(
                f"{name} is {batch} rows, which {self.count} ranks cannot share evenly: choose a "
                f"multiple of {self.count}."
            )
        share = batch // self.count
        return range(self.rank * share, (self.rank + 1) * share)

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, without waiting for it; in place."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def add_up_values(self, values: dict[str, float]) -> dict[str, float]:
        """The sum over ranks of each value; every rank has the same names."""
        if self.alone:
            return values
        sums = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(sums, group=self.host)
        return dict(zip(values, sums.tolist(), strict=True))

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, on every rank."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, value, group=self.host)
        return found

    def together(self, action: Callable[[], T]) -> T:
        """Do something on every rank, and return what came of it here.

        What fails on one rank fails on all of them, with the same sentence, so that none is left
        waiting for another.
        """
        if self.alone:
            return action()
        failure: Exception | None = None
        try:
            result = action()
        except Exception as error:  # whatever it is, the others wait to hear of it
            failure = error
        sentences = self.gather(None if failure is None else str(failure) or repr(failure))
        if failure is not None:
            raise failure
        for number, sentence in enumerate(sentences):
            if sentence is not None:
                raise ValueError(f"Rank {number}: {sentence}")
        return result

    def any(self, wanted: bool) -> bool:
        """Whether any rank wants it; waits for all of them."""
        return any(self.gather(wanted))

    def sibling(self) -> "Ranks":
        """The same ranks with a line of their own, for another thread; all must ask for it."""
        return self if self.alone else replace(self, host=_host_group())


ALONE = Ranks()


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, or this process alone; leaves them in the end."""
    name = take_device(device)
    if world_size() == 1:
        yield ALONE
        return
    store, rank, count = next(dist.rendezvous("env://", timeout=PATIENCE))
    # torchrun keeps the store when it starts ranks again: they must not find the addresses of those
    # that have died.
    own = dist.PrefixStore(f"start-{_restarts()}", store)
    backend = "nccl" if name.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=own, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield Ranks(rank, count, _host_group())
    finally:
        dist.destroy_process_group()


def restarted() -> bool:
    """Whether torchrun has started this process again after a failure."""
    return _restarts() > 0


def world_size() -> int:
    """How many ranks torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1))


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def choose_device(name: str) -> torch.device:
    """The device of that name; auto is a GPU if there is one, for each rank of a machine its own.

    A rank among several takes the GPU of its number on the machine also if asked for just `cuda`.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"There is no GPU here to run on {name!r}: choose cpu or auto.")
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"There is no device {name!r}: choose auto, cpu, cuda, cuda:1 and so on.")
    return torch.device(name)


def take_device(name: str) -> torch.device:
    """The device of that name, made the current one: kernels, graphs and random draws go there."""
    device = choose_device(name)
    if device.type != "cuda" or device.index is None:
        return device
    count = torch.cuda.device_count()
    if device.index >= count:
        raise ValueError(f"There is no {device} here: choose one from cuda:0 to cuda:{count - 1}.")
    torch.cuda.set_device(device)
    return device


def add_up_gradients(
    parameters: Sequence[torch.nn.Parameter], extra: Tensor, ranks: Ranks
) -> Tensor:
    """Replace all gradients by their sums over ranks, in one exchange, and return that of `extra`.

    Parameters without a gradient have none on any rank: the draws that leave out a layer are
    shared. One buffer in a fixed order keeps every bit of a run the same when it is resumed.

    Args:
        parameters: in the same order on all ranks.
        extra: float [n], further numbers to add up on the way.
        ranks: who takes part.
    """
    if ranks.alone:
        return extra
    gradients = [p.grad for p in parameters if p.grad is not None]
    buffer = torch.cat([*(g.flatten() for g in gradients), extra.to(gradients[0].dtype)])
    ranks.add_up(buffer)
    *sums, extra = buffer.split([*(g.numel() for g in gradients), len(extra)])
    torch._foreach_copy_(gradients, [s.view_as(g) for s, g in zip(sums, gradients, strict=True)])
    return extra


def _host_group() -> Any:
    return dist.new_group(backend="gloo", timeout=PATIENCE)
