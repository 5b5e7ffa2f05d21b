"""What an agent is worth, and how much it remembers: whole episodes, one in each row.

Rows end their first episodes at different steps. They go on until the last has ended, but neither
what they do then nor what they remember of it counts.

Shapes: B rows, T steps of a block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from expire_span.agent.cached import make_actor
from expire_span.agent.dense import start_full
from expire_span.agent.rollout import Block, begin
from expire_span.agent.tally import Tally
from expire_span.checks import require_at_least
from expire_span.model.transformer import Step, Transformer
from expire_span.training.interruption import Interruption, Stopped
from expire_span.training.metrics import LARGEST, Means, memory_metrics
from expire_span.worlds import Game, World


class Played(NamedTuple):
    """A block of steps; the next one is written over it."""

    block: Block
    """What was done."""
    first: Tensor
    """bool [B, T], which of it belongs to a row's first episode."""
    step: Step
    """What the model made of it."""
    tally: Tally
    """First episodes that have ended so far."""


@torch.no_grad()
def evaluate_agent(
    model: Transformer,
    world: World,
    *,
    rows: int,
    seed: int = 0,
    limit: int | None = None,
    progress: bool = False,
    interruption: Interruption | None = None,
) -> dict[str, float]:
    """The world's measures over one whole episode in each row, and the memory used in them.

    Args:
        model: the agent.
        world: where it acts.
        rows: episodes.
        seed: which ones.
        limit: distance beyond which it remembers nothing, if not as far as its memory reaches.
        progress: whether to show how far it has come.
        interruption: whether to stop.

    Raises:
        Stopped: after some block, if a signal asked for it; nothing is kept of what was played.
    """
    require_at_least(1, rows=rows)
    require_at_least(0, limit=limit)
    game, sums = world.play(model.positions.device), Means()
    tally = Tally.empty(game, episodes=1)
    blocks = play_first_episodes(model, game, rows=rows, seed=seed, limit=limit, alone=True)
    most = most_blocks(world, model)
    for played in tqdm(blocks, "at most", most, unit="block", leave=False, disable=not progress):
        if interruption is not None and interruption.wanted:
            raise Stopped("stopped while an agent was judged", interruption.number)
        sums.add(**_memory_sums(played.step, played.first))
        tally = played.tally
    return tally.read(game) | memory_metrics(_per_step(sums.take()))


@torch.no_grad()
def play_first_episodes(
    model: Transformer,
    game: Game,
    *,
    rows: int,
    seed: int,
    limit: int | None = None,
    alone: bool = False,
) -> Iterator[Played]:
    """Blocks of steps until every row has finished its first episode, as `evaluate_agent` says.

    Args:
        model: the agent.
        game: where it acts.
        rows: episodes.
        seed: which ones.
        limit: distance beyond which it remembers nothing.
        alone: whether nothing is remembered, nor counted, after a row's first episode.
    """
    require_at_least(1, rows=rows)
    situation, memory = begin(game, rows, seed), start_full(model, rows)
    actor, tally = make_actor(model, game, rows, limit=limit), Tally.empty(game, episodes=1)
    begun = torch.zeros_like(memory.origin)  # episodes of each row so far
    for _ in range(most_blocks(game.world, model)):
        block, situation, tally = actor.act_block(situation, memory, tally)
        episode = begun[:, None] + block.starts.cumsum(dim=1)
        begun, first = episode[:, -1], episode == 1
        starts = block.starts | ~first if alone else block.starts
        step = model(block.observations, memory, starts=starts, limit=limit)
        memory = step.memory
        yield Played(block, first, step, tally)
        if tally.counts.max() == rows:
            return


def most_blocks(world: World, model: Transformer) -> int:
    """In so many every episode has ended, if not earlier."""
    return -(-world.limit // model.config.block)


def _memory_sums(step: Step, counted: Tensor) -> dict[str, Tensor]:
    """Statistics of memory summed over the steps that count, bool [B, T], and how many they are.

    Nothing may be live at the others.
    """
    steps = counted.sum()
    spans = [_of_steps(counted, one) for one in step.spans]
    return {
        "steps": steps,
        "live": step.stats.live * counted.numel(),  # which is a mean over all steps
        "held": step.stats.held * steps,
        "mean_span": torch.stack([one.mean(dim=-1).sum() for one in spans]),
        "max_span": torch.stack([one.max() for one in spans]),
    }


def _of_steps(counted: Tensor, spans: Tensor) -> Tensor:
    """Spans of the steps that count, 0 of the others, [B, T, H]: one, or some for different heads.

    Some policies give all steps the same.
    """
    by_step = spans.unsqueeze(-1) if spans.shape == counted.shape else spans.flatten()
    return by_step.double() * counted.unsqueeze(-1)


def _per_step(sums: dict[str, Tensor]) -> dict[str, Tensor]:
    """Means over the steps that were counted; of what `LARGEST` names, the largest as it is."""
    steps = sums["steps"]
    return {name: sums[name] if name in LARGEST else sums[name] / steps for name in sums}
