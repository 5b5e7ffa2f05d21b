"""The type in which sums and exponentials are computed, whatever type their numbers have."""

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> torch.dtype:
    """The type of a tensor, or float32 if that says more."""
    return torch.promote_types(tensor.dtype, torch.float32)
