"""An episode as an animated picture: the world, and below it what the agent keeps of it.

Each memory is a bar from the step at which it came to the step at which it starts to fade, thinner
until it is gone. Bars of memories that are gone turn pale. So one sees the colour of an object
being kept while the walk is forgotten.

Shapes: T steps of the episode.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from expire_span.agent.dense import start_full
from expire_span.agent.episodes import Episodes, play_episodes
from expire_span.checks import require_at_least
from expire_span.model.memory import Deadlines
from expire_span.model.transformer import Transformer
from expire_span.training.disk import written_whole
from expire_span.worlds import Game, World
from expire_span.worlds.grid import DOOR, OBJECT
from expire_span.worlds.render import as_pixels

# What is in view when a memory is made, and its colour; apart from one another in grey too.
GROUPS = {
    f"red {OBJECT}": "#d55e00",
    f"blue {OBJECT}": "#0072b2",
    DOOR: "#009e73",
    "nothing": "#999999",
}
GONE = to_rgba("#e4e4e4")
UNBORN = (1.0, 1.0, 1.0, 0.0)
MOST_FRAMES = 200


@dataclass(frozen=True)
class Film:
    """One episode from beginning to end."""

    pictures: list[NDArray[np.uint8]]
    """The world before each step, and after the last one."""
    captions: list[str]
    """What there is to say about it."""
    groups: list[str]
    """What is in view at each step, one of `GROUPS`."""
    spans: NDArray[np.float64]
    """[layers, T], how long the memory of each step is kept before it fades."""
    ramp: int
    """Steps over which it then fades."""

    @property
    def steps(self) -> int:
        """Length of the episode (T)."""
        return len(self.groups)


@torch.no_grad()
def record_episode(model: Transformer, world: World, *, seed: int = 0, rows: int = 16) -> Film:
    """Play an episode in each of some rows, and take the longest of the best."""
    played = play_episodes(model, world, rows=rows, seed=seed)
    row = played.best()
    episode = played.first_of(row)
    game = world.play(model.positions.device)
    pictures, captions = _replay(game, rows, seed, played.actions[:, : episode.steps], row)
    return Film(
        pictures=pictures,
        captions=captions,
        groups=[_group(view, world) for view in episode.observations[0]],
        spans=_read_spans(model, episode),
        ramp=model.stack()[0].keeper.ramp,
    )


def animate(film: Film, path: Path, *, fps: int = 10, progress: bool = False) -> None:
    """Write an episode as an animated GIF, of some 200 pictures at most."""
    require_at_least(1, fps=fps)
    if path.suffix != ".gif":
        raise ValueError(f"An episode is a GIF: give a path that ends in .gif, not {path}.")
    layers = len(film.spans)
    figure = plt.figure(figsize=(5 * layers, 6), layout="constrained")
    top, *below = figure.subplot_mosaic(
        [["world"] * layers, [str(layer) for layer in range(layers)]], height_ratios=(1, 2)
    ).values()
    image = top.imshow(film.pictures[0])
    top.set_axis_off()
    bars = [_draw_bars(axes, film, layer) for layer, axes in enumerate(below)]

    def draw(time: int) -> None:
        image.set_data(film.pictures[time])
        top.set_title(film.captions[time])
        for layer, (lines, thin, now) in enumerate(bars):
            colours = _colours(film, layer, time)
            lines.set_colors(colours)
            thin.set_colors(colours)
            now.set_xdata([time, time])

    draw(0)
    figure.canvas.draw()
    figure.set_layout_engine("none")  # it is found once, not for every picture
    writer = PillowWriter(fps=fps)
    try:
        with written_whole(path) as unfinished, writer.saving(figure, str(unfinished), dpi=80):
            for time in tqdm(
                _shown(film.steps), desc=path.name, unit="picture", disable=not progress
            ):
                draw(time)
                writer.grab_frame()
    finally:
        plt.close(figure)


def _shown(steps: int) -> list[int]:
    """Times that are shown: every so many, and the end."""
    return [*range(0, steps, -(-steps // MOST_FRAMES)), steps]


def _draw_bars(axes: Axes, film: Film, layer: int) -> tuple[Any, Any, Any]:
    """Every memory of a layer as a bar; colours come later."""
    times, spans = np.arange(film.steps), film.spans[layer]
    fading, gone = times + spans, times + spans + film.ramp
    whole = [[(t, t), (end, t)] for t, end in zip(times, fading, strict=True)]
    rest = [[(a, t), (b, t)] for t, a, b in zip(times, fading, gone, strict=True)]
    lines = axes.add_collection(LineCollection(whole, linewidths=2.0))
    thin = axes.add_collection(LineCollection(rest, linewidths=0.6))
    now = axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlim(0, min(float(gone.max()), 1.6 * film.steps) + 1)
    axes.set_ylim(film.steps, -1)
    axes.set_xlabel("time (steps)")
    axes.set_ylabel("memory, in order of arrival")
    axes.set_title(f"layer {layer + 1}: each memory until it expires")
    for name in dict.fromkeys(film.groups):
        axes.plot([], [], color=GROUPS[name], linewidth=2, label=f"{name} in view")
    axes.legend(loc="lower left", frameon=False)
    return lines, thin, now


def _colours(film: Film, layer: int, time: int) -> list[tuple[float, ...]]:
    """What each memory looks like at a time: not there yet, alive, or gone."""
    gone = np.arange(film.steps) + film.spans[layer] + film.ramp
    return [
        UNBORN if t > time else GONE if end <= time else to_rgba(GROUPS[film.groups[t]])
        for t, end in enumerate(gone)
    ]


def _read_spans(model: Transformer, episode: Episodes) -> NDArray[np.float64]:
    """How long the memory of each step is kept, [layers, T]."""
    memory, found = start_full(model, 1), []
    for block in episode.blocks(model.config.block):
        step = model(block.observations, memory, starts=block.starts)
        memory = step.memory
        kept = zip(step.deadlines, step.spans, strict=True)
        found.append(torch.cat([_until_fading(*layer, block.actions) for layer in kept]))
    return torch.cat(found, dim=1).cpu().numpy()


def _until_fading(deadlines: Deadlines, spans: Tensor, like: Tensor) -> Tensor:
    """Steps from each state of a block to its deadline, [B, T], by the head that looks furthest.

    Where nothing fades, as long as a state can be seen.
    """
    deadline, length = deadlines[0], like.shape[1]
    if deadline is None:
        return spans.max().expand(like.shape)
    times = torch.arange(length, device=deadline.device)
    return (deadline[..., -length:] - times).amax(dim=1).expand(like.shape)


def _replay(
    game: Game, rows: int, seed: int, actions: Tensor, row: int
) -> tuple[list[NDArray[np.uint8]], list[str]]:
    """Pictures and captions of one row: before each of the actions, and after the last."""
    state = game.start(rows, seed)
    pictures, captions = [], []
    for now in actions.T:
        pictures.append(_cropped(as_pixels(game, state, row)))
        captions.append(game.caption(state, row))
        outcome = game.step(state, now)
        state = outcome.state
    reward = float(outcome.reward[row])
    told = f"rewarded {reward:g}" if reward > 0 else "not rewarded"
    pictures.append(_cropped(as_pixels(game, outcome.last, row)))
    captions.append(f"{game.caption(outcome.last, row)}, {told}")
    return pictures, captions


def _cropped(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Without columns that only repeat the last one: a short corridor in a long one's frame."""
    differs = (picture != picture[:, -1:]).any(axis=(0, 2))
    last = int(np.flatnonzero(differs).max(initial=0))
    return picture[:, : min(last + 17, picture.shape[1])]


def _group(view: Tensor, world: World) -> str:
    """What there is in a view [3, 3, V]."""
    shown = view.amax(dim=(0, 1))
    there = {word for word, seen in zip(world.words, shown.tolist(), strict=True) if seen}
    if OBJECT in there:
        return f"red {OBJECT}" if "red" in there else f"blue {OBJECT}"
    return DOOR if DOOR in there else "nothing"
