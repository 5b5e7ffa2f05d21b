"""Commands for agents: train, evaluate, watch, sweep."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.experiments import AGENT_EXPERIMENTS, Scale
from expire_span.agent.run import load_agent, load_agent_experiment, train_agent
from expire_span.agent.sweep import SEEDS, draw_sweep, run_sweep, sweep_experiments
from expire_span.agent.trainer import evaluate_agent
from expire_span.agent.watch import animate, record_episode

Name = Literal["corridor", "portal"]


def train_command(experiment: AgentExperiment, out: Path, resume: bool = False) -> None:
    """Train an agent; every setting is an option.

    Args:
        experiment: what to train.
        out: folder for metrics and checkpoints.
        resume: go on from the newest checkpoint in that folder.
    """
    result = train_agent(experiment, out, resume=resume)
    _print({"run": str(out), **result})


def default_experiment(name: str, scale: Scale, resumed: Path | None = None) -> AgentExperiment:
    """The experiment of that name and scale, or of the run that is to be resumed."""
    if name not in AGENT_EXPERIMENTS:
        raise ValueError(f"Unknown experiment {name!r}: choose {' or '.join(AGENT_EXPERIMENTS)}.")
    if resumed is not None and (resumed / "experiment.json").exists():
        return load_agent_experiment(resumed)
    return AGENT_EXPERIMENTS[name](scale)


def evaluate(
    run: Annotated[Path, tyro.conf.Positional],
    rows: int | None = None,
    seed: int = 1000,
    device: str = "auto",
) -> None:
    """Judge a trained agent on whole episodes; prints JSON.

    Args:
        run: folder that `train` wrote.
        rows: episodes; as at the end of training if left out.
        seed: which episodes.
        device: auto, cpu, cuda ...
    """
    experiment, model = load_agent(run, device)
    rows = experiment.evaluation_rows if rows is None else rows
    _print({"run": str(run), **evaluate_agent(model, experiment.world, rows=rows, seed=seed)})


def watch(
    run: Annotated[Path, tyro.conf.Positional],
    out: Path | None = None,
    seed: int = 0,
    rows: int = 16,
    fps: int = 10,
) -> None:
    """See an episode: the world, and what the agent keeps of it until when.

    Args:
        run: folder that `train` wrote.
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
    prices: tuple[float, ...] | None = None,
    targets: tuple[float, ...] | None = None,
    side_by_side: int = 4,
) -> None:
    """Train windows of many sizes and Expire-Span with prices or targets and seeds; draw them all.

    Args:
        name: which experiment.
        out: folder of the sweep; one that was stopped goes on.
        scale: smoke, single or paper.
        windows: sizes of Transformer-XL's memory.
        seeds: of Expire-Span.
        prices: penalties of Expire-Span, as multiples of the experiment's own.
        targets: live memories that Expire-Span aims for.
        side_by_side: runs that share the device.
    """
    experiments = sweep_experiments(name, scale, windows, seeds, prices, targets)
    run_sweep(experiments, out, side_by_side=side_by_side)
    draw_sweep(out, out / "performance.png")
    print(out / "performance.png")


def _print(result: dict[str, Any]) -> None:
    """JSON with as many digits as mean something."""
    rounded = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in result.items()}
    print(json.dumps(rounded, indent=2))
