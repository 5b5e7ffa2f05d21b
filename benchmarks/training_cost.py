"""What the training system costs around the model: metrics, guard, control, logs, checkpoints.

    python benchmarks/training_cost.py                           the paper's enwik8 model on a GPU
    python benchmarks/training_cost.py --small                   a try on a CPU

The same model, optimiser and stream are driven in turns by bare updates (data, forward, backward,
clip, Adam, memory: nothing else) and by whole ones. What happens only now and then is timed on its
own and spread over the steps between: a report, the look at spans, telling apart what pulls at them
(a few rows, not compiled), a checkpoint written in the background while updates go on.

Every number is a median of several turns. Prints a table and one JSON line; the exit status is 1
if the system takes 3 % of a step or more.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from turns import my_turn

from expire_span.training.distributed import ALONE, choose_device
from expire_span.training.experiment import Experiment
from expire_span.training.log import MetricLog
from expire_span.training.loop import SHARES_EVERY
from expire_span.training.saver import Saver
from expire_span.training.schedule import PenaltySchedule
from expire_span.training.spans import LOOK_EVERY, SpanWatch
from expire_span.training.trainer import Trainer
from train_step import experiment as paper_experiment
from train_step import set_spans

ALLOWED = 0.03


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="updates of one turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--fill", type=int, default=12, help="updates before anything is timed")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=1000)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try this out")
    fixed = {"memory": "expire", "spans": "fixed:819", "max_span": 16384, "budget": None}
    parser.set_defaults(**fixed, dropout=0.3, attention="auto")
    return parser.parse_args()


def experiment(args: argparse.Namespace, path: Path) -> Experiment:
    """The paper's model, with a target for live memory so that the controller works too."""
    found = replace(
        paper_experiment(args, path),
        penalty=PenaltySchedule(target_live=947.0),
        device=args.device,
        log_every=args.log_every,
    )
    if args.small:
        model = replace(found.model, layers=2, width=64, heads=2, feedforward=128, block=64)
        found = replace(found, model=model, batch=8)
    return found


def bare_update(trainer: Trainer) -> None:
    """What is left of an update without the system around it."""
    clip = trainer.experiment.optimizer.clip
    assert clip is not None
    batch = trainer.stream.read(trainer.experiment.model.block).to(trainer.device)
    (done,) = trainer.learn(batch, batch.scored.sum().clamp(min=1))
    torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), clip)
    trainer.optimizer.found_inf = None  # type: ignore[attr-defined]
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    trainer.model.clamp_parameters()
    trainer.memories = (done.memory(),)


def seconds(action: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Seconds that it takes each time, the device's work included."""
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        action()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(args: argparse.Namespace, trainer: Trainer, folder: Path) -> dict[str, float]:
    """Medians in seconds of all that a run does."""
    device = trainer.device
    found: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    watch = SpanWatch(trainer.experiment.model.memory.longest_learned_span())
    with MetricLog(folder, 0) as log, Saver(folder / "checkpoints", ALONE) as saver:

        def save_and_go_on() -> None:
            note("copy", seconds(lambda: saver.save(trainer.checkpoint(), trainer.step), device))
            while saver.busy():
                trainer.update()
                steps.append(1)

        trainer.update(watch_spans=True)  # compiled or warmed up before anything counts
        for _ in range(args.turns):
            note("bare", seconds(lambda: bare_update(trainer), device, args.steps))
            note("update", seconds(trainer.update, device, args.steps))
            note("shares", seconds(lambda: trainer.update(watch_spans=True), device))
            note("look", seconds(lambda: watch.look(0, trainer.take_stats()), device))
            note("report", seconds(lambda: log.write(trainer.step, trainer.report()), device))
            steps: list[int] = []
            whole = seconds(save_and_go_on, device)
            note("save", whole - len(steps) * found["update"][-1])
            note("steps_meanwhile", len(steps))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> int:
    """Fill memory, measure, print."""
    args = arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "bytes"
        path.write_bytes(torch.randint(256, (8_000_000,), dtype=torch.uint8).numpy().tobytes())
        trainer = Trainer(experiment(args, path))
        set_spans(trainer.model, args.spans, args.max_span)
        for _ in range(args.fill):
            trainer.update()
        my_turn()
        found = measure(args, trainer, folder)
        live = trainer.report()["live"]
    step = found["update"]
    costs = {
        "guard, metrics, control": step - found["bare"],
        f"report, every {args.log_every}": found["report"] / args.log_every,
        f"look at spans, every {LOOK_EVERY}": found["look"] / LOOK_EVERY,
        f"pulls at spans, every {SHARES_EVERY}": (found["shares"] - step) / SHARES_EVERY,
        f"checkpoint, every {args.save_every}": found["save"] / args.save_every,
    }
    share = sum(costs.values()) / found["bare"]
    print(f"{'':36} {'ms a step':>10} {'share':>8}")
    print(f"{'bare step':36} {found['bare'] * 1e3:10.3f}")
    for what, cost in costs.items():
        print(f"{what:36} {cost * 1e3:10.3f} {cost / found['bare']:8.2%}")
    print(f"{'all of it':36} {sum(costs.values()) * 1e3:10.3f} {share:8.2%}")
    print(f"a checkpoint stops training for {found['copy'] * 1e3:.0f} ms")
    device = choose_device(args.device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    settings = {key: value for key, value in vars(args).items() if value is not None}
    timings = {f"{key}_ms": 1e3 * value for key, value in found.items() if key != "steps_meanwhile"}
    result = {"benchmark": "training_cost", "machine": machine, **settings, **timings}
    print(json.dumps({**result, "live": live, "share": share}))
    return int(share >= ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
