"""Transformers that learn what to forget: Expire-Span and its baselines on one base model."""

from pathlib import Path

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, Memory
from expire_span.model.original import load_original
from expire_span.model.transformer import MemoryStats, Step, Transformer

__all__ = [
    "AdaptiveSpan",
    "Compressive",
    "ExpireSpan",
    "FixedSpan",
    "Memory",
    "MemoryStats",
    "Step",
    "Transformer",
    "TransformerConfig",
    "load",
    "load_original",
]

__version__ = "0.1.0"


def load(run: str | Path, device: str = "auto") -> Transformer:
    """The model of a run or a release, an agent's too, ready to read.

    Args:
        run: folder that `train` or `release` wrote.
        device: auto, cpu, cuda ...
    """
    # Imported when asked for: a model alone needs nothing of training.
    from expire_span.agent.run import is_agent, load_agent
    from expire_span.training.folder import load_run

    folder = Path(run)
    return load_agent(folder, device)[1] if is_agent(folder) else load_run(folder, device)[1]
