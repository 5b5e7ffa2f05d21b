"""Tensors in a file are like any other file."""

import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from expire_span.tensors import save_tensors

SOME = {"a": torch.arange(6.0).view(2, 3).T}  # not contiguous


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_others_may_read_them_if_they_may_read_new_files(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    before = os.umask(0o026)
    try:
        save_tensors(SOME, path, {"of": "mine"})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert torch.equal(load_file(path)["a"], SOME["a"])
    path.chmod(0o664)
    save_tensors(SOME, path)
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_full_disk_is_an_error_like_any_other_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("No space left on device")

    monkeypatch.setattr("expire_span.tensors.save_file", fail)
    with pytest.raises(OSError, match="No space left"):
        save_tensors(SOME, tmp_path / "some.safetensors")
    assert list(tmp_path.iterdir()) == []
