"""Tensors in a file."""

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(
    tensors: Mapping[str, Tensor], path: Path, about: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file like any other file.

    The library's own are for nobody but their owner to read, and where the disk is full it raises
    an error of its own kind.

    Args:
        tensors: by name.
        path: of the file.
        about: words to keep with them.
    """
    is_new = not path.exists()
    path.touch()
    mode = path.stat().st_mode
    try:
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, path, None if about is None else dict(about))
    except BaseException as error:
        if is_new:
            path.unlink(missing_ok=True)
        if isinstance(error, SafetensorError):
            raise OSError(str(error)) from error
        raise
    path.chmod(mode)
