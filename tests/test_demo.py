"""The demo runs, draws, and admits it when its claim fails."""

import pytest

from expire_span.demo import Result, _verdict, demo


def test_a_picture_that_cannot_be_drawn_is_refused_before_all_the_work(tmp_path):
    with pytest.raises(ValueError, match=r"^ending must be one of .*\.png.*, but is '\.xyz'\.$"):
        demo(tmp_path / "demo.xyz")


def test_demo_prints_a_table_and_draws_a_picture(tmp_path, capsys):
    demo(out=tmp_path / "new" / "kept.png", steps=2)
    printed = capsys.readouterr().out
    for column in ("accuracy", "live/layer", "held/layer", "seconds"):
        assert column in printed
    assert "FAILED" in printed  # two steps teach nobody anything
    assert (tmp_path / "new" / "kept.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("accuracy", "live", "holds"),
    [(0.99, 10.0, True), (0.97, 10.0, False), (1.0, 60.0, False)],
)
def test_the_claim_is_held_against_the_numbers(accuracy, live, holds):
    long = Result("long", 1.0, 128.0, 128.0, 1.0)
    verdict = _verdict(Result("expire", accuracy, live, 32.0, 1.0), long)
    assert ("FAILED" not in verdict) is holds
    assert f"{accuracy:.1%}" in verdict
