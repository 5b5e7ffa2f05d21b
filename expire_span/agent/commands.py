"""Commands for agents: train, evaluate, watch, sweep. `cli.py` hands over what concerns them."""

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.experiments import AGENT_EXPERIMENTS, Scale
from expire_span.agent.run import is_agent, load_agent, load_agent_experiment, train_agent
from expire_span.agent.sweep import PRICES, SEEDS, draw_sweep, run_sweep, sweep_experiments
from expire_span.agent.trainer import evaluate_agent
from expire_span.agent.watch import animate, record_episode
from expire_span.training.folder import EXPERIMENT_FILE

Name = Literal["corridor", "portal"]


def concern_agents(arguments: Sequence[str]) -> bool:
    """Whether the words of a command line are for an agent."""
    command, first = [*arguments[:2], "", ""][:2]
    if command == "train":
        return first in AGENT_EXPERIMENTS
    if command == "evaluate":
        return is_agent(Path(first))
    return command in ("watch", "sweep")


def run_command(arguments: Sequence[str]) -> None:
    """Do what the words of a command line say."""
    if arguments[0] == "train":
        _train(arguments[1], list(arguments[2:]))
        return
    commands: dict[str, Callable[..., None]] = {
        "evaluate": evaluate,
        "watch": watch,
        "sweep": sweep,
    }
    tyro.extras.subcommand_cli_from_dict(commands, prog="expire-span", args=arguments)


def _train(name: str, options: list[str]) -> None:
    """`train NAME [SCALE]` and options: every field of the experiment is one.

    A run that is resumed starts from its own settings, so that they need not be repeated.
    """
    scale: Any = options.pop(0) if options and options[0] in get_args(Scale) else "single"
    words = [word for option in options for word in option.split("=", 1)]
    folder = Path(words[words.index("--out") + 1] if "--out" in words[:-1] else f"runs/{name}")
    default = AGENT_EXPERIMENTS[name](scale)
    if "--resume" in options and (folder / EXPERIMENT_FILE).exists():
        default = load_agent_experiment(folder)

    def train(
        experiment: Annotated[AgentExperiment, tyro.conf.arg(name="")] = default,
        out: Path = folder,
        resume: bool = False,
    ) -> None:
        result = train_agent(experiment, out, resume=resume)
        _print({"run": str(out), **result})

    about = inspect.getdoc(AGENT_EXPERIMENTS[name]) or ""
    train.__doc__ = f"{about}\n\n{TRAIN_ARGUMENTS}"
    settings: tuple[Any, ...] = (tyro.conf.CascadeSubcommandArgs,)
    if not any(option.startswith("model.memory:") for option in options):
        settings = (*settings, tyro.conf.AvoidSubcommands)
    tyro.cli(train, prog=f"expire-span train {name} {scale}", args=options, config=settings)


TRAIN_ARGUMENTS = """`train NAME smoke`, `train NAME single` and `train NAME paper` differ in scale.

Args:
    experiment: what to train.
    out: folder for metrics and checkpoints.
    resume: go on from the newest checkpoint in that folder.
"""


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    rows: int | None = None,
    limit: int | None = None,
    seed: int = 1000,
    device: str = "auto",
) -> None:
    """Judge a trained agent on whole episodes; prints JSON.

    Args:
        run: folder that `train` or `release` wrote.
        rows: episodes; as at the end of training if left out.
        limit: cut every memory at this distance, to find out what longer memory is worth.
        seed: which episodes.
        device: auto, cpu, cuda ...
    """
    experiment, model = load_agent(run, device)
    rows = experiment.evaluation_rows if rows is None else rows
    found = evaluate_agent(model, experiment.world, rows=rows, seed=seed, limit=limit)
    _print({"run": str(run), "limit": limit, **found})


def watch(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    seed: int = 0,
    rows: int = 16,
    fps: int = 10,
) -> None:
    """See an episode: the world, and what the agent keeps of it until when.

    Args:
        run: folder that `train` or `release` wrote.
        out: the picture, an animated GIF; episode.gif in the run's folder if left out.
        seed: which episodes.
        rows: episodes of which the longest of the best is shown.
        fps: pictures a second.
    """
    experiment, model = load_agent(run, "cpu")
    path = run / "episode.gif" if out is None else out
    episode = record_episode(model, experiment.world, seed=seed, rows=rows)
    animate(episode, path, fps=fps, progress=True)
    print(f"{path}: {episode.steps} steps")


def sweep(
    name: Annotated[Name, tyro.conf.Positional],
    out: Path,
    scale: Scale = "single",
    windows: tuple[int, ...] | None = None,
    seeds: tuple[int, ...] = SEEDS,
    prices: tuple[float, ...] = PRICES,
    side_by_side: int = 4,
) -> None:
    """Train windows of many sizes and Expire-Span with some prices and seeds; draw them all.

    With neither windows nor seeds it draws what the folder has.

    Args:
        name: which experiment.
        out: folder of the sweep; one that was stopped goes on.
        scale: smoke, single or paper.
        windows: sizes of Transformer-XL's memory.
        seeds: of Expire-Span.
        prices: penalties of Expire-Span, as multiples of the experiment's own.
        side_by_side: runs that share the device.
    """
    experiments = sweep_experiments(name, scale, windows, seeds, prices)
    run_sweep(experiments, out, side_by_side=side_by_side)
    draw_sweep(out, out / "performance.png")
    print(out / "performance.png")


def _print(result: dict[str, Any]) -> None:
    """JSON with as many digits as mean something."""
    rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in result.items()}
    print(json.dumps(rounded, indent=2))
