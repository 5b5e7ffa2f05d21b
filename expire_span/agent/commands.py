"""Commands for agents: train, evaluate, watch, sweep. `cli.py` hands over what concerns them."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.experiments import AGENT_EXPERIMENTS, Scale
from expire_span.agent.run import is_agent, load_agent, load_agent_experiment, train_agent
from expire_span.agent.sweep import PRICES, SEEDS, draw_sweep, run_sweep, sweep_experiments
from expire_span.agent.watch import animate, check_picture, record_episode
from expire_span.locks import claim
from expire_span.training.command import (
    OTHER_MEMORY,
    SCALE_HELP,
    TRAIN_ARGUMENTS,
    out_folder,
    parser_settings,
    print_result,
    same_kind,
    say_if_slow,
    take_scale,
)
from expire_span.training.distributed import world_size
from expire_span.training.folder import EXPERIMENT_FILE, RESULT_FILE
from expire_span.worlds import AnyWorld, World

Elsewhere = Annotated[AnyWorld | None, tyro.conf.AvoidSubcommands]


def concern_agents(arguments: Sequence[str]) -> bool:
    """Whether the words of a command line are for an agent."""
    command, words = [*arguments[:1], ""][0], arguments[1:]
    if command == "train":
        return words[:1] != [] and words[0] in AGENT_EXPERIMENTS
    if command == "evaluate":
        return any(is_agent(Path(word)) for word in words)
    return command in ("watch", "sweep")


def run_command(arguments: Sequence[str]) -> None:
    """Do what the words of a command line say."""
    if arguments[0] == "train":
        name, (named, options) = arguments[1], take_scale(arguments[2:])
        scale = named or "single"
        tyro.cli(
            train_command(name, scale, options),
            prog=f"expire-span train {name} {scale}",
            args=options,
            config=parser_settings(options),
        )
        return
    run = next((Path(word) for word in arguments[1:] if is_agent(Path(word))), None)
    world = None if run is None else load_agent_experiment(run).world  # every setting an option
    commands: dict[str, Callable[..., None]] = {
        "evaluate": partial(evaluate, world=world),
        "watch": partial(watch, world=world),
        "sweep": sweep,
    }
    tyro.extras.subcommand_cli_from_dict(commands, prog="expire-span", args=arguments)


def train_command(
    name: str, scale: Scale = "single", options: Sequence[str] = ()
) -> Callable[..., None]:
    """The command `train NAME [SCALE]`: every field of the experiment is an option.

    A run that is resumed starts from its own settings, so that they need not be repeated.
    """
    folder = out_folder(options, name)
    default = AGENT_EXPERIMENTS[name](scale)
    if "--resume" in options and (folder / EXPERIMENT_FILE).exists():
        default = same_kind(load_agent_experiment(folder), default, "world", folder)

    def train(
        experiment: Annotated[AgentExperiment, tyro.conf.arg(name="")] = default,
        out: Path = folder,
        resume: bool = False,
    ) -> None:
        _refuse_ranks()
        if not resume:
            rows_of_blocks = experiment.batch * experiment.steps
            say_if_slow(experiment.device, experiment.model, rows_of_blocks)
        result = train_agent(experiment, out, resume=resume)
        print_result({"run": str(out), **result})

    about = inspect.getdoc(AGENT_EXPERIMENTS[name]) or ""
    train.__doc__ = "\n\n".join([about, SCALE_HELP, OTHER_MEMORY, TRAIN_ARGUMENTS])
    return train


def _refuse_ranks() -> None:
    if world_size() > 1:
        raise ValueError("Agents train in one process: start this without torchrun.")


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    rows: int | None = None,
    limit: int | None = None,
    seed: int = 1000,
    device: str = "auto",
    world: Elsewhere = None,
) -> None:
    """Judge a trained agent on whole episodes; prints JSON.

    Args:
        run: folder that `train` or `release` wrote.
        rows: episodes; as at the end of training if left out.
        limit: cut every memory at this distance, to find out what longer memory is worth.
        seed: which episodes.
        device: auto, cpu, cuda ...
        world: where, its own world with other settings: how does it do in longer corridors?
    """
    experiment, model = load_agent(run, device)
    rows = experiment.evaluation_rows if rows is None else rows
    own, place = experiment.world, _understood(experiment.world, world)
    found = evaluate_agent(model, place, rows=rows, seed=seed, limit=limit, progress=True)
    where = {f"world.{k}": v for k, v in vars(place).items() if v != getattr(own, k)}
    print_result({"run": str(run), "limit": limit, **where, **found})


def watch(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    seed: int = 0,
    rows: int = 16,
    fps: int = 10,
    world: Elsewhere = None,
) -> None:
    """See an episode: the world, and what the agent keeps of it until when.

    `watch AGENT --help` shows the settings of its world, which can be changed.

    Args:
        run: folder that `train` or `release` wrote.
        out: the picture, an animated GIF; episode.gif in the run's folder if left out.
        seed: which episodes.
        rows: episodes of which the longest of the best is shown.
        fps: pictures a second, 50 at most.
        world: where, its own world with other settings.
    """
    path = run / "episode.gif" if out is None else out
    check_picture(path, fps)
    experiment, model = load_agent(run, "cpu")
    place = _understood(experiment.world, world)
    if out is None and place != experiment.world:
        raise ValueError(
            "This is not the agent's own world: say with --out where the picture goes."
        )
    episode = record_episode(model, place, seed=seed, rows=rows)
    animate(episode, path, fps=fps, progress=True)
    print(f"{path}: {episode.steps} steps")


def _understood(own: World, wanted: World | None) -> World:
    """Where an agent is to act, if it knows the words and the actions that there are."""
    if wanted is None:
        return own
    for what in ("words", "actions"):
        other = set(getattr(own, what)) ^ set(getattr(wanted, what))
        if other:
            raise ValueError(
                f"There are not the same {what} there as where the agent learned "
                f"({', '.join(sorted(other))}): leave out what changes them."
            )
    return wanted


def sweep(
    name: Annotated[str, tyro.conf.Positional],
    out: Path,
    scale: Scale | None = None,
    windows: tuple[int, ...] | None = None,
    seeds: tuple[int, ...] = SEEDS,
    prices: tuple[float, ...] = PRICES,
    steps: int | None = None,
    side_by_side: int = 4,
) -> None:
    """Train windows of many sizes and Expire-Span at some prices, with some seeds; draw them all.

    Given again while it runs, it makes other runs, side by side with the first. With no seeds it
    draws what the folder has.

    Args:
        name: which experiment, as `train` names it; or the folder of an agent with Expire-Span,
            whose settings are then those of all runs.
        out: folder of the sweep; one that was stopped goes on.
        scale: smoke, single or paper; single if left out.
        windows: sizes of Transformer-XL's memory; those that fit the longest span if left out.
        seeds: of every run.
        prices: penalties of Expire-Span, as multiples of the experiment's own.
        steps: updates of every run; as many as the experiment has if left out.
        side_by_side: runs that share the device.
    """
    _refuse_ranks()
    base = _swept(name, scale)
    experiments = sweep_experiments(base, windows, seeds, prices, steps)
    run_sweep(experiments, out, side_by_side=side_by_side)
    if experiments and not any(out.glob(f"*/{RESULT_FILE}")):
        print(f"{out}: no run is done yet, and other processes are at work on all of them")
        return
    # Or a process that has seen fewer results could draw last.
    with claim(out / "performance.lock") if out.exists() else nullcontext():
        draw_sweep(out, out / "performance.png")
    print(out / "performance.png")


def _swept(name: str, scale: Scale | None) -> AgentExperiment:
    """The experiment of that name, or that of the agent in that folder."""
    if name in AGENT_EXPERIMENTS:
        return AGENT_EXPERIMENTS[name](scale or "single")
    if not is_agent(Path(name)):
        raise ValueError(
            f"name must be one of {', '.join(AGENT_EXPERIMENTS)} or the folder of an agent, but is "
            f"{name!r}."
        )
    if scale is not None:
        raise ValueError(f"The agent in {name} has settings of its own: leave out --scale.")
    return load_agent_experiment(Path(name))
