"""How a stream is represented: a Transformer and its memory; knows no task and no optimiser."""
