"""Performance against memory: Transformer-XL windows and Expire-Span runs (`fig:corridor_result`).

Every run has a folder of its own under the sweep's. A sweep that was stopped goes on where it was;
runs that are done are not made again.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes

from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.experiments import AGENT_EXPERIMENTS, Scale
from expire_span.agent.run import RESULT_FILE, load_agent_experiment, train_side_by_side
from expire_span.model.memory import ExpireSpan, FixedSpan
from expire_span.training.folder import EXPERIMENT_FILE
from expire_span.worlds import Corridor, Portal, World
from expire_span.worlds.oracles import PortalMemory, corridor_bound, play

WINDOWS = {"corridor": (16, 32, 50, 75, 100, 200), "portal": (16, 32, 48, 64, 80, 100)}
SEEDS = (0, 1, 2)
PRICES = (0.2, 1.0, 5.0)  # multiples of the experiment's own penalty
TARGETS = (20.0, 30.0, 50.0)  # live memories, where the experiment aims for some
BOUND_ROWS = 256  # episodes by which a bound without a formula is found


@dataclass(frozen=True)
class Point:
    """One finished run."""

    name: str
    kind: str
    live: float
    performance: float


def sweep_experiments(
    name: str,
    scale: Scale,
    windows: Sequence[int] | None = None,
    seeds: Sequence[int] = SEEDS,
    prices: Sequence[float] | None = None,
    targets: Sequence[float] | None = None,
) -> dict[str, AgentExperiment]:
    """The runs of a sweep by name: a window of each size, and Expire-Span with each seed.

    Expire-Span's runs differ in what they aim for, if the experiment aims for some number of live
    memories, and else in the price of memory; either can be asked for.
    """
    base = AGENT_EXPERIMENTS[name](scale)
    aims = base.penalty.target_live is not None
    windows = WINDOWS[name] if windows is None else windows
    prices = (() if aims else PRICES) if prices is None else prices
    targets = (TARGETS if aims else ()) if targets is None else targets
    policy = base.model.memory
    assert isinstance(policy, ExpireSpan)

    def expiring(price: float, target: float | None, seed: int) -> AgentExperiment:
        memory = replace(policy, penalty=price * policy.penalty)
        penalty = replace(base.penalty, target_live=target)
        model = replace(base.model, memory=memory)
        return replace(base, model=model, penalty=penalty, seed=seed)

    return {
        **{f"window-{n}": AGENT_EXPERIMENTS[name](scale, FixedSpan(n)) for n in windows},
        **{f"price-{x:g}-seed-{n}": expiring(x, None, n) for x in prices for n in seeds},
        **{f"target-{x:g}-seed-{n}": expiring(1.0, x, n) for x in targets for n in seeds},
    }


def run_sweep(
    experiments: dict[str, AgentExperiment],
    folder: Path,
    *,
    side_by_side: int = 4,
    progress: bool = True,
) -> None:
    """Make all runs that are not done yet, some at a time."""
    waiting = [name for name in experiments if not (folder / name / RESULT_FILE).exists()]
    begun = [name for name in waiting if (folder / name / EXPERIMENT_FILE).exists()]
    fresh = [name for name in waiting if name not in begun]
    for names, resume in ((begun, True), (fresh, False)):
        for first in range(0, len(names), side_by_side):
            some = names[first : first + side_by_side]
            wanted = [(experiments[name], folder / name) for name in some]
            train_side_by_side(wanted, resume=resume, progress=progress)


def read_sweep(folder: Path) -> tuple[World, list[Point]]:
    """The world of a sweep, and its finished runs."""
    results = sorted(folder.glob(f"*/{RESULT_FILE}"))
    if not results:
        raise ValueError(f"{folder} holds no finished run of a sweep: run it first.")
    points, worlds = [], []
    for path in results:
        experiment, result = load_agent_experiment(path.parent), json.loads(path.read_text())
        worlds.append(experiment.world)
        kind = type(experiment.model.memory).__name__
        performance = result[experiment.world.metric]
        points.append(Point(path.parent.name, kind, result["live"], performance))
    if any(world != worlds[0] for world in worlds):
        raise ValueError(f"The runs in {folder} are of different worlds: draw them apart.")
    return worlds[0], points


def draw_sweep(folder: Path, path: Path) -> None:
    """Performance of every run against its live memories, with what so much memory allows."""
    world, points = read_sweep(folder)
    figure, axes = plt.subplots(figsize=(6, 4.5), layout="constrained")
    _draw_bounds(axes, world)
    styles = {"FixedSpan": ("s", "#0072b2", "Transformer-XL"), "ExpireSpan": ("o", "#d55e00", "")}
    for kind, (marker, colour, label) in styles.items():
        mine = [point for point in points if point.kind == kind]
        axes.scatter(
            [point.live for point in mine],
            [point.performance for point in mine],
            marker=marker,
            color=colour,
            label=label or "Expire-Span",
            zorder=3,
        )
    axes.set_xlabel("live memories per layer")
    axes.set_ylabel(world.metric)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_bounds(axes: Axes, world: World) -> None:
    """What a window of any size allows at best."""
    if isinstance(world, Corridor):
        sizes = np.linspace(1, world.longest, 60).astype(int)
        live = [corridor_live(world, int(size)) for size in sizes]
        for relays, style in ((1, "--"), (2, ":")):
            best = [corridor_bound(world, relays * int(size)) for size in sizes]
            label = "best of a window" if relays == 1 else "best of a window, relayed once"
            axes.plot(live, best, style, color="black", linewidth=1, label=label)
    if isinstance(world, Portal):
        windows = (8, 16, 32, 48, 64, 80, 100)
        found = [portal_bound(world, window) for window in windows]
        axes.plot(
            [live for live, _ in found],
            [best for _, best in found],
            "--",
            color="black",
            linewidth=1,
            label="best of a window",
        )


def corridor_live(world: Corridor, window: int) -> float:
    """Live memories of a window, mean over the steps of one who walks straight to the door."""
    lengths = range(world.shortest, world.longest + 1)
    seen = sum(min(t, window) for length in lengths for t in range(length))
    return seen / sum(lengths)


def portal_bound(world: Portal, window: int) -> tuple[float, float]:
    """Live memories and return of one who remembers the last `window` steps."""
    played = play(world.play(), PortalMemory(world, window), BOUND_ROWS)
    steps = torch.arange(world.limit)
    made = steps < played.steps[:, None]
    live = (steps.clamp(max=window) * made).sum() / made.sum()
    return float(live), float(played.total.mean())
