"""CUDA graphs: what the host launches is recorded once and then replayed with other numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def capture(
    function: Callable[[], Any], before: Callable[[], Any] = lambda: None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of what the function does, and what it returns: tensors that each replay rewrites.

    Recording runs nothing: until the first replay these tensors hold whatever was in memory.

    Libraries have room to work in for each stream, and what is recorded keeps that of the stream on
    which it was recorded. So that is the caller's own: graphs of agents that act and learn side by
    side, each on a stream, would otherwise write over each other's sums, or wait for ever. Only the
    default stream records nothing, and has another one do it.

    Args:
        function: run twice before it is recorded, so that libraries and compilers are ready.
        before: called before each of these runs, to put back what they have moved on.
    """
    mine = torch.cuda.current_stream()
    recording = torch.cuda.Stream() if mine == torch.cuda.default_stream() else mine
    recording.wait_stream(mine)
    with torch.cuda.stream(recording):
        for _ in range(2):
            before()
            function()
    mine.wait_stream(recording)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=recording):
        result = function()
    return graph, result


def copy_all(sources: dict[str, Tensor], targets: dict[str, Tensor]) -> None:
    """Copy each source over the target of the same name."""
    for name, target in targets.items():
        target.copy_(sources[name])
