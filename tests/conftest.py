"""What every test runs under: fixed seeds, one thread, and NaN in memory nobody has written yet."""

import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import settings

settings.register_profile(
    "repeatable", derandomize=True, database=None, deadline=None, max_examples=50
)
settings.load_profile("repeatable")
torch.set_num_threads(1)  # pytest-xdist already uses every core
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when anything first imports Triton


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fill what `torch.empty` and its like return with NaN, so that reading it is noticed."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = filled
