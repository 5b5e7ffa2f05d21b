"""Locks keep others out, and let everyone in where there are none."""

import errno
import fcntl

import pytest

from expire_span.locks import claim


def test_only_one_holds_it(tmp_path):
    with claim(tmp_path / "lock") as first:
        assert first
        with claim(tmp_path / "lock", wait=False) as second:
            assert not second
    with claim(tmp_path / "lock", wait=False) as third:
        assert third


def test_where_a_file_system_has_no_locks_everyone_is_let_in(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with claim(tmp_path / "lock", wait=False) as mine:
        assert mine


def test_what_else_goes_wrong_is_raised(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output"), claim(tmp_path / "lock"):
        pass
