"""Agents: the same Transformer and memory policies, acting and learning in grid worlds."""
