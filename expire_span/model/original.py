"""Reads checkpoints of the original release (facebookresearch/transformer-sequential).

Only tensors are loaded, never code. The file says how many layers there are and how wide they are;
what it does not say (heads, the memory policy, the block length) are arguments.

Shapes
    L maximum span, K block, C compressed slots, E head width, P position columns
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import AdaptiveSpan, AnyMemory, ExpireSpan
from expire_span.model.transformer import Transformer

# Names within a layer of the original, and ours. Linear maps and norms are stored alike.
LAYER_NAMES = {
    "attn.proj_query.weight": "attention.query.weight",
    "attn.proj_key.weight": "attention.key.weight",
    "attn.proj_val.weight": "attention.value.weight",
    "attn.proj_out.weight": "attention.out.weight",
    "ff.fc1.weight": "feedforward.inner.weight",
    "ff.fc1.bias": "feedforward.inner.bias",
    "ff.fc2.weight": "feedforward.outer.weight",
    "ff.fc2.bias": "feedforward.outer.bias",
    "norm1.weight": "attention_norm.weight",
    "norm1.bias": "attention_norm.bias",
    "norm2.weight": "feedforward_norm.weight",
    "norm2.bias": "feedforward_norm.bias",
}
EXPIRE_NAMES = {
    "attn.attn.expire_span.span_predictor.weight": "keeper.predictor.weight",
    "attn.attn.expire_span.span_predictor.bias": "keeper.predictor.bias",
}
ADAPTIVE_NAMES = {"attn.attn.adaptive_span.mask.size_ratio": "keeper.ratio"}
MODEL_NAMES = {
    "in_emb.weight": "inputs.embedding.weight",
    "out.out_emb.weight": "head.linear.weight",
    "out.out_emb.bias": "head.linear.bias",
}
PRE_NORM_NAMES = {"out_norm.weight": "final_norm.weight", "out_norm.bias": "final_norm.bias"}
POSITIONS = "attn.attn.key_pe"
BUFFERS = ("mask_causal", "mask_template")  # derived from the settings; they carry no information


def load_original(
    path: str | Path, *, heads: int, memory: AnyMemory, block: int | None = None
) -> Transformer:
    """A model that computes what the original computed, from one of its checkpoints.

    Args:
        path: the checkpoint file.
        heads: attention heads of the original model.
        memory: its memory policy, with its settings. The original's `pre_div` is `divisor` here.
            Its compressive model counts `compress_size` in steps; `compressed` counts slots.
        block: its block length (`mem_sz`). Not needed for Expire-Span, whose position table has
            one column per step of the block.
    """
    tensors = _read(path)
    config = _config(path, tensors, heads, memory, block)
    model = Transformer(config)
    names = original_names(config)
    found = {
        ours: _translate(theirs, tensors[theirs], config)
        for theirs, ours in names.items()
        if theirs in tensors
    }
    shapes = {name: parameter.shape for name, parameter in model.state_dict().items()}
    _check(path, tensors, names, found, shapes)
    model.load_state_dict(found)
    return model


def original_names(config: TransformerConfig) -> dict[str, str]:
    """Name of each tensor in the original's files (less `module.`), and our name for it."""
    in_layer = dict(LAYER_NAMES)
    if isinstance(config.memory, ExpireSpan):
        in_layer |= EXPIRE_NAMES
    if isinstance(config.memory, AdaptiveSpan):
        in_layer |= ADAPTIVE_NAMES
    names = MODEL_NAMES | (PRE_NORM_NAMES if config.norm == "pre" else {})
    for n in range(config.layers):
        prefix = f"layers.{n}."
        names |= {prefix + theirs: prefix + ours for theirs, ours in in_layer.items()}
        names[prefix + POSITIONS] = "positions"  # the same tensor in every layer
    return names


def _read(path: str | Path) -> dict[str, Tensor]:
    """The tensors under `model`, by their names without `module.`."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"There is no checkpoint at {path}: check the path.") from None
    except Exception as error:
        raise ValueError(
            f"{path} is not a checkpoint that can be read without running code from it "
            f"({type(error).__name__})."
        ) from error
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not all(isinstance(t, Tensor) for t in model.values()):
        raise ValueError(f"{path} is not a checkpoint of the original: it has no 'model' tensors.")
    return {name.removeprefix("module."): tensor for name, tensor in model.items()}


def _config(
    path: str | Path, tensors: dict[str, Tensor], heads: int, memory: AnyMemory, block: int | None
) -> TransformerConfig:
    """Sizes from the shapes in the file, the rest from the caller."""
    embedding, inner = "in_emb.weight", "layers.0.ff.fc1.weight"
    positions = f"layers.0.{POSITIONS}"
    missing = [name for name in (embedding, inner, positions) if name not in tensors]
    if missing:
        raise ValueError(f"{path} is not a checkpoint of the original: no {', '.join(missing)}.")
    if block is None:
        if not isinstance(memory, ExpireSpan):
            raise ValueError(
                f"The file does not say how long a block of a {type(memory).__name__} model is: "
                "pass block=."
            )
        block = tensors[positions].shape[-1]
    vocab, width = tensors[embedding].shape
    return TransformerConfig(
        vocab=vocab,
        layers=len({name.split(".")[1] for name in tensors if name.startswith("layers.")}),
        width=width,
        heads=heads,
        feedforward=len(tensors[inner]),
        block=block,
        memory=memory,
        norm="pre" if "out_norm.weight" in tensors else "post",
        start="zeros",
    )


def _translate(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    """The original's tensor as ours holds the same numbers."""
    if name.endswith(POSITIONS):
        # [1, E, P], whose last column is distance 1 -> [P, E], whose first row is.
        return tensor.squeeze(0).flip(-1).T
    if name.endswith("size_ratio"):
        # [H, 1, 1], or [1] where the heads of a layer share one span.
        return tensor.flatten().expand(config.heads) if tensor.numel() == 1 else tensor.flatten()
    if name.endswith("span_predictor.bias") and isinstance(config.memory, ExpireSpan):
        # The original divides the state by `pre_div`, but not the bias.
        return tensor * config.memory.divisor
    return tensor


def _check(
    path: str | Path,
    tensors: dict[str, Tensor],
    names: dict[str, str],
    found: dict[str, Tensor],
    shapes: dict[str, torch.Size],
) -> None:
    """Raise ValueError with every name that is unknown, missing or misshapen."""
    unknown = [n for n in tensors if n not in names and not n.endswith(BUFFERS)]
    missing = [theirs for theirs in names if theirs not in tensors]
    misshapen = [
        f"{theirs} (holds {[*tensors[theirs].shape]}, which is {[*found[ours].shape]} here, "
        f"but the settings ask for {[*shapes[ours]]})"
        for theirs, ours in names.items()
        if theirs in tensors and found[ours].shape != shapes[ours]
    ]
    tables = [tensors[n] for n in names if n.endswith(POSITIONS) and n in tensors]
    uneven = [] if all(torch.equal(tables[0], t) for t in tables) else [POSITIONS]
    kinds = {
        "unknown": unknown,
        "missing": missing,
        "misshapen": misshapen,
        "not the same in every layer": uneven,
    }
    complaints = [f"{kind}: {', '.join(which)}" for kind, which in kinds.items() if which]
    if complaints:
        raise ValueError(f"{path} does not fit these settings; {'; '.join(complaints)}.")
