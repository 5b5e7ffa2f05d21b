"""How well a recipe for the recall task holds over seeds: accuracy and live memories of each.

    python benchmarks/recall_seeds.py                       Expire-Span and a window of 128
    python benchmarks/recall_seeds.py --penalty 1e-4 --rate 2e-3 --seeds 8 --processes 12

Every run has one thread, so that several fit side by side. Not a test: recipes are for choosing.
"""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

import expire_span as es
from expire_span.experiments.recall import EXPIRE_SPAN, recall
from expire_span.model.memory import AnyMemory
from expire_span.training.evaluation import Evaluation
from expire_span.training.trainer import Trainer


def run(seed: int, memory: AnyMemory, rate: float, steps: int) -> dict[str, float]:
    """Train one seed, and judge it."""
    torch.set_num_threads(1)
    experiment = replace(recall(memory), seed=seed, device="cpu", steps=steps)
    experiment = replace(experiment, optimizer=replace(experiment.optimizer, rate=rate))
    trainer = Trainer(experiment)
    while trainer.step < steps:
        trainer.update()
    found = Evaluation.of(experiment, trainer.model, "test", blocks=64).run()
    return {"seed": seed, "accuracy": found["accuracy"], "live": found["live"]}


def main() -> None:
    """Train all seeds of both memories."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penalty", type=float, default=EXPIRE_SPAN.penalty)
    parser.add_argument("--rate", type=float, default=recall().optimizer.rate)
    parser.add_argument("--steps", type=int, default=recall().steps)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    memories = {
        "window 128": es.FixedSpan(128),
        "Expire-Span": replace(EXPIRE_SPAN, penalty=args.penalty),
    }
    with get_context("spawn").Pool(args.processes) as pool:
        for name, memory in memories.items():
            one = partial(run, memory=memory, rate=args.rate, steps=args.steps)
            for result in pool.imap(one, range(args.seeds)):
                print(json.dumps({"memory": name, **result}), flush=True)


if __name__ == "__main__":
    main()
