"""Every benchmark of the GPU in one go: a group compiles side by side and is timed one by one.

    python benchmarks/together.py --out benchmarks/results/today
    python benchmarks/together.py --only step,cost --out ...      groups by name

Leaves the output of each case in OUT/CASE.txt and all their JSON lines in OUT/results.jsonl; prints
a line for each. The exit status is 1 if any case fails, as it does if its result differs from the
reference. About 16 cores and 110 GB of GPU memory are wanted: run cases by themselves if there are
less.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from turns import take_turns

HERE = Path(__file__).resolve().parent
GROUPS: dict[str, dict[str, str]] = {
    "step": {
        "step-819": "train_step.py --profile",
        "step-328": "train_step.py --spans fixed:328 --no-floor",
        "step-819-of-1M": "train_step.py --max-span 1048576 --no-floor",
        "step-heavy": "train_step.py --spans heavy:-4,2 --budget 4096 --no-floor",
        "step-fixed-2048": "train_step.py --memory fixed --max-span 2048 --profile",
    },
    "others": {
        "step-adaptive": "train_step.py --memory adaptive --max-span 8192 --no-floor",
        "step-compressive": "train_step.py --memory compressive --no-floor",
        "cost": "training_cost.py",
        "stream": "stream.py --device cuda",
    },
    "agents": {
        "corridor": "agent.py --experiment corridor --scale paper --device cuda",
        "portal": "agent.py --experiment portal --scale paper --device cuda",
        "step-attention": "step_attention.py",
        "worlds": "worlds.py --device cuda --batch 65536 --compile",
        "collision": "collision.py --device cuda",
    },
    "attention": {"attention": "attention.py"},
    "scaling": {"scaling": "scaling.py --out {out}/scaling.png"},
}


def main() -> int:
    """Run the groups, gather what they say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default=",".join(GROUPS), help="groups, by commas")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for group in args.only.split(","):
        if group not in GROUPS:
            raise SystemExit(f"There is no group {group!r}: choose from {', '.join(GROUPS)}.")
        commands = {
            name: [sys.executable, str(HERE / script), *options.format(out=args.out).split()]
            for name, (script, _, options) in (
                (name, line.partition(" ")) for name, line in GROUPS[group].items()
            )
        }
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            exits = take_turns(commands, Path(folder), args.out)
        print(f"{group}: {time.perf_counter() - begin:.0f} s", flush=True)
        failed |= any(exits.values())
        gather(exits, args.out)
    return int(failed)


def gather(exits: dict[str, int], out: Path) -> None:
    """Print how each case ended, and add its JSON lines to those of all."""
    with (out / "results.jsonl").open("a") as results:
        for name, status in exits.items():
            lines = (out / f"{name}.txt").read_text().splitlines()
            results.writelines(f"{line}\n" for line in lines if line.startswith("{"))
            said = [line for line in lines if line.strip() and not line.startswith("{")]
            print(f"  {name}: exit {status}; {said[-1][:150] if said else ''}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
