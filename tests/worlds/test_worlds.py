"""The worlds keep their rules, row by row, whatever the batch and the device."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from expire_span.worlds import Corridor, Portal, World
from expire_span.worlds.grid import DX, DY, MOVES
from expire_span.worlds.oracles import PortalMemory, play
from worlds.scalar import ScalarCorridor, ScalarPortal

WORLDS: dict[str, World] = {
    "corridor": Corridor(),
    "corridor-short": Corridor(shortest=3, longest=4, limit=12),
    "corridor-wide": Corridor(longest=6, width=3, limit=40),
    "corridor-closed-doors": Corridor(longest=5, wrong_door="stays", door_sides="fixed", limit=30),
    "corridor-no-walls": Corridor(longest=9, visible_walls=False, limit=25),
    "corridor-object-above": Corridor(shortest=4, longest=7, object_place="above", limit=30),
    "corridor-wide-object-above": Corridor(
        shortest=4, longest=5, width=3, object_place="above", limit=40
    ),
    "corridor-doors-in-a-corner": Corridor(longest=6, width=2, doors="corner", limit=40),
    "portal": Portal(),
    "portal-shuffle": Portal(rooms=6, shuffle=True, limit=200),
    "portal-first-only": Portal(rooms=4, first_only=True, prize=0.5, limit=90),
    "portal-last-room-stays": Portal(rooms=3, last_room="stays", limit=70),
    "portal-large": Portal(rooms=3, size=7, spawn=(1, 4), limit=80),
    "portal-words-everywhere": Portal(rooms=5, room_word="all", limit=50),
    "portal-doors-above-and-below": Portal(rooms=4, doors="ends", shuffle=True, limit=90),
    "portal-most-rooms": Portal(rooms=62, shuffle=True, limit=60),
    "five-actions": Corridor(longest=6, stay_action=True, limit=20, step_cost=0.25),
    "feedback": Portal(rooms=4, show_action=True, show_reward=True, stay_action=True, limit=60),
    "turning": Corridor(longest=5, turning_view=True, limit=20, show_action=True),
}
every_world = pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())


def random_actions(world: World, steps: int, batch: int, seed: int = 0) -> torch.Tensor:
    """Actions [steps, batch] that get somewhere: every second one is to the right."""
    generator = torch.Generator().manual_seed(seed)
    any_action = torch.randint(len(world.actions), (steps, batch), generator=generator)
    right = torch.rand(steps, batch, generator=generator) < 0.5
    return torch.where(right, MOVES.index("right"), any_action)


def walk(world: World, actions: torch.Tensor, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Everything that happens, step by step."""
    game = world.play()
    state = game.start(actions.shape[1], seed)
    history = [{"seen": game.observe(state)}]
    for row in actions:
        outcome = game.step(state, row)
        state = outcome.state
        history.append(
            {
                "seen": game.observe(state),
                "last_seen": game.observe(outcome.last),
                "reward": outcome.reward,
                "terminated": outcome.terminated,
                "truncated": outcome.truncated,
                **state.tensors(),
            }
        )
    return history


# Rules --------------------------------------------------------------------------------------------


def plain(world: World, state: Any, row: int) -> ScalarCorridor | ScalarPortal:
    kind = ScalarCorridor if isinstance(world, Corridor) else ScalarPortal
    return kind.of(world, state, row)  # type: ignore[arg-type]


def plain_view(world: World, one: Any, action: int | None, rewarded: bool, heading: int) -> Any:
    """The observation by definition, [3, 3, V]."""
    view = torch.zeros(3, 3, len(world.words), dtype=torch.uint8)
    ahead = (DX[heading], DY[heading])
    for row in range(3):
        for column in range(3):
            right, down = column - 1, row - 1
            # The picture's up is the heading; its right is a quarter turn clockwise from there.
            dx = right * -ahead[1] - down * ahead[0]
            dy = right * ahead[0] - down * ahead[1]
            words = one.cell(one.x + dx, one.y + dy)
            if not world.visible_walls:
                words = words - {"block"}
            if isinstance(world, Portal) and (world.room_word == "all" or (row, column) == (1, 1)):
                words = words | {f"room{one.room}"}
            for word in words:
                view[row, column, world.words.index(word)] = 1
    names = {"agent"}
    if world.show_action and action is not None:
        names.add(world.actions[action])
    if world.show_reward and rewarded:
        names.add("rewarded")
    for word in names:
        view[1, 1, world.words.index(word)] = 1
    return view


def measured(game: Any, last: Any, row: int) -> dict[str, float]:
    """What the game tells of the episode that ended in a row."""
    return {
        name: measure.value[row].item()
        for name, measure in game.measure(last).items()
        if measure.applies is None or measure.applies[row]
    }


@every_world
def test_every_row_follows_the_rules_written_out_one_by_one(world):
    batch = 6
    game = world.play()
    state = game.start(batch, seed=5)
    rows = [plain(world, state, row) for row in range(batch)]
    totals, headings = [0.0] * batch, [0] * batch
    for actions in random_actions(world, 250, batch):
        outcome = game.step(state, actions)
        state = outcome.state
        last_seen, seen = game.observe(outcome.last), game.observe(state)
        for row, action in enumerate(actions.tolist()):
            one = rows[row]
            reward, ended = one.step(action)
            reward -= world.step_cost
            totals[row] += reward
            headings[row] = action if world.turning_view and action < 4 else headings[row]
            assert outcome.reward[row].item() == pytest.approx(reward)
            assert bool(outcome.terminated[row]) == ended
            assert bool(outcome.truncated[row]) == (one.steps == world.limit and not ended)
            assert outcome.last.total[row].item() == pytest.approx(totals[row])
            expected = plain_view(world, one, action, reward > 0, headings[row])
            assert torch.equal(last_seen[row], expected)
            if outcome.done[row]:
                told = one.measures() | {"return": totals[row], "episode_steps": one.steps}
                assert measured(game, outcome.last, row) == pytest.approx(told)
                rows[row], totals[row], headings[row] = plain(world, state, row), 0.0, 0
                assert torch.equal(seen[row], plain_view(world, rows[row], None, False, 0))
                assert state.steps[row] == 0
                assert state.total[row] == 0


def test_success_is_told_apart_by_fifty_lengths_at_a_time():
    assert Corridor().bins == ((3, 50), (51, 100), (101, 150), (151, 200))
    assert Corridor(shortest=60, longest=70).bins == ((60, 70),)
    assert Corridor(shortest=50, longest=101).bins == ((50, 50), (51, 100), (101, 101))


def test_whoever_stays_in_the_last_room_earns_nothing_more():
    world = Portal(rooms=3, last_room="stays", limit=30)
    played = play(world.play(), PortalMemory(world), 50)
    assert (played.steps == 30).all()
    assert (played.last.room == 2).all()
    ending = Portal(rooms=3, limit=30)
    assert torch.equal(played.total, play(ending.play(), PortalMemory(ending), 50).total)


@every_world
def test_what_is_no_action_is_not_taken_for_one_where_its_range_is_not_checked(world, monkeypatch):
    game = world.play()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(IndexError):
        game.step(game.start(2), torch.full((2,), len(world.actions)))


def test_corridor_has_seven_different_views():
    game = Corridor().play()
    seen = {tuple(view.tolist()) for view in game._table}
    assert len(seen) == 7  # object in two colours, nothing, doors ahead and beside in two orders
    assert game._table.shape[1] == 9 * 6


def test_two_more_of_them_if_the_object_is_above():
    game = Corridor(shortest=4, object_place="above").play()
    assert len({tuple(view.tolist()) for view in game._table}) == 9  # seen again one cell on


@pytest.mark.parametrize("doors", ["sides", "corner"])
@pytest.mark.parametrize(("place", "shortest"), [("behind", 3), ("above", 4)])
def test_object_and_doors_are_never_seen_together(place, shortest, doors):
    world = Corridor(shortest=shortest, longest=shortest, object_place=place, doors=doors)
    game = world.play()
    state = game.start(8)
    met = []
    for _ in range(shortest):
        shown = game.observe(state).amax(dim=(1, 2))
        met.append(shown[:, [world.words.index("object"), world.words.index("door")]])
        state = game.step(state, torch.full((8,), MOVES.index("right"))).state
    sees_object, sees_door = torch.stack(met).unbind(-1)
    assert sees_object[0].all()
    assert sees_door[-1].all()
    assert not (sees_object & sees_door).any()


# Chance -------------------------------------------------------------------------------------------


@every_world
def test_the_same_seed_is_the_same_stream_and_another_seed_is_not(world):
    actions = random_actions(world, 60, 16)
    one, two, other = walk(world, actions), walk(world, actions), walk(world, actions, seed=1)
    for first, second in zip(one, two, strict=True):
        for name in first:
            assert torch.equal(first[name], second[name])
    assert not torch.equal(one[-1]["key"], other[-1]["key"])


@every_world
def test_the_batch_does_not_change_a_row(world):
    actions = random_actions(world, 150, 9)
    many = walk(world, actions)
    few = walk(world, actions[:, :4])
    for whole, part in zip(many, few, strict=True):
        for name in part:
            assert torch.equal(whole[name][:4], part[name]), name


@pytest.mark.gpu
@every_world
def test_a_gpu_plays_the_same_game(world):
    actions = random_actions(world, 300, 33)
    here, there = world.play("cpu"), world.play("cuda")
    mine, theirs = here.start(33, 7), there.start(33, 7)
    for row in actions:
        one, other = here.step(mine, row), there.step(theirs, row.cuda())
        mine, theirs = one.state, other.state
        for name, tensor in mine.tensors().items():
            assert torch.equal(tensor, getattr(theirs, name).cpu()), name
        assert torch.equal(one.reward, other.reward.cpu())
        assert torch.equal(here.observe(mine), there.observe(theirs).cpu())


@every_world
def test_a_step_never_waits_for_the_device(world):
    game = world.play("meta")  # there are no numbers here that could be waited for
    state = game.start(8)
    for _ in range(2):
        outcome = game.step(state, torch.zeros(8, dtype=torch.int64, device="meta"))
        state = outcome.state
        assert game.observe(state).shape == (8, 3, 3, len(world.words))


def test_cues_doors_and_lengths_are_drawn_as_they_should():
    game = Corridor().play()
    rows = 60_000
    state = game.start(rows, seed=3)
    for bits in (state.cue, state.top, state.cue ^ state.top):
        assert abs(bits.float().mean().item() - 0.5) < 4 * 0.5 / rows**0.5
    counts = torch.bincount(state.length, minlength=201)
    assert counts[:3].sum() == 0
    assert len(counts) == 201
    expected = rows / 198
    assert ((counts[3:] - expected).abs() < 5 * expected**0.5).all()
    later = game.next_episode(state)
    assert (later.cue != state.cue).float().mean().item() == pytest.approx(0.5, abs=0.01)


def test_every_room_has_its_own_fair_coin():
    state = Portal(shuffle=True).play().start(20_000, seed=1)
    for mask in (state.red_right, state.red_left):
        bits = (mask[:, None] >> torch.arange(50)) & 1
        assert mask.min() >= 0
        assert mask.max() < 2**50
        assert ((bits.float().mean(dim=0) - 0.5).abs() < 5 * 0.5 / 20_000**0.5).all()
        correlation = torch.corrcoef(bits.T.float()) - torch.eye(50)
        assert correlation.abs().max() < 6 / 20_000**0.5


def test_coins_of_doors_sides_and_episodes_know_nothing_of_each_other():
    game = Portal(shuffle=True).play()
    state = game.start(20_000, seed=1)
    masks = []
    for _ in range(3):
        masks += [state.red_right, state.red_left]
        state = game.next_episode(state)
    bits = torch.stack([(mask[:, None] >> torch.arange(50) & 1).flatten() for mask in masks])
    correlation = torch.corrcoef(bits.float()) - torch.eye(len(masks))
    assert correlation.abs().max() < 6 / bits.shape[1] ** 0.5


# State and mistakes -------------------------------------------------------------------------------


@every_world
def test_a_state_can_be_saved_and_gone_on_from(world):
    game = world.play()
    state = game.start(5)
    actions = random_actions(world, 40, 5)
    for row in actions[:20]:
        state = game.step(state, row).state
    saved = {name: tensor.clone() for name, tensor in state.tensors().items()}
    restored = game.start(5, seed=9).like(saved)
    for row in actions[20:]:
        state, restored = game.step(state, row).state, game.step(restored, row).state
    for name, tensor in state.tensors().items():
        assert torch.equal(tensor, getattr(restored, name)), name


def test_wrong_actions_are_refused():
    game = Corridor().play()
    state = game.start(3)
    with pytest.raises(ValueError, match="Actions are 0 to 3"):
        game.step(state, torch.tensor([0, 4, 1]))
    with pytest.raises(ValueError, match="one int64 for each of the 3 rows"):
        game.step(state, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="one int64 for each of the 3 rows"):
        game.step(state, torch.tensor([0.0, 1.0, 2.0]))


@pytest.mark.parametrize("seed", [1.5, -1, 2**63, "3"])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(ValueError, match=rf"A seed is a whole number .*, but is {seed!r}\.$"):
        Corridor().play().start(4, seed=seed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_game_on_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"no GPU here to play on 'cuda:1': choose cpu\.$"):
        Corridor().play("cuda:1")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: Corridor(longest="20"),
            "longest must be a whole number of at least 3, but is '20",
        ),
        (lambda: Corridor(shortest=2), "shortest must be a whole number of at least 3"),
        (lambda: Corridor(shortest=9, longest=8), "longest must be a whole number of at least 9"),
        (lambda: Corridor(wrong_door="open"), "wrong_door must be one of ends, stays"),
        (lambda: Corridor(object_place="above"), "shortest must be a whole number of at least 4"),
        (lambda: Corridor(object_place="there"), "object_place must be one of behind, above"),
        (lambda: Corridor(doors="ahead"), "doors must be one of sides, corner"),
        (lambda: Portal(doors="corner"), "doors must be one of sides, ends"),
        (lambda: Corridor(limit=0), "limit must be"),
        (lambda: Corridor(step_cost=-1.0), "step_cost must not be negative"),
        (lambda: Portal(rooms=63), "at most 62 rooms"),
        (lambda: Portal(size=6), "size must be odd"),
        (lambda: Corridor(step_cost=float("inf")), "step_cost must be a finite number"),
        (lambda: Portal(spawn=(0, 2)), "spawn must be a cell .* from 1 to 3, but is"),
        (lambda: Portal(spawn=(2,)), "spawn must be a cell"),
        (lambda: Portal(spawn=(2.0, 2)), "spawn must be a cell"),
        (lambda: Portal(spawn=2), "spawn must be a cell"),
        (lambda: Portal(prize="x"), "prize must be a finite number, but is x"),
        (lambda: Portal(prize=float("nan")), "prize must be a finite number, but is nan"),
        (lambda: Portal(room_word="none"), "room_word must be one of agent, all"),
        (lambda: Corridor().play().start(0), "batch must be"),
        (lambda: Corridor().play().start(1, seed=-1), "A seed is a whole number"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_in_a_wider_corridor_an_agent_without_memory_can_note_the_colour_by_its_row():
    """Why the corridor is one cell wide: here half is no longer the best without memory.

    Whoever sees blue walks along the upper row, else along the lower one. At the end half of them
    stand beside the door of their colour and take it; the others toss coins and get a third right.
    """
    world = Corridor(longest=20, width=2, limit=100)
    game = world.play()
    rows = 2000
    state = game.start(rows)
    blue, thing, door = (world.words.index(word) for word in ("blue", "object", "door"))
    success, running = torch.zeros(rows), torch.ones(rows, dtype=torch.bool)
    for _ in range(world.limit):
        seen = game.observe(state).bool()
        objects = (seen & seen[..., thing, None]).any(dim=1).any(dim=1)
        upper = seen[:, 0, 1, world.words.index("block")] | seen[:, 0, 1, door]
        change_row = objects[:, thing] & objects[:, blue] & ~upper
        at_end = seen[:, 0, 1, door] | seen[:, 2, 1, door]
        mine = torch.where(upper, seen[:, 0, 1, blue], ~seen[:, 2, 1, blue])
        to_door = torch.where(upper, 0, 1)
        tossed = torch.where(torch.rand(rows) < 0.5, 0, 1)
        action = torch.where(at_end, torch.where(mine, to_door, tossed), 3)
        outcome = game.step(state, torch.where(change_row, 0, action))
        success = torch.where(running & outcome.done, outcome.reward, success)
        running &= ~outcome.done
        state = outcome.state
    assert not running.any()
    assert success.mean().item() == pytest.approx(2 / 3, abs=4 * 0.47 / rows**0.5)


def test_settings_can_be_changed_like_any_dataclass():
    assert replace(Corridor(), longest=7) == Corridor(longest=7)
