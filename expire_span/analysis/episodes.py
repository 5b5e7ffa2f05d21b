"""Episodes of an agent as recordings: what it sees is read like a text, what it does is predicted.

A token is a moment: a view, and what was done there. It is written as what there is besides walls,
each with the direction in which it lies, and an arrow for the move.

Example: "(red object ←)→ → → (red door ↗, blue door ↘)→ (red door ↑, blue door ↓)↑ " is a whole
walk.

Shapes: B rows, T steps, V words, N different moments.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from expire_span.agent.episodes import Episodes, play_episodes
from expire_span.agent.ports import build_agent
from expire_span.agent.rollout import log_prob_of
from expire_span.agent.run import load_agent
from expire_span.analysis.codec import Codec, Tokens
from expire_span.analysis.recording import Recorder, Recording
from expire_span.analysis.subject import Subject
from expire_span.analysis.tables import write_csv
from expire_span.tasks import Batch
from expire_span.worlds import World
from expire_span.worlds.grid import AGENT, BLOCK, MOVES, STAY

DIRECTIONS = ("↖↑↗", "← →", "↙↓↘")  # of the cells in view
ARROWS = dict(zip((*MOVES, STAY), "↑↓←→·", strict=True))
NOTHING, REWARDED = "nothing near", "earned a reward"


class MomentCodec(Codec):
    """Writes moments.

    Args:
        world: where they were.
        views: uint8 [N, 3, 3, V].
        actions: int64 [N], what was done at each.
    """

    unit = "step"
    whole = "the episode"
    cost = "surprise of the move"
    note = (
        "Each step is what was in view besides walls, with where it lay, and an arrow for the move "
        "that was made."
    )

    def __init__(self, world: World, views: Tensor, actions: Tensor):
        self.things = [_things(view, world) for view in views]
        self.views = [
            ", ".join(f"{t.name} {t.direction}".strip() for t in ts) for ts in self.things
        ]
        self.actions = [world.actions[action] for action in actions.tolist()]

    def encode(self, text: str) -> Tokens:
        """There is no way from a text to a world."""
        raise ValueError("An agent sees a world and reads no text: leave out --text and --replace.")

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """What was seen and done."""
        return [
            (f"({self.views[n]})" if self.views[n] else "") + f"{ARROWS[self.actions[n]]} "
            for n in tokens
        ]

    def write(self, path: Path) -> Path:
        """Leave a table of what each token means."""
        rows = zip(range(len(self.views)), self.views, self.actions, strict=True)
        return write_csv(path, ["token", "seen", "action"], rows)


@dataclass(frozen=True)
class Player(Subject):
    """An agent that deletes what has expired, and how its moments are written."""

    codec: MomentCodec


@dataclass(frozen=True)
class Played:
    """An agent, and episodes that it played."""

    player: Player
    episodes: Episodes
    tokens: Tensor
    """int64 [B, T], on the host."""

    def record(self, folder: Path | None = None, *, limit: int | None = None) -> Recording:
        """Every row, episode after episode; nothing is seen beyond a limit."""
        return record_episodes(self.player, self.episodes, self.tokens, folder, limit=limit)

    def record_best(self, *, limit: int | None = None) -> Recording:
        """The longest of the best of the first episodes, alone; nothing is seen beyond a limit."""
        row = self.episodes.best()
        episode = self.episodes.first_of(row)
        tokens = self.tokens[row : row + 1, : episode.steps]
        return record_episodes(self.player, episode, tokens, limit=limit)

    def kinds(self) -> dict[str, NDArray[np.bool_]]:
        """For everything that can be seen, the steps [B, T] at which it was; also what paid."""
        named = [{thing.name for thing in things} for things in self.player.codec.things]
        known = dict.fromkeys(name for names in named for name in sorted(names))
        found = {kind: np.array([kind in names for names in named])[self.tokens] for kind in known}
        found[NOTHING] = np.array([not names for names in named])[self.tokens]
        found[REWARDED] = (self.episodes.rewards > 0).cpu().numpy()
        return {kind: marked for kind, marked in found.items() if marked.any()}

    def views(self) -> NDArray[np.str_]:
        """What was seen at every step, in words, [B, T]."""
        return np.array([view or NOTHING for view in self.player.codec.views])[self.tokens]


def play(folder: Path, *, rows: int, seed: int, device: str = "cpu") -> Played:
    """Let the agent of a run or of a release play an episode in each of some rows."""
    experiment, acting = load_agent(folder, device)
    world = experiment.world
    episodes = play_episodes(acting, world, rows=rows, seed=seed)
    # It acts with memory that hides what has expired. To see what can be deleted, the same weights
    # read the episodes with memory that does delete; both give the same numbers.
    reading = build_agent(world, experiment.model).to(acting.positions.device).eval()
    reading.load_state_dict(acting.state_dict())
    tokens, views, actions = _moments(episodes)
    codec = MomentCodec(world, views, actions)
    return Played(Player(folder.resolve().name, reading, codec), episodes, tokens)


@torch.no_grad()
def record_episodes(
    player: Player,
    episodes: Episodes,
    tokens: Tensor,
    folder: Path | None = None,
    *,
    limit: int | None = None,
) -> Recording:
    """Read what was seen; the loss is that of what was done, -log of its probability."""
    model, block = player.model, player.model.config.block
    rows, steps = tokens.shape
    recorder = Recorder(
        model,
        player.name,
        rows=rows,
        steps=steps,
        calls=-(-steps // block),
        limit=limit,
        ahead=0,
        folder=folder,
    )
    memory = model.start(rows)
    for part, read in zip(episodes.blocks(block), tokens.split(block, dim=1), strict=True):
        step = model(part.observations, memory, starts=part.starts, limit=limit)
        memory = step.memory
        log_probs = model.head(step.hidden).logits.log_softmax(dim=-1)
        actions = part.actions.cpu()
        batch = Batch(read, actions, torch.ones_like(read, dtype=torch.bool), part.starts.cpu())
        recorder.add(batch, step, -log_prob_of(log_probs, part.actions))
    return recorder.finish()


class Thing(NamedTuple):
    """Something in view, and in which direction; none for what holds where the agent stands."""

    name: str
    direction: str


def _things(view: Tensor, world: World) -> list[Thing]:
    """What there is in a view [3, 3, V] besides the agent and walls.

    Words that the agent's own cell carries, such as a room's, are told once.
    """
    cells = [[_words(cell, world) for cell in line] for line in view.tolist()]
    own = cells[1][1]
    return [Thing(word, "") for word in own] + [
        Thing(" ".join(words), DIRECTIONS[y][x])
        for y, line in enumerate(cells)
        for x, cell in enumerate(line)
        if (y, x) != (1, 1) and (words := [word for word in cell if word not in own])
    ]


def _words(cell: Sequence[int], world: World) -> list[str]:
    """Words of a cell, colours before what has them."""
    shown = [word for word, there in zip(world.words, cell, strict=True) if there]
    return [word for word in reversed(shown) if word not in (AGENT, BLOCK)]


def _moments(episodes: Episodes) -> tuple[Tensor, Tensor, Tensor]:
    """The number of every step's moment [B, T]; of all moments the views and the actions."""
    views, actions = episodes.observations.cpu(), episodes.actions.cpu()
    both = torch.cat([views.flatten(2), actions.to(torch.uint8).unsqueeze(-1)], dim=-1)
    moments, tokens = both.flatten(0, 1).unique(dim=0, return_inverse=True)
    seen = moments[:, :-1].unflatten(1, views.shape[2:])
    return tokens.view(actions.shape), seen, moments[:, -1].long()
