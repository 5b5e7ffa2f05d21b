"""Both collision tasks against worlds that are simulated step by step in plain Python."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist

import pytest
import torch

from expire_span.tasks import Batch, Collision, CollisionEasy, Split
from expire_span.tasks.collision import ENTRIES
from expire_span.tasks.particles import COLOURS, PLACE, QUESTION, STEPS_AT_A_TIME, VELOCITY
from plain_chance import plain_hash, sixteens

SPLIT_NUMBERS = {"train": 0, "valid": 1, "test": 2}


def quadrant_of(cell: list[int]) -> int:
    """By rounding (coordinate + 0.5) / 16."""
    half = [round((coordinate + 0.5) / 16) for coordinate in cell]
    return 2 * half[0] + half[1]


class ScalarParticles:
    """Two particles in 4096ths of a cell, from the definition, with the hashed chance of a row."""

    def __init__(self, split: Split, row: int, seed: int, side: int = 16) -> None:
        self.key = plain_hash(seed, SPLIT_NUMBERS[split], row)
        self.begin, self.end = (8 - side // 2) * 4096, (8 + side // 2) * 4096
        shares = sixteens(plain_hash(self.key, PLACE))
        places = [self.begin + (share * side * 4096 >> 16) for share in shares]
        self.place = [places[:2], places[2:]]
        self.velocity = [self.draw(-1, particle) for particle in range(2)]

    def draw(self, step: int, particle: int) -> list[int]:
        chance = sixteens(plain_hash(plain_hash(self.key, VELOCITY), 2 * step + particle))[:2]
        normal = [NormalDist(0, 0.5 * 4096).inv_cdf((c + 0.5) / 2**16) for c in chance]
        return [round(v) or (1 if v > 0 else -1) for v in normal]

    def move(self, step: int) -> list[list[int]]:
        """One step; gives the cells."""
        for particle in range(2):
            moved = [p + v for p, v in zip(self.place[particle], self.velocity[particle])]  # noqa: B905
            if all(self.begin <= coordinate < self.end for coordinate in moved):
                self.place[particle] = moved
            else:
                self.velocity[particle] = self.draw(step, particle)
        return [[coordinate // 4096 for coordinate in place] for place in self.place]


def scalar_collision(
    question: str, split: Split, row: int, seed: int, side: int = 16
) -> Iterator[tuple[list[int], int | None]]:
    """Entries and answer of every step, particle by particle."""
    particles = ScalarParticles(split, row, seed, side)
    key = particles.key
    colours = [chance * 5 >> 16 for chance in sixteens(plain_hash(key, COLOURS, -1))[:2]]
    met: dict[tuple[int, int], int] = {}
    latest: tuple[int, int] | None = None
    step = 0
    while True:
        cells = particles.move(step)
        for particle in range(2):
            change, which, *_ = sixteens(plain_hash(key, COLOURS, step, particle))
            if change < round(0.05 * 2**16):
                colours[particle] = which * 5 >> 16
        pair = (colours[0], colours[1])
        if cells[0] == cells[1]:
            met[pair] = quadrant_of(cells[0])
            latest = pair
        about_latest, one, other, _ = sixteens(plain_hash(key, QUESTION, step))
        asked = (one * 5 >> 16, other * 5 >> 16)
        subject = latest if question == "latest" else pair
        if about_latest < round(0.4 * 2**16) and subject is not None:
            asked = subject
        entries = [
            entry
            for cell, colour in zip(cells, colours, strict=True)
            for entry in (cell[0], 16 + cell[1], 32 + colour)
        ]
        yield entries + [37 + colour for colour in asked], met.get(asked)
        step += 1


def scalar_easy(
    split: Split, row: int, seed: int, side: int = 16
) -> Iterator[tuple[list[int], int | None]]:
    particles = ScalarParticles(split, row, seed, side)
    met: list[int] = []
    step = 0
    while True:
        cells = particles.move(step)
        if cells[0] == cells[1]:
            met.append(quadrant_of(cells[0]))
        kind = sixteens(plain_hash(particles.key, QUESTION, step))[0] * 2 >> 16
        answer = None
        if kind == 0 and met:
            answer = met[-1]
        if kind == 1 and len(met) >= 3:
            answer = 4 + 16 * met[-3] + 4 * met[-2] + met[-1]
        entries = [entry for cell in cells for entry in (cell[0], 16 + cell[1])]
        yield [*entries, 32 + kind], answer
        step += 1


def assert_equal_to_scalar(
    batch: Batch, worlds: list[Iterator[tuple[list[int], int | None]]]
) -> None:
    for row, world in enumerate(worlds):
        place = 0
        while place < batch.inputs.shape[1]:
            entries, answer = next(world)
            end = place + len(entries)
            assert batch.inputs[row, place:end].tolist() == entries
            expected = [False] * (len(entries) - 1) + [answer is not None]
            assert batch.scored[row, place:end].tolist() == expected
            assert batch.targets[row, end - 1] == (answer or 0)
            place = end


STEPS = 2 * STEPS_AT_A_TIME + 300


@pytest.mark.parametrize("question", ["latest", "present"])
def test_collision_equals_a_scalar_world(question) -> None:
    batch = Collision(question=question).stream("valid", 3, seed=5).read(8 * STEPS)
    worlds = [scalar_collision(question, "valid", row, seed=5) for row in range(3)]
    assert_equal_to_scalar(batch, worlds)
    assert batch.scored.sum() > 1000


@pytest.mark.parametrize(
    ("mixed", "plain", "scalar", "entries"),
    [
        (Collision(training_grids="mixed"), Collision(), partial(scalar_collision, "latest"), 8),
        (CollisionEasy(training_grids="mixed"), CollisionEasy(), scalar_easy, 5),
    ],
    ids=["collision", "easy"],
)
def test_mixed_grids_confine_particles_in_training_alone(mixed, plain, scalar, entries) -> None:
    batch = mixed.stream("train", 4, seed=5).read(entries * STEPS)
    sides = [4, 8, 16, 4]
    worlds = [scalar("train", n, 5, side) for n, side in enumerate(sides)]
    assert_equal_to_scalar(batch, worlds)
    x = batch.inputs[:, ::entries]
    assert x.aminmax(dim=1).min.tolist() == [6, 4, 0, 6]
    assert x.aminmax(dim=1).max.tolist() == [9, 11, 15, 9]
    judged = [task.stream("valid", 3, seed=5).read(800) for task in (mixed, plain)]
    assert judged[0].inputs.equal(judged[1].inputs)


def test_easy_collision_equals_a_scalar_world() -> None:
    batch = CollisionEasy().stream("test", 3, seed=6).read(5 * STEPS)
    assert_equal_to_scalar(batch, [scalar_easy("test", row, seed=6) for row in range(3)])
    assert (batch.targets >= 4).sum() > 1000


def test_older_positions_of_the_easy_version_go_on() -> None:
    """They tell nothing of grids, and of the last collisions only the quadrants."""
    stream = CollisionEasy().stream("train", 3, seed=6)
    stream.read(5 * STEPS)
    state = stream.state()
    assert "training_grids" not in state["stream"]
    met = state["position"]["state"]["met"]
    assert min(map(min, met)) > 3
    state["position"]["state"]["met"] = [[event % 4 for event in row] for row in met]
    older = CollisionEasy().stream("train", 3, seed=6)
    older.restore(state)
    one, other = stream.read(5 * STEPS), older.read(5 * STEPS)
    assert one.targets.equal(other.targets)
    assert one.scored.equal(other.scored)


def test_positions_of_other_grids_are_refused() -> None:
    whole, mixed = (CollisionEasy(training_grids=grids) for grids in ("whole", "mixed"))
    for one, other in ((whole, mixed), (mixed, whole)):
        state = one.stream("train", 3, seed=6).state()
        with pytest.raises(ValueError, match="another stream, with training_grids"):
            other.stream("train", 3, seed=6).restore(state)


def test_entries_can_be_ordered_by_kind() -> None:
    by_particle = Collision().stream("train", 2, seed=0).read(800).inputs.view(2, 100, 8)
    by_kind = Collision(order="kind").stream("train", 2, seed=0).read(800).inputs.view(2, 100, 8)
    assert by_kind.equal(by_particle[..., [0, 1, 3, 4, 2, 5, 6, 7]])


@dataclass
class FloatWorld:
    """The paper's words with floating-point numbers and Python's own chance, nothing shared."""

    question: str
    chance: random.Random
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("met", "changed", "answered", "latest"), 0)
    )

    def velocity(self) -> list[float]:
        return [self.chance.gauss(0, 0.5) for _ in range(2)]

    def run(self, steps: int) -> None:
        chance = self.chance
        place = [[chance.uniform(0, 16) for _ in range(2)] for _ in range(2)]
        velocity = [self.velocity() for _ in range(2)]
        colours = [chance.randrange(5) for _ in range(2)]
        met: set[tuple[int, ...]] = set()
        latest: tuple[int, ...] | None = None
        for _ in range(steps):
            before = list(colours)
            for particle in range(2):
                moved = [p + v for p, v in zip(place[particle], velocity[particle], strict=True)]
                if all(0 <= coordinate < 16 for coordinate in moved):
                    place[particle] = moved
                else:
                    velocity[particle] = self.velocity()
                if chance.random() < 0.05:
                    colours[particle] = chance.randrange(5)
            pair = tuple(colours)
            if [int(c) for c in place[0]] == [int(c) for c in place[1]]:
                met.add(pair)
                latest = pair
                self.counts["met"] += 1
            asked = (chance.randrange(5), chance.randrange(5))
            subject = latest if self.question == "latest" else pair
            if chance.random() < 0.4 and subject is not None:
                asked = subject
            self.counts["changed"] += before[0] != colours[0]
            self.counts["answered"] += asked in met
            self.counts["latest"] += asked == latest


def shares(question: str, worlds: int, steps: int) -> dict[str, float]:
    """The same counts out of the tokens of our worlds, as shares of all steps."""
    batch = Collision(question=question).stream("train", worlds, seed=1).read(8 * steps)
    x, y, colour, x2, y2, colour2, one, other = batch.inputs.view(worlds, steps, 8).unbind(-1)
    met = (x == x2) & (y == y2)
    when = torch.where(met, torch.arange(steps), -1).cummax(dim=1).values
    latest = torch.stack([colour, colour2], -1).gather(
        1, when.clamp(min=0)[..., None].expand(-1, -1, 2)
    )
    about_latest = (when >= 0) & (torch.stack([one, other], -1) - 5 == latest).all(dim=-1)
    return {
        "met": met.double().mean().item(),
        "changed": (colour[:, 1:] != colour[:, :-1]).double().mean().item(),
        "answered": batch.scored[:, 7::8].double().mean().item(),
        "latest": about_latest.double().mean().item(),
    }


@pytest.mark.parametrize(("question", "answered"), [("latest", 0.46), ("present", 0.19)])
def test_statistics_equal_those_of_an_independent_scalar_world(question, answered) -> None:
    """Over the first 4,000 steps of fresh worlds."""
    ours = shares(question, worlds=128, steps=4000)
    scalar = FloatWorld(question, random.Random(0))
    for _ in range(20):
        scalar.run(4000)
    theirs = {name: count / 80_000 for name, count in scalar.counts.items()}
    assert ours["met"] == pytest.approx(theirs["met"], rel=0.25)
    assert ours["changed"] == pytest.approx(theirs["changed"], rel=0.1)
    assert ours["changed"] == pytest.approx(0.04, abs=0.001)
    assert ours["answered"] == pytest.approx(theirs["answered"], abs=0.06)
    assert ours["answered"] == pytest.approx(answered, abs=0.03)
    assert ours["latest"] == pytest.approx(theirs["latest"], abs=0.03)


def test_the_oracle_goes_from_chance_to_certainty_and_equals_a_reader() -> None:
    task = Collision()
    errors = [task.oracle(memory, 8 * 2048, worlds=8) for memory in (0, 800, 8000, 80_000)]
    assert errors[0] == 75
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0
    assert task.oracle(800, 8 * 2048, worlds=2) == pytest.approx(reader_error(task, memory=800))


def test_a_perfect_reader_is_judged_as_far_as_the_rows_go() -> None:
    """Worlds that run longer ask for what lies further back; those of no whole chunk are cut."""
    task, memory = Collision(), 2000
    assert task.oracle(memory) == task.oracle(memory, 65_536)
    errors = [task.oracle(memory, length) for length in (2048, 8192, 65_536)]
    assert errors == sorted(errors)
    assert errors[0] < errors[-1] / 2
    stream = [task.oracle(memory, 8 * steps, worlds=4) for steps in (300, 1024)]
    assert stream[0] != stream[1]


def reader_error(task: Collision, memory: int) -> float:
    """A reader that goes back step by step through the last `memory` entries."""
    batch = task.stream("valid", 2, seed=0).read(8 * 2048)
    errors = []
    for row in range(2):
        steps = [tuple(step) for step in batch.inputs[row].view(-1, 8).tolist()]
        for now in range(2048):
            if not batch.scored[row, 8 * now + 7]:
                continue
            seen = steps[max(0, now + 1 - memory // ENTRIES) : now + 1]
            wanted = (steps[now][6] - 5, steps[now][7] - 5)
            found = [s for s in seen if (s[0], s[1]) == (s[3], s[4]) and (s[2], s[5]) == wanted]
            if found:
                answer = quadrant_of([found[-1][0], found[-1][1] - 16])
                assert answer == batch.targets[row, 8 * now + 7]
            errors.append(0 if found else 75)
    return sum(errors) / len(errors)


def test_the_easy_oracle_goes_from_guesses_to_certainty_and_equals_a_reader() -> None:
    task = CollisionEasy()
    errors = [task.oracle(memory, 5 * 2048, worlds=16) for memory in (0, 500, 2000, 8000, 80_000)]
    assert errors[0] == pytest.approx(82, abs=3)  # see the best constant guesses below
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] == 0
    for memory in (500, 2000):
        found = easy_reader_error(memory, worlds=3, steps=1300)
        assert task.oracle(memory, 5 * 1300, worlds=3) == pytest.approx(found)
        assert 10 < found < 75
    assert task.oracle(1000) == task.oracle(1000, 65_536)
    assert task.oracle(1000, 5 * 300) < task.oracle(1000, 5 * 1024)


def easy_reader_error(memory: int, worlds: int, steps: int) -> float:
    """A reader that goes through the last `memory` entries, and supposes what it does not find."""
    batch = CollisionEasy().stream("valid", worlds, seed=0).read(5 * steps)
    errors = []
    for row in range(worlds):
        seen = [tuple(step) for step in batch.inputs[row].view(-1, 5).tolist()]
        for now in range(steps):
            if not batch.scored[row, 5 * now + 4]:
                continue
            last = [s for s in seen[max(0, now + 1 - memory // 5) : now + 1] if s[:2] == s[2:4]]
            found = [quadrant_of([s[0], s[1] - 16]) for s in last][-3:]
            guesses = [found] if found else [[quadrant] for quadrant in range(4)]
            answer = batch.targets[row, 5 * now + 4].item()
            right = [
                easy_answer([guess[0]] * (3 - len(guess)) + guess, seen[now][4]) == answer
                for guess in guesses
            ]
            errors.append(100 * (1 - sum(right) / len(right)))
    return sum(errors) / len(errors)


def easy_answer(quadrants: list[int], question: int) -> int:
    oldest, middle, last = quadrants
    return last if question == 32 else 4 + 16 * oldest + 4 * middle + last


def test_nothing_but_the_answer_is_asked_of_someone_who_knows_nothing() -> None:
    """All quadrants are equally likely, so a constant guess is wrong in three of four."""
    batch = Collision().stream("train", 128, seed=2).read(8 * 4000)
    answers = batch.targets[batch.scored].bincount(minlength=4).double()
    assert answers / answers.sum() == pytest.approx(torch.full((4,), 0.25).double(), abs=0.03)


def test_the_best_constant_guesses_of_the_easy_version() -> None:
    """The bound that its docstring names."""
    batch = CollisionEasy().stream("train", 128, seed=2).read(5 * 4000)
    answers = batch.targets[batch.scored].bincount(minlength=68).double()
    quadrants, labels = answers[:4] / answers[:4].sum(), answers[4:] / answers[4:].sum()
    assert quadrants == pytest.approx(torch.full((4,), 0.25).double(), abs=0.03)
    equal = labels[[21 * quadrant for quadrant in range(4)]]
    assert equal == pytest.approx(torch.full((4,), 0.1).double(), abs=0.03)
    assert equal.min() > labels.sort().values[-5]
    right = quadrants.max() * answers[:4].sum() + labels.max() * answers[4:].sum()
    assert 100 * (1 - right / answers.sum()) == pytest.approx(82, abs=3)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"question": "next"}, "question must be one of latest, present, but is 'next'"),
        ({"order": "none"}, "order must be one of particle, kind, but is 'none'"),
    ],
)
def test_senseless_settings_are_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Collision(**settings)


@pytest.mark.gpu
@pytest.mark.parametrize("task", [Collision(), CollisionEasy()], ids=str)
def test_worlds_are_the_same_on_a_gpu(task) -> None:
    host, device = (task.stream("train", 16, seed=0) for _ in range(2))
    device.to("cuda")
    for steps in (1000, 20_000):
        one, other = host.read(steps), device.read(steps)
        assert other.inputs.is_cuda
        assert one.inputs.equal(other.inputs.cpu())
        assert one.targets.equal(other.targets.cpu())
        assert one.scored.equal(other.scored.cpu())
    resumed = task.stream("train", 16, seed=0)
    resumed.restore(device.state())
    assert resumed.read(999).inputs.equal(device.read(999).inputs.cpu())
