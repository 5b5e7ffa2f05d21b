"""Recordings of agents' episodes against what the agents did."""

import csv
import json
import math
import re

import numpy as np
import pytest
import torch
from matplotlib.text import Text

from agent.small_agents import MEMORIES, WORLDS, tiny_experiment
from browser import Visit, browser
from expire_span.agent.dense import start_full
from expire_span.agent.episodes import Episodes, play_episodes
from expire_span.agent.rollout import PlainActor, begin
from expire_span.agent.run import load_agent, train_agent
from expire_span.agent.tally import Tally
from expire_span.analysis import plots
from expire_span.analysis.cut import cut_span, mean_losses, suffering
from expire_span.analysis.episodes import NOTHING, REWARDED, MomentCodec, play
from expire_span.analysis.look import Source, look
from expire_span.analysis.recording import NOT_YET, Recording
from expire_span.analysis.sizes import read_sizes
from expire_span.cli import main
from expire_span.model.ops.ramp import is_alive
from expire_span.worlds import Corridor, Portal
from expire_span.worlds.grid import view_at

every_memory = pytest.mark.parametrize("memory", list(MEMORIES))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A little-trained agent with each memory, in a corridor, and one among portals."""
    folder = tmp_path_factory.mktemp("agents")
    for name, memory in MEMORIES.items():
        made = tiny_experiment(memory=memory, steps=2)
        train_agent(made, folder / name, progress=False)
    train_agent(tiny_experiment(WORLDS["portal"], steps=2), folder / "portal", progress=False)
    return folder


@every_memory
def test_what_is_recorded_is_what_the_agent_did(runs, memory):
    """The same actions, probabilities and spans as a plain run of the model that acts."""
    played = play(runs / memory, rows=4, seed=3)
    found = played.record()
    experiment, model = load_agent(runs / memory, "cpu")
    game, rows = experiment.world.play(), 4
    situation, state = begin(game, rows, 3), start_full(model, rows)
    actor, tally = PlainActor(model, game), Tally.empty(game)
    block = model.config.block
    for first in range(0, found.steps, block):
        acted, situation, tally = actor.act_block(situation, state, tally)
        step = model(acted.observations, state, starts=acted.starts)
        state, here = step.memory, slice(first, first + block)
        np.testing.assert_array_equal(found.targets[:, here], acted.actions)
        np.testing.assert_array_equal(found.starts[:, here], acted.starts)
        np.testing.assert_allclose(-found.loss[:, here], acted.log_probs, rtol=1e-4, atol=1e-5)
        if memory == "expire":
            for layer, spans in enumerate(step.spans):
                np.testing.assert_allclose(
                    found.spans[layer][:, here], spans.detach(), rtol=1e-4, atol=1e-4
                )
        call = first // block
        np.testing.assert_allclose(found.live[:, call], step.stats.live, rtol=1e-4, atol=1e-4)


def test_memories_of_an_episode_are_deleted_by_the_deadline_rule(runs):
    played = play(runs / "expire", rows=6, seed=0)
    found = played.record_best()
    block, times = found.about.block, torch.arange(found.steps)
    expected = torch.full(found.deleted.shape, NOT_YET)
    for end in reversed(found.ends.tolist()):
        over = ~is_alive(torch.tensor(found.deadlines()), end, found.about.ramp)
        expected[over & (times < end - block)] = end
    np.testing.assert_array_equal(found.deleted, expected)
    assert (found.deleted != NOT_YET).any()


def test_an_earlier_episode_is_deleted_once_it_leaves_the_last_block(runs):
    found = play(runs / "expire", rows=8, seed=0).record()
    later = found.starts[:, 1:]
    assert later.any()
    rows, begins = np.nonzero(later)
    for row, first in zip(rows, begins + 1, strict=True):
        ends = found.ends[found.ends > first + found.about.block]
        if len(ends):
            deleted = found.deleted[:, row, :first]
            assert ((deleted != NOT_YET) & (deleted <= ends[0])).all()


def test_of_several_best_episodes_it_is_the_longest():
    steps = 1000
    done = torch.zeros(3, steps, dtype=torch.bool)
    done[[0, 1, 2], [899, 909, 999]] = True
    rewards = torch.zeros(3, steps)
    rewards[:, 10] = torch.tensor([638.0, 638.0, 637.9])
    nothing = torch.zeros(3, steps, dtype=torch.int64)
    assert Episodes(nothing, done, nothing, rewards, done).best() == 1


def test_the_best_episode_is_alone_what_it_was_among_others(runs):
    played = play(runs / "expire", rows=6, seed=1)
    row, every, best = played.episodes.best(), played.record(), played.record_best()
    assert best.tokens.shape == (1, int(played.episodes.lengths()[row]))
    assert best.starts[0].tolist() == [True] + [False] * (best.steps - 1)
    for name in ("tokens", "targets", "loss"):
        whole = getattr(every, name)[row : row + 1, : best.steps]
        np.testing.assert_allclose(getattr(best, name), whole, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        best.spans, every.spans[:, row : row + 1, : best.steps], rtol=1e-4, atol=1e-4
    )


@torch.no_grad()
def test_a_cut_is_a_plain_second_run_of_the_episode(runs):
    found = cut_span(look(runs / "expire", Source(episodes=6), 1, "cpu"), 3)
    played = play(runs / "expire", rows=6, seed=0)
    episode, model = played.episodes.first_of(played.episodes.best()), played.player.model
    memory, nll = model.start(1), []
    for part in episode.blocks(model.config.block):
        step = model(part.observations, memory, starts=part.starts, limit=3)
        memory = step.memory
        chosen = model.head(step.hidden).logits.log_softmax(-1)
        nll.append(-chosen.gather(-1, part.actions[..., None])[0, :, 0])
    np.testing.assert_array_equal(found.cut.loss[0], torch.cat(nll))
    assert (found.cut.loss != found.whole.loss).any()
    worst = suffering(found, most=1000, least=-math.inf)
    assert sorted(one.place for one in worst) == list(range(episode.steps))
    for one in worst:
        assert one.word == found.pieces[one.place]
        lost = (found.cut.loss - found.whole.loss)[0, one.place] / np.log(2)
        assert one.lost == pytest.approx(lost, abs=1e-5)
        if one.last_seen is not None:
            assert found.pieces[one.place - one.last_seen] == one.word


def test_the_mean_loss_of_a_cut_is_over_all_episodes(runs):
    found = look(runs / "expire", Source(episodes=6), 1, "cpu")
    cut = cut_span(found, 3)
    whole, short = mean_losses(found, cut)
    assert whole == pytest.approx(found.played.record().loss.mean(), rel=1e-6)
    assert short == pytest.approx(found.played.record(limit=3).loss.mean(), rel=1e-6)
    assert len({whole, short, *cut.means()}) == 4
    steps = found.recording.tokens.shape[1]
    assert found.called().endswith(f"an episode of {steps} steps, the longest of the best of 6")


def test_what_a_command_tells_of_a_cut_is_of_all_episodes_and_what_it_draws_of_one(
    runs, tmp_path, capsys, monkeypatch
):
    titles = []
    monkeypatch.setattr(plots, "save_plot", lambda figure, _: titles.append(words_of(figure)) or [])
    out = ["--out", str(tmp_path), "--episodes", "6", "--device", "cpu"]
    main(["analyse", "cut", str(runs / "expire"), "--limit", "3", *out])
    found = look(runs / "expire", Source(episodes=6), 1, "cpu")
    whole, short = (mean / np.log(2) for mean in mean_losses(found, cut_span(found, 3)))
    told = capsys.readouterr().out
    assert f"Mean loss {whole:.4f} bits a step, cut at 3 steps {short:.4f}." in told
    assert found.called() in told
    main(["analyse", "layers", str(runs / "expire"), "--drawn", "60", *out])
    cut, layers, _ = titles
    assert found.called() in cut
    assert re.search(rf"the first \d+ of {len(found.pieces)} steps", layers)


def words_of(figure):
    """All that is written in a figure."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_recording_an_agent_changes_no_bit(runs):
    experiment, model = load_agent(runs / "expire", "cpu")
    before = play_episodes(model, experiment.world, rows=3, seed=5)
    play(runs / "expire", rows=3, seed=5).record()
    after = play_episodes(model, experiment.world, rows=3, seed=5)
    for name in ("observations", "actions", "rewards", "starts", "done"):
        assert torch.equal(getattr(before, name), getattr(after, name))


def test_moments_are_written_as_what_was_seen_and_done():
    world = Corridor()
    cells = world.play().map(world.play().start(1, seed=0), 0)
    length = max(x for x, cell in enumerate(cells[0]) if "door" in cell)
    places = [(1, 1), (3, 1), (length - 1, 1), (length, 1)]
    views = torch.stack([view_at(cells, x, y, world.words, walls=True) for x, y in places])
    codec = MomentCodec(world, views, torch.tensor([3, 2, 0, 1]))
    cue = next(colour for colour in ("red", "blue") if colour in cells[1][0])
    top = next(colour for colour in ("red", "blue") if colour in cells[0][length])
    low = {"red": "blue", "blue": "red"}[top]
    assert codec.pieces([0, 1, 2, 3]) == [
        f"({cue} object ←)→ ",
        "← ",
        f"({top} door ↗, {low} door ↘)↑ ",
        f"({top} door ↑, {low} door ↓)↓ ",
    ]
    with pytest.raises(ValueError, match="reads no text"):
        codec.encode("anything")


@pytest.mark.parametrize("room_word", ["agent", "all"])
def test_a_room_is_told_once(room_word):
    world = Portal(rooms=3, room_word=room_word)
    game = world.play()
    view = game.observe(game.start(1))
    assert MomentCodec(world, view, torch.tensor([0])).views == ["room1"]


def test_kinds_mark_what_is_in_view_and_what_paid(runs):
    played = play(runs / "portal", rows=5, seed=0)
    kinds, words = played.kinds(), WORLDS["portal"].words
    seen = played.episodes.observations.amax(dim=(2, 3)).bool()
    for room in ("room1", "room2"):
        np.testing.assert_array_equal(kinds[room], seen[..., words.index(room)])
    doors = kinds["red door"] | kinds["blue door"]
    np.testing.assert_array_equal(doors, seen[..., words.index("door")])
    np.testing.assert_array_equal(kinds[REWARDED], played.episodes.rewards > 0)
    corridor = play(runs / "expire", rows=5, seed=0).kinds()
    objects = corridor["red object"] | corridor["blue object"]
    doors = corridor["red door"] | corridor["blue door"]
    np.testing.assert_array_equal(corridor[NOTHING], ~(objects | doors))


def test_the_commands_look_at_agents(runs, tmp_path, capsys):
    run, out = str(runs / "expire"), ["--out", str(tmp_path)]
    main(["analyse", "spans", run, *out, "--episodes", "4", "--device", "cpu"])
    main(["analyse", "layers", run, *out, "--episodes", "8"])
    main(["analyse", "stream", run, *out, "--episodes", "2"])
    main(["analyse", "cut", run, *out, "--limit", "3"])
    printed = capsys.readouterr().out
    assert "layer 2 keeps longest: " in printed
    for name in ("spans", "layers", "classes", "stream", "cut"):
        assert (tmp_path / f"{name}.png").stat().st_size > 3000
    with (tmp_path / "spans.csv").open(encoding="utf-8", newline="") as file:
        first = next(csv.DictReader(file))
    assert "object ←" in first["token"]
    main(["analyse", "record", run, "--out", str(tmp_path / "kept"), "--seed", "2"])
    about = json.loads(capsys.readouterr().out)
    kept = Recording.open(tmp_path / "kept")
    assert (about["rows"], about["steps"]) == kept.tokens.shape == (16, kept.steps)
    with (tmp_path / "kept" / "moments.csv").open(encoding="utf-8", newline="") as file:
        moments = list(csv.DictReader(file))
    actions = [moment["action"] for moment in moments]
    names = np.array(WORLDS["corridor"].actions)
    np.testing.assert_array_equal(np.array(actions)[kept.tokens], names[kept.targets])


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["inspect", "RUN", "--text", "any.txt"], "reads no text: leave out --text"),
        (["inspect", "RUN", "--replace", "red=blue"], "leave out --text and --replace"),
        (["analyse", "cut", "RUN", "--text", "any.txt"], "reads no text: leave out --text"),
        (["serve", "RUN"], "look at its episodes with watch"),
    ],
)
def test_what_makes_no_sense_for_an_agent_is_refused(runs, command, sentence, capsys):
    with pytest.raises(SystemExit) as stop:
        main([str(runs / "expire") if word == "RUN" else word for word in command])
    assert stop.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


def test_agents_are_compared_by_memory_size(runs, tmp_path, capsys):
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "experiment.json").write_text((runs / "expire" / "experiment.json").read_text())
    corridors = [runs / name for name in MEMORIES]
    sizes, left_out = read_sizes([*corridors, begun])
    assert [one.run for one in sizes] == list(MEMORIES)
    assert left_out == {begun: "no evaluation yet"}
    for one in sizes:
        result = json.loads((runs / one.run / "result.json").read_text())
        assert (one.metric, one.split) == ("success", "episodes")
        assert (one.live, one.performance) == (result["live"], result["success"])
    main(["analyse", "memory", *map(str, corridors), str(begun), "--out", str(tmp_path)])
    assert f"{begun} (no evaluation yet)" in capsys.readouterr().out
    assert (tmp_path / "memory.png").stat().st_size > 5000
    ((portal,), _) = read_sizes([runs / "portal"])
    assert (portal.run, portal.metric) == ("portal", "return")
    with pytest.raises(ValueError, match=r"judged differently: return \(episodes\), success"):
        read_sizes([*corridors, runs / "portal"])


def test_the_report_of_an_episode_in_a_browser(runs, tmp_path):
    out = tmp_path / "episode.html"
    main(["inspect", str(runs / "expire"), "--out", str(out), "--episodes", "6"])
    played = play(runs / "expire", rows=6, seed=0)
    recording = played.record_best()
    text = "".join(played.player.codec.pieces(recording.tokens[0].tolist()))
    with browser() as chromium:
        visit = Visit(chromium, f"file://{out}")
        page, facts = visit.page, visit.page.locator(".facts")
        assert page.locator(".text").text_content() == text
        assert page.locator("h2").text_content() == "The episode"
        page.locator(".text").focus()
        page.keyboard.press("ArrowRight")
        bits = recording.loss[0, 0] / np.log(2)
        assert f"surprise of the move{bits:.2f} bits" in facts.text_content()
        page.get_by_label("Layer").select_option("0")
        page.get_by_label("Steps read").fill(str(recording.steps - 1))
        visit.settle()
        assert "unread" in visit.classes()[-1]
        visit.shoot("report-episode")
        visit.close()
