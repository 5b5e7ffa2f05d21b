"""Training in processes that are killed with SIGKILL, and started again until they are through.

    python tests/killing.py --kills 1000           a thousand kills, about five minutes
    python tests/killing.py --kills 100 --ranks 2  two ranks that train together

Processes are forked from one that has imported PyTorch and done nothing else, so that a start takes
a fraction of a second. Each tells when training begins, is killed a random moment later, and the
next goes on. In the end the checkpoint must equal, bit for bit, that of a run that nobody killed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # from a checkout, not installed
    sys.path[:0] = [str(Path(__file__).resolve().parents[n]) for n in (0, 1)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the process that forks

import torch

from expire_span.training import checkpoint as checkpoints
from expire_span.training.distributed import join_ranks
from expire_span.training.experiment import EvaluationConfig, Experiment
from expire_span.training.folder import CHECKPOINTS, EXPERIMENT_FILE
from expire_span.training.loop import train
from expire_span.training.trainer import Trainer
from small_runs import MEMORIES, last_of, same_checkpoints, small_experiment

FORKS = get_context("forkserver")
# The compiler is what the first optimiser would import.
FORKS.set_forkserver_preload(["expire_span.training.loop", "torch._dynamo"])


def start(target: Callable[..., object], *arguments: Any) -> BaseProcess:
    """Call a function of a module in a process of its own."""
    process = FORKS.Process(target=_run, args=(target, arguments), daemon=True)
    process.start()
    return process


def _run(target: Callable[..., object], arguments: tuple) -> None:
    torch.set_num_threads(1)
    target(*arguments)


def experiment_for_kills(**changes: Any) -> Experiment:
    """Saves all the time, evaluates often, reads documents that begin and end inside blocks."""
    evaluation = EvaluationConfig(every=40, batch=2, blocks=4)
    memory = replace(MEMORIES["expire"], penalty=1e-4)
    plain = {"steps": 160, "save_every": 3, "log_every": 5, "accumulate": 2, "memory": memory}
    return small_experiment(**{**plain, "evaluation": evaluation, **changes})


def train_here(experiment: Experiment, folder: Path, begun: Connection | None = None) -> None:
    """Train, going on from whatever there is; `begun` hears of the first update."""
    if begun is not None:
        update = Trainer.update

        def telling(trainer: Trainer, **settings: bool) -> None:
            Trainer.update = update  # type: ignore[method-assign]
            begun.send(trainer.step)
            update(trainer, **settings)

        Trainer.update = telling  # type: ignore[method-assign]
    with join_ranks("cpu") as ranks:
        resume = (folder / EXPERIMENT_FILE).exists()
        train(experiment, folder, resume=resume, progress=False, ranks=ranks)


def become_rank(rank: int, count: int, port: int) -> None:
    """Set what torchrun would set."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"}


def train_as_rank(rank: int, count: int, port: int, *arguments: Any) -> None:
    """The same as one of several ranks."""
    become_rank(rank, count, port)
    train_here(*arguments)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_training(
    experiment: Experiment, folder: Path, ranks: int = 1
) -> tuple[list[BaseProcess], Connection]:
    """Processes that train together, and where the first of them says that it has begun."""
    hears, tells = FORKS.Pipe(duplex=False)
    if ranks == 1:
        processes = [start(train_here, experiment, folder, tells)]
    else:
        port = free_port()
        processes = [
            start(train_as_rank, n, ranks, port, experiment, folder, None if n else tells)
            for n in range(ranks)
        ]
    tells.close()
    return processes, hears


def finish(experiment: Experiment, folder: Path, ranks: int = 1) -> None:
    """Train to the end, going on from whatever there is."""
    processes, _begun = start_training(experiment, folder, ranks)
    for process in processes:
        process.join()
        assert process.exitcode == 0, f"A process ended with {process.exitcode}."


@dataclass
class Toll:
    """What the killing came to."""

    kills: int = 0
    """Processes killed while they were training."""
    amid_saves: int = 0
    """Kills that left something half written or half removed."""
    rounds: int = 0
    """Runs that came to their end all the same."""


class Killer:
    """Kills a run again and again.

    Args:
        experiment: what is trained.
        folder: for all runs.
        longest: seconds that a process may live after its first update; of several ranks, which
            start slowly, after their first save.
        ranks: processes of a run.
    """

    def __init__(self, experiment: Experiment, folder: Path, longest: float = 0.15, ranks: int = 1):
        self.experiment = experiment
        self.folder = folder
        self.longest = longest
        self.ranks = ranks
        self.toll = Toll()

    def kill(self, times: int, seed: int = 0) -> Toll:
        """Run after run until so many kills, each run compared with the undisturbed one."""
        chance = random.Random(seed)
        undisturbed = self.folder / "undisturbed"
        finish(self.experiment, undisturbed, self.ranks)
        while self.toll.kills < times or self.toll.rounds == 0:
            killed = self.folder / "killed"
            shutil.rmtree(killed, ignore_errors=True)
            while self.toll.kills < times and self._kill_once(killed, chance):
                pass
            finish(self.experiment, killed, self.ranks)
            self._compare(undisturbed, killed)
            self.toll.rounds += 1
        return self.toll

    def _kill_once(self, folder: Path, chance: random.Random) -> bool:
        """Start, wait, kill; False if it was through before."""
        before = checkpoints.latest(folder / CHECKPOINTS)
        processes, begun = start_training(self.experiment, folder, self.ranks)
        if begun.poll(120):
            try:
                begun.recv()
            except EOFError:  # there was nothing left to do, or it failed
                return self._end(processes)
        while self.ranks > 1 and processes[0].exitcode is None:
            if checkpoints.latest(folder / CHECKPOINTS) != before:
                break
            time.sleep(0.005)
        time.sleep(chance.uniform(0, self.longest))
        alive = processes[0].exitcode is None
        victim = chance.randrange(self.ranks)
        _kill(processes[victim])
        for other in processes:  # torchrun ends the others when one has died
            _kill(other)
        if not alive:
            return self._end(processes)
        self.toll.kills += 1
        saves = folder / CHECKPOINTS
        self.toll.amid_saves += bool([*saves.glob(".unfinished-*"), *saves.glob(".outdated-*")])
        return True

    def _end(self, processes: list[BaseProcess]) -> bool:
        for process in processes:
            process.join()
            assert process.exitcode == 0, f"A process ended with {process.exitcode}."
        return False

    def _compare(self, undisturbed: Path, killed: Path) -> None:
        one, other = (read_run(folder, self.ranks) for folder in (undisturbed, killed))
        for mine, theirs in zip(one, other, strict=True):
            assert same_checkpoints(mine, theirs), "The killed run came to another end."
        assert metrics_of(undisturbed) == metrics_of(killed), "The killed run tells another story."


def read_run(folder: Path, ranks: int) -> list[checkpoints.Checkpoint]:
    """The last checkpoint as each rank sees it."""
    return [last_of(folder, rank, ranks) for rank in range(ranks)]


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """Every line of metrics without what depends on the clock and the machine."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    machine = (
        "seconds_per_step",
        "tokens_per_second",
        "peak_memory_gb",
        "timed_updates",
        "replayed_share",
    )
    return [{k: v for k, v in line.items() if k not in machine} for line in lines]


def _kill(process: BaseProcess) -> None:
    if process.exitcode is None:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def main() -> None:
    """Kill as often as wanted, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3000, help="updates of a run")
    args = parser.parse_args()
    experiment = replace(experiment_for_kills(), steps=args.steps)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        toll = Killer(experiment, Path(folder), ranks=args.ranks).kill(args.kills, args.seed)
    print(
        f"{toll.kills} kills, {toll.amid_saves} of them amid a save, in {toll.rounds} runs of "
        f"{args.steps} steps on {args.ranks} ranks: all went on and ended bit for bit as the "
        f"undisturbed one; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
