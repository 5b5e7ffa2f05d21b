"""Training on real text: how long an update takes when memory comes and goes as it does there.

    python benchmarks/real_text.py --data enwik8 --minutes 2
    python benchmarks/real_text.py --data enwik8 --recipe own
    python benchmarks/real_text.py --data enwik8 --profile           where the time goes, by kernel

`train_step.py` times steps whose memory stays as it is. Here the same model learns enwik8 from the
beginning (`enwik8_speedrun`: 12 layers, L 16k, B 64, K 512, no dropout), its spans change, and with
them the sizes of memory: a block of new sizes cannot be replayed. The recipe is the original's, or
our own, with norms before the sublayers and Muon (`enwik8_own_speedrun`). Prints a line every 50
updates, and one of JSON at the end, unless a replayed block then leaves other gradients than a
launched one; `changes` are updates after which a layer had another size. Needs a GPU.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from expire_span.experiments.enwik8 import enwik8_own_speedrun, enwik8_speedrun
from expire_span.tasks import Enwik8
from expire_span.training.trainer import Trainer
from train_step import profile, replay_agrees, room

EVERY = 50
RECIPES = {"same": enwik8_speedrun, "own": enwik8_own_speedrun}


def main() -> int:
    """Train, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="enwik8, in any form")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--recipe", choices=RECIPES, default="same")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    experiment = RECIPES[args.recipe]("single")
    trainer = Trainer(replace(experiment, task=Enwik8(str(args.data))))
    if trainer.replay is None:
        raise SystemExit("Nothing is replayed here: this needs a CUDA device, and Triton.")
    end = time.perf_counter() + 60 * args.minutes
    lines: list[dict[str, float]] = []
    columns = ("step", "bpb", "ms", "live", "held", "room", "replayed", "changes", "gb")
    print("".join(f"{name:>10}" for name in columns))
    while time.perf_counter() < end or not lines:
        ms, changes = updates(trainer)
        found = trainer.report()
        lines.append({
            "step": trainer.step,
            "bpb": found["bpb"],
            "ms": ms,
            "live": found["live"],
            "held": found["held"],
            "room": room(trainer),
            "replayed": trainer.replay.share_since_last(),
            "changes": changes,
            "gb": torch.cuda.max_memory_allocated() / 1e9,
        })  # fmt: skip
        print("".join(f"{lines[-1][name]:>10.4g}" for name in columns), flush=True)
    if not replay_agrees(trainer):
        print("not reported: a replayed block leaves other gradients than a launched one")
        return 1
    result = {
        "benchmark": "real_text",
        "machine": torch.cuda.get_device_name(),
        "recipe": args.recipe,
        "ms": statistics.mean(line["ms"] for line in lines),
        "last_ms": statistics.mean(line["ms"] for line in lines[len(lines) // 2 :]),
        "lines": lines,
    }
    print(json.dumps(result))
    if args.profile:
        print(profile(trainer.update))
    return 0


def updates(trainer: Trainer) -> tuple[float, int]:
    """Milliseconds of one of some updates, and after how many of them sizes had changed."""
    changes, before = 0, sizes(trainer)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(EVERY):
        trainer.update()
        now = sizes(trainer)
        changes += now != before
        before = now
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / EVERY * 1e3, changes


def sizes(trainer: Trainer) -> list[float]:
    """Room of every layer."""
    return [layer.held() for layer in trainer.memories[0].layers]


if __name__ == "__main__":
    sys.exit(main())
