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

    Args:
        function: run twice before it is recorded, so that libraries and compilers are ready.
        before: called before each of these runs, to put back what they have moved on.
    """
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):
            before()
            function()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def copy_all(sources: dict[str, Tensor], targets: dict[str, Tensor]) -> None:
    """Copy each source over the target of the same name."""
    for name, target in targets.items():
        target.copy_(sources[name])
