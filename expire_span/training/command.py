"""What the commands that train have in common, whatever they train."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

OTHER_MEMORY = """For another memory, end with model.memory:fixed-span, model.memory:adaptive-span,
model.memory:compressive or model.memory:expire-span and its options; --help after it lists them."""

TRAIN_ARGUMENTS = """Args:
    experiment: what to train.
    out: folder for metrics and checkpoints.
    resume: go on from the newest checkpoint in that folder.
"""


def out_folder(options: Sequence[str], name: str) -> Path:
    """The folder that these options of `train NAME` choose."""
    words = [word for option in options for word in option.split("=", 1)]
    return Path(dict(pairwise(words)).get("--out", f"runs/{name}"))


def parser_settings(arguments: Sequence[str]) -> tuple[Any, ...]:
    """Options of the experiment's own memory policy, unless another one is asked for by name."""
    if any(argument.startswith("model.memory:") for argument in arguments):
        return (tyro.conf.CascadeSubcommandArgs,)
    return (tyro.conf.CascadeSubcommandArgs, tyro.conf.AvoidSubcommands)


def print_result(result: dict[str, Any]) -> None:
    """JSON with as many digits as mean something."""
    rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in result.items()}
    print(json.dumps(rounded, indent=2), flush=True)
