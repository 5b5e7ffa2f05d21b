"""Steps per second of an agent that acts and learns: world, model and updates together.

    python benchmarks/agent.py --experiment corridor --scale smoke                  on a CPU
    python benchmarks/agent.py --experiment corridor --scale paper --device cuda    64 rows
    python benchmarks/agent.py --experiment portal --scale paper --device cuda      1,024 rows
    python benchmarks/agent.py --experiment corridor --scale paper --device cuda --runs 6
    python benchmarks/agent.py --experiment portal --scale single --device cuda --profile

Before anything is reported, log-probabilities that the update reads again are compared with those
that were acted with; where they differ by more than rounding, the exit status is 1. Prints one JSON
line: time of a step of all rows, of an update, and steps per second in all.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from turns import my_turn

from expire_span.agent.experiments import AGENT_EXPERIMENTS
from expire_span.agent.trainer import AgentTrainer
from expire_span.model.memory import FixedSpan

ROUNDING = 1e-3  # of a log-probability, in float32 and with reductions in any order


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", default="corridor", choices=list(AGENT_EXPERIMENTS))
    parser.add_argument("--scale", default="smoke", choices=["smoke", "single", "paper"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--window", type=int, help="a Transformer-XL window instead")
    parser.add_argument("--batch", type=int, help="rows, if not as in the experiment")
    parser.add_argument("--runs", type=int, default=1, help="seeds that share the device")
    parser.add_argument("--profile", action="store_true", help="kernels of a block, by time")
    parser.add_argument("--updates", type=int, default=20, help="measured")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    return parser.parse_args()


def build(args: argparse.Namespace) -> list[AgentTrainer]:
    """The trainers, at their first step."""
    memory = FixedSpan(args.window) if args.window else None
    experiment = AGENT_EXPERIMENTS[args.experiment](args.scale, memory)
    experiment = replace(experiment, batch=args.batch or experiment.batch)
    device = torch.device(args.device)
    return [AgentTrainer(replace(experiment, seed=seed), device) for seed in range(args.runs)]


def seconds_of(work: Callable[[], object], times: int, wait: Callable[[], object]) -> float:
    """Mean time of the work, the device's included."""
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - begin) / times


def profile(work: Callable[[], object]) -> str:
    """The kernels that take most of some work on a GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    averages = found.key_averages()
    return averages.table(sort_by="self_device_time_total", row_limit=30, max_name_column_width=70)


def main() -> int:
    """Compare, measure, report."""
    args = arguments()
    torch.set_num_threads(args.threads)
    on_gpu = args.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    trainers = build(args)
    streams = [torch.cuda.Stream() if on_gpu else None for _ in trainers]
    wait()

    def update_all() -> None:
        for trainer, stream in zip(trainers, streams, strict=True):
            with torch.cuda.stream(stream):  # does nothing for None
                trainer.update()

    begin = time.perf_counter()
    update_all()
    wait()
    preparing = time.perf_counter() - begin
    update_all()
    drift = max(trainer.report()["log_prob_drift"] for trainer in trainers)
    if not drift < ROUNDING:
        print(f"not reported: log-probabilities read again are off by {drift:.1e}")
        return 1

    my_turn()
    first = trainers[0]
    length = first.experiment.model.block

    def act() -> object:
        return first.actor.act_block(first.situation, first.memory, first.tally)

    acting = seconds_of(act, args.updates, wait)
    whole = seconds_of(first.update, args.updates, wait)
    together = seconds_of(update_all, args.updates, wait)
    steps = args.runs * first.experiment.batch * length
    result = {
        "benchmark": "agent",
        "machine": torch.cuda.get_device_name() if on_gpu else "cpu",
        **{
            name: value
            for name, value in vars(args).items()
            if value is not None and value is not False
        },
        "batch": first.experiment.batch,
        "log_prob_drift": drift,
        "seconds_to_prepare": round(preparing, 1),
        "microseconds_per_step": 1e6 * acting / length,
        "milliseconds_per_update": 1e3 * (whole - acting),
        "steps_per_second": round(steps / together),
        "minutes_for_100M_steps_of_each_run": 1e8 / (steps / args.runs / together) / 60,
    }
    if on_gpu and args.profile:
        print(
            "acting:", profile(act), "an update, acting included:", profile(first.update), sep="\n"
        )
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
