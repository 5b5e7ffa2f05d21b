"""Acting with cached keys and values: the same as `rollout.PlainActor`, quicker.

At the beginning of a block the keys, values and deadlines of all that is remembered are computed
once, by the present weights; each step then adds its own. Every tensor has a fixed shape and
nothing is asked of the device, so on a GPU one step is captured as a CUDA graph and replayed.

Time counts from the block's first step. The cache has an entry for each state held, then one for
each step of the block and for the one after it, whose value is wanted. Where states are pooled, an
entry is the mean of several, and grows with each of them; nobody sees it before it is whole.

Example: 3 states held, blocks of 2 steps. The entries stand at times -3, -2, -1, 0, 1, 2.

Shapes
    B rows, T steps of a block, H heads, E head width, D model width
    N entries of a set
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from expire_span.agent.graphs import capture, copy_all
from expire_span.agent.ports import Decision
from expire_span.agent.rollout import Actor, Block, PlainActor, Situation, take_step
from expire_span.agent.tally import Tally
from expire_span.model.attention import table_rows
from expire_span.model.layer import Layer
from expire_span.model.memory import Memory, StateSet, Window
from expire_span.model.memory.compressive import CompressiveMemory
from expire_span.model.memory.recent import RecentMemory
from expire_span.model.ops.finish import can_finish
from expire_span.model.ops.ramp import NEVER
from expire_span.model.ops.span_attention import KeySet, Visibility, span_attention
from expire_span.model.ops.span_attention import choose as choose_attention
from expire_span.model.transformer import Transformer
from expire_span.state import State
from expire_span.worlds import Game


@dataclass(frozen=True)
class Entries:
    """What a layer can attend to of one set; written into step by step, as a graph replays it."""

    keys: Tensor  # [B, N, H, E]
    values: Tensor  # [B, N, H, E]
    deadlines: Tensor | None  # broadcasts to [B, H, N]
    pooled: Tensor | None  # [B, N, D], means of states so far; None where each stands for itself


@dataclass(frozen=True)
class Places:
    """When the entries of one set stand and who may see them; the same in every layer."""

    times: Tensor  # int64 [N], of the first state where several are pooled
    seen: Visibility  # by the policy alone; `stride` is how many states an entry pools
    positions: tuple[int, int] | None
    before: Tensor  # int64 [], how many entries stand before the block

    @classmethod
    def of(cls, one: StateSet) -> "Places":
        """Those of a set."""
        return cls(one.times, one.seen, one.positions, before=(one.times < 0).sum())

    def at(self, step: Tensor) -> Tensor:
        """The entry of a step, int64 [1]; beyond the last if no step of the block can see it."""
        return (step // self.seen.stride + self.before).view(1)

    def visible(self, step: Tensor, origin: Tensor) -> Visibility:
        """To the query of that step, in episodes that began at `origin`."""
        of_this_episode = self.times >= origin[:, None, None]
        last = torch.where(of_this_episode, self.seen.last, -NEVER)
        return Visibility(self.seen.first - step, last - step, self.seen.stride)


@dataclass(frozen=True)
class Cache:
    """What all layers can attend to, and until when."""

    layers: tuple[tuple[Entries, ...], ...]  # of every layer, set by set
    places: tuple[Places, ...]  # of every set
    projections: tuple[Tensor, ...]  # of every layer: query, key and value in one, [3 D, D]
    attention: str  # which implementation computes it
    fused: bool  # whether what follows attention is one kernel


@dataclass(frozen=True)
class Carry(State):
    """All that changes from one step to the next, but for the cache and what is recorded."""

    situation: Situation
    step: Tensor  # int64 [], time within the block
    origin: Tensor  # int64 [B], when each row's episode began
    tally: Tally


def can_cache(memory: Memory) -> bool:
    """Whether a memory is one that can be cached: the last states of each row, or their means."""
    return all(isinstance(layer, RecentMemory | CompressiveMemory) for layer in memory.layers)


def make_actor(
    model: Transformer, game: Game, batch: int, compiled: bool = False, limit: int | None = None
) -> Actor:
    """One with a cache where the memory allows it, and a plain one where not."""
    if can_cache(model.start(1)):
        return CachedActor(model, game, batch, compiled, limit)
    _say_plain(type(model.config.memory).__name__)
    return PlainActor(model, game, limit)


@cache  # once for each memory
def _say_plain(memory: str) -> None:
    logging.getLogger("expire_span").info(
        "%s memory cannot be cached: acting, each step goes through the whole model, and on a GPU "
        "it is not replayed as a graph, which is slower.",
        memory,
    )


class CachedActor(Actor):
    """Acts in buffers for a fixed number of rows and steps.

    Args:
        model: whose memory is of fixed shape (`dense.py`).
        game: the world to act in, on the model's device.
        batch: rows.
        compiled: whether a step is compiled before it is captured for a GPU; that takes a minute
            and makes it several times quicker.
        limit: distance beyond which nothing is remembered, if not as far as the memory reaches.
    """

    def __init__(
        self,
        model: Transformer,
        game: Game,
        batch: int,
        compiled: bool = True,
        limit: int | None = None,
    ):
        self._model = model
        self._game = game
        self._length = model.config.block
        self._compiled = compiled
        self._limit = limit
        self._recorded = _buffers(game, batch, self._length, model.positions.dtype)
        self._graphs: _Graphs | None = None

    @torch.no_grad()
    def act_block(
        self, situation: Situation, memory: Memory, tally: Tally
    ) -> tuple[Block, Situation, Tally]:
        """Make a block of steps in every row; the block's tensors are good until the next call."""
        self._check(situation, memory)
        step = torch.zeros_like(situation.time)
        carry = Carry(situation, step, memory.origin, tally)
        if situation.time.is_cuda:
            if self._graphs is None:
                self._graphs = _Graphs(self, carry, memory)
            carry, value = self._graphs.act_block(carry, memory)
        else:
            cache = self.open(memory)
            for _ in range(self._length):
                carry = self.step(cache, carry)
            value = self.value(cache, carry)
        block = Block(
            **{name: tensor.transpose(0, 1) for name, tensor in self._recorded.items()},
            next_value=value,
        )
        return block, carry.situation, carry.tally

    def open(self, memory: Memory) -> Cache:
        """The cache of a block that begins with this memory."""
        model, batch = self._model, memory.batch
        window = Window(self._length + 1, clock=0, origin=memory.origin, limit=self._limit)
        coming = model.positions.new_zeros(batch, self._length + 1, model.config.width)
        pairs = list(zip(model.stack(), memory.layers, strict=True))
        sets = [layer.keeper.read(remembered, coming, window) for layer, remembered in pairs]
        return Cache(
            layers=tuple(map(_entries, model.stack(), sets)),
            places=tuple(map(Places.of, sets[0])),
            projections=tuple(layer.attention.projections() for layer in model.stack()),
            attention=self._attention(),
            fused=can_finish(model.positions, model.config.width),
        )

    def step(self, cache: Cache, carry: Carry) -> Carry:
        """Decide, act, and note what came of it."""
        game, situation = self._game, carry.situation
        seen = game.observe(situation.world)
        origin = torch.where(situation.fresh, carry.step, carry.origin)
        decision = self._decide(cache, seen, carry.step, origin)
        taken, after, tally = take_step(game, situation, seen, decision, carry.tally)
        place = carry.step.view(1)
        for name, tensor in taken.items():
            self._recorded[name].index_copy_(0, place, tensor.unsqueeze(0))
        return Carry(situation=after, step=carry.step + 1, origin=origin, tally=tally)

    def advance(self, cache: Cache, carry: Carry) -> None:
        """A step that leaves what it leads to in the place of what it began with."""
        copy_all(self.step(cache, carry).tensors(), carry.tensors())

    def step_in_place(self) -> Callable[[Cache, Carry], None]:
        """The same, compiled if it is to be.

        What was compiled before is dropped, since it counts against a limit: actors that are at
        work no longer need it, they have their graphs.
        """
        if not self._compiled:
            return self.advance
        torch.compiler.reset()
        return torch.compile(self.advance, fullgraph=True, dynamic=False)

    def value(self, cache: Cache, carry: Carry) -> Tensor:
        """What is expected after the block's last step, [B]."""
        seen = self._game.observe(carry.situation.world)
        origin = torch.where(carry.situation.fresh, carry.step, carry.origin)
        return self._decide(cache, seen, carry.step, origin).value

    def _decide(self, cache: Cache, seen: Tensor, step: Tensor, origin: Tensor) -> Decision:
        """One step of every row through the model."""
        model = self._model
        visible = [places.visible(step, origin) for places in cache.places]
        states = model.inputs(seen.unsqueeze(1))
        for layer, kept, projection in zip(
            model.stack(), cache.layers, cache.projections, strict=True
        ):
            readable = layer.readable(states)
            projected = F.linear(readable, projection).unflatten(-1, (3, -1))
            query, *key_value = _heads(layer, projected).unbind(-3)
            for entries, places in zip(kept, cache.places, strict=True):
                _enter(layer, entries, places, _Entering(step, states, readable, *key_value))
            attended = span_attention(
                query,
                [self._keys(*one, step) for one in zip(kept, cache.places, visible, strict=True)],
                ramp=layer.keeper.ramp,
                impl=cache.attention,
            )
            rest = layer.after_attention_of_step if cache.fused else layer.after_attention
            states = rest(states, attended.flatten(-2))
        return model.head(model.final_norm(states)[:, 0])

    def _keys(self, entries: Entries, places: Places, visible: Visibility, step: Tensor) -> KeySet:
        """What the query of a step attends to of one set."""
        deadline = None if entries.deadlines is None else entries.deadlines - step
        table = table_rows(self._model.positions, places.positions)
        return KeySet(entries.keys, entries.values, visible, deadline, table)

    def _attention(self) -> str:
        config, like = self._model.config, self._model.positions
        return choose_attention(config.attention, like.device, like.dtype, config.head_width)

    def _check(self, situation: Situation, memory: Memory) -> None:
        rows = self._recorded["actions"].shape[1]
        for name, found in (("situation", len(situation.fresh)), ("memory", memory.batch)):
            if found != rows:
                raise ValueError(f"This actor has {rows} rows, but the {name} has {found}.")
        if not can_cache(memory):
            kind = type(memory.layers[0]).__name__
            raise ValueError(
                "Only memories of the last states or of their means can be cached, not "
                f"{kind}: use dense(config) for the model, or act without a cache."
            )
        off = memory.clock % self._model.config.memory.period()
        if off:
            raise ValueError(
                f"Blocks are acted from whole means on, but this memory stands {off} steps after "
                "one: act without a cache."
            )


def _buffers(game: Game, batch: int, length: int, precision: torch.dtype) -> dict[str, Tensor]:
    """Where a block is recorded, time first."""

    def buffer(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(length, batch, *shape, dtype=dtype, device=game.device)

    return {
        "observations": buffer(torch.uint8, 3, 3, len(game.world.words)),
        "starts": buffer(torch.bool),
        "actions": buffer(torch.int64),
        "log_probs": buffer(precision),
        "rewards": buffer(torch.float32),
        "done": buffer(torch.bool),
        "cut": buffer(torch.bool),
    }


def _entries(layer: Layer, sets: Sequence[StateSet]) -> tuple[Entries, ...]:
    """Of the states held, set by set; those of the block are still empty."""
    readable = [layer.readable(one.states) for one in sets]
    deadlines = layer.keeper.deadlines(sets, readable)
    return tuple(
        Entries(
            keys=_heads(layer, layer.attention.key(states)),
            values=_heads(layer, layer.attention.value(states)),
            deadlines=deadline,
            # Only a set without parts is made of means, be it of one state each.
            pooled=one.states if one.parts is None else None,
        )
        for one, states, deadline in zip(sets, readable, deadlines, strict=True)
    )


@dataclass(frozen=True)
class _Entering:
    """What a step has to add to what a layer can attend to."""

    step: Tensor  # int64 [], its time
    states: Tensor  # [B, 1, D], as they are
    readable: Tensor  # [B, 1, D], as the layer reads them
    key: Tensor  # [B, 1, H, E]
    value: Tensor  # [B, 1, H, E]

    def pooled_into(self, layer: Layer, pooled: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """Key and value of the mean to which this is added, of means [B, N, D]; N is not 0."""
        count = pooled.shape[1]
        place = places.at(self.step)
        share = torch.where(place < count, self.states / places.seen.stride, 0)
        place = place.clamp(max=count - 1)  # where nothing is added, nothing changes
        pooled.index_add_(1, place, share)
        readable = layer.readable(pooled.index_select(1, place))
        key, value = layer.attention.key(readable), layer.attention.value(readable)
        return _heads(layer, key), _heads(layer, value)


def _enter(layer: Layer, entries: Entries, places: Places, new: _Entering) -> None:
    """Leave what a step adds to a set in its entries."""
    place, key, value = places.at(new.step), new.key, new.value
    if entries.pooled is not None:
        count = entries.pooled.shape[1]
        if count == 0:  # memory has just begun, and no mean will be whole in this block
            return
        key, value = new.pooled_into(layer, entries.pooled, places)
        place = place.clamp(max=count - 1)
    entries.keys.index_copy_(1, place, key)
    entries.values.index_copy_(1, place, value)
    if entries.deadlines is not None:
        one = StateSet(new.states, new.step.view(1), places.seen, None)
        (deadline,) = layer.keeper.deadlines((one,), (new.readable,))
        assert deadline is not None
        entries.deadlines.index_copy_(2, place, deadline)


def _heads(layer: Layer, states: Tensor) -> Tensor:
    """[..., D] -> [..., H, E]"""
    return states.unflatten(-1, (layer.attention.heads, -1))


class _Graphs:
    """The parts of a block as CUDA graphs: one opens the cache, one is a step, one is the end.

    What a graph reads and writes stays where it is, so all that comes from outside is copied in.
    A step is hundreds of small operations, which the compiler joins into a few dozen.
    """

    def __init__(self, actor: CachedActor, carry: Carry, memory: Memory):
        self._length = actor._length
        self._carry = carry.clone()
        self._memory = memory.clone()
        self._opening, self._cache = capture(lambda: actor.open(self._memory))
        self._opening.replay()  # the runs that follow look into the cache
        step = partial(actor.step_in_place(), self._cache, self._carry)
        self._step, _ = capture(step, before=self._carry.step.zero_)
        self._end, self._value = capture(lambda: actor.value(self._cache, self._carry))

    def act_block(self, carry: Carry, memory: Memory) -> tuple[Carry, Tensor]:
        """Make a block of steps; nothing here waits for the device."""
        copy_all(carry.tensors(), self._carry.tensors())
        copy_all(memory.tensors(), self._memory.tensors())
        self._opening.replay()
        for _ in range(self._length):
            self._step.replay()
        self._end.replay()
        return self._carry.clone(), self._value
