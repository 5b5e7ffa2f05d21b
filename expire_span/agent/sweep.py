"""Performance against memory: Transformer-XL windows and Expire-Span runs (`fig:corridor_result`).

Every run has a folder of its own under the sweep's. A sweep that was stopped goes on where it was;
runs that are done are not made again. Each run is claimed by the process that makes it, so the same
command may be given several times side by side: each takes what is left.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb

from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.run import (
    AGENT_KINDS,
    FREE_IN_RESULTS,
    FREE_ON_RESUME,
    load_agent_experiment,
    train_side_by_side,
)
from expire_span.checks import require_at_least, require_not_negative
from expire_span.locks import claim
from expire_span.looks import LOOKS, name_points
from expire_span.model.memory import AdaptiveSpan, AnyMemory, ExpireSpan, FixedSpan
from expire_span.training.disk import written_whole
from expire_span.training.folder import (
    EXPERIMENT_FILE,
    RESULT_FILE,
    check_result,
    read_result,
)
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Interruption, Stopped
from expire_span.worlds import Corridor, Portal, World
from expire_span.worlds.oracles import (
    PortalMemory,
    corridor_bound,
    corridor_is_bounded,
    play,
    walkers_know,
)

# Windows as shares of the longest span that Expire-Span has in the same world.
WINDOWS = (0.16, 0.32, 0.48, 0.64, 0.8, 1.0)
CORRIDOR_WINDOWS = (0.08, 0.16, 0.25, 0.375, 0.5, 1.0)
SEEDS = (0, 1, 2)
PRICES = (0.0, 0.2, 1.0, 5.0)  # multiples of the experiment's own penalty
WALKED_STEPS = 400_000  # by which it is found what a walker is worth, or 256 episodes if longer


@dataclass(frozen=True)
class Point:
    """One finished run."""

    name: str
    memory: AnyMemory
    live: float
    performance: float


def sweep_experiments(
    base: AgentExperiment,
    windows: Sequence[int] | None = None,
    seeds: Sequence[int] = SEEDS,
    prices: Sequence[float] = PRICES,
    steps: int | None = None,
) -> dict[str, AgentExperiment]:
    """The runs of a sweep by name: each window and each price of memory, with each seed in turn.

    Args:
        base: an agent with Expire-Span, whose other settings all runs have.
        windows: sizes of Transformer-XL's memory; some up to its longest span if left out.
        seeds: of every run.
        prices: penalties of Expire-Span, as multiples of its own.
        steps: updates of every run; as many as it has if left out.
    """
    policy = base.model.memory
    if not isinstance(policy, ExpireSpan):
        raise ValueError(
            "A sweep varies what memory costs an agent with Expire-Span, but this one has "
            f"{type(policy).__name__}: give another."
        )
    if steps is not None:
        base = _of_length(base, steps)
    if windows is None:
        windows = usual_windows(base.world, policy.max_span)
    for window in windows:
        require_at_least(1, windows=window)
    for price in prices:
        require_not_negative(prices=price)
    memories: dict[str, AnyMemory] = {
        **{f"window-{size}": FixedSpan(size) for size in windows},
        **{f"price-{x:g}": replace(policy, penalty=x * policy.penalty) for x in prices},
    }
    return {
        f"{kind}-seed-{seed}": replace(base, model=replace(base.model, memory=memory), seed=seed)
        for seed in seeds
        for kind, memory in memories.items()
    }


def usual_windows(world: World, longest: int) -> list[int]:
    """Sizes from a small window to one as long as the longest span."""
    shares = CORRIDOR_WINDOWS if isinstance(world, Corridor) else WINDOWS
    return sorted({max(1, round(share * longest)) for share in shares})


def _of_length(experiment: AgentExperiment, steps: int) -> AgentExperiment:
    """The same in more or fewer updates; if spans come to rest, then as long before the end."""
    penalty = experiment.penalty
    if penalty.rest_after is not None:
        rest_after = penalty.rest_after + steps - experiment.steps
        if rest_after <= 0:
            raise ValueError(
                f"Spans rest in the last {experiment.steps - penalty.rest_after} updates: give "
                f"more steps than that, not {steps}."
            )
        penalty = replace(penalty, rest_after=rest_after)
    return replace(experiment, steps=steps, penalty=penalty)


def run_sweep(
    experiments: dict[str, AgentExperiment],
    folder: Path,
    *,
    side_by_side: int = 4,
    progress: bool = True,
) -> None:
    """Make all runs that are not done yet, some at a time; those that had begun go on first.

    Other processes may do the same at once: runs that they are making are left to them.

    Raises:
        NotFinite: if a gradient of some run is, once no other is left to make; it names those runs.
    """
    require_at_least(1, side_by_side=side_by_side)
    if (folder / EXPERIMENT_FILE).exists():
        raise ValueError(f"{folder} holds a run of its own: choose another folder with --out.")
    tried: list[str] = []
    faults: list[str] = []
    # Claims are held to the end: what diverges here is not tried beside it.
    with ExitStack() as claims, Interruption() as interruption:
        while True:
            waiting = _waiting(experiments, folder)
            untried = [name for name in waiting if name not in tried]
            taken = _take(untried, folder, side_by_side, claims)
            if not taken:
                break
            if interruption.wanted:  # as the runs before these were done
                raise Stopped(_stopped_at(experiments, folder), interruption.number)
            tried += taken
            done = len(experiments) - len(waiting)
            wanted = [(experiments[name], folder / name) for name in taken]
            resume = _has_begun(folder / taken[0])
            title = f"{len(taken)} runs under way, {done} of {len(experiments)} done"
            try:
                train_side_by_side(
                    wanted,
                    resume=resume,
                    progress=progress,
                    title=title,
                    interruption=interruption,
                )
            except Stopped as stop:
                _, *diverged = str(stop).splitlines()
                said = _stopped_at(experiments, folder)
                raise stop.saying("\n".join([said, *diverged])) from None
            except NotFinite as error:
                faults.append(str(error))
    if faults:
        hint = (
            "All other runs are done, or left to other processes: with --seeds and none of them, "
            "what is done is drawn."
        )
        raise NotFinite("\n".join([*faults, hint]))


def _stopped_at(experiments: dict[str, AgentExperiment], folder: Path) -> str:
    """How far a sweep has come, and how it goes on."""
    done = len(experiments) - len(_waiting(experiments, folder))
    return (
        f"stopped with {done} of {len(experiments)} runs done; everything is saved, the same "
        "command goes on"
    )


def _waiting(experiments: dict[str, AgentExperiment], folder: Path) -> list[str]:
    """The runs that are not done yet; what was made under their names must be of them."""
    done = [name for name in experiments if _is_done(folder / name)]
    for name, experiment in experiments.items():
        free = FREE_IN_RESULTS if name in done else FREE_ON_RESUME
        check_result(experiment, folder / name, free, AGENT_KINDS)
    return [name for name in experiments if name not in done]


def _take(names: Sequence[str], folder: Path, most: int, claims: ExitStack) -> list[str]:
    """Claim the next runs at which no other process is, begun ones first: all begun, or none is."""
    taken: list[str] = []
    for name in sorted(names, key=lambda name: not _has_begun(folder / name)):
        if len(taken) == most:
            break
        with ExitStack() as look:
            mine = look.enter_context(claim(folder / f"{name}.lock", wait=False))
            alike = not taken or _has_begun(folder / name) == _has_begun(folder / taken[0])
            if mine and alike and not _is_done(folder / name):  # as it is now that it is claimed
                claims.enter_context(look.pop_all())
                taken.append(name)
    return taken


def _has_begun(run: Path) -> bool:
    return (run / EXPERIMENT_FILE).exists()


def _is_done(run: Path) -> bool:
    return (run / RESULT_FILE).exists()


def read_sweep(folder: Path) -> tuple[World, list[Point]]:
    """The world of a sweep, and its finished runs."""
    results = sorted(folder.glob(f"*/{RESULT_FILE}"))
    if not results:
        raise ValueError(f"{folder} holds no finished run of a sweep: run it first.")
    points, worlds = [], []
    for path in results:
        experiment, result = load_agent_experiment(path.parent), read_result(path)
        worlds.append(experiment.world)
        memory, metric = experiment.model.memory, experiment.world.metric
        missing = {metric, "live"} - set(result)
        if missing:
            raise ValueError(
                f"{path} tells nothing of {' and '.join(sorted(missing))}: remove it, and the same "
                "command makes it again."
            )
        points.append(Point(path.parent.name, memory, result["live"], result[metric]))
    if any(world != worlds[0] for world in worlds):
        raise ValueError(f"The runs in {folder} are of different worlds: draw them apart.")
    return worlds[0], points


def draw_sweep(folder: Path, path: Path) -> None:
    """Performance of every run against its live memories, beside that of scripted policies."""
    world, points = read_sweep(folder)
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    try:
        _draw_scripted(axes, world)
        _draw_runs(axes, points)
        axes.set_title(f"{_called(world)}: {world.metric} against memory", fontsize=11)
        axes.set_xlabel("live memories per layer")
        axes.set_ylabel(world.metric)
        axes.set_xlim(left=0)
        axes.margins(y=0.1)  # so that names have room
        axes.grid(alpha=0.3)
        axes.legend(
            frameon=False, fontsize=8, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.1)
        )
        _name_windows(axes, points)
        with written_whole(path) as unfinished:
            figure.savefig(unfinished, dpi=120, format=path.suffix.removeprefix(".") or "png")
    finally:
        plt.close(figure)


def _called(world: World) -> str:
    """A world by its name and its size."""
    match world:
        case Corridor(shortest=shortest, longest=longest):
            return f"Corridor of {shortest} to {longest} cells"
        case Portal(rooms=rooms):
            return f"Portal of {rooms} rooms"
        case _:
            return type(world).__name__


def _draw_runs(axes: Axes, points: Sequence[Point]) -> None:
    """A point for each run, fuller the more a memory costs, and where the ramp alone would be."""
    charges = {one.memory.charge for one in points if isinstance(one.memory, ExpireSpan)}
    for kind, (name, marker, colour) in LOOKS.items():
        mine = [point for point in points if type(point.memory).__name__ == kind]
        costs = sorted({_cost(point.memory) for point in mine})
        for rank, cost in enumerate(costs, start=1):
            same = [point for point in mine if _cost(point.memory) == cost]
            axes.scatter(
                [point.live for point in same],
                [point.performance for point in same],
                marker=marker,
                color=_share(colour, (rank - 0.7) / (len(costs) - 0.7)),
                edgecolor=colour,
                label=name + _told_of(kind, cost, several_charges=len(charges) > 1),
                zorder=3,
            )
    _draw_ramps(axes, [one.memory.ramp for one in points if isinstance(one.memory, ExpireSpan)])


def _cost(memory: AnyMemory) -> tuple[float, str]:
    """The price of a memory and what is charged; nothing where no span is learned.

    To as many digits as the legend tells, so that five times a price is the same however it was
    reckoned.
    """
    if not isinstance(memory, ExpireSpan | AdaptiveSpan):
        return 0.0, ""
    price = float(f"{memory.penalty:.1e}")
    return price, memory.charge if isinstance(memory, ExpireSpan) and price else ""


def _share(colour: str, share: float) -> tuple[float, float, float]:
    """A colour that is thinned with white."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def _told_of(kind: str, cost: tuple[float, str], *, several_charges: bool) -> str:
    """What else the legend says of a kind."""
    price, charge = cost
    when = {"ramp": ", on its ramp", "block": ", from the first"}.get(charge, "")
    match kind:
        case "FixedSpan":
            return ", its window beside it"
        case "ExpireSpan" | "AdaptiveSpan":
            told = f", a memory costs {price:.1e}" if price else ", a memory costs 0"
            return told + when if several_charges else told
        case _:
            return ""


def _draw_ramps(axes: Axes, ramps: Sequence[int]) -> None:
    """Live memories of a ramp alone: a line, or a band for several ramps."""
    if not ramps:
        return
    first, last = min(ramps), max(ramps)
    if first == last:
        label = f"all spans 0: the ramp of {first}, once full"
        axes.axvline(first, c="grey", linewidth=1, linestyle="-.", label=label)
    else:
        label = f"all spans 0: the ramps of {first} to {last}, once full"
        axes.axvspan(first, last, color="grey", alpha=0.15, linewidth=0, label=label)


def _name_windows(axes: Axes, points: Sequence[Point]) -> None:
    """Beside each point of a window its size."""
    names = [
        (str(point.memory.span), point.live, point.performance)
        for point in points
        if isinstance(point.memory, FixedSpan)
    ]
    name_points(axes, names, [(point.live, point.performance) for point in points])


def _draw_scripted(axes: Axes, world: World) -> None:
    """What is known of so much memory without learning."""
    if isinstance(world, Corridor) and corridor_is_bounded(world):
        _draw_bounds(axes, world)
    if isinstance(world, Portal) and walkers_know(world):
        _draw_walker(axes, world)


def _draw_bounds(axes: Axes, world: Corridor) -> None:
    """What a window of any size allows at best."""
    sizes = np.linspace(1, world.longest, 60).astype(int)
    live = [corridor_live(world, int(size)) for size in sizes]
    for relays, style in ((1, "--"), (2, ":")):
        best = [corridor_bound(world, relays * int(size)) for size in sizes]
        label = "best of a window" if relays == 1 else "best of a window, relayed once"
        axes.plot(live, best, style, color="black", linewidth=1, label=label)


def _draw_walker(axes: Axes, world: Portal) -> None:
    """What a walker earns with windows of some sizes."""
    enough = 3 * world.rooms if world.shuffle else 2 * world.rooms  # steps through all rooms
    windows = [round(0.08 * enough), *usual_windows(world, enough)]
    found = [portal_walk(world, window) for window in windows]
    axes.plot(
        [live for live, _ in found],
        [earned for _, earned in found],
        "--",
        color="black",
        linewidth=1,
        label="a walker who remembers so many steps\nand makes no mistake on purpose",
    )


def corridor_live(world: Corridor, window: int) -> float:
    """Live memories of a window, mean over the steps of one who walks straight to the door."""
    lengths = range(world.shortest, world.longest + 1)
    seen = sum(min(t, window) for length in lengths for t in range(length))
    return seen / sum(lengths)


def portal_walk(world: Portal, window: int) -> tuple[float, float]:
    """Live memories and return of a walker who remembers what it learned in the last steps.

    It is no bound: passages pay however often, so that it can pay to take a wrong door on purpose
    and pass all rooms before it once more.
    """
    rows = max(256, WALKED_STEPS // world.limit)
    played = play(world.play(), PortalMemory(world, window), rows)
    steps = torch.arange(world.limit)
    made = steps < played.steps[:, None]
    live = (steps.clamp(max=window) * made).sum() / made.sum()
    return float(live), float(played.total.mean())
