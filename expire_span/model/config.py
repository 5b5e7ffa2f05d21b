"""Everything that defines a Transformer, in one frozen dataclass."""

from dataclasses import dataclass
from typing import Literal, get_args

from expire_span.checks import require_at_least, require_one_of
from expire_span.model.memory import AnyMemory, MemoryPolicy
from expire_span.model.ops.span_attention import AUTOMATIC, IMPLEMENTATIONS

Norm = Literal["post", "pre"]
Start = Literal["empty", "zeros"]
Init = Literal["torch", "glorot"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of a decoder, and the memory it reads the past through."""

    vocab: int
    """Number of different tokens."""
    layers: int
    """Number of layers."""
    width: int
    """Width of a state (D)."""
    heads: int
    """Attention heads; they divide the width."""
    feedforward: int
    """Hidden width of the feed-forward sublayer."""
    block: int
    """Most tokens read in one call (K)."""
    memory: AnyMemory
    """How the past is remembered."""
    norm: Norm = "post"
    """Whether layer norm follows each sublayer's sum or precedes the sublayer."""
    dropout: float = 0.0
    """Dropout on attention weights and on the feed-forward's hidden layer."""
    edge_dropout: float = 0.0
    """Dropout on what comes in from the embedding and on what the last layer gives."""
    layer_drop: float = 0.0
    """Probability that a training step skips a layer (its memory is still written)."""
    start: Start = "empty"
    """What a row remembers at first: nothing, or zero states, as the original release has it."""
    init: Init = "torch"
    """Linear layers as PyTorch draws them, or Glorot uniform for all matrices."""
    shortlist: int | None = None
    """Most frequent tokens in an adaptive input and softmax; None: all tokens are alike."""
    attention: str = AUTOMATIC
    """Which implementation of span attention computes it: auto, reference, fused or stock."""

    def __post_init__(self) -> None:
        require_at_least(
            1,
            vocab=self.vocab,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            feedforward=self.feedforward,
            block=self.block,
            shortlist=self.shortlist,
        )
        if self.width % self.heads:
            raise ValueError(
                f"heads must divide width, but {self.heads} does not divide {self.width}."
            )
        for name in ("dropout", "edge_dropout", "layer_drop"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is a probability from 0 to below 1, but is {getattr(self, name)}."
                )
        require_one_of(get_args(Norm), norm=self.norm)
        require_one_of(get_args(Start), start=self.start)
        require_one_of(get_args(Init), init=self.init)
        require_one_of((AUTOMATIC, *IMPLEMENTATIONS), attention=self.attention)
        if not isinstance(self.memory, MemoryPolicy):
            raise ValueError(
                f"memory must be a policy such as ExpireSpan(16384, 128), but is {self.memory!r}."
            )
        self.memory.check(self.block)

    @property
    def head_width(self) -> int:
        """Width of one head (E)."""
        return self.width // self.heads
