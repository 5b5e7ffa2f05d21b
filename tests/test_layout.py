"""The layout is the architecture: imports go one way, the README's tree is true, its code runs."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "expire_span"

# Each room, and the rooms it may import from besides itself.
MAY_IMPORT = {
    "chance": set(),
    "checks": set(),
    "locks": set(),
    "looks": set(),
    "state": set(),
    "tensors": set(),
    "model.ops": set(),
    "model.memory": {"checks", "state", "tensors", "model.ops"},
    "model": {"checks", "state", "model.ops", "model.memory"},
    "tasks": {"chance", "checks", "locks", "state"},
    "worlds": {"chance", "checks", "state"},
    "training": {
        "checks",
        "locks",
        "state",
        "tensors",
        "tasks",
        "model",
        "model.ops",
        "model.memory",
    },
    "agent": {
        "chance",
        "checks",
        "locks",
        "looks",
        "state",
        "worlds",
        "model",
        "model.ops",
        "model.memory",
        "training",
    },
    "experiments": {"tasks", "model", "model.memory", "training"},
    "analysis": {
        "checks",
        "looks",
        "tasks",
        "worlds",
        "model",
        "model.memory",
        "training",
        "agent",
        "experiments",
    },
    "serve": {"checks", "tasks", "analysis"},
}


def room_of(module: str) -> str | None:
    """The room that a module `expire_span.x.y` lives in; None for the top of the package."""
    parts = module.split(".")[1:]
    for length in (2, 1):
        if ".".join(parts[:length]) in MAY_IMPORT:
            return ".".join(parts[:length])
    return None


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path} has a relative import: write it out."
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("expire_span")}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


IN_A_ROOM = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(module_name(path))]


@pytest.mark.parametrize("path", IN_A_ROOM, ids=module_name)
def test_imports_go_one_way(path):
    room = room_of(module_name(path))
    for name in imported_modules(path):
        target = room_of(name)
        assert target == room or target in MAY_IMPORT[room], f"{room} must not import {name}"


def tree_in_readme() -> list[str]:
    """Paths in the README's tree, folders with a trailing slash."""
    block = re.search(r"```text\n(README.md.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    paths, stack = [], []
    for line in block.group(1).splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        stack[depth:] = [name]
        paths.append("".join(stack[: depth + 1]))
    return paths


def tracked() -> set[str]:
    """Files that belong to the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def test_everything_in_the_readme_tree_exists():
    for path in tree_in_readme():
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path


def test_every_module_is_in_the_readme_tree():
    named = set(tree_in_readme())
    wanted = {
        name
        for name in tracked()
        if name.startswith("expire_span/") and name.endswith(".py") and "__init__" not in name
    }
    wanted |= {f"{name.split('/')[0]}/" for name in tracked() if "/" in name and name[0] != "."}
    assert wanted - named == set()


@pytest.mark.parametrize(
    ("place", "made"),
    [
        (0, {"model", "memory", "step"}),
        (1, {"game", "state", "seen"}),
        (2, {"gymnasium"}),
        (3, {"agent", "memory", "step"}),
    ],
)
def test_the_examples_in_the_readme_run(place, made, monkeypatch):
    examples = re.findall(r"```py(?:thon)?\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 4
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(compile(examples[place], "README.md", "exec"), names)
    assert made <= names.keys()
    assert place != 3 or names["right"] > 0.9 * names["ended"] > 0


def test_no_file_names_a_path_of_somebodys_machine():
    homes = [rf"/{folder}/\w" for folder in ("home", "Users", "root")]
    somewhere = re.compile("|".join([re.escape(f"{ROOT.parent}/"), *homes]))
    for name in tracked():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".txt", ".yml", ""} and path.is_file():
            assert not somewhere.search(path.read_text(errors="ignore")), name
