"""Speed of the generator of object collisions: world steps a second, by wall clock and CPU time.

    python benchmarks/collision.py --batch 64 --threads 2
    python benchmarks/collision.py --batch 64 --device cuda

A world step is 8 entries of one row. Before any time is reported, the first steps are compared with
those of a stream on the host. Prints one line of JSON.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # from a checkout, not installed

from turns import my_turn

from expire_span.tasks import Collision, CollisionEasy, Stream
from expire_span.tasks.particles import STEPS_AT_A_TIME

TASKS = {"hard": (Collision(), 8), "easy": (CollisionEasy(), 5)}


def check(task: Collision | CollisionEasy, stream: Stream, entries: int) -> None:
    """The same numbers on every device."""
    ours, plain = stream.read(entries), task.stream("train", stream.batch, seed=0).read(entries)
    for one, other in zip(vars(ours).values(), vars(plain).values(), strict=True):
        assert one is other is None or torch.equal(one.cpu(), other)


def main() -> None:
    """Read for some seconds and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="hard")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task, entries = TASKS[options.task]
    stream = task.stream("train", options.batch, seed=0).to(options.device)
    chunk = STEPS_AT_A_TIME * entries
    check(task, stream, chunk)
    stream.read(chunk)

    my_turn()
    wall, cpu, steps = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - wall < options.seconds:
        stream.read(chunk)
        steps += STEPS_AT_A_TIME * options.batch
    if options.device != "cpu":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    name = torch.cuda.get_device_name() if options.device != "cpu" else "cpu"
    result = {**vars(options), "name": name, "steps": steps}
    result |= {"steps_per_second": steps / wall, "steps_per_cpu_second": steps / cpu}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
