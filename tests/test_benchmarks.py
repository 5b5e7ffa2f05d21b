"""Benchmarks that share a GPU: prepared side by side, timed one by one."""

import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

WORKER = """
import sys, time
sys.path.insert(0, {benchmarks!r})
from turns import my_turn
def note(word):
    with open({notes!r}, "a") as file:
        file.write({name!r} + " " + word + "\\n")
note("prepared")
my_turn()
note("begins")
time.sleep(0.2)
note("ends")
sys.exit({status})
"""


def test_all_are_prepared_before_the_first_is_timed_and_none_beside_another(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from turns import take_turns

    notes, turns = tmp_path / "notes", tmp_path / "turns"
    turns.mkdir()
    about = {"benchmarks": str(BENCHMARKS), "notes": str(notes)}
    commands = {
        name: [sys.executable, "-c", WORKER.format(name=name, status=status, **about)]
        for name, status in (("one", 0), ("two", 3), ("three", 0))
    }
    commands["dead"] = [sys.executable, "-c", "raise SystemExit(5)"]
    exits = take_turns(commands, turns, tmp_path)
    assert exits == {"one": 0, "two": 3, "three": 0, "dead": 5}
    found = notes.read_text().splitlines()
    assert sorted(found[:3]) == ["one prepared", "three prepared", "two prepared"]
    order = [f"{name} {word}" for name in ("one", "two", "three") for word in ("begins", "ends")]
    assert found[3:] == order
