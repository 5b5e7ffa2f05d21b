"""The Transformer: reads a long stream block by block, memory in, memory out.

Shapes
    B rows, T steps of one call (at most the block length), D model width, V vocabulary
    P position rows, E head width
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from expire_span.model.adaptive_softmax import AdaptiveHead, AdaptiveInput
from expire_span.model.config import TransformerConfig
from expire_span.model.layer import Layer, LayerStep
from expire_span.model.memory import Deadlines, LayerMemory, Memory, Settling, Window
from expire_span.model.ops.norm import LayerNorm
from expire_span.model.ops.ramp import NEVER
from expire_span.model.ops.span_attention import choose
from expire_span.model.ports import SequenceHead, TokenHead, TokenInput
from expire_span.state import State


@dataclass(frozen=True)
class MemoryStats(State):
    """How much each layer remembers; every field is [layers], without gradient."""

    live: Tensor
    """Memories with weight above 0, mean over queries, rows and heads (the paper's |C_t|)."""
    held: Tensor
    """States kept after the step, per row; spare room on a GPU does not count."""
    mean_span: Tensor
    """Mean span given to the states of this call, in steps."""
    max_span: Tensor
    """Longest span given to the states of this call."""


@dataclass(frozen=True)
class Step:
    """What the model gives back for one call.

    Gradients flow from `memory` into the blocks before, until it is cut: `step.memory.detach()`.
    """

    hidden: Tensor
    """Final states [B, T, D], from which predictions are made."""
    penalty: Tensor
    """Weighted price of memory, a scalar to add to the loss; zero for policies without one."""
    stats: MemoryStats
    """How much is remembered."""
    deadlines: tuple[Deadlines, ...]
    """For each layer, when each memory it read starts to fade (None: never), with gradient."""
    spans: tuple[Tensor, ...]
    """For each layer, the spans given to the states of this call, in any shape."""
    head: Callable[[Tensor], Tensor]
    """The model's outgoing end."""
    settling: Settling
    """What each layer keeps; of some, the device has yet to say how much that is."""
    frame: Memory
    """The next memory without its layers."""

    @cached_property
    def memory(self) -> Memory:
        """What is remembered, for the next call.

        On a GPU, ask for it after the backward: then the host need not wait for the device.
        """
        return replace(self.frame, layers=self.settling.finish())

    @cached_property
    def logits(self) -> Tensor:
        """Logits [B, T, V], formed when first asked for."""
        return self.head(self.hidden)


class Transformer(nn.Module):
    """A decoder whose memory policy decides what it still remembers.

    Args:
        config: sizes and memory policy.
        inputs: maps what the task gives to states [B, T, D]; a token embedding by default.
        head: makes predictions from final states [B, T, D]; a linear layer by default. Training on
            token streams needs a `SequenceHead`. With `config.shortlist`, both are adaptive.
    """

    def __init__(
        self,
        config: TransformerConfig,
        inputs: nn.Module | None = None,
        head: nn.Module | None = None,
    ):
        super().__init__()
        self.config = config
        if config.shortlist is not None and (inputs is None) != (head is None):
            raise ValueError(
                "With a shortlist, input and head share their weights: give both of your own, or "
                "neither."
            )
        if config.shortlist is not None and inputs is None:
            inputs = AdaptiveInput(config.vocab, config.width, config.shortlist)
            head = AdaptiveHead(inputs)
        self.inputs = TokenInput(config.vocab, config.width) if inputs is None else inputs
        self.head = TokenHead(config.width, config.vocab) if head is None else head
        rows = config.memory.position_rows(config.block)
        self.positions = nn.Parameter(torch.randn(rows, config.head_width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.final_norm = LayerNorm(config.width) if config.norm == "pre" else nn.Identity()
        given = {"inputs.": inputs, "head.": head}
        self._initialise(own=tuple(name for name, port in given.items() if port is not None))

    def start(self, batch: int) -> Memory:
        """Memory of `batch` rows at the very start, on the model's device."""
        if batch < 1:
            raise ValueError(f"A memory needs at least 1 row, but batch is {batch}.")
        like = self.positions.detach().new_zeros(batch, 0, self.config.width)
        zeros = self.config.start == "zeros"
        fresh = -NEVER if zeros else 0
        return Memory(
            layers=tuple(layer.keeper.start(like, zeros) for layer in self.stack()),
            origin=torch.full((batch,), fresh, dtype=torch.int64, device=like.device),
            clock=0,
            fresh_origin=fresh,
            made_for=self._memory_kind(),
        )

    def restore_memory(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> Memory:
        """The memory whose `tensors()` and `about()` these were, on the model's device."""
        if about.get("made_for") != self._memory_kind():
            raise ValueError(
                f"This is memory of another model ({about.get('made_for', 'unknown')}), "
                f"but this one is {self._memory_kind()}."
            )
        return replace(self.start(about["batch"]).like(tensors), clock=about["clock"])

    def load_memory(self, path: str | Path) -> Memory:
        """Read what `Memory.save` wrote, onto the model's device."""
        try:
            opened = safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ValueError(f"{path} is not a memory that was saved: {error}.") from error
        with opened as file:
            about = json.loads((file.metadata() or {}).get("memory", "{}"))
            # Copied to where PyTorch puts tensors: a file's may begin at an odd address, by which
            # some CPUs group, and so round, their sums differently.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return self.restore_memory(tensors, about)

    def forward(
        self,
        tokens: Tensor,
        memory: Memory,
        starts: Tensor | None = None,
        limit: int | Tensor | None = None,
        generator: torch.Generator | None = None,
        attached: bool = True,
    ) -> Step:
        """Read the next steps of every row.

        Args:
            tokens: int64 [B, T], T at most the block length (or what the input module takes).
            memory: what the previous call returned, or `start(batch)`.
            starts: bool [B, T], true where an episode begins: from there on, nothing earlier in the
                row is seen, counted or charged.
            limit: distance beyond which nothing is seen in this call; nothing is deleted for it. A
                tensor, int64 without axes, stands for what `draw_limit` gave: no other is drawn.
            generator: CPU source of the draws that shape memory in training (random shortening,
                LayerDrop); PyTorch's default if None.
            attached: whether gradients can flow from the returned memory into this call. Training
                that cuts them anyway saves time and memory by saying so here.
        """
        self._check(tokens, memory, starts, limit)
        window = Window(
            length=tokens.shape[1],
            clock=memory.clock % self.config.memory.period(),
            origin=memory.origin,
            starts=starts,
            limit=self._limit(limit, generator),
        )
        states = self._at_edge(self.inputs(tokens))
        steps = self._through_layers(states, memory, window, self._dropped(generator), attached)
        states = steps[-1].states
        settling = Settling.of([step.kept for step in steps])
        live, mean_span, max_span = torch.stack([step.stats for step in steps], dim=1).unbind()
        # A graph that is being captured has nothing to send yet: whoever replays it does that.
        capturing = states.is_cuda and torch.cuda.is_current_stream_capturing()
        return Step(
            hidden=self._at_edge(self.final_norm(states)),
            penalty=torch.stack([step.penalty for step in steps]).sum(),
            stats=MemoryStats(live, settling.held(live), mean_span, max_span),
            deadlines=tuple(step.deadlines for step in steps),
            spans=tuple(step.spans for step in steps),
            head=self.head,
            settling=settling if capturing else settling.begin(),
            frame=replace(
                memory,
                layers=(),
                origin=window.next_origin(),
                clock=memory.clock + window.length,
            ),
        )

    def stack(self) -> list[Layer]:
        """The layers, first to last."""
        return cast(list[Layer], list(self.layers))

    def filled(self, memory: Memory) -> bool:
        """Whether a stream has gone on for long enough for one compiled graph to serve the rest."""
        return memory.clock >= self.config.memory.steps_to_fill(self.config.block)

    def sequence_head(self) -> SequenceHead:
        """The head, if it predicts tokens."""
        if not isinstance(self.head, SequenceHead):
            raise ValueError(
                f"Token streams need a SequenceHead, but this model has a "
                f"{type(self.head).__name__}."
            )
        return self.head

    def replayable(self) -> bool:
        """Whether the kernels of a training step are the same for the same shapes.

        Not if layers are dropped, which is drawn on the host, nor with an adaptive softmax, which
        counts there how many words of each kind there are, nor with attention that is not fused,
        which asks there how long rows are.
        """
        fused = self._implementation() == "fused"
        return fused and self.config.layer_drop == 0 and self.config.shortlist is None

    def compile_layers(self) -> None:
        """Compile the layers for learning, each as one graph, which all share however memory grows.

        Two, if there are blocks in which no row has anything far. What is only judged runs
        uncompiled: it is read once, and every number of rows and every short last block would have
        to be compiled for. So do the first blocks of a stream, whose sizes come only once.

        Only fused attention can be part of a graph: others ask for sizes that live on the device.
        With them nothing is compiled.
        """
        if self._implementation() != "fused":
            return
        # The gradient of a norm's weights, if that norm is of memory, whose size may be a symbol:
        # PyTorch 2.11 fuses it into code that forgets the brackets around the size (2.13 does not).
        options = {"triton.mix_order_reduction": False} if self.config.norm == "pre" else None
        for layer in self.stack():
            layer.compile(
                fullgraph=True, dynamic=self.config.memory.symbolic_sizes(), options=options
            )

    def clamp_parameters(self) -> None:
        """Bring learned spans back into their range; call it after each optimiser update."""
        for layer in self.stack():
            layer.keeper.clamp_parameters()

    def _through_layers(
        self,
        states: Tensor,
        memory: Memory,
        window: Window,
        dropped: list[bool],
        attached: bool,
    ) -> list[LayerStep]:
        """What each layer gives, from the states [B, T, D] that the first one is given."""
        steps: list[LayerStep] = []
        impl = self._implementation()
        worth_compiling = torch.is_grad_enabled() and self.filled(memory)
        for layer, layer_memory, skip in zip(self.stack(), memory.layers, dropped, strict=True):
            compiled = worth_compiling and layer._compiled_call_impl is not None
            if compiled:
                _tell_compiler(states, layer_memory)
            read = layer if compiled else layer._call_impl
            steps.append(read(states, layer_memory, window, self.positions, impl, skip, attached))
            states = steps[-1].states
        return steps

    def _at_edge(self, states: Tensor) -> Tensor:
        """Dropout before the first layer and after the last."""
        return F.dropout(states, self.config.edge_dropout, self.training)

    def draw_limit(self, generator: torch.Generator | None = None) -> int | None:
        """The random distance at which one training step cuts all spans, if the policy does so."""
        return self.config.memory.draw_limit(generator) if self.training else None

    def _limit(
        self, limit: int | Tensor | None, generator: torch.Generator | None
    ) -> int | Tensor | None:
        if isinstance(limit, Tensor):
            return limit
        drawn = self.draw_limit(generator)
        given = [one for one in (limit, drawn) if one is not None]
        return min(given) if given else None

    def _implementation(self) -> str:
        """Which span attention computes this call, by device and type."""
        device, dtype = self.positions.device, self.positions.dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        return choose(self.config.attention, device, dtype, self.config.head_width)

    def _dropped(self, generator: torch.Generator | None) -> list[bool]:
        """Which layers this training step skips."""
        if not self.training or self.config.layer_drop == 0:
            return [False] * self.config.layers
        draws = torch.rand(self.config.layers, generator=generator)
        return (draws < self.config.layer_drop).tolist()

    def _memory_kind(self) -> str:
        """What a memory must have been made for to be readable here."""
        config = self.config
        return (
            f"{config.memory.stored()}, {config.layers} layers, width {config.width}, "
            f"block {config.block}, start {config.start}"
        )

    def _check(
        self, tokens: Tensor, memory: Memory, starts: Tensor | None, limit: int | Tensor | None
    ) -> None:
        if not isinstance(memory, Memory):
            raise ValueError(
                f"The second argument is a memory, such as step.memory or model.start(batch), but "
                f"got {type(memory).__name__}."
            )
        for name, given in (("tokens", tokens), ("starts", starts)):
            if given is not None and not isinstance(given, Tensor):
                raise ValueError(f"{name} must be a tensor, but got {type(given).__name__}.")
        if tokens.ndim < 2:
            raise ValueError(f"tokens must be [rows, steps], but have shape {[*tokens.shape]}.")
        batch, length = tokens.shape[:2]
        if not 1 <= length <= self.config.block:
            raise ValueError(
                f"A call reads 1 to {self.config.block} steps (the block length), but got {length}."
            )
        if memory.made_for != self._memory_kind():
            raise ValueError(
                f"This memory belongs to another model ({memory.made_for}), but this one is "
                f"{self._memory_kind()}: begin with model.start(batch)."
            )
        if memory.batch != batch:
            raise ValueError(
                f"This memory has {memory.batch} rows, but the tokens have {batch}: "
                f"begin with model.start({batch})."
            )
        if tokens.device != self.positions.device:
            raise ValueError(
                f"The model is on {self.positions.device}, but the tokens are on {tokens.device}: "
                f"move them to the model's device."
            )
        if memory.origin.device != tokens.device:
            raise ValueError(
                f"This memory is on {memory.origin.device}, but the tokens are on {tokens.device}: "
                f"move it with memory.to({str(tokens.device)!r})."
            )
        a_number = limit is not None and not isinstance(limit, Tensor)
        if a_number and (not isinstance(limit, int) or limit < 0):
            raise ValueError(f"limit is a whole distance of at least 0, but is {limit}.")
        if starts is None:
            return
        if starts.shape != (batch, length) or starts.dtype != torch.bool:
            raise ValueError(
                f"starts must be a bool tensor of shape {[batch, length]}, "
                f"but is {starts.dtype} of shape {[*starts.shape]}."
            )
        if self.config.start == "zeros":
            raise ValueError(
                "Episodes inside a block need a model with start='empty': zero states cannot be "
                "put between two steps of a block; use memory.reset(rows) between calls instead."
            )

    @torch.no_grad()
    def _initialise(self, own: tuple[str, ...]) -> None:
        """Weights as the configuration says; span predictors and given ports keep their own."""
        last_projections = [
            linear
            for layer in self.stack()
            for linear in (layer.attention.out, layer.feedforward.outer)
        ]
        if self.config.init == "glorot":
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2 and not name.startswith(own) and ".keeper." not in name:
                    nn.init.xavier_uniform_(parameter)
        if self.config.norm == "pre":
            # Keeps the residual stream's variance from growing with depth.
            for linear in last_projections:
                for parameter in linear.parameters():
                    parameter.div_((2 * self.config.layers) ** 0.5)


def _tell_compiler(states: Tensor, memory: LayerMemory) -> None:
    """Which sizes change and which do not, so that it need not find out by compiling again."""
    torch._dynamo.mark_static(states, 0)
    for tensor, axis in memory.growing():
        if tensor.shape[axis] > 1:  # none and one are cases of their own to it
            torch._dynamo.maybe_mark_dynamic(tensor, axis)
