"""Pictures of episodes and of sweeps, and the commands that make them."""

import errno
import fcntl
import json
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from torch import Tensor

from agent.small_agents import (
    MEMORIES,
    WORLDS,
    every_memory,
    make_agent,
    stop_after_steps,
    tiny_experiment,
    with_dense_memory,
)
from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan, Transformer
from expire_span.agent import commands, sweep, watch
from expire_span.agent.dense import start_full
from expire_span.agent.episodes import play_episodes
from expire_span.agent.experiment import AgentExperiment
from expire_span.agent.experiments import AGENT_EXPERIMENTS, agent_model, corridor, portal
from expire_span.agent.ports import build_agent
from expire_span.agent.run import AgentRun, load_agent, load_agent_experiment, train_agent
from expire_span.agent.sweep import (
    PRICES,
    SEEDS,
    WINDOWS,
    Point,
    _called,
    _draw_ramps,
    corridor_live,
    draw_sweep,
    portal_walk,
    read_sweep,
    run_sweep,
    sweep_experiments,
    usual_windows,
)
from expire_span.agent.watch import (
    GONE,
    MOST_BARS,
    MOST_CELLS,
    MOST_PICTURES,
    STRETCH,
    UNBORN,
    Film,
    Scene,
    _colours,
    _draw_bars,
    _frame_world,
    _look_near,
    _replay,
    _show,
    _shown,
    _which_stretch,
    animate,
    record_episode,
)
from expire_span.cli import main
from expire_span.locks import claim
from expire_span.model.memory import AnyMemory
from expire_span.model.transformer import Step
from expire_span.training.guard import NotFinite
from expire_span.worlds import Corridor, Portal
from expire_span.worlds.grid import AGENT
from expire_span.worlds.oracles import DOWN, RIGHT, UP, PortalMemory, corridor_bound, play
from expire_span.worlds.render import CELL, PAINT, as_pixels
from policies import assert_same

WORLD = WORLDS["corridor"]
EXAMPLES = Path(__file__).parents[2] / "examples"


def dense_agent(memory: AnyMemory) -> Transformer:
    """A small agent as it acts."""
    return with_dense_memory(WORLD, make_agent(WORLD, memory, block=20))


@every_memory
def test_an_episode_is_recorded_from_beginning_to_end(memory):
    episode = record_episode(dense_agent(memory), WORLD, rows=4)
    assert episode.steps <= WORLD.limit
    captions = [scene.caption for scene in episode.scenes]
    assert len(captions) == episode.steps + 1
    assert captions[0].endswith("step 0")
    assert captions[-2].endswith(f"step {episode.steps - 1}")
    assert f"step {episode.steps}, " in captions[-1]
    assert episode.groups[0].endswith("object")  # which is where every corridor begins
    assert episode.spans.shape == (2, episode.steps)


@pytest.mark.parametrize(
    ("memory", "until"),
    [
        (FixedSpan(30), 30),
        (AdaptiveSpan(30, 5, initial=0.4), 13),  # i + z L + 1
        (Compressive(20, 3, 10), 50),
    ],
)
def test_bars_of_memories_that_are_all_alike_end_where_they_start_to_fade(memory, until):
    model = with_dense_memory(WORLD, build_agent(WORLD, agent_model(WORLD, memory, block=20)))
    assert record_episode(model, WORLD, rows=2).spans == pytest.approx(until)


def test_a_memory_is_not_there_then_alive_then_gone():
    spans = np.array([[3.0, 0.0, 5.0]])
    scene = Scene(np.zeros((CELL, CELL, 3), dtype=np.uint8), 0, "")
    episode = Film([scene] * 4, ["red object", "nothing", "door"], spans, ramp=1)
    at_once, later = _colours(episode, 0, 0), _colours(episode, 0, 2)
    assert at_once[0] not in (GONE, UNBORN)
    assert at_once[1:] == [UNBORN, UNBORN]
    assert later[0] == at_once[0]
    assert later[1] == GONE  # it came at 1 and faded until 2
    assert later[2] not in (GONE, UNBORN)


def until_fading(step: Step) -> list[Tensor]:
    """Of the only state of a block, which came at time 0; spans are the same in float32."""
    return [deadline[:, 0, -1:] for (deadline,) in step.deadlines]


def test_bars_are_the_spans_that_the_agent_predicts_step_by_step():
    memory = replace(MEMORIES["expire"], max_span=60)
    world = replace(WORLD, longest=3, limit=50)
    model = with_dense_memory(world, make_agent(world, memory, block=20))
    plays = (play_episodes(model, world, rows=1, seed=seed) for seed in range(50))
    seed, played = next((n, p) for n, p in enumerate(plays) if p.lengths() > 20)  # beyond a block
    played, episode = played.first_of(0), record_episode(model, world, seed=seed, rows=1)
    now, steps = start_full(model, 1), []
    with torch.no_grad():
        for one in played.blocks(1):
            step = model(one.observations, now, starts=one.starts)
            now = step.memory
            assert_same(torch.cat(step.spans), torch.cat(ends := until_fading(step)), 1e-6)
            steps.append(torch.cat(ends))
    expected = torch.cat(steps, dim=1).numpy()
    assert np.ptp(expected, axis=1).min() > 0.01
    np.testing.assert_allclose(episode.spans, expected, rtol=1e-9)
    for layer, spans in enumerate(expected):
        figure, axes = plt.subplots()
        whole, fading, _ = _draw_bars(axes, episode, layer)
        plt.close(figure)
        for t, span in enumerate(spans):
            np.testing.assert_allclose(whole.get_segments()[-1 - t], [(t, t), (t + span, t)])
            ends = [(t + span, t), (t + span + 6, t)]  # after its ramp
            np.testing.assert_allclose(fading.get_segments()[-1 - t], ends)


@pytest.mark.parametrize("seed", range(6))
def test_a_memory_is_of_the_colour_in_view(seed):
    episode = record_episode(dense_agent(MEMORIES["expire"]), WORLD, seed=seed, rows=1)
    cue = ("red", "blue")[int(WORLD.play().start(1, seed).cue)]
    assert episode.groups[0] == f"{cue} object"


def test_an_animation_shows_each_picture_at_its_time(tmp_path):
    shades = (0, 80, 160, 240)
    pictures = [np.full((CELL, CELL, 3), shade, dtype=np.uint8) for shade in shades]
    spans = np.array([[3.0, 1.0, 2.0]])
    scenes = [Scene(picture, 0, "") for picture in pictures]
    episode = Film(scenes, ["nothing"] * 3, spans, ramp=1)
    animate(episode, tmp_path / "shades.gif")
    with Image.open(tmp_path / "shades.gif") as animation:
        for time, shade in enumerate(shades):
            animation.seek(time)
            shown = animation.convert("L")
            found = shown.getpixel((shown.width // 2, shown.height // 5))
            assert found == pytest.approx(shade, abs=8)


def test_an_animation_has_a_picture_for_each_step(tmp_path):
    episode = record_episode(dense_agent(MEMORIES["expire"]), replace(WORLD, limit=4), rows=2)
    animate(episode, tmp_path / "new" / "episode.gif")
    with Image.open(tmp_path / "new" / "episode.gif") as picture:
        assert picture.n_frames == episode.steps + 1  # and the end


@pytest.mark.parametrize("steps", [3, 216, MOST_PICTURES - 1, MOST_PICTURES, 777])
def test_long_episodes_are_shown_in_stretches_always_the_first_and_the_last_step(steps):
    shown = _shown(steps)
    assert (shown[0], shown[-1]) == (0, steps)
    assert len(shown) == min(steps + 1, MOST_PICTURES)
    assert shown == sorted(set(shown))
    leaps = [n for n, (one, two) in enumerate(pairwise(shown), start=1) if two != one + 1]
    assert bool(leaps) == (steps >= MOST_PICTURES)
    assert all(n % STRETCH == 0 for n in leaps)


@pytest.mark.parametrize("time", [0, 130, 400, 999, 1000])
def test_of_many_memories_those_are_in_view_that_are_alive(time):
    """So far apart that none hides another; of few, all."""
    for steps in (MOST_BARS, 1000):
        spans = np.random.default_rng(0).uniform(0, 120, (1, steps))
        spans[:, ::7] = 140
        scene = Scene(np.zeros((CELL, CELL, 3), dtype=np.uint8), 0, "")
        film = Film([scene] * (steps + 1), ["door"] * steps, spans, ramp=8)
        axes = plt.figure().add_subplot()
        _draw_bars(axes, film, 0)
        now = min(time, steps)
        _look_near(axes, film, 0, now)
        (left, right), (lowest, highest) = axes.get_xlim(), axes.get_ylim()
        plt.close()
        assert lowest - highest < 1.05 * MOST_BARS
        assert steps > MOST_BARS or (highest <= 0 and lowest >= steps)
        for came in range(now):
            gone = came + spans[0, came] + 8
            if gone > now:
                assert highest < came < lowest
                assert left <= came < now <= gone < right


def test_long_episodes_scroll_and_say_what_is_shown(tmp_path, monkeypatch):
    """Bars of memories that came late are in the last picture, and none of the first."""
    steps = 2 * MOST_BARS
    scene = Scene(np.zeros((CELL, CELL, 3), dtype=np.uint8), 0, "now")
    film = Film([scene] * (steps + 1), ["door"] * steps, np.full((1, steps), 20.0), ramp=4)
    seen: list[tuple[str, float]] = []

    def noted(canvas):
        top, below = canvas.figure.axes
        seen.append((top.get_title(), below.get_ylim()[0]))
        return Image.new("RGB", (8, 8), (len(seen) % 2 * 255, 0, 0))

    monkeypatch.setattr(watch, "_picture", noted)
    animate(film, tmp_path / "long.gif")
    shown = seen[-len(_shown(steps)) :]
    assert [title for title, _ in shown] == [
        f"now{_which_stretch(steps, t)}" for t in _shown(steps)
    ]
    lowest = [low for _, low in shown]
    assert lowest == sorted(lowest)
    assert (lowest[0], lowest[-1]) == (MOST_BARS, steps)


def test_every_picture_of_a_long_episode_says_which_steps_are_shown():
    assert _which_stretch(MOST_PICTURES - 1, 7) == ""
    shown = _shown(1000)
    for place, time in enumerate(shown):
        first = shown[place - place % STRETCH]
        said = f"steps {first} to {first + STRETCH - 1} of 1000"
        assert _which_stretch(1000, time).endswith(said)


def test_the_example_is_seen_taking_every_door(tmp_path):
    experiment, model = load_agent(EXAMPLES / "portal", "cpu")
    animate(record_episode(model, experiment.world), tmp_path / "rooms.gif")
    with Image.open(tmp_path / "rooms.gif") as animation:
        assert animation.n_frames == 217
    assert (tmp_path / "rooms.gif").stat().st_size < 1_000_000


@pytest.mark.parametrize("length", [5, MOST_CELLS, 120])
def test_the_agent_is_in_every_picture_of_a_corridor_and_drawn_large(length):
    world = Corridor(shortest=length, longest=length)
    game = world.play()
    states = [game.start(1, seed=0)]
    for _ in range(length - 1):
        states.append(game.step(states[-1], torch.tensor([RIGHT])).state)
    scenes = _replay(game, 1, 0, torch.full((1, length), RIGHT), 0)
    for scene, state in zip(scenes, states, strict=False):
        height, width, _ = scene.pixels.shape
        assert height == 3 * CELL
        assert width <= MOST_CELLS * CELL
        column, row = game.place(state, 0)
        begin = (column - scene.first) * CELL
        middle = scene.pixels[row * CELL + CELL // 2, begin + CELL // 2]
        assert 0 <= begin < width
        assert tuple(middle) == PAINT[AGENT]
        whole = as_pixels(game, state, 0)[:, scene.first * CELL :][:, :width]
        np.testing.assert_array_equal(scene.pixels, whole)


@pytest.mark.parametrize(("first", "numbered"), [([0, 0], False), ([0, 40], True)])
def test_the_cells_of_a_wide_world_are_numbered(first, numbered):
    pixels = np.zeros((3 * CELL, 30 * CELL, 3), dtype=np.uint8)
    film = Film([Scene(pixels, n, "") for n in first], ["nothing"], np.ones((1, 1)), ramp=1)
    figure, axes = plt.subplots()
    image = axes.imshow(pixels)
    _frame_world(axes, film)
    _show(image, film.scenes[-1])
    assert axes.xaxis.get_visible() == numbered
    assert axes.get_xlim() == (first[-1] - 0.5, first[-1] + 29.5)  # cells are in the middle
    plt.close(figure)


@pytest.mark.parametrize(("cue_door", "sentence"), [(True, "rewarded 1"), (False, "not rewarded")])
def test_the_last_picture_tells_whether_the_door_was_right(cue_door, sentence):
    world = Corridor(longest=3)
    game = world.play()
    state = game.start(1, seed=0)
    right_door_above = bool(state.top == state.cue)
    door = UP if right_door_above == cue_door else DOWN
    scenes = _replay(game, 1, 0, torch.tensor([[RIGHT, RIGHT, door]]), 0)
    pictures = [scene.pixels for scene in scenes]
    assert len(pictures) == 4
    assert scenes[-1].caption == f"length 3, step 3, {sentence}"
    for picture, action in zip(pictures, (RIGHT, RIGHT, door), strict=False):
        assert np.array_equal(picture, as_pixels(game, state, 0)[:, : picture.shape[1]])
        outcome = game.step(state, torch.tensor([action]))
        state = outcome.state
    assert np.array_equal(
        pictures[-1], as_pixels(game, outcome.last, 0)[:, : pictures[-1].shape[1]]
    )


def test_a_sweep_has_every_window_price_and_seed_and_skips_what_is_done(tmp_path):
    tiny = tiny_experiment(steps=2)
    wanted = sweep_experiments(corridor("smoke"), windows=(4,), seeds=(0, 1), prices=(1.0, 5.0))
    assert len(wanted) == 2 * (1 + 2)
    prices = {
        e.model.memory.penalty for e in wanted.values() if isinstance(e.model.memory, ExpireSpan)
    }
    assert len(prices) == 2
    small = {
        name: replace(tiny, model=replace(tiny.model, memory=one.model.memory), seed=one.seed)
        for name, one in wanted.items()
    }
    run_sweep(small, tmp_path, side_by_side=4, progress=False)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    run_sweep(small, tmp_path, side_by_side=4, progress=False)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/result.json")}
    world, points = read_sweep(tmp_path)
    assert world == WORLD
    assert {point.name for point in points} == set(small)
    main(["sweep", "corridor", "--out", str(tmp_path), "--windows", "--seeds"])  # draws it
    assert len(list(tmp_path.glob("*/"))) == len(small)
    with Image.open(tmp_path / "performance.png") as picture:
        assert picture.width > 300


def test_a_sweep_that_is_stopped_goes_on_with_the_same_command(tmp_path, monkeypatch):
    wanted = {f"run-{n}": tiny_experiment(seed=n, steps=6, save_every=100) for n in range(3)}
    run_sweep(wanted, tmp_path / "whole", side_by_side=2, progress=False)
    stop_after_steps(monkeypatch, 3)
    told = "stopped with 0 of 3 runs done; everything is saved, the same command goes on"
    with pytest.raises(KeyboardInterrupt, match=told) as stop:
        run_sweep(wanted, tmp_path / "parts", side_by_side=2, progress=False)
    assert stop.value.exit_status == 128 + signal.SIGTERM
    monkeypatch.undo()
    run_sweep(wanted, tmp_path / "parts", side_by_side=2, progress=False)
    assert read_sweep(tmp_path / "parts") == read_sweep(tmp_path / "whole")


def test_a_sweep_stops_at_a_signal_that_comes_as_a_run_is_done(tmp_path, monkeypatch):
    wanted = {f"run-{n}": tiny_experiment(seed=n, steps=2) for n in range(3)}
    judge = AgentRun.judge

    def judged(run, *given):
        result = judge(run, *given)
        signal.raise_signal(signal.SIGTERM)
        return result

    monkeypatch.setattr(AgentRun, "judge", judged)
    with pytest.raises(KeyboardInterrupt, match="stopped with 1 of 3 runs done"):
        run_sweep(wanted, tmp_path, side_by_side=1, progress=False)
    assert [path.name for path in tmp_path.glob("*/")] == ["run-0"]


def test_a_sweep_does_not_begin_inside_another_run(tmp_path):
    train_agent(tiny_experiment(steps=1), tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"holds a run of its own: choose another folder"):
        run_sweep({"one": tiny_experiment(steps=1)}, tmp_path, progress=False)
    assert not (tmp_path / "one").exists()


def test_a_sweep_does_not_take_other_runs_of_the_same_name_for_its_own(tmp_path):
    run_sweep({"one": tiny_experiment(steps=1)}, tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"one was run with other settings; these differ: batch\."):
        run_sweep({"one": tiny_experiment(steps=1, batch=7)}, tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"these differ: log_every\."):  # when the penalty turns
        run_sweep({"one": tiny_experiment(steps=1, log_every=9)}, tmp_path, progress=False)
    run_sweep({"one": tiny_experiment(steps=1, save_every=9)}, tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"these differ: evaluation_rows\."):
        run_sweep({"one": tiny_experiment(steps=1, evaluation_rows=9)}, tmp_path, progress=False)


def tiny_sweep(runs: int) -> dict[str, AgentExperiment]:
    """A sweep that takes no time."""
    return {f"run-{n}": tiny_experiment(seed=n, steps=1) for n in range(runs)}


Group = tuple[list[str], bool]


def note_groups(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The runs that are made from now on, group by group, and whether they are resumed."""
    groups: list[Group] = []
    train = sweep.train_side_by_side

    def noting(wanted: Sequence[tuple[AgentExperiment, Path]], **options: Any) -> None:
        groups.append(([folder.name for _, folder in wanted], options["resume"]))
        train(wanted, **options)

    monkeypatch.setattr(sweep, "train_side_by_side", noting)
    return groups


def sweep_with_others(out: Path, all_at_work: Barrier, made: SimpleQueue) -> None:
    """Be one of several processes with the same sweep; each has a run before any makes its own."""
    train, wait = sweep.train_side_by_side, cache(all_at_work.wait)

    def noting(wanted: Sequence[tuple[AgentExperiment, Path]], **options: Any) -> None:
        wait(60)
        train(wanted, **options)
        made.put([folder.name for _, folder in wanted])

    sweep.train_side_by_side = noting
    commands.sweep_experiments = lambda *_: tiny_sweep(7)
    main(["sweep", "corridor", "--out", str(out), "--side-by-side", "2"])


def test_processes_share_a_sweep_and_make_every_run_once(tmp_path):
    context = get_context("spawn")
    made, shared = context.SimpleQueue(), (tmp_path, context.Barrier(2))
    several = [context.Process(target=sweep_with_others, args=(*shared, made)) for _ in range(2)]
    for process in several:
        process.start()
    for process in several:
        process.join(120)
    assert [process.exitcode for process in several] == [0, 0]
    names = []
    while not made.empty():
        names += made.get()
    assert sorted(names) == sorted(tiny_sweep(7))
    assert {point.name for point in read_sweep(tmp_path)[1]} == set(names)
    assert (tmp_path / "performance.png").exists()


def begin(experiment: AgentExperiment, folder: Path) -> None:
    """Leave a run that is not judged."""
    train_agent(experiment, folder, progress=False)
    (folder / "result.json").unlink()


def test_runs_that_had_begun_go_on_before_others_begin(tmp_path, monkeypatch):
    wanted = tiny_sweep(4)
    for name in ("run-1", "run-3"):
        begin(wanted[name], tmp_path / name)
    groups = note_groups(monkeypatch)
    run_sweep(wanted, tmp_path, side_by_side=3, progress=False)
    assert groups == [(["run-1", "run-3"], True), (["run-0", "run-2"], False)]


@pytest.mark.parametrize("begun", [False, True])
def test_a_run_that_another_process_holds_is_left_to_it(begun, tmp_path, monkeypatch):
    wanted = tiny_sweep(4)
    if begun:
        begin(wanted["run-1"], tmp_path / "run-1")
    groups = note_groups(monkeypatch)
    with claim(tmp_path / "run-1.lock"):
        run_sweep(wanted, tmp_path, side_by_side=2, progress=False)
    assert groups == [(["run-0", "run-2"], False), (["run-3"], False)]
    run_sweep(wanted, tmp_path, side_by_side=2, progress=False)
    assert groups[2:] == [(["run-1"], begun)]


@pytest.mark.parametrize(
    ("happens", "to", "expected"),
    [
        (train_agent, "run-0", [(["run-1", "run-2"], False)]),
        (train_agent, "run-1", [(["run-0", "run-2"], False)]),
        (begin, "run-1", [(["run-0", "run-2"], False), (["run-1"], True)]),
    ],
)
def test_what_others_do_between_looking_and_claiming_is_seen(
    happens, to, expected, tmp_path, monkeypatch
):
    wanted = tiny_sweep(3)
    groups = note_groups(monkeypatch)

    @contextmanager
    def claim_late(path: Path, wait: bool) -> Iterator[bool]:
        if path.stem == to and not (tmp_path / to).exists():
            happens(wanted[to], tmp_path / to)
        with claim(path, wait) as mine:
            yield mine

    monkeypatch.setattr(sweep, "claim", claim_late)
    run_sweep(wanted, tmp_path, side_by_side=3, progress=False)
    assert groups == expected
    assert len(read_sweep(tmp_path)[1]) == 3


@pytest.mark.parametrize("locks", [True, False])
def test_what_diverges_is_tried_once_and_kept_from_others_meanwhile(locks, tmp_path, monkeypatch):
    tried = []

    def diverge(wanted: Sequence[tuple[AgentExperiment, Path]], **_: object) -> None:
        tried.extend(folder.name for _, folder in wanted)
        assert len(tried) == len(set(tried))
        for name in tried:
            with claim(tmp_path / f"{name}.lock", wait=False) as free:
                assert free != locks
        raise NotFinite(f"{tried[-1]} diverged")

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(sweep, "train_side_by_side", diverge)
    if not locks:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(NotFinite, match=r"run-0 diverged\nrun-1 diverged\nAll other runs are done"):
        run_sweep(tiny_sweep(2), tmp_path, side_by_side=1, progress=False)
    assert tried == ["run-0", "run-1"]


def test_runs_that_others_make_with_other_settings_meanwhile_are_refused(tmp_path, monkeypatch):
    def make_another(*_: object, **__: object) -> None:
        train_agent(tiny_experiment(seed=1, steps=2), tmp_path / "run-1", progress=False)

    monkeypatch.setattr(sweep, "train_side_by_side", make_another)
    with pytest.raises(ValueError, match=r"run-1 was run with other settings; these differ: steps"):
        run_sweep(tiny_sweep(2), tmp_path, side_by_side=1, progress=False)


def test_a_sweep_that_others_have_just_begun_is_not_drawn_yet(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(commands, "sweep_experiments", lambda *_: tiny_sweep(2))
    with ExitStack() as others:
        for name in tiny_sweep(2):
            others.enter_context(claim(tmp_path / f"{name}.lock"))
        main(["sweep", "corridor", "--out", str(tmp_path)])
        said = f"{tmp_path}: no run is done yet, and other processes are at work on all of them\n"
        assert capsys.readouterr().out == said
        assert not (tmp_path / "performance.png").exists()
        train_agent(tiny_sweep(2)["run-0"], tmp_path / "run-0", progress=False)
        main(["sweep", "corridor", "--out", str(tmp_path)])
    assert (tmp_path / "performance.png").exists()


def test_sweeps_are_drawn_one_after_the_other(tmp_path, monkeypatch):
    """Or the picture of one who has read fewer results could take the place of the whole."""
    free = []

    def look(folder: Path, path: Path) -> None:
        with claim(folder / "performance.lock", wait=False) as mine:
            free.append(mine)

    monkeypatch.setattr(commands, "draw_sweep", look)
    main(["sweep", "corridor", "--out", str(tmp_path), "--windows", "--seeds"])
    assert free == [False]


def test_every_kind_has_its_first_run_before_any_has_its_second():
    names = list(sweep_experiments(portal("smoke"), seeds=(5, 3)))
    kinds = [name.removesuffix("-seed-5") for name in names[: len(names) // 2]]
    assert len(kinds) == len(WINDOWS) + len(PRICES)
    assert names == [f"{kind}-seed-{seed}" for seed in (5, 3) for kind in kinds]


@pytest.mark.parametrize("flag", ["--no-compile", "--world.stay-action", "--learning.normalise"])
def test_the_scale_may_follow_any_flag(flag, tmp_path):
    run = tmp_path / "run"
    small = ["--batch", "4", "--evaluation-rows", "4", "--world.limit", "6", "--steps", "1"]
    main(["train", "corridor", flag, "smoke", "--out", str(run), *small])
    made = load_agent_experiment(run)
    assert made.world.longest == corridor("smoke").world.longest
    assert (made.world.stay_action, made.learning.normalise, made.compile) == (
        flag == "--world.stay-action",
        flag == "--learning.normalise",
        flag != "--no-compile",
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["watch", "RUN", "--fps", "0"], "fps must be a whole number of at least 1"),
        (["watch", "RUN", "--fps", "51"], "fps must be at most 50, which viewers can show"),
        (["watch", "RUN", "--out", "a.txt"], "give a path that ends in .gif, not a.txt"),
        (["train", "corridor", "huge"], "scale must be one of smoke, single, paper"),
        (
            ["train", "portal", "--out", "RUN", "--resume"],
            "is about Corridor, not Portal: resume it by the name it was begun with",
        ),
        (
            ["train", "recall", "--out", "RUN", "--resume"],
            "is an agent's: resume it by the name it was begun with",
        ),
        (["sweep", "corridor", "--out", "RUN", "--side-by-side", "0"], "side_by_side must be"),
        (
            ["sweep", "maze", "--out", "RUN"],
            "name must be one of corridor, portal or the folder of an agent, but is 'maze'",
        ),
        (
            ["sweep", "RUN", "--scale", "smoke", "--out", "sweep"],
            "has settings of its own: leave out --scale",
        ),
        (
            ["sweep", "RUN", "--out", "sweep", "--windows", "4", "0"],
            "windows must be a whole number",
        ),
        (["sweep", "RUN", "--out", "sweep", "--prices", "-1"], "prices must not be negative, but"),
        (["evaluate", "RUN", "--limit", "-3"], "limit must be a whole number of at least 0, but"),
        (["train", "corridor", "--seed", "-1"], "seed must be a whole number of at least 0"),
        (["train", "corridor", "--seed", str(2**63 - 1)], "seed must be at most 2**63 - 2, but is"),
        (["evaluate", "RUN", "--rows", "0"], "rows must be a whole number of at least 1, but is 0"),
        (["watch", "RUN", "--rows", "0"], "rows must be a whole number of at least 1, but is 0"),
        (["evaluate", "RUN", "--device", "gpu"], "There is no device 'gpu': choose auto, cpu"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments, sentence, tmp_path, capsys):
    train_agent(tiny_experiment(steps=1), tmp_path, progress=False)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path) if word == "RUN" else word for word in arguments])
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert sentence in " ".join(told.split())
    assert "block/s" not in told  # nothing had begun that shows how far it is


@pytest.mark.parametrize("wrong", [["--fps", "51"], ["--out", "a.txt"]])
def test_no_episode_is_played_for_a_picture_that_cannot_be(wrong, monkeypatch):
    monkeypatch.setattr(commands, "record_episode", None)
    with pytest.raises(SystemExit):
        main(["watch", str(EXAMPLES / "corridor"), *wrong])


def test_a_picture_that_is_interrupted_leaves_the_one_before(tmp_path, monkeypatch):
    episode = record_episode(dense_agent(MEMORIES["expire"]), WORLD, rows=2)
    path = tmp_path / "episode.gif"
    path.write_bytes(b"before")

    def interrupt(_: Image.Image, file: Path, *__: object, **___: object) -> None:
        file.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Image.Image, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        animate(episode, path)
    assert plt.get_fignums() == []
    assert [file.name for file in tmp_path.iterdir()] == ["episode.gif"]
    assert path.read_bytes() == b"before"


def test_agents_are_not_trained_by_several_ranks(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit):
        main(["train", "corridor", "smoke", "--out", str(tmp_path / "run")])
    assert "start this without torchrun" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["corridor", "portal"])
def test_runs_of_a_shorter_sweep_rest_as_long_before_their_end(name):
    base = AGENT_EXPERIMENTS[name]("single")
    usual, short = (sweep_experiments(base, steps=steps) for steps in (None, 1500))
    for one, other in zip(usual.values(), short.values(), strict=True):
        rest, end = one.penalty.rest_after, one.steps
        resting = None if rest is None else rest - end + 1500
        assert other == replace(one, steps=1500, penalty=replace(one.penalty, rest_after=resting))
    for steps in (300, 500):
        with pytest.raises(ValueError, match=r"rest in the last 500 updates: give more steps than"):
            sweep_experiments(portal("single"), steps=steps)


@pytest.mark.parametrize("name", ["corridor", "portal"])
def test_a_sweep_varies_memory_seed_and_price_and_nothing_else(name):
    base = AGENT_EXPERIMENTS[name]("single")
    wanted = sweep_experiments(base)
    assert len(wanted) == len(SEEDS) * (len(WINDOWS) + len(PRICES))
    first = wanted["price-1-seed-0"]
    assert first == base
    for run, other in wanted.items():
        assert run.endswith(f"-seed-{other.seed}")
        assert replace(other, seed=first.seed, model=first.model) == first
        assert replace(other.model, memory=first.model.memory) == first.model
    assert wanted["price-0-seed-2"].model.memory.penalty == 0


def test_a_sweep_around_an_agent_has_its_settings(tmp_path, monkeypatch):
    mine = tiny_experiment(batch=3, steps=7)
    train_agent(replace(mine, steps=1), tmp_path / "run", progress=False)
    made: dict[str, AgentExperiment] = {}
    monkeypatch.setattr(commands, "run_sweep", lambda found, *_, **__: made.update(found))
    main(["sweep", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--steps", "7"])
    assert made["price-1-seed-0"] == mine
    assert made["window-16-seed-2"].model.memory == FixedSpan(16)


def test_a_sweep_around_an_agent_without_expire_span_is_refused():
    with pytest.raises(ValueError, match=r"Expire-Span, but this one has FixedSpan: give another"):
        sweep_experiments(tiny_experiment(memory=FixedSpan(4)))


@pytest.mark.parametrize(
    ("name", "scale", "sizes"),
    [
        ("corridor", "single", (16, 32, 50, 75, 100, 200)),
        ("portal", "paper", (16, 32, 48, 64, 80, 100)),
        ("corridor", "smoke", (3, 5, 8, 12, 16, 32)),
    ],
)
def test_windows_fit_the_scale(name, scale, sizes):
    wanted = sweep_experiments(AGENT_EXPERIMENTS[name](scale), seeds=(0,), prices=())
    assert [one.model.memory for one in wanted.values()] == [FixedSpan(size) for size in sizes]


@pytest.mark.parametrize(
    ("longest", "sizes"), [(1, [1]), (4, [1, 2, 4]), (12, [1, 2, 3, 4, 6, 12])]
)
def test_short_spans_have_fewer_windows_but_none_of_nothing(longest, sizes):
    assert usual_windows(WORLDS["corridor"], longest) == sizes


def test_live_memories_of_a_straight_walk_are_those_that_a_window_holds():
    world = Corridor(shortest=3, longest=4)
    # Lengths 3 and 4, seen per step with a window of 2: 0 1 2 and 0 1 2 2.
    assert corridor_live(world, 2) == pytest.approx(8 / 7)


@pytest.mark.parametrize(("window", "value"), [(1, 0.62), (4, 1.23), (100, 1.50)])
def test_a_walker_earns_what_its_window_allows(window, value):
    """Values are means over 20,000 episodes of the same rules."""
    world, rows = Portal(rooms=5, limit=100), 4000
    live, earned = portal_walk(world, window)
    played = play(world.play(), PortalMemory(world, window), rows)
    seen = sum(min(t, window) for steps in played.steps.tolist() for t in range(steps))
    assert live == pytest.approx(seen / played.steps.sum().item())
    assert earned == pytest.approx(value, abs=4 * played.total.std().item() / rows**0.5 + 0.01)


@pytest.mark.parametrize(
    ("world", "label"),
    [
        (WORLD, "best of a window, relayed once"),
        (replace(WORLD, width=3), None),  # who walks round about knows less
        (replace(WORLD, object_place="above", shortest=4, longest=6), None),  # seen twice
        (replace(WORLD, doors="corner"), "best of a window, relayed once"),  # as far away
        (replace(WORLD, show_action=True), None),  # who sees its moves can write with them
        (replace(WORLD, turning_view=True), None),
        (Portal(rooms=3, limit=20), "makes no mistake on purpose"),
        (Portal(rooms=3, limit=20, size=7), None),  # no walker knows its way there
        (Portal(rooms=3, limit=20, doors="ends"), None),
        (Portal(rooms=3, limit=20, turning_view=True), None),
    ],
)
def test_a_sweep_is_drawn_beside_scripted_policies(world, label, tmp_path, monkeypatch):
    train_agent(tiny_experiment(world, steps=1), tmp_path / "one", progress=False)
    drawn: list[str] = []
    close = plt.close

    def note_and_close(figure: Figure) -> None:
        drawn.extend(str(line.get_label()) for line in figure.axes[0].lines)
        close(figure)

    monkeypatch.setattr(plt, "close", note_and_close)
    draw_sweep(tmp_path, tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").stat().st_size > 0
    scripted = [line for line in drawn if "ramp" not in line]
    assert any(label in line for line in scripted) if label else scripted == []


def test_every_run_is_drawn_whatever_its_memory(tmp_path, monkeypatch):
    for name, memory in {
        "window": FixedSpan(8),
        "expiring": ExpireSpan(max_span=16, ramp=4),
        "adaptive": AdaptiveSpan(max_span=16, ramp=4),
        "compressed": Compressive(span=8, compressed=4, rate=2),
    }.items():
        tiny = tiny_experiment(steps=1)
        other = replace(tiny, model=replace(tiny.model, memory=memory))
        train_agent(other, tmp_path / name, progress=False)
    drawn: list[tuple[float, float]] = []
    close = plt.close

    def note_and_close(figure: Figure) -> None:
        collections = figure.axes[0].collections
        drawn.extend(tuple(place) for each in collections for place in each.get_offsets().tolist())
        close(figure)

    monkeypatch.setattr(plt, "close", note_and_close)
    draw_sweep(tmp_path, tmp_path / "picture.png")
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert sorted(drawn) == sorted((result["live"], result["success"]) for result in results)
    assert len(drawn) == 4
    assert all(result["live"] != result["held"] for result in results)  # or it could be that


def drawn_lines(folder: Path, monkeypatch) -> dict[str, list[tuple[float, float]]]:
    """The lines in the picture of a sweep, by the beginning of their label."""
    drawn: dict[str, list[tuple[float, float]]] = {}
    close = plt.close

    def note_and_close(figure: Figure) -> None:
        for line in figure.axes[0].lines:
            label = str(line.get_label()).splitlines()[0]
            drawn[label] = [tuple(place) for place in line.get_xydata().tolist()]
        close(figure)

    monkeypatch.setattr(plt, "close", note_and_close)
    draw_sweep(folder, folder / "picture.png")
    return drawn


def test_a_walker_is_drawn_by_what_it_holds_and_earns(tmp_path, monkeypatch):
    world = Portal(rooms=3, limit=20)
    train_agent(tiny_experiment(world, steps=1), tmp_path / "one", progress=False)
    drawn = drawn_lines(tmp_path, monkeypatch)
    windows = [round(share * 2 * world.rooms) for share in (0.08, *WINDOWS)]
    expected = [portal_walk(world, window) for window in windows]
    assert drawn["a walker who remembers so many steps"] == expected
    ramp = tiny_experiment(world).model.memory.ramp
    (first, _), (last, _) = drawn[f"all spans 0: the ramp of {ramp}, once full"]
    assert first == last == ramp


def test_bounds_are_drawn_over_the_live_memories_of_a_straight_walk(tmp_path, monkeypatch):
    train_agent(tiny_experiment(steps=1), tmp_path / "one", progress=False)
    drawn = drawn_lines(tmp_path, monkeypatch)
    sizes = np.linspace(1, WORLD.longest, 60).astype(int).tolist()
    for name, reach in (("best of a window", 1), ("best of a window, relayed once", 2)):
        best = [corridor_bound(WORLD, reach * size) for size in sizes]
        assert [value for _, value in drawn[name]] == pytest.approx(best)
    lengths = range(WORLD.shortest, WORLD.longest + 1)
    for window in (1, WORLD.longest):
        walk = [min(t, window) for length in lengths for t in range(length)]
        known = sum(length - 1 <= window for length in lengths) / len(lengths)
        place = (sum(walk) / len(walk), pytest.approx(0.5 + 0.5 * known))
        assert drawn["best of a window"][0 if window == 1 else -1] == place


@pytest.mark.parametrize(
    ("world", "called"),
    [
        (WORLD, f"Corridor of {WORLD.shortest} to {WORLD.longest} cells"),
        (Portal(rooms=5), "Portal of 5 rooms"),
    ],
)
def test_a_sweep_is_called_by_its_world(world, called):
    assert _called(world) == called


def test_ramps_that_differ_are_one_band():
    figure, (one, several, none) = plt.subplots(1, 3)
    for axes, ramps in ((one, [4, 4]), (several, [4, 16, 8]), (none, [])):
        _draw_ramps(axes, ramps)
    assert [line.get_xdata() for line in one.lines] == [[4, 4]]
    assert not several.lines
    (band,) = several.patches
    assert (band.get_x(), band.get_width()) == (4, 12)
    assert band.get_label() == "all spans 0: the ramps of 4 to 16, once full"
    assert not none.lines + none.patches
    plt.close(figure)


def test_what_a_sweep_says_covers_no_point_and_prices_are_told_apart(tmp_path, monkeypatch):
    """All runs have the same live memories, or nearly so, as after training."""
    points = [Point("w", FixedSpan(span), 7 + 0.01 * span, 1.0) for span in (8, 12, 16, 32)]
    points += [
        Point("e", ExpireSpan(32, ramp=4, penalty=price), 6.9 + price, 1.0)
        for price in (0.0, 5e-6, 5 * 1e-6, 0.1)
    ]
    assert 5e-6 != 5 * 1e-6  # which are one price all the same
    monkeypatch.setattr(sweep, "read_sweep", lambda _: (WORLD, points))
    figures: list[Figure] = []
    monkeypatch.setattr(plt, "close", figures.append)
    draw_sweep(tmp_path, tmp_path / "picture.png")
    monkeypatch.undo()
    (axes,) = figures[0].axes
    pixels = axes.transData.transform([(point.live, point.performance) for point in points])
    assert sorted(int(text.get_text()) for text in axes.texts) == [8, 12, 16, 32]
    boxes = [Text.get_window_extent(text) for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    legend = axes.get_legend().get_window_extent()
    assert not any(box.contains(*pixel) for box in [*boxes, legend] for pixel in pixels)
    assert legend.y1 < axes.get_window_extent().y0
    told = [text.get_text() for text in axes.get_legend().get_texts()]
    prices = [label for label in told if label.startswith("Expire-Span, a memory costs ")]
    assert [label.split()[-1] for label in prices] == ["0", "5.0e-06", "1.0e-01"]
    colours = {tuple(each.get_facecolor()[0]) for each in axes.collections}
    assert len(colours) == 4
    assert min(sum(1 - part for part in colour[:3]) for colour in colours) > 0.1  # none is white
    plt.close(figures[0])


def test_a_legend_says_when_a_memory_is_charged_if_not_all_are_charged_alike():
    def told(*charges: str) -> list[str]:
        points = [
            Point("e", ExpireSpan(32, 4, penalty=price, charge=charge), 6.0, 1.0)
            for charge in charges
            for price in (0.0, 5e-6)
        ]
        figure, axes = plt.subplots()
        sweep._draw_runs(axes, points)
        labels = [text.get_text() for text in axes.legend().get_texts()]
        plt.close(figure)
        return [label for label in labels if "costs" in label]

    costs = "Expire-Span, a memory costs "
    assert told("ramp", "ramp") == [f"{costs}0", f"{costs}5.0e-06"]
    wanted = [f"{costs}0", f"{costs}5.0e-06, from the first", f"{costs}5.0e-06, on its ramp"]
    assert told("ramp", "block") == wanted


def test_an_agent_is_judged_on_the_episodes_and_with_the_memory_that_are_asked_for(
    tmp_path, capsys
):
    run = str(tmp_path / "run")
    train_agent(tiny_experiment(steps=1), tmp_path / "run", progress=False)

    def judged(*options: str) -> dict[str, float]:
        main(["evaluate", run, "--rows", "64", "--device", "cpu", *options])
        return json.loads(capsys.readouterr().out)

    as_it_is = judged()
    assert as_it_is == judged()
    assert judged("--seed", "5")["live"] != as_it_is["live"]
    assert judged("--limit", "0")["live"] == 0 < as_it_is["live"]
    for seed in ("0", "1"):
        main(["watch", run, "--rows", "1", "--seed", seed, "--out", str(tmp_path / f"{seed}.gif")])
    assert (tmp_path / "0.gif").read_bytes() != (tmp_path / "1.gif").read_bytes()


def test_an_agent_is_judged_and_watched_in_its_world_with_other_settings(tmp_path, capsys):
    agent, longer = str(EXAMPLES / "corridor"), ["--world.shortest", "30", "--world.longest", "30"]
    main(["evaluate", agent, "--rows", "3", "--device", "cpu", *longer])
    found = json.loads(capsys.readouterr().out)
    assert 30 <= found["episode_steps"] < 40
    assert "success_30_30" in found
    assert (found["world.shortest"], found["world.longest"]) == (30, 30)
    assert "world.limit" not in found
    main(["watch", agent, "--rows", "1", "--out", str(tmp_path / "w.gif"), *longer])
    assert 30 <= int(capsys.readouterr().out.split()[-2]) < 40
    refused = {
        "(room17, room18): leave out what changes them": ["portal", "--world.rooms", "18"],
        "not the same actions there": ["corridor", "--world.stay-action"],
    }
    for said, (name, *options) in refused.items():
        for command in ("evaluate", "watch"):
            with pytest.raises(SystemExit):
                main([command, str(EXAMPLES / name), *options])
            assert said in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main(["watch", agent, *longer])
    assert "say with --out where the picture goes" in capsys.readouterr().err


def test_a_sweeps_picture_that_fails_leaves_the_one_before(tmp_path, monkeypatch):
    train_agent(tiny_experiment(steps=1), tmp_path / "one", progress=False)
    path = tmp_path / "picture.png"
    path.write_bytes(b"before")

    def fail(self: Figure, file: Path, **_: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="No space left"):
        draw_sweep(tmp_path, path)
    assert path.read_bytes() == b"before"
    assert plt.get_fignums() == []


def test_the_commands_train_resume_evaluate_and_watch(tmp_path, capsys):
    run = str(tmp_path / "run")
    small = ["--batch", "4", "--evaluation-rows", "4", "--world.limit", "6"]
    small += ["--optimizer.schedule.decay", "constant"]  # or its steps could not be changed
    main(["train", "corridor", "smoke", "--out", run, "--steps", "2", *small])
    assert json.loads(capsys.readouterr().out)["episodes"] == 4
    main(["train", "corridor", "--out", run, "--resume", "--steps", "3"])
    assert (
        json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 3
    )
    main(["evaluate", run, "--rows", "5", "--device", "cpu"])
    main(["watch", run, "--rows", "2"])
    assert (tmp_path / "run" / "episode.gif").exists()
    with pytest.raises(SystemExit):
        main(["train", "corridor", "smoke", "--out", run])
    assert "already holds a run" in capsys.readouterr().err
    main(["list"])
    listed = capsys.readouterr().out
    assert "corridor" in listed
    assert "recall" in listed


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no finished run"):
        read_sweep(tmp_path)
    for name, world in WORLDS.items():
        train_agent(tiny_experiment(world, steps=1), tmp_path / name, progress=False)
    with pytest.raises(ValueError, match="different worlds"):
        read_sweep(tmp_path)
    broken = tmp_path / "corridor" / "result.json"
    broken.write_text("{}")
    with pytest.raises(ValueError, match=r"result\.json tells nothing of live and success: rem"):
        read_sweep(tmp_path)
    broken.write_text('{"live')
    with pytest.raises(ValueError, match=r"result\.json is damaged \(.*\): remove it"):
        read_sweep(tmp_path)
