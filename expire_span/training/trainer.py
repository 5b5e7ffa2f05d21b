"""A run at some step: stream -> block -> loss + penalty -> Adam, with memory carried along.

Everything that a step depends on is a field of `Trainer` and part of its checkpoint, so that a run
that was stopped and resumed makes the same updates as one that never stopped, bit for bit.

Shapes: B rows of this rank, T steps of a block.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from expire_span.model.memory import Memory
from expire_span.model.transformer import MemoryStats, Step, Transformer
from expire_span.tasks import Batch
from expire_span.training.checkpoint import Checkpoint, Shard, join
from expire_span.training.control import PenaltyControl, Standing
from expire_span.training.distributed import ALONE, Ranks, add_up_gradients, take_device
from expire_span.training.evaluation import autocast
from expire_span.training.experiment import Experiment
from expire_span.training.guard import Evidence, Guard, NotFinite, finite_layers
from expire_span.training.log import HISTOGRAM, Metrics
from expire_span.training.metrics import (
    Means,
    combine,
    memory_metrics,
    span_edges,
    span_histogram,
)
from expire_span.training.optim import (
    GradientSums,
    apply_gradients,
    build_optimizer,
    gradient_norms,
    load_optimizer,
    optimizer_tensors,
    set_rates,
)
from expire_span.training.records import check_same, to_record
from expire_span.training.replay import Pass, Replay, Work
from expire_span.training.sources import SourceFiles
from expire_span.training.spans import task_share

# Settings that say how a run is watched and where things are, not what its next update is. (How
# often it is logged is not one: the penalty may wait for a logged metric.)
FREE_ON_RESUME = (
    "save_every",
    "device",
    "compile",
    "evaluation.",
    "tracker",
    "task.path",
    "task.edition",
    "task.tokenizer",
)
LAYERS = 1
"""Tells the draws that leave out layers from those that shape memory."""
MOST_REHEARSED = 6
"""Different sizes of memory that are read before the first update, at most."""
WATCHED_ROWS = 8
"""Rows that tell apart what pulls at spans."""


class Trainer:
    """Model, optimiser, memory, stream position and random state of a run, and how it moves on.

    Args:
        experiment: what is trained.
        ranks: the processes that train it together; this one takes its share of the rows.
    """

    def __init__(self, experiment: Experiment, ranks: Ranks = ALONE):
        self.experiment = experiment
        self.ranks = ranks
        self.device = take_device(experiment.device)
        self.rows = ranks.rows(experiment.batch)
        self._part = _divide(len(self.rows), experiment.accumulate)
        torch.manual_seed(experiment.seed)  # the same initial weights everywhere
        self.model = Transformer(experiment.model).to(self.device)
        if experiment.compile and self.device.type == "cuda":
            torch.compiler.reset()  # graphs of earlier models count against a limit for all
            self.model.compile_layers()
        self.replay: Replay | None = None
        if experiment.compile and self.device.type == "cuda" and self.model.replayable():
            self.replay = Replay(self.model, self._read)
        torch.manual_seed(_mixed(experiment.seed, ranks.rank))  # but dropout of its own
        self._parameters = list(self.model.named_parameters())
        self.optimizer = build_optimizer(self.model, experiment.optimizer)
        stream = experiment.task.stream("train", experiment.batch, experiment.seed)
        self.stream = stream.only(self.rows).to(self.device)
        self.sources = SourceFiles(experiment.task.files())
        self.memories = tuple(self.model.start(self._part) for _ in range(experiment.accumulate))
        self.step = 0
        self.metric: float | None = None  # the task's metric, as last reported
        self.control = PenaltyControl(
            experiment.penalty, experiment.model.memory, experiment.model.block, self.device
        )
        self.score = experiment.task.score()
        self.means = Means()
        self.guard = Guard(self.model, ranks)
        self.lately = Means()  # how much was remembered since the last look at that
        self._spans: list[tuple[Tensor, ...]] = []  # of each part of it, for each layer
        if experiment.compile and self.device.type == "cuda":
            self.rehearse()

    def rehearse(self) -> None:
        """Read the first blocks and learn nothing, until sizes repeat: then layers are compiled.

        Code is compiled with the sizes in mind that come first, and adds up numbers in an order
        that suits them. A run that is resumed must therefore begin with the same ones as a run that
        is not; and with usual ones, since code for little memory is slow with much.
        """
        block = self.experiment.model.block
        begin, memory = self.stream.state(), self.model.start(self._part)
        weight, seen = torch.ones((), device=self.device), set[Any]()
        with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            while len(seen) < MOST_REHEARSED:
                part = self.stream.read(block).to(self.device).split(self._part)[0]
                work = Work(part, memory, part.scored.sum().clamp(min=1), weight, self._limit())
                filled = self.model.filled(memory)
                with torch.set_grad_enabled(filled):
                    done = self._read(work)
                if filled:
                    done.objective.backward()
                    self.optimizer.zero_grad()
                    if work.shapes() in seen:
                        break
                    seen.add(work.shapes())
                memory = done.memory() if memory.clock == 0 else done.memory().with_room(block)
        self.stream.restore(begin)

    def update(self, watch_spans: bool = False, stop: bool = False) -> None:
        """Read one block and update the weights.

        Args:
            watch_spans: also note the task's share in the gradient on spans, where there is one.
            stop: tell all ranks that this one has been asked to stop.
        """
        self.sources.look()
        position = self.stream.steps_read
        batch = self.stream.read(self.experiment.model.block).to(self.device)
        scored = self.ranks.add_up(batch.scored.sum()).clamp(min=1)
        if not self.model.training:
            self.model.train()
        if watch_spans:
            self._watch_spans(batch)
        passes = self.learn(batch, scored)
        nll = torch.cat([each.nll for each in passes])
        self._apply(passes, nll, position, stop)
        self.step += 1
        self._note(batch, passes, nll)

    def learn(self, batch: Batch, scored: Tensor) -> list[Pass]:
        """Read the block part by part, leaving its gradients.

        Args:
            batch: all rows of this rank.
            scored: positions that count, of all ranks.
        """
        # A penalty is a mean over rows, and every part of every rank has equally many.
        weight = self._penalty_weight() / (len(self.memories) * self.ranks.count)
        limit = self._limit()
        parts = [
            Work(part, memory, scored, weight, limit)
            for part, memory in zip(batch.split(self._part), self.memories, strict=True)
        ]
        if len(parts) == 1:
            return [self._learn_part(parts[0])]
        sums, passes = GradientSums([p for _, p in self._parameters]), []
        for part in parts:
            passes.append(self._learn_part(part).kept())
            sums.take()
        sums.give()
        return passes

    def report(self) -> Metrics:
        """Metrics since the last report, of all ranks; then begin to count anew."""
        self.guard.look()
        means = self.means.take(self.ranks)
        scored = self.score.result(self.ranks.add_up_values)
        self.score.restart()
        self.metric = scored.get(self.score.metric, self.metric)
        layered = memory_metrics(means)
        scalars = {name: mean.item() for name, mean in means.items() if mean.ndim == 0}
        weight = {"penalty_weight": float(self._penalty_weight())}
        return scalars | scored | layered | weight | self._histogram()

    def take_stats(self) -> MemoryStats:
        """How much was remembered since this was last asked, on all ranks; then begin again.

        One block says little: what is worth keeping may be rarer than blocks are.
        """
        return MemoryStats(**self.lately.take(self.ranks))

    def checkpoint(self) -> Checkpoint:
        """All of the run's state; raises `NotFinite` rather than saving what is broken."""
        self.guard.look()
        return Checkpoint(self._shared() if self.ranks.first else None, self._own())

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint, as if there had been no stop."""
        assert saved.shared is not None
        self._restore_shared(saved.shared)
        self._restore_own(saved.own)

    def _learn_part(self, work: Work) -> Pass:
        if self.replay is not None:
            return self.replay(work)
        done = self._read(work)
        done.objective.backward()
        return done

    def _read(self, work: Work) -> Pass:
        """Some rows of the block; what is to be done about gradients is left to the caller."""
        head = self.model.sequence_head()
        step, nll = self._forward(work.batch, work.memory, work.limit)
        with autocast(self.device, self.experiment.precision), torch.no_grad():
            predictions = head.predict(step.hidden) if self.score.needs_predictions else None
        loss = nll.sum() / work.scored
        return Pass(
            objective=loss + work.weight * step.penalty,
            loss=loss.detach(),
            penalty=step.penalty.detach(),
            nll=nll.detach(),
            predictions=predictions,
            stats=step.stats,
            spans=step.spans,
            settling=step.settling,
            frame=step.frame,
        )

    def _forward(self, batch: Batch, memory: Memory, limit: Tensor | None) -> tuple[Step, Tensor]:
        """The model's step, and the losses [B, T], zero where nothing is scored."""
        draws = self.layer_draws()
        with autocast(self.device, self.experiment.precision):
            step = self.model(
                batch.inputs, memory, batch.starts, limit, generator=draws, attached=False
            )
            nll = self.model.sequence_head().nll(step.hidden, batch.targets)
        return step, torch.where(batch.scored, nll, 0)

    def _watch_spans(self, batch: Batch) -> None:
        """Note what pulls at spans in a few rows of the coming block; changes nothing else.

        Gradients on single deadlines cannot be had from a compiled layer.
        """
        rows = min(WATCHED_ROWS, self._part)
        few, memory = batch.split(rows)[0], self.memories[0].select(range(rows))
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(gpus), torch.compiler.set_stance("force_eager"):
            step, nll = self._forward(few, memory, self._limit())
        loss = nll.sum() / few.scored.sum().clamp(min=1)
        share = task_share(step, loss, self._penalty_weight() * step.penalty)
        if share is not None:
            self.means.add(task_share_of_span_gradient=share)

    def _apply(self, passes: list[Pass], nll: Tensor, position: int, stop: bool) -> None:
        """Add up the gradients of all ranks and update the weights, if all is finite; remember.

        Args:
            passes: the parts of the block.
            nll: their losses, [B, T].
            position: where in the stream the block began.
            stop: whether this rank has been asked to stop.
        """
        self.guard.look()  # at the step before
        config = self.experiment.optimizer
        named = [(name, p) for name, p in self._parameters if p.grad is not None]
        loss = torch.stack([each.loss for each in passes]).sum()
        live = torch.stack([each.stats.live.mean() for each in passes]).mean() / self.ranks.count
        mine = torch.stack([loss, live, torch.full_like(loss, stop)])
        loss, live, wanted = add_up_gradients([p for _, p in named], mine, self.ranks).unbind()

        norms = gradient_norms(p for _, p in named)
        norm = torch.linalg.vector_norm(norms)
        unsound = (~torch.isfinite(loss + norm)).float()
        factor = config.schedule.factor(self.step, self.experiment.steps)
        spans_learn = self.control.spans_learn(self._standing())
        set_rates(self.optimizer, config.rate * factor, spans_learn)
        apply_gradients(self.optimizer, config.clip, norm, unsound)
        self.model.clamp_parameters()

        self.control.observe(self._standing(), live)
        self.means.add(loss=loss, gradient_norm=norm)
        self.memories = tuple(each.memory() for each in passes)  # all else is under way
        evidence = Evidence(
            step=self.step + 1,
            position=position,
            rows=self.rows,
            nll=nll,
            layers=finite_layers(
                self.memories, combine([each.stats for each in passes]), nll.shape[1]
            ),
            penalty=torch.stack([each.penalty for each in passes]).sum(),
            norms=norms,
            names=[name for name, _ in named],
        )
        self.guard.note(torch.stack([unsound, wanted]), evidence)

    def _note(self, batch: Batch, passes: list[Pass], nll: Tensor) -> None:
        """Keep what the next report will tell of."""
        guesses = [each.predictions for each in passes if each.predictions is not None]
        self.score.update(batch, nll, torch.cat(guesses) if guesses else None)
        stats = combine([each.stats for each in passes])
        self._spans = [each.spans for each in passes]
        penalty = torch.stack([each.penalty for each in passes]).mean()
        self.means.add(penalty=penalty, **vars(stats))
        self.lately.add(**vars(stats))

    def _histogram(self) -> Metrics:
        """Spans of the last update, in bins, for each layer."""
        longest = self.experiment.model.memory.longest_learned_span()
        if longest is None or not self._spans:
            return {}
        layers = zip(*self._spans, strict=True)
        shares = span_histogram([torch.cat(parts) for parts in layers], longest).cpu()
        shares = torch.stack(self.ranks.gather(shares)).mean(dim=0)
        by_layer = {f"layer_{n}": row.tolist() for n, row in enumerate(shares)}
        return {HISTOGRAM: {"edges": span_edges(longest), **by_layer}}

    def _penalty_weight(self) -> Tensor:
        """What multiplies the penalty in the coming update."""
        return self.control.weight(self._standing())

    def _standing(self) -> Standing:
        return Standing(self.step, self.metric, self.score.higher_is_better)

    def _limit(self) -> Tensor | None:
        """The distance at which this update cuts all spans, if it does."""
        drawn = self.model.draw_limit(self.memory_draws())
        return None if drawn is None else torch.full((), drawn, device=self.device)

    def memory_draws(self) -> torch.Generator:
        """The chance that shapes memory in this update, the same for all parts and ranks."""
        return torch.Generator().manual_seed(_mixed(self.experiment.seed, self.step))

    def layer_draws(self) -> torch.Generator:
        """The chance that leaves out layers in this update, the same for all parts and ranks."""
        return torch.Generator().manual_seed(_mixed(self.experiment.seed, self.step, LAYERS))

    def _shared(self) -> Shard:
        parts = {
            "model": self.model.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer, self.model),
            "control": self.control.tensors(),
        }
        for name, tensor in parts["model"].items():
            if not torch.isfinite(tensor).all():
                raise NotFinite(f"The weight {name} is not finite after step {self.step}.")
        values = {
            "experiment": to_record(self.experiment),
            "step": self.step,
            "metric": self.metric,
            "control": self.control.values(),
            "sources": self.sources.sums(),
        }
        return Shard(join(parts), values)

    def _own(self) -> Shard:
        parts = {
            "memory": {
                f"{n}.{name}": tensor
                for n, memory in enumerate(self.memories)
                for name, tensor in memory.tensors().items()
            },
            "means": self.means.tensors(),
            "lately": self.lately.tensors(),
            "random": {"cpu": torch.get_rng_state()},
        }
        if self.device.type == "cuda":
            parts["random"]["cuda"] = torch.cuda.get_rng_state(self.device)
        values = {
            "memory": [memory.about() for memory in self.memories],
            "means": self.means.counts(),
            "lately": self.lately.counts(),
            "stream": self.stream.state(),
            "score": self.score.state(),
        }
        return Shard(join(parts), values)

    def _restore_shared(self, saved: Shard) -> None:
        check_same(saved.values["experiment"], self.experiment, FREE_ON_RESUME)
        self.sources.compare(saved.values["sources"])
        self.model.load_state_dict(saved.part("model"))
        load_optimizer(self.optimizer, self.model, saved.part("optimizer"))
        self.control.restore(saved.part("control"), saved.values["control"])
        self.step = saved.values["step"]
        self.metric = saved.values["metric"]

    def _restore_own(self, saved: Shard) -> None:
        abouts = saved.values["memory"]
        self.memories = tuple(
            self.model.restore_memory(saved.part(f"memory.{n}"), about)
            for n, about in enumerate(abouts)
        )
        self.means.restore(saved.part("means"), saved.values["means"], self.device)
        lately = saved.values.get("lately", {})  # older checkpoints do not tell
        self.lately.restore(saved.part("lately"), lately, self.device)
        self.stream.restore(saved.values["stream"])
        self.score.restore(saved.values["score"])
        random = saved.part("random")
        torch.set_rng_state(random["cpu"])
        if self.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.device)


def _divide(rows: int, parts: int) -> int:
    """Rows of each part."""
    if rows % parts:
        raise ValueError(
            f"accumulate is {parts}, but the {rows} rows of a rank cannot be read in {parts} equal "
            f"parts: choose a number that divides {rows}."
        )
    return rows // parts


def _mixed(seed: int, *numbers: int) -> int:
    """A seed of its own for each number, or list of them."""
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1, np.uint64)[0])
