"""An episode as an animated picture: the world, and below it what the agent keeps of it.

Each memory is a bar from the step at which it came to the step at which it starts to fade, paler
until it is gone. Bars of memories that are gone turn grey. So one sees the colour of an object
being kept while the walk is forgotten. A layer's memories are what it was given: those of the first
are what was seen, those of the others what the layer below has made of it, with what that one
remembered. So what one layer forgets the next may have taken over.

Shapes: T steps of the episode.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, MultipleLocator
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from expire_span.agent.dense import start_full
from expire_span.agent.episodes import Episodes, play_episodes
from expire_span.checks import require_at_least
from expire_span.model.memory import Deadlines
from expire_span.model.transformer import Transformer
from expire_span.training.disk import written_whole
from expire_span.worlds import Game, World, WorldState
from expire_span.worlds.grid import DOOR, OBJECT
from expire_span.worlds.render import CELL, as_pixels

# What is in view when a memory is made, and its colour; apart from one another in grey too.
GROUPS = {
    f"red {OBJECT}": "#d55e00",
    f"blue {OBJECT}": "#0072b2",
    DOOR: "#009e73",
    "nothing": "#999999",
}
GONE = to_rgba("#e4e4e4")
UNBORN = (1.0, 1.0, 1.0, 0.0)
MOST_PICTURES = 400
PAGE = 250  # typographic points for all bars together, a little more than there are
MOST_BARS = PAGE  # at a time, or bars would hide one another
SHADE = 17  # how far shades are apart, of 255
FADING = 0.45  # what is left of a colour
STRETCH = 50  # steps that are shown one after the other if not all are
MOST_CELLS = 30  # of a wider world, what is near the agent
MOST_FPS = 50  # a GIF counts hundredths of a second, and viewers take one for ten


@dataclass(frozen=True)
class Scene:
    """The world at one moment, of a wide one what is near the agent."""

    pixels: NDArray[np.uint8]
    first: int
    """The first column of cells that is shown."""
    caption: str
    """What there is to say about it."""


@dataclass(frozen=True)
class Film:
    """One episode from beginning to end."""

    scenes: list[Scene]
    """Before each step, and after the last one."""
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
    return Film(
        scenes=_replay(game, rows, seed, played.actions[:, : episode.steps], row),
        groups=[_group(view, world) for view in episode.observations[0]],
        spans=_read_spans(model, episode),
        ramp=model.stack()[0].keeper.ramp,
    )


def check_picture(path: Path, fps: int) -> None:
    """Refuse a picture that cannot be made."""
    require_at_least(1, fps=fps)
    if fps > MOST_FPS:
        raise ValueError(f"fps must be at most {MOST_FPS}, which viewers can show, but is {fps}.")
    if path.suffix != ".gif":
        raise ValueError(f"An episode is a GIF: give a path that ends in .gif, not {path}.")


def animate(film: Film, path: Path, *, fps: int = 10, progress: bool = False) -> None:
    """Write an episode as an animated GIF, of some 400 pictures at most."""
    check_picture(path, fps)
    layers = len(film.spans)
    figure = plt.figure(figsize=(5 * layers, 6), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    top, *below = figure.subplot_mosaic(
        [["world"] * layers, [str(layer) for layer in range(layers)]], height_ratios=(1, 2)
    ).values()
    image = top.imshow(film.scenes[0].pixels)
    _frame_world(top, film)
    bars = [_draw_bars(axes, film, layer) for layer, axes in enumerate(below)]

    def draw(time: int) -> Image.Image:
        _show(image, film.scenes[time])
        top.set_title(film.scenes[time].caption + _which_stretch(film.steps, time))
        for layer, (whole, fading, now) in enumerate(bars):
            _look_near(whole.axes, film, layer, time)
            colours = _colours(film, layer, time)[::-1]
            whole.set_colors(colours)
            fading.set_colors([(*rgb, FADING * alpha) for *rgb, alpha in colours])
            now.set_xdata([time, time])
        return _picture(canvas)

    try:
        draw(film.steps)  # whose numbers are the longest
        figure.set_layout_engine("none")  # it is found once, not for every picture
        palette = _palette([draw(time) for time in (0, film.steps // 2, film.steps)])
        times = tqdm(_shown(film.steps), desc=path.name, unit="picture", disable=not progress)
        first, *others = [
            draw(time).quantize(palette=palette, dither=Image.Dither.NONE) for time in times
        ]
    finally:
        plt.close(figure)
    with written_whole(path) as file:
        pause = 1000 // fps  # milliseconds
        first.save(file, "GIF", save_all=True, append_images=others, duration=pause, loop=0)


def _picture(canvas: FigureCanvasAgg) -> Image.Image:
    """What is drawn, in shades so far apart that an animation has a quarter of the bytes."""
    canvas.draw()
    colours = np.asarray(canvas.buffer_rgba())[..., :3]
    return Image.fromarray((SHADE * np.round(colours / SHADE)).astype(np.uint8))


def _palette(pictures: Sequence[Image.Image]) -> Image.Image:
    """A picture with the colours of these, or with the 256 that there is most of."""
    together = np.concatenate([np.asarray(picture).reshape(-1, 3) for picture in pictures])
    colours, counts = np.unique(together, axis=0, return_counts=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette(colours[np.argsort(-counts)[:256]].flatten().tolist())
    return palette


def _shown(steps: int) -> list[int]:
    """Times that are shown: all, or stretches evenly spaced, from the first to the last."""
    return [time for stretch in _stretches(steps) for time in stretch]


def _stretches(steps: int) -> list[range]:
    """The same, stretch by stretch."""
    times = steps + 1
    if times <= MOST_PICTURES:
        return [range(times)]
    begins = np.linspace(0, times - STRETCH, MOST_PICTURES // STRETCH).round().astype(int)
    return [range(begin, begin + STRETCH) for begin in begins.tolist()]


def _which_stretch(steps: int, time: int) -> str:
    """What there is to say of a picture if not all steps are shown."""
    stretches = _stretches(steps)
    if len(stretches) == 1:
        return ""
    stretch = next((one for one in stretches if time in one), None)
    return "" if stretch is None else f"\nshown: steps {stretch[0]} to {stretch[-1]} of {steps}"


def _frame_world(axes: Axes, film: Film) -> None:
    """Of a world that is not seen whole the cells are numbered."""
    axes.yaxis.set_visible(False)
    axes.xaxis.set_visible(len({scene.first for scene in film.scenes}) > 1)
    axes.xaxis.set_major_locator(MultipleLocator(5))
    axes.set_xlabel("cell")
    axes.spines[:].set_visible(False)


def _show(image: AxesImage, scene: Scene) -> None:
    """A scene, over the numbers of its cells."""
    height, width, _ = scene.pixels.shape
    left = scene.first - 0.5
    image.set_data(scene.pixels)
    image.set_extent((left, left + width / CELL, height / CELL - 0.5, -0.5))


def _draw_bars(axes: Axes, film: Film, layer: int) -> tuple[Any, Any, Any]:
    """Every memory of a layer as a bar, the first of them last, on top; colours come later."""
    times, spans = np.arange(film.steps), film.spans[layer]
    kept, gone = times + spans, times + spans + film.ramp
    step = PAGE / min(film.steps, MOST_BARS)
    look: dict[str, Any] = {
        "linewidths": [max(step, 3 if OBJECT in group else 0) for group in film.groups[::-1]],
        "antialiased": False,  # or bars that touch have seams
        "capstyle": "butt",
    }
    until_kept = [[(t, t), (end, t)] for t, end in zip(times, kept, strict=True)]
    until_gone = [[(a, t), (b, t)] for t, a, b in zip(times, kept, gone, strict=True)]
    whole = axes.add_collection(LineCollection(until_kept[::-1], **look))
    fading = axes.add_collection(LineCollection(until_gone[::-1], zorder=1, **look))
    now = axes.axvline(0, color="black", linewidth=0.8)
    _look_near(axes, film, layer, 0)
    axes.xaxis.set_major_locator(MaxNLocator(prune="upper"))  # whose number might not have room
    axes.set_xlabel("time (steps)")
    axes.set_ylabel("memory, in order of arrival")
    remembered = f"what layer {layer} has made of it" if layer else "what was seen"
    axes.set_title(f"layer {layer + 1}: {remembered},\neach memory until it expires", fontsize=11)
    for name in dict.fromkeys(film.groups):
        axes.plot([], [], color=GROUPS[name], linewidth=2, label=f"{name} in view")
    axes.legend(loc="lower left", frameon=False)
    return whole, fading, now


def _look_near(axes: Axes, film: Film, layer: int, time: int) -> None:
    """Show all bars, or of many those that came last, as far as they reach."""
    count, lives = min(film.steps, MOST_BARS), film.spans[layer] + film.ramp
    first = min(max(time - int(0.9 * count), 0), film.steps - count)
    last = (np.arange(film.steps) + lives).max()
    reach = min(lives.max(), 0.6 * count)
    axes.set_xlim(first, min(last, first + count + reach) + 1)
    axes.set_ylim(first + count, first - 0.02 * count - 1)


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


def _replay(game: Game, rows: int, seed: int, actions: Tensor, row: int) -> list[Scene]:
    """One row before each of the actions, and after the last."""
    state = game.start(rows, seed)
    scenes = []
    for now in actions.T:
        scenes.append(_scene(game, state, row))
        outcome = game.step(state, now)
        state = outcome.state
    reward = float(outcome.reward[row])
    told = f"rewarded {reward:g}" if reward > 0 else "not rewarded"
    return [*scenes, _scene(game, outcome.last, row, f", {told}")]


def _scene(game: Game, state: WorldState, row: int, told: str = "") -> Scene:
    """What is near the agent, and what there is to say."""
    picture = _cropped(as_pixels(game, state, row))
    column, _ = game.place(state, row)
    hidden = max(picture.shape[1] // CELL - MOST_CELLS, 0)
    first = min(max(column - MOST_CELLS // 2, 0), hidden)
    near = picture[:, first * CELL : (first + MOST_CELLS) * CELL]
    return Scene(near, first, game.caption(state, row) + told)


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
