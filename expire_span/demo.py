"""The demo: three memories learn the recall task, side by side, on a CPU.

All numbers come out of the run. If the claim fails in a run, the demo says so.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tqdm import tqdm

from expire_span.analysis.pictures import Bar, Point, picture_endings, save_demo_picture
from expire_span.analysis.recording import record_task
from expire_span.checks import require_one_of
from expire_span.experiments.recall import EXPIRE_SPAN, recall
from expire_span.model.memory import AnyMemory, FixedSpan
from expire_span.model.transformer import Transformer
from expire_span.tasks import Recall
from expire_span.training.evaluation import Evaluation
from expire_span.training.trainer import Trainer

EVALUATED_BLOCKS = 64
DRAWN_BLOCKS = 8
# What the demo claims: as good as the long window, with a fraction of its memory.
AS_GOOD, FRACTION = 0.02, 0.25


@dataclass(frozen=True)
class Result:
    """How one model came out."""

    name: str
    accuracy: float
    live: float
    held: float
    seconds: float


def demo(out: Path = Path("demo.png"), seed: int = 0, steps: int | None = None) -> None:
    """Train three memories on one small task, print how they compare, draw what was kept.

    One token in 128 is a cue; later tokens ask for it again and again. A window must be long to
    hold the cue; Expire-Span learns to hold the cue, and the rest only for a while.

    Args:
        out: where the picture goes.
        seed: fixes initial weights and data.
        steps: updates per model; as many as the experiment has if left out.
    """
    require_one_of(picture_endings(), ending=out.suffix)  # before all the work
    torch.set_num_threads(1)  # tensors this small gain nothing from a second, which may only wait
    task = Recall()
    model, expiring = _train("Expire-Span", EXPIRE_SPAN, seed, steps)
    _, long = _train("Transformer-XL, long window", FixedSpan(task.period), seed, steps)
    # As much memory as Expire-Span came to use.
    short_span = math.ceil(expiring.live)
    _, short = _train("Transformer-XL, short window", FixedSpan(short_span), seed, steps)

    results = [long, short, expiring]
    print(_table(results))
    print(_verdict(expiring, long))
    bars = _bars(model, task, seed)
    points = [Point(r.name, r.live, r.accuracy) for r in (expiring, long, short)]
    save_demo_picture(out, bars, EXPIRE_SPAN.ramp, points, chance=1 / task.colours)
    print(f"What was kept: {out}")


def _train(
    name: str, memory: AnyMemory, seed: int, steps: int | None
) -> tuple[Transformer, Result]:
    experiment = replace(recall(memory), seed=seed, device="cpu")
    experiment = experiment if steps is None else replace(experiment, steps=steps)
    trainer = Trainer(experiment)
    began = time.perf_counter()
    with tqdm(total=experiment.steps, desc=f"{name:28}", unit="step") as bar:
        while trainer.step < experiment.steps:
            trainer.update()
            bar.update()
            if trainer.step % experiment.log_every == 0:
                metrics = trainer.report()
                shown = {key: f"{metrics[key]:.3g}" for key in ("accuracy", "live")}
                bar.set_postfix(shown)
    seconds = time.perf_counter() - began
    found = Evaluation.of(experiment, trainer.model, "test", blocks=EVALUATED_BLOCKS).run()
    return trainer.model, Result(name, found["accuracy"], found["live"], found["held"], seconds)


def _table(results: Sequence[Result]) -> str:
    lines = [f"\n{'memory':28}  accuracy  live/layer  held/layer  seconds"]
    for r in results:
        lines.append(
            f"{r.name:28}  {r.accuracy:8.3f}  {r.live:10.1f}  {r.held:10.1f}  {r.seconds:7.1f}"
        )
    return "\n".join(lines)


def _verdict(expiring: Result, long: Result) -> str:
    """The claim, held against the numbers of this run."""
    share = expiring.live / long.live
    facts = (
        f"Expire-Span reaches {expiring.accuracy:.1%} with {expiring.live:.1f} live memories "
        f"({expiring.held:.1f} held), the long window {long.accuracy:.1%} with {long.live:.1f} "
        f"({long.held:.1f} held): {share:.0%} of the live memory."
    )
    if expiring.accuracy >= long.accuracy - AS_GOOD and share <= FRACTION:
        return f"\n{facts}"
    return (
        f"\nThe claim FAILED in this run: it asks for an accuracy within {AS_GOOD:.0%} of the long "
        f"window's with at most {FRACTION:.0%} of its memory. {facts}"
    )


def _bars(model: Transformer, task: Recall, seed: int) -> list[Bar]:
    """Tokens of one row, with the longest span that any layer gave to each."""
    record = record_task(model.eval(), task, "test", blocks=DRAWN_BLOCKS, seed=seed)
    tokens, spans = torch.from_numpy(record.tokens[0]), record.spans[:, 0].max(axis=0)
    cue, query = task.is_cue(tokens), task.is_query(tokens)
    groups = ["cue" if c else "query" if q else "filler" for c, q in zip(cue, query, strict=True)]
    return [
        Bar(n, span, group)
        for n, (span, group) in enumerate(zip(spans.tolist(), groups, strict=True))
    ]
