"""What the commands that train have in common, whatever they train."""

import json
import logging
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import tyro

from expire_span.checks import require_one_of
from expire_span.model.config import TransformerConfig
from expire_span.training.distributed import choose_device
from expire_span.training.experiment import Scale

Run = TypeVar("Run")

WITH_WORDS = ("--out", "--device", "--task.path", "--task.field", "--task.tokenizer")
"""Options whose value may be any word, that of a scale too."""

SCALE_HELP = "`train NAME smoke`, `train NAME single` and `train NAME paper` differ in scale."

OTHER_MEMORY = """For another memory, end with model.memory:fixed-span, model.memory:adaptive-span,
model.memory:compressive or model.memory:expire-span and its options; --help after it lists them."""

TRAIN_ARGUMENTS = """Args:
    experiment: what to train.
    out: folder for metrics and checkpoints.
    resume: go on from the newest checkpoint in that folder.
"""


SLOW = 5e12
"""Operations of the matrices alone, next to which attention and overhead come in: with 4.5e12 the
agent in `examples/portal` took one core 20 minutes or an hour, with 1.3e13 `examples/enwik8-small`
24 minutes."""


def say_if_slow(device: str, model: TransformerConfig, rows_of_blocks: int) -> None:
    """Say so before a CPU begins with what is work for a GPU.

    Args:
        device: where the model is to learn.
        model: whose matrices take most of the time.
        rows_of_blocks: how many it will read in training: rows by updates.
    """
    weights = model.layers * (4 * model.width**2 + 2 * model.width * model.feedforward)
    operations = 6 * weights * model.block * rows_of_blocks
    if choose_device(device).type == "cpu" and operations > SLOW:
        logging.getLogger("expire_span").warning(
            "No GPU is used: this may take hours or days on a CPU. Fewer --steps, a smaller "
            "--batch or another experiment (`expire-span list`) take less."
        )


def take_scale(words: Sequence[str]) -> tuple[Scale | None, list[str]]:
    """The scale among the words after `train NAME`, if there is one, and the others.

    It may stand anywhere, but is no option's value: `--out smoke` names a folder.
    """
    for place, word in enumerate(words):
        before = words[place - 1] if place else ""
        if word in get_args(Scale) and before not in WITH_WORDS:
            return cast(Scale, word), [*words[:place], *words[place + 1 :]]
    if words and words[0].isalpha():
        require_one_of(get_args(Scale), scale=words[0])
    return None, list(words)


def out_folder(options: Sequence[str], name: str) -> Path:
    """The folder that these options of `train NAME` choose."""
    words = [word for option in options for word in option.split("=", 1)]
    return Path(dict(pairwise(words)).get("--out", f"runs/{name}"))


def same_kind(saved: Run, named: Run, field: str, folder: Path) -> Run:
    """The settings of a run that goes on, if it is about the same as the experiment by its name.

    Args:
        saved: the run's.
        named: those of the experiment that was asked for.
        field: what it is about: its task, or its world.
        folder: the run's.
    """
    mine, asked = (type(getattr(each, field)).__name__ for each in (saved, named))
    if mine != asked:
        raise ValueError(
            f"The run in {folder} is about {mine}, not {asked}: resume it by the name it was begun "
            "with, or choose another folder with --out."
        )
    return saved


def parser_settings(arguments: Sequence[str]) -> tuple[Any, ...]:
    """Options of the experiment's own memory policy, unless another one is asked for by name."""
    if any(argument.startswith("model.memory:") for argument in arguments):
        return (tyro.conf.CascadeSubcommandArgs,)
    return (tyro.conf.CascadeSubcommandArgs, tyro.conf.AvoidSubcommands)


def print_result(result: dict[str, Any]) -> None:
    """JSON with as many digits as mean something."""
    rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in result.items()}
    print(json.dumps(rounded, indent=2), flush=True)
