"""Judges a model on a stream, carrying its memory from the first block to the last.

A long evaluation can be stopped and gone on with: where it stands is a checkpoint like any other.
"""

import hashlib
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn
from tqdm import tqdm

from expire_span.locks import claim
from expire_span.model.transformer import Transformer
from expire_span.tasks import Split, Stream, Task
from expire_span.training import checkpoint as checkpoints
from expire_span.training.checkpoint import Checkpoint, Shard, join
from expire_span.training.distributed import ALONE, Ranks
from expire_span.training.experiment import Experiment
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.metrics import Means, memory_metrics
from expire_span.training.records import differences
from expire_span.training.sources import SourceFiles

IDENTITY = "evaluation"
NOT_WATCHED = SourceFiles(())
SECONDS_BETWEEN_SAVES = 300.0
BLOCKS_BETWEEN_TALKS = 16
"""Blocks after which ranks ask each other whether to stop; one process alone asks at every one."""


def choose_precision(device: torch.device, precision: str) -> str:
    """The type of matrix products; auto is bfloat16 on a GPU that has it."""
    if precision != "auto":
        return precision
    able = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return "bfloat16" if able else "float32"


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """The context in which matrix products have the wanted precision."""
    if choose_precision(device, precision) == "float32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


class Evaluation:
    """An evaluation at some block: stream, memory and sums.

    Args:
        model: put into evaluation mode while it reads.
        task: what is predicted and how it is scored.
        split: train, valid or test.
        batch: rows read side by side, by all ranks together.
        blocks: blocks read of each row; an endless stream needs it.
        seed: which rows an endless stream gives.
        precision: type of matrix products.
        limit: distance beyond which nothing is seen, to find out what memory is worth.
        ranks: the processes that evaluate together, each its share of the rows.
        sources: the files that the stream is read from, which must stay what they are.
    """

    def __init__(
        self,
        model: Transformer,
        task: Task,
        split: Split,
        *,
        batch: int,
        blocks: int | None = None,
        seed: int = 0,
        precision: str = "auto",
        limit: int | None = None,
        ranks: Ranks = ALONE,
        sources: SourceFiles = NOT_WATCHED,
    ):
        rows = ranks.rows(batch, "the evaluation's batch")
        self.model = model
        self.ranks = ranks
        self.split = split
        self.sources = sources
        self.stream = task.stream(split, batch, seed).only(rows).to(model.positions.device)
        self.total = count_blocks(self.stream, model.config.block, blocks)
        self.done = 0
        self._memory = model.start(len(rows))
        self._score, self._means = task.score(), Means()
        self._precision = choose_precision(model.positions.device, precision)
        self._batch, self._seed, self._limit = batch, seed, limit

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        model: Transformer,
        split: Split,
        *,
        batch: int | None = None,
        blocks: int | Literal["all"] | None = None,
        limit: int | None = None,
        ranks: Ranks = ALONE,
        sources: SourceFiles | None = None,
    ) -> Self:
        """An evaluation as the experiment has it, but for what is given.

        If `sources` are not, the files of its task are read once, and watched.
        """
        settings, task = experiment.evaluation, experiment.task
        wanted = settings.blocks if blocks is None else blocks
        return cls(
            model,
            task,
            split,
            batch=settings.batch if batch is None else batch,
            blocks=None if wanted == "all" else wanted,
            seed=experiment.seed,
            precision=experiment.precision,
            limit=limit,
            ranks=ranks,
            sources=SourceFiles(task.files()) if sources is None else sources,
        )

    @torch.no_grad()
    def advance(self) -> None:
        """Read one block; the model is in evaluation mode."""
        self.sources.look()
        device = self.model.positions.device
        head = self.model.sequence_head()
        read = self.stream.read(self.model.config.block).to(device)
        with autocast(device, self._precision):
            step = self.model(read.inputs, self._memory, starts=read.starts, limit=self._limit)
            nll = head.nll(step.hidden, read.targets)
            needed = self._score.needs_predictions
            predictions = head.predict(step.hidden) if needed else None
        self._memory = step.memory
        self._score.update(read, nll, predictions)
        self._means.add(**vars(step.stats))
        self.done += 1

    def identity(self) -> dict[str, Any]:
        """What tells it from other evaluations of the same task, JSON-able."""
        return {
            "split": self.split,
            "batch": self._batch,
            "blocks": self.total,
            "seed": self._seed,
            "precision": self._precision,
            "limit": self._limit,
            "weights": weights_digest(self.model),
        }

    def result(self) -> dict[str, float]:
        """The task's metrics and the memory used, of all ranks, and how much was read."""
        scored = self._score.result(self.ranks.add_up_values)
        return scored | memory_metrics(self._means.take(self.ranks)) | self.extent()

    def extent(self) -> dict[str, float]:
        """Rows, and blocks of each, that it reads."""
        return {"rows": self._batch, "blocks": self.total}

    def run(
        self,
        progress: bool = False,
        bookmark: "Bookmark | None" = None,
        interruption: Interruption | None = None,
    ) -> dict[str, float]:
        """Go on to the end, and give the result.

        Args:
            progress: whether to show a bar.
            bookmark: keeps where it stands, now and then and when it is stopped.
            interruption: whether to stop.

        Raises:
            Stopped: if any rank was asked to stop; the bookmark has been kept.
        """
        bar = tqdm(
            total=self.total,
            initial=self.done,
            desc=self.split,
            unit="block",
            disable=not progress,
            leave=False,
        )
        with bar, evaluating(self.model):
            while self.done < self.total:
                self.advance()
                bar.update()
                if self.ranks.alone or self.done % BLOCKS_BETWEEN_TALKS == 0:
                    stop = self.ranks.any(interruption is not None and interruption.wanted)
                    if bookmark is not None:
                        bookmark.keep(self, now=stop)
                    if stop:
                        raise self._stopped(interruption)
        return self.result()

    def _stopped(self, interruption: Interruption | None) -> Stopped:
        said = f"stopped after {self.done} of {self.total} blocks"
        return Stopped(said) if interruption is None else Stopped(said, interruption.number)

    def checkpoint(self) -> Checkpoint:
        """All of its state; the model is not part of it."""
        parts = {"memory": self._memory.tensors(), "means": self._means.tensors()}
        values = {
            "memory": self._memory.about(),
            "means": self._means.counts(),
            "stream": self.stream.state(),
            "score": self._score.state(),
            "sources": self.sources.sums(),
            "done": self.done,
        }
        return Checkpoint(Shard({}, {}) if self.ranks.first else None, Shard(join(parts), values))

    def restore(self, saved: Shard) -> None:
        """Go on from this rank's part of a checkpoint."""
        self.sources.compare(saved.values["sources"])
        self._memory = self.model.restore_memory(saved.part("memory"), saved.values["memory"])
        device = self.model.positions.device
        self._means.restore(saved.part("means"), saved.values["means"], device)
        self.stream.restore(saved.values["stream"])
        self._score.restore(saved.values["score"])
        self.done = saved.values["done"]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, then as it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def bookmark_in(folder: Path, ranks: Ranks = ALONE) -> Iterator["Bookmark | None"]:
    """The bookmark of evaluations that is kept in a folder, None while another process has it."""
    lock, mine = folder.with_name(f".{folder.name}.lock"), True
    with ExitStack() as held:
        if ranks.first:
            with suppress(OSError):  # where nothing can be written, nothing can be taken away
                mine = held.enter_context(claim(lock, wait=False))
                if mine:
                    held.callback(lock.unlink, missing_ok=True)
        yield Bookmark(folder, ranks) if ranks.gather(mine)[0] else None


class Bookmark:
    """Keeps on the disk where a long evaluation stands.

    Args:
        folder: its own, for evaluations of one task.
        ranks: who evaluates.
    """

    def __init__(self, folder: Path, ranks: Ranks = ALONE):
        self._folder = folder
        self._ranks = ranks
        self._saved = time.monotonic()
        self._warned = False

    def keep(self, evaluation: Evaluation, now: bool = False) -> None:
        """Save it, if that is wanted now or has not happened for some minutes.

        If only time has passed, and it cannot be written, that is no reason to stop.
        """
        due = now or time.monotonic() - self._saved > SECONDS_BETWEEN_SAVES
        if not self._ranks.gather(due)[0]:  # as the first rank's clock has it
            return
        state = evaluation.checkpoint()
        shared = None if state.shared is None else Shard({}, {IDENTITY: evaluation.identity()})
        kept = Checkpoint(shared, state.own)
        self._saved = time.monotonic()
        try:
            checkpoints.save(kept, self._folder, evaluation.done, self._ranks)
        except OSError as error:
            if now:
                raise
            self._warn(error)

    def find(self, evaluation: Evaluation) -> bool:
        """Go on from where it stood, if that was the same evaluation of the same weights.

        Anything else that lies there is removed; nothing is lost but time. It would stand before
        whatever this evaluation comes to keep.
        """
        saved = self._ranks.together(lambda: self._load(evaluation))
        found = self._ranks.gather(saved is not None)
        if saved is None or not all(found):  # one rank cannot go on without the others
            self.remove()
            return False
        self._ranks.together(lambda: evaluation.restore(saved))
        return True

    def resume(self, evaluation: Evaluation) -> None:
        """Go on from where it stood, if it stood anywhere.

        Raises ValueError, and leaves all as it is, if that was another one or cannot be read.
        """
        self._ranks.together(lambda: self._resume(evaluation))

    def remove(self) -> None:
        """What is kept there is of no use any more."""
        self._ranks.together(self._remove)

    def _warn(self, error: OSError) -> None:
        if self._ranks.first and not self._warned:
            warnings.warn(
                f"Where the evaluation stands cannot be kept in {self._folder} ({error}): it goes "
                "on, but begins anew if it is stopped.",
                stacklevel=2,
            )
        self._warned = True

    def _resume(self, evaluation: Evaluation) -> None:
        newest = checkpoints.latest(self._folder)
        if newest is None:
            return
        saved = checkpoints.load(newest, self._ranks)
        assert saved.shared is not None
        differing = differences(saved.shared.values.get(IDENTITY), evaluation.identity())
        if differing:
            raise ValueError(
                f"The evaluation that was stopped in {self._folder} is another one; these differ: "
                f"{', '.join(differing)}. Resume it as it was, or begin anew without --resume."
            )
        evaluation.restore(saved.own)

    def _load(self, evaluation: Evaluation) -> Shard | None:
        """This rank's part of what was kept, if it is whole and of the same evaluation."""
        newest = checkpoints.latest(self._folder)
        if newest is None:
            return None
        try:
            saved = checkpoints.load(newest, self._ranks)
        except ValueError:
            return None
        assert saved.shared is not None
        same = saved.shared.values.get(IDENTITY) == evaluation.identity()
        return saved.own if same else None

    def _remove(self) -> None:
        if not self._ranks.first or not self._folder.exists():
            return
        try:
            shutil.rmtree(self._folder)
        except OSError as error:
            raise OSError(
                f"{self._folder}, where an evaluation stood, is of no use any more but cannot be "
                f"removed ({error.strerror}): remove it."
            ) from error


def count_blocks(stream: Stream, block: int, blocks: int | None) -> int:
    """How many blocks to read: as many as wanted, or to the end of a stream that has one."""
    if blocks is not None and blocks < 1:
        raise ValueError(f"There must be at least 1 block to evaluate on, but blocks is {blocks}.")
    if stream.remaining is None:
        if blocks is None:
            raise ValueError("This stream never ends: say how many blocks of it, with --blocks.")
        return blocks
    whole = -(-stream.remaining // block)
    return whole if blocks is None else min(blocks, whole)


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over all weights."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
