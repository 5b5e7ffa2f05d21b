"""What a model did with every token of a stream, read off what its calls return.

A recording is made block by block and can lie on the disk, so that a stream of millions of tokens
needs no more of RAM than a short one. The model is never edited and nothing is hooked into it.

Times count steps from the beginning of the stream. A memory that was "deleted at 384" was no longer
held once 384 steps had been read; the call that read the last of them deleted it.

Shapes: B rows, T steps, layers, H heads, N calls of the model.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from expire_span.analysis.held import Held, LayerHeld, held_steps
from expire_span.model.memory import AdaptiveSpan, Memory
from expire_span.model.transformer import Step, Transformer
from expire_span.tasks import Batch, Split, Task
from expire_span.training.evaluation import autocast, count_blocks

ABOUT_FILE = "recording.json"
MOMENTS_FILE = "moments.csv"  # of episodes alone
UNFINISHED = ".unfinished"  # marks the folder of a recording that has begun
NOT_YET = -1  # of times: it has not happened


@dataclass(frozen=True)
class About:
    """What was recorded."""

    name: str
    """The run's name."""
    policy: str
    """Kind of memory."""
    block: int
    """Most steps of one call."""
    layers: int
    heads: int
    max_span: int
    """The longest span there can be."""
    ramp: int
    """Steps over which a memory fades; 0 if it does not."""
    limit: int | None = None
    """Distance beyond which nothing was seen."""
    ahead: int = 1
    """Which token a step's prediction is of: 1 the next one, 0 none but its own (an answer)."""


@dataclass(frozen=True)
class Recording:
    """Arrays in RAM or mapped from files; `NOT_YET` and NaN where there is nothing to say."""

    about: About
    tokens: NDArray[np.int32]
    """[B, T], what was read."""
    targets: NDArray[np.int32]
    """[B, T], what was to be predicted."""
    loss: NDArray[np.float32]
    """[B, T], of each prediction, in nats; NaN where none was scored."""
    starts: NDArray[np.bool_]
    """[B, T], where an episode begins; what came before it is not seen any more."""
    spans: NDArray[np.float32]
    """[layers, B, T], how long each memory was meant to be kept; the same for all but Expire-Span,
    of Adaptive-Span the longest of its heads."""
    deleted: NDArray[np.int32]
    """[layers, B, T], steps that had been read when the memory was no longer held."""
    pooled: NDArray[np.int32]
    """[layers, B, T], steps that had been read when it was held only as part of a pooled one."""
    ends: NDArray[np.int32]
    """[N], steps that had been read after each call."""
    live: NDArray[np.float32]
    """[layers, N], memories in use, mean over the queries of a call, rows and heads."""
    held: NDArray[np.float32]
    """[layers, N], memories stored after each call, mean over rows."""
    head_spans: NDArray[np.float32]
    """[layers, H], of Adaptive-Span; NaN for other policies."""

    @property
    def steps(self) -> int:
        """Steps recorded of each row."""
        return self.tokens.shape[1]

    def deadlines(self) -> NDArray[np.float64]:
        """When each memory was to begin to fade, [layers, B, T]."""
        times: NDArray[np.float64] = np.arange(self.steps, dtype=np.float64)
        return times + self.spans

    def loss_by_token(self) -> NDArray[np.float32]:
        """Loss in nats of the prediction that each token is about, [B, T]; NaN if there is none."""
        if self.about.ahead == 0:
            return self.loss
        return np.pad(self.loss[:, :-1], ((0, 0), (1, 0)), constant_values=np.nan)

    @classmethod
    def open(cls, folder: str | Path) -> "Recording":
        """A recording on the disk; its arrays are mapped, not read."""
        folder = Path(folder)
        try:
            about = About(**json.loads((folder / ABOUT_FILE).read_text()))
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS}
        except (OSError, ValueError, TypeError) as error:
            raise ValueError(f"{folder} holds no whole recording ({error}).") from error
        return cls(about, **arrays)


ARRAYS = tuple(field.name for field in fields(Recording) if field.name != "about")


class Recorder:
    """Takes in one call after another.

    Args:
        model: whose calls they are.
        name: of the run.
        rows, steps: how much will be read.
        calls: in how many calls.
        limit: the cut that the calls are made with.
        ahead: which token a step's prediction is of, see `About`.
        folder: where to keep the arrays; in RAM if None.
    """

    def __init__(
        self,
        model: Transformer,
        name: str,
        *,
        rows: int,
        steps: int,
        calls: int,
        limit: int | None = None,
        ahead: int = 1,
        folder: str | Path | None = None,
    ):
        folder = None if folder is None else Path(folder)
        self._policy, self._folder = model.config.memory, folder
        about = replace(_about(model, name), limit=limit, ahead=ahead)
        shapes = _shapes(about, rows, steps, calls)
        if folder is not None:
            _refuse_other_files(folder, name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / UNFINISHED).touch()
            for file in (ABOUT_FILE, MOMENTS_FILE):  # until `finish`, there is none
                (folder / file).unlink(missing_ok=True)
        arrays = {name: _array(folder, name, *shapes[name]) for name in ARRAYS}
        self.recording = Recording(about, **arrays)
        self.clock, self._calls = 0, 0
        # What each layer held after the last call, as keys: in any form, and as single states.
        self._alive = [_NONE] * about.layers
        self._single = [_NONE] * about.layers

    @torch.no_grad()
    def add(self, batch: Batch, step: Step, nll: Tensor) -> None:
        """One call: what was read, what the model returned, and the losses [B, T]."""
        kept, length = self.recording, batch.inputs.shape[1]
        block = slice(self.clock, self.clock + length)
        kept.tokens[:, block] = batch.inputs.cpu()
        kept.targets[:, block] = batch.targets.cpu()
        kept.loss[:, block] = nll.float().cpu().masked_fill(~batch.scored.cpu(), torch.nan)
        if batch.starts is not None:
            kept.starts[:, block] = batch.starts.cpu()
        kept.live[:, self._calls] = step.stats.live.cpu()
        kept.held[:, self._calls] = step.stats.held.cpu()
        for layer, spans in enumerate(step.spans):
            spans = spans.float().cpu()
            if isinstance(self._policy, AdaptiveSpan):
                kept.head_spans[layer] = spans
                spans = spans.amax()
            kept.spans[layer, :, block] = spans
        self.clock += length
        kept.ends[self._calls] = self.clock
        self._calls += 1
        for layer, memory in enumerate(step.memory.layers):
            self._follow(layer, length, held_steps(memory, self.clock, self._policy))

    def finish(self) -> Recording:
        """The whole recording; only now can it be opened from its folder."""
        if self._folder is not None:
            for name in ARRAYS:
                getattr(self.recording, name).flush()
            text = json.dumps(asdict(self.recording.about), indent=2)
            (self._folder / ABOUT_FILE).write_text(f"{text}\n")
            (self._folder / UNFINISHED).unlink()
        return self.recording

    def so_far(self) -> Recording:
        """What has been read until now; the same arrays, not a copy."""
        kept, steps, calls = self.recording, slice(self.clock), slice(self._calls)
        by_step = ("tokens", "targets", "loss", "starts", "spans", "deleted", "pooled")
        parts = {name: getattr(kept, name)[..., steps] for name in by_step}
        parts |= {name: getattr(kept, name)[..., calls] for name in ("ends", "live", "held")}
        return replace(kept, **parts)

    def _follow(self, layer: int, length: int, now: LayerHeld) -> None:
        """Find what this call deleted or pooled."""
        rows, steps = self.recording.tokens.shape
        fresh = np.arange(self.clock - length, self.clock)
        read = (np.arange(rows)[:, None] * steps + fresh).ravel()
        single = _keys(now.single, steps)
        pooled = _NONE if now.pooled is None else np.setdiff1d(_keys(now.pooled, steps), single)
        alive = np.union1d(single, pooled)
        gone = np.setdiff1d(np.concatenate([self._alive[layer], read]), alive)
        self.recording.deleted[layer].reshape(-1)[gone] = self.clock
        pooled_before = np.setdiff1d(self._alive[layer], self._single[layer])
        merged = np.setdiff1d(pooled, pooled_before)
        self.recording.pooled[layer].reshape(-1)[merged] = self.clock
        self._alive[layer], self._single[layer] = alive, single


_NONE = np.zeros(0, dtype=np.int64)


def record(
    model: Transformer,
    batches: Iterable[Batch],
    *,
    name: str,
    rows: int,
    steps: int,
    limit: int | None = None,
    ahead: int = 1,
    precision: str = "float32",
    folder: str | Path | None = None,
) -> Recording:
    """Read batches of at most a block, one after another, with a model in evaluation mode.

    Args:
        model: what reads them.
        batches: the stream.
        name: of the run.
        rows, steps: how much there is to read.
        limit: distance beyond which nothing is seen.
        ahead: which token a step's prediction is of, see `About`.
        precision: type of matrix products.
        folder: where to keep the recording; in RAM if None.
    """
    calls = -(-steps // model.config.block)
    recorder = Recorder(
        model,
        name,
        rows=rows,
        steps=steps,
        calls=calls,
        limit=limit,
        ahead=ahead,
        folder=folder,
    )
    memory = model.start(rows)
    for batch in batches:
        step, nll = read_block(model, batch, memory, limit=limit, precision=precision)
        recorder.add(batch, step, nll)
        memory = step.memory
    return recorder.finish()


@torch.no_grad()
def read_block(
    model: Transformer,
    batch: Batch,
    memory: Memory,
    *,
    limit: int | None = None,
    precision: str = "float32",
) -> tuple[Step, Tensor]:
    """One call of a model, and the loss of each of its predictions [B, T]."""
    if model.training:
        raise ValueError("A model is recorded as it is used: call model.eval() first.")
    device = model.positions.device
    batch = batch.to(device)
    with autocast(device, precision):
        step = model(batch.inputs, memory, starts=batch.starts, limit=limit)
        return step, model.sequence_head().nll(step.hidden, batch.targets)


def record_tokens(
    model: Transformer,
    tokens: Sequence[int] | NDArray[np.integer],
    *,
    name: str = "",
    limit: int | None = None,
    ahead: int = 1,
    folder: str | Path | None = None,
    progress: bool = False,
) -> Recording:
    """Read one text, given as its tokens."""
    if np.ndim(tokens) != 1:
        raise ValueError(
            f"A text is one row of tokens, not an array of shape {[*np.shape(tokens)]}: give a row."
        )
    if len(tokens) == 0:
        raise ValueError("There is nothing to read: give a text that is not empty.")
    batches = text_batches(tokens, model.config.block, ahead)
    total = -(-len(tokens) // model.config.block)
    bar = tqdm(
        batches, desc="reading", unit="block", total=total, disable=not progress, leave=False
    )
    return record(
        model, bar, name=name, rows=1, steps=len(tokens), limit=limit, ahead=ahead, folder=folder
    )


def record_task(
    model: Transformer,
    task: Task,
    split: Split,
    *,
    name: str = "",
    rows: int = 1,
    blocks: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    precision: str = "float32",
    folder: str | Path | None = None,
    progress: bool = False,
) -> Recording:
    """Read the stream of a task.

    Args:
        model: what reads it.
        task: whose stream.
        split: train, valid or test.
        name: of the run.
        rows: rows read side by side.
        blocks: blocks of each row; an endless stream needs it.
        seed: which rows an endless stream gives.
        limit: distance beyond which nothing is seen.
        precision: type of matrix products.
        folder: where to keep the recording; in RAM if None.
        progress: whether to show a bar.
    """
    stream = task.stream(split, rows, seed)
    block = model.config.block
    total = count_blocks(stream, block, blocks)
    steps = total * block if stream.remaining is None else min(total * block, stream.remaining)
    batches = (stream.read(block) for _ in range(total))
    bar = tqdm(batches, desc=split, unit="block", total=total, disable=not progress, leave=False)
    return record(
        model,
        bar,
        name=name,
        rows=rows,
        steps=steps,
        limit=limit,
        ahead=task.ahead,
        precision=precision,
        folder=folder,
    )


def text_batches(
    tokens: Sequence[int] | NDArray[np.integer], block: int, ahead: int = 1
) -> Iterator[Batch]:
    """A text as one row; its last token is read but predicts nothing, for nothing follows it.

    Where `ahead` is 0, steps answer instead of predicting; what is right is not in the text.
    """
    text = torch.as_tensor(np.asarray(tokens), dtype=torch.int64)
    for begin in range(0, len(text), block):
        inputs = text[begin : begin + block]
        targets = text[begin + 1 : begin + block + 1]
        scored = torch.arange(len(inputs)) < ahead * len(targets)
        targets = torch.nn.functional.pad(targets, (0, len(inputs) - len(targets)))
        yield Batch(inputs[None], targets[None], scored[None])


def live_along(recording: Recording, layer: int) -> NDArray[np.float64]:
    """Memories of an Expire-Span layer with weight above 0 at every step, mean over rows, [T].

    A memory of time i is in use by the queries i + 1, ... before i + span + ramp, as long as it is
    within the cut, its episode goes on and it is not deleted, which a budget may do early.
    """
    about, steps = recording.about, recording.steps
    times, change = np.arange(steps), np.zeros(steps + 1)
    for row, spans in enumerate(recording.spans[layer]):
        after = np.ceil(times + spans.astype(np.float64) + about.ramp).astype(np.int64)
        if about.limit is not None:
            after = np.minimum(after, times + about.limit + 1)
        deleted = recording.deleted[layer, row]
        after = np.minimum(after, np.where(deleted == NOT_YET, steps, deleted))
        after = np.minimum(after, _next_start(recording.starts[row]))
        np.add.at(change, times + 1, 1)
        np.add.at(change, np.clip(after, times + 1, steps), -1)
    return np.cumsum(change)[:-1] / len(recording.tokens)


def _next_start(starts: NDArray[np.bool_]) -> NDArray[np.int64]:
    """When the first episode after each step begins, [T]; the number of steps if none does."""
    steps = len(starts)
    begins = np.append(np.flatnonzero(starts), steps)
    return begins[begins.searchsorted(np.arange(steps), side="right")]


def _about(model: Transformer, name: str) -> About:
    config = model.config
    return About(
        name=name,
        policy=type(config.memory).__name__,
        block=config.block,
        layers=config.layers,
        heads=config.heads,
        max_span=config.memory.reach(),
        ramp=getattr(config.memory, "ramp", 0),
    )


def _shapes(about: About, rows: int, steps: int, calls: int) -> dict[str, Any]:
    """Shape, type and first value of every array."""
    each, by_layer = (rows, steps), (about.layers, rows, steps)
    return {
        "tokens": (each, np.int32, 0),
        "targets": (each, np.int32, 0),
        "loss": (each, np.float32, np.nan),
        "starts": (each, np.bool_, False),
        "spans": (by_layer, np.float32, np.nan),
        "deleted": (by_layer, np.int32, NOT_YET),
        "pooled": (by_layer, np.int32, NOT_YET),
        "ends": ((calls,), np.int32, 0),
        "live": ((about.layers, calls), np.float32, np.nan),
        "held": ((about.layers, calls), np.float32, np.nan),
        "head_spans": ((about.layers, about.heads), np.float32, np.nan),
    }


def _refuse_other_files(folder: Path, name: str) -> None:
    """A recording may take the place of another of the same run, but of nothing else."""
    own = {ABOUT_FILE, MOMENTS_FILE, UNFINISHED, *(f"{name}.npy" for name in ARRAYS)}
    found = {path.name for path in folder.glob("*")}
    others = sorted(found - own if found & {ABOUT_FILE, UNFINISHED} else found)
    if others:
        raise ValueError(
            f"{folder} holds other files, such as {others[0]}: choose another folder with --out."
        )
    if (folder / ABOUT_FILE).exists():
        kept = json.loads((folder / ABOUT_FILE).read_text())["name"]
        if kept != name:
            raise ValueError(
                f"{folder} holds a recording of {kept}: choose another folder with --out."
            )


def _array(
    folder: Path | None, name: str, shape: tuple[int, ...], kind: type, first: float
) -> NDArray[Any]:
    if folder is None:
        return np.full(shape, first, dtype=kind)
    made = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=shape)
    if first:
        made[...] = first
    return made


def _keys(held: Held, steps: int) -> NDArray[np.int64]:
    """One number for each held step."""
    return (held.rows * steps + held.times).numpy()
