"""Steps per second of the worlds alone, observations included.

    python benchmarks/worlds.py                                one CPU thread, batch 512
    python benchmarks/worlds.py --threads 2
    python benchmarks/worlds.py --device cuda --batch 65536    as a CUDA graph

Actions are drawn by the worlds' own counters, so nothing crosses between host and device. Before
anything is reported, the fast way (compiled, and on a GPU captured as a graph) is compared with
plain steps on the CPU; where any state, reward or observation differs, the exit status is 1. Prints
one JSON line for each world.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from turns import my_turn

from expire_span.chance import below, draw, fields
from expire_span.worlds import Corridor, Game, Portal, World

WORLDS: dict[str, World] = {
    "corridor": Corridor(),
    "portal": Portal(),
    "portal-shuffle": Portal(shuffle=True),
}
CHUNK = 50  # steps in one graph
COMPARED = 200


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured for each world")
    parser.add_argument("--compile", action="store_true", help="let torch.compile fuse a step")
    return parser.parse_args()


def step_once(game: Game, state: Any) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A step with actions by chance: the next state, what is seen there, and the reward."""
    word = draw(state.key, state.steps + (state.episode << 16) + 12345)
    outcome = game.step(state, below(fields(word, 32)[0], len(game.world.actions), 32))
    return outcome.state, game.observe(outcome.state), outcome.reward


class Runner:
    """Steps as fast as the device allows; on a GPU a captured chunk of them is replayed."""

    def __init__(self, game: Game, batch: int, compiled: bool):
        self._game = game
        self._step: Callable = torch.compile(step_once, fullgraph=True) if compiled else step_once
        self.state = game.start(batch).clone()
        self.seen, self.reward = game.observe(self.state), torch.zeros(batch, device=game.device)
        self._graph = self._capture() if game.device.type == "cuda" else None

    def chunk(self) -> None:
        """Make CHUNK steps."""
        if self._graph is not None:
            self._graph.replay()
        else:
            for _ in range(CHUNK):
                self.state, self.seen, self.reward = self._step(self._game, self.state)

    def _capture(self) -> torch.cuda.CUDAGraph:
        """A graph of CHUNK steps that leaves its results where the next replay begins."""
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step(self._game, self.state)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            state = self.state
            for _ in range(CHUNK):
                state, seen, reward = self._step(self._game, state)
            for name, tensor in self.state.tensors().items():
                tensor.copy_(getattr(state, name))
            self.seen.copy_(seen)
            self.reward.copy_(reward)
        return graph


def equal(game: Game, compiled: bool) -> bool:
    """Whether the fast way ends where plain steps on the CPU end."""
    batch = 257
    runner = Runner(game, batch, compiled)
    plain = game.world.play("cpu")
    state = plain.start(batch)
    for _ in range(COMPARED // CHUNK):
        runner.chunk()
        for _ in range(CHUNK):
            state, seen, reward = step_once(plain, state)
    same = [torch.equal(runner.seen.cpu(), seen), torch.equal(runner.reward.cpu(), reward)]
    same += [
        torch.equal(getattr(runner.state, name).cpu(), tensor)
        for name, tensor in state.tensors().items()
    ]
    return all(same)


def steps_per_second(runner: Runner, batch: int, seconds: float, wait: Callable) -> float:
    """Steps of all rows together, after a warm-up."""
    runner.chunk()
    wait()
    chunks, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        runner.chunk()
        wait()
        chunks += 1
    return chunks * CHUNK * batch / (time.perf_counter() - begin)


def main() -> int:
    """Compare, measure, report."""
    args = arguments()
    torch.set_num_threads(args.threads)
    on_gpu = args.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    for name, world in WORLDS.items():
        game = world.play(args.device)
        if not equal(game, args.compile):
            print(f"{name} is not reported: it differs from plain steps on the CPU")
            return 1
        runner = Runner(game, args.batch, args.compile)
        my_turn()
        speed = steps_per_second(runner, args.batch, args.seconds, wait)
        result = {
            "benchmark": "worlds",
            "world": name,
            "machine": torch.cuda.get_device_name() if on_gpu else "cpu",
            **vars(args),
            "steps_per_second": round(speed),
            "microseconds_per_step_of_the_batch": args.batch / speed * 1e6,
        }
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
