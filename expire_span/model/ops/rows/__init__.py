"""Rows out of two tables as if one stood after the other, without joining them first.

Shapes: M rows of the first table, B x N rows of the second, R rows wanted, D width.
"""

import torch
from torch import Tensor

from expire_span.model.ops.found import has_triton


def take_rows(first: Tensor, second: Tensor, index: Tensor) -> Tensor:
    """Rows [R, D] of `first` [M, D], and from number M on of `second` [B, N, D].

    On a GPU by one kernel, if no gradient is asked for.
    """
    learned = torch.is_grad_enabled() and (first.requires_grad or second.requires_grad)
    fast = index.is_cuda and not learned and has_triton()
    return (fused_take_rows if fast else reference_take_rows)(first, second, index)


def reference_take_rows(first: Tensor, second: Tensor, index: Tensor) -> Tensor:
    """The same by joining them."""
    return torch.cat([first, second.flatten(0, 1)])[index]


def fused_take_rows(first: Tensor, second: Tensor, index: Tensor) -> Tensor:
    """The same by a kernel that reads only what is wanted."""
    from expire_span.model.ops.rows.kernels import take_rows_kernel

    out = first.new_empty(len(index), first.shape[1])
    if not out.numel():
        return out
    rows, width = 16, first.shape[1]
    take_rows_kernel[(-(-len(index) // rows),)](
        first, second, index, out, len(index), len(first), max(second.shape[1], 1),
        first.stride(0), *second.stride()[:2], width, BR=rows, BD=1 << (width - 1).bit_length(),
    )  # fmt: skip
    return out
