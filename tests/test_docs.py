"""Every command that the pages give is one that the command line takes."""

import re
import shlex
from functools import wraps
from pathlib import Path

import pytest

from expire_span import cli
from expire_span.agent import commands as agent_commands

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "REPRODUCE.md", "examples/README.md", "docs/analysis.md", "docs/training.md"]
STANDS_FOR = {"NAME": "copy", "N": "1"}  # RUN, FILE and the like may be called so


def commands_of(page: str) -> list[str]:
    """The commands in blocks and between backticks; none cut short, only named, or with --help."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    found = re.findall(r"^ *(expire-span .+)$", text, re.MULTILINE)
    found += re.findall(r"`(expire-span [^`]+)`", text)
    bare = {"demo", "list"}  # those that need no more words
    return [
        one
        for one in dict.fromkeys(found)
        if not re.search(r"\.\.\.|--help", one) and (len(words(one)) > 1 or words(one)[0] in bare)
    ]


def words(command: str) -> list[str]:
    """What follows `expire-span`, without the comment."""
    return [STANDS_FOR.get(word, word) for word in shlex.split(command, comments=True)[1:]]


@pytest.fixture
def asked(monkeypatch):
    """What the command line is asked to do, and does not do here."""
    done = list[str]()

    def instead_of(function):
        @wraps(function)
        def only_noted(*_, **__):
            done.append(function.__name__)
            return {}

        return only_noted

    monkeypatch.setattr(cli, "train_experiment", instead_of(cli.train_experiment))
    for name in ("train_agent", "evaluate", "watch", "sweep"):
        monkeypatch.setattr(agent_commands, name, instead_of(getattr(agent_commands, name)))
    for commands in (cli.COMMANDS, cli.ANALYSES):
        for name, command in commands.items():
            monkeypatch.setitem(commands, name, instead_of(command))
    monkeypatch.chdir(ROOT)
    return done


@pytest.mark.parametrize("command", [one for page in PAGES for one in commands_of(page)])
def test_a_documented_command_is_understood(command, asked):
    cli.main(words(command))
    assert len(asked) == 1


def test_a_mistaken_command_is_not(asked):
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "copy", "--scales", "single"])
    assert stop.value.code == 2
    assert not asked
