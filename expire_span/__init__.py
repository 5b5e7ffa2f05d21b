"""Transformers that learn what to forget: Expire-Span and its baselines on one base model."""

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
    "load_original",
]
