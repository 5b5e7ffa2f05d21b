"""Kernels compile for a GPU, on a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="kernels need Triton")

SCRIPT = Path(__file__).with_name("compile_kernels.py")
KERNELS = {
    "span_lists_kernel",
    "span_scores_kernel",
    "span_fwd_kernel",
    "span_step_kernel",
    "span_delta_kernel",
    "span_bwd_q_kernel",
    "span_bwd_kv_kernel",
    "span_bwd_scores_kernel",
    "span_bwd_table_kernel",
    "span_sum_table_kernel",
    "take_rows_kernel",
    "finish_kernel",
    "norm_kernel",
    "norm_backward_kernel",
    "relu_backward_kernel",
    "weighted_sum_kernel",
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_kernel_compiles_for_a_gpu(dtype: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), dtype], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {line.split()[0] for line in done.stdout.splitlines()} == KERNELS
