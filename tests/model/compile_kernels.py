"""Compile every kernel that training and acting launch, for an NVIDIA H100 or H200, without a GPU.

    python tests/model/compile_kernels.py float32|bfloat16

Attention runs on CPU tensors, but instead of being launched each kernel is compiled down to machine
code. That finds what Triton's interpreter lets pass. Prints a line for each kernel.

Run by `test_kernels_compile.py` in a process of its own: a process either interprets or compiles.
"""

import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from expire_span.model.ops.finish import LayerEnd, finish_layer
from expire_span.model.ops.finish import kernels as finish_kernels
from expire_span.model.ops.norm import FusedNorm
from expire_span.model.ops.norm import kernels as norm_kernels
from expire_span.model.ops.relu import fused_relu_backward
from expire_span.model.ops.relu import kernels as relu_kernels
from expire_span.model.ops.rows import fused_take_rows
from expire_span.model.ops.rows import kernels as row_kernels
from expire_span.model.ops.score import fused_weighted_sum
from expire_span.model.ops.score import kernels as score_kernels
from expire_span.model.ops.span_attention import KeySet, Visibility, fused, kernels, step_kernel

HOPPER = GPUTarget("cuda", 90, 32)
NAMES = {
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.int32: "i32",
    torch.int64: "i64",
}


class Compiled:
    """Stands in for a kernel: what would launch it compiles it."""

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __getitem__(self, grid: object) -> "Compiled":
        return self

    def __call__(self, *args: Any, num_warps: int = 4, num_stages: int = 3, **named: Any) -> None:
        given = dict(zip(self.kernel.arg_names, args, strict=False)) | named
        fixed = {p.num: given[p.name] for p in self.kernel.params if p.is_constexpr}
        signature = {
            p.name: "constexpr" if p.is_constexpr else type_of(given[p.name])
            for p in self.kernel.params
        }
        source = ASTSource(self.kernel, signature, {(n,): value for n, value in fixed.items()})
        options = {"num_warps": num_warps, "num_stages": num_stages}
        found = triton.compile(source, target=HOPPER, options=options)
        assert found.asm["cubin"]
        print(self.kernel.__name__, list(fixed.values()))


def type_of(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return "*" + NAMES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


class AllCompiled:
    """Stands in for a module of kernels."""

    def __init__(self, module: Any):
        self.module = module

    def __getattr__(self, name: str) -> Compiled:
        return Compiled(getattr(self.module, name))


def attend(dtype: torch.dtype, dropout: float, length: int, width: int) -> None:
    """So many queries, near keys with positions and far keys, both fading, forward and backward."""

    def learned(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype).requires_grad_()

    times = torch.arange(-64, 64)
    near = KeySet(
        learned(2, 128, 2, width),
        learned(2, 128, 2, width),
        Visibility((times + 1)[None, None], torch.full((1, 1, 128), 99), begin=-64),
        torch.rand(2, 1, 128).requires_grad_(),
        learned(64, width),
    )
    far = KeySet(
        learned(50, 2, width),
        learned(50, 2, width),
        Visibility(
            torch.full((50,), -99), torch.full((50,), 99), offsets=torch.tensor([0, 20, 50])
        ),
        torch.rand(50).requires_grad_(),
    )
    out = fused.fused_attention(learned(2, length, 2, width), [near, far], ramp=8, dropout=dropout)
    out.sum().backward()


def main() -> None:
    dtype = getattr(torch, sys.argv[1])
    module = AllCompiled(kernels)
    fused._kernels = lambda: module  # type: ignore[assignment]
    fused._check_device = lambda queries: None
    fused._step_kernel = lambda: Compiled(step_kernel.span_step_kernel)  # type: ignore[assignment]
    for length, width in ((1, 64), (64, 64), (1, 16)):
        attend(dtype, dropout=0.3, length=length, width=width)
    row_kernels.take_rows_kernel = Compiled(row_kernels.take_rows_kernel)
    fused_take_rows(
        torch.ones(4, 8, dtype=dtype), torch.ones(2, 3, 8, dtype=dtype), torch.ones(5).long()
    )
    relu_kernels.relu_backward_kernel = Compiled(relu_kernels.relu_backward_kernel)
    fused_relu_backward(torch.ones(4, 512, dtype=dtype), torch.ones(4, 512, dtype=dtype), 0.7)
    finish_kernels.finish_kernel = Compiled(finish_kernels.finish_kernel)
    square, norm, inner = torch.ones(64, 64), torch.ones(64), torch.ones(256, 64)
    end = LayerEnd(square, norm, norm, norm, norm, inner, torch.ones(256), inner.T, norm)
    for pre_norm in (True, False):
        finish_layer(torch.ones(4, 64), torch.ones(4, 64), end, pre_norm=pre_norm, epsilon=1e-5)
    norm_kernels.norm_kernel = Compiled(norm_kernels.norm_kernel)
    norm_kernels.norm_backward_kernel = Compiled(norm_kernels.norm_backward_kernel)
    FusedNorm.apply(torch.ones(4, 64, requires_grad=True), norm, norm, 1e-5).sum().backward()
    score_kernels.weighted_sum_kernel = Compiled(score_kernels.weighted_sum_kernel)
    fused_weighted_sum(torch.ones(4, 512, dtype=dtype), torch.ones(4))


if __name__ == "__main__":
    main()
