"""What can be used here."""

from functools import cache
from importlib.util import find_spec


@cache
def has_triton() -> bool:
    """Whether kernels can be compiled."""
    return find_spec("triton") is not None
