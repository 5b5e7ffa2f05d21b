"""Acting step by step and reading a block at once are the same thing, wherever episodes begin."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from agent.small_agents import (
    MEMORIES,
    WORLDS,
    every_memory,
    every_world,
    make_agent,
    random_views,
    with_dense_memory,
)
from expire_span import Compressive, ExpireSpan, FixedSpan, Memory, Transformer
from expire_span.agent import cached
from expire_span.agent.cached import CachedActor, Carry, _say_plain, make_actor
from expire_span.agent.dense import dense, start_full
from expire_span.agent.loss import ActorCritic, actor_critic_loss
from expire_span.agent.ports import build_agent
from expire_span.agent.rollout import Block, PlainActor, Situation, begin, choose, log_prob_of
from expire_span.agent.run import load_agent
from expire_span.agent.tally import Tally
from expire_span.model import layer
from expire_span.worlds import Corridor, Portal, World
from policies import assert_same

EXAMPLES = Path(__file__).parents[2] / "examples"
BLOCK = 100
WORLD = WORLDS["corridor"]
# In each row episodes begin at other steps of the block; the last row's goes on and on.
RESETS = ((0,), (1,), (50,), (99,), (0, 1, 50, 99), ())
ROWS = len(RESETS)


def starts_at(resets: Sequence[Sequence[int]] = RESETS) -> Tensor:
    """Where episodes begin, bool [B, T]."""
    starts = torch.zeros(len(resets), BLOCK, dtype=torch.bool)
    for row, places in enumerate(resets):
        starts[row, list(places)] = True
    return starts


@pytest.mark.parametrize("attention", ["reference", "stock"])
@every_memory
@torch.no_grad()
def test_stepwise_equals_the_block_wherever_episodes_begin(memory, attention):
    model = make_agent(WORLD, memory, attention=attention)
    earlier = starts_at([(17,)] * ROWS)
    now = model(random_views(WORLD, ROWS, BLOCK, 3), model.start(ROWS), starts=earlier).memory
    views, starts = random_views(WORLD, ROWS, BLOCK, 4), starts_at()
    whole = model.head(model(views, now, starts=starts).hidden)
    for t in range(BLOCK):
        step = model(views[:, t : t + 1], now, starts=starts[:, t : t + 1])
        decision = model.head(step.hidden[:, 0])
        assert_same(decision.logits, whole.logits[:, t])
        assert_same(decision.value, whole.value[:, t])
        now = step.memory


@pytest.mark.parametrize("attention", ["reference", "stock"])
@every_memory
@torch.no_grad()
def test_nothing_before_a_reset_changes_anything_after_it(memory, attention):
    """Two pasts, then the same views from each row's last reset on."""
    model = make_agent(WORLD, memory, attention=attention)
    last = torch.tensor([max(places, default=BLOCK - 1) for places in RESETS])
    same = torch.arange(BLOCK) >= last[:, None]
    common = random_views(WORLD, ROWS, BLOCK, 9)
    within, afterwards = [], []
    for seed in (3, 4):
        past = random_views(WORLD, ROWS, BLOCK, seed)
        history = model(past, model.start(ROWS)).memory
        views = torch.where(same[..., None, None, None], common, past)
        step = model(views, history, starts=starts_at())
        within.append(step.hidden[same])
        afterwards.append(model(common, step.memory).hidden)
    forgets = same[:-1].sum()
    assert_same(within[0][:forgets], within[1][:forgets])
    assert_same(afterwards[0][:-1], afterwards[1][:-1])
    assert not torch.allclose(within[0][forgets:], within[1][forgets:])  # the last row remembers
    assert not torch.allclose(afterwards[0][-1], afterwards[1][-1])


@every_memory
@torch.no_grad()
def test_a_row_depends_on_no_other(memory):
    model = make_agent(WORLD, memory)
    views, starts = random_views(WORLD, 3, BLOCK), starts_at([(20, 70), (5,), ()])

    def twice(rows: slice) -> Tensor:
        now = model.start(len(views[rows]))
        now = model(views[rows], now, starts=starts[rows]).memory
        return model(views[rows], now, starts=starts[rows]).hidden

    together = twice(slice(None))
    for row in range(3):
        assert_same(twice(slice(row, row + 1))[0], together[row])


def test_memories_of_ended_episodes_are_neither_attended_nor_counted_nor_charged():
    """Every step begins an episode, so that all memories belong to others."""
    model = make_agent(WORLD, MEMORIES["expire"])
    views = random_views(WORLD, 2, BLOCK)
    history = model(views, model.start(2)).memory
    step = model(views, history, starts=torch.ones(2, BLOCK, dtype=torch.bool))
    assert step.stats.live.max() == 0
    assert step.penalty == 0
    for t in (0, 1, 50, 99):
        alone = model(views[:, t : t + 1], model.start(2))
        assert_same(step.hidden[:, t], alone.hidden[:, 0])


def test_states_that_pay_at_once_pay_for_their_whole_span_whenever_their_episode_ends():
    """The exception: `charge="block"` asks for what is predicted, not for what is remembered."""
    policy = replace(MEMORIES["expire"], charge="block")
    model = make_agent(WORLD, policy)
    views = random_views(WORLD, 2, BLOCK)
    history = model(views, model.start(2)).memory
    every_step = torch.ones(2, BLOCK, dtype=torch.bool)
    step = model(views, history, starts=every_step)
    spans = torch.stack([each.mean() for each in step.spans])
    assert step.stats.live.max() == 0
    torch.testing.assert_close(step.penalty, (policy.penalty * spans.sum()).double())


@every_memory
@torch.no_grad()
def test_hidden_memory_gives_the_numbers_of_deleted_memory(memory):
    plain = make_agent(WORLD, memory)
    full = with_dense_memory(WORLD, plain)
    one, other = plain.start(3), start_full(full, 3)
    for seed, places in enumerate([(0, 17), (1, 50), (99,), ()]):
        views, starts = random_views(WORLD, 3, BLOCK, seed), starts_at([places, places, ()])
        first, second = plain(views, one, starts=starts), full(views, other, starts=starts)
        assert_same(second.hidden, first.hidden)
        assert_same(second.stats.live, first.stats.live)
        assert_same(second.penalty, first.penalty)
        one, other = first.memory, second.memory
        sizes = [tensor.shape for tensor in other.tensors().values()]
        assert sizes == [tensor.shape for tensor in start_full(full, 3).tensors().values()]


# The actors ---------------------------------------------------------------------------------------


def act(
    model: Transformer,
    world: World,
    blocks: int,
    *,
    cached: bool,
    batch: int = 5,
    limit: int | None = None,
) -> tuple[list[tuple[Block, Memory]], Situation, dict[str, float]]:
    """Blocks of an agent whose weights stay the same, each with the memory before it."""
    game = world.play()
    situation, tally = begin(game, batch, seed=3), Tally.empty(game)
    memory = start_full(model, batch) if cached else model.start(batch)
    plain = PlainActor(model, game, limit)
    actor = CachedActor(model, game, batch, limit=limit) if cached else plain
    acted = []
    for _ in range(blocks):
        block, situation, tally = actor.act_block(situation, memory, tally)
        block = Block(**{name: tensor.clone() for name, tensor in vars(block).items()})
        acted.append((block, memory))
        step = model(block.observations, memory, starts=block.starts, limit=limit)
        memory = step.memory.detach()
    return acted, situation, tally.read(game)


@every_memory
@every_world
def test_log_probabilities_read_again_are_those_acted_with(memory, world):
    model = make_agent(world, memory, block=20)
    acted, _, counted = act(model, world, blocks=3, cached=False)
    assert counted["episodes"] > 0
    for block, before in acted:
        decision = model.head(model(block.observations, before, starts=block.starts).hidden)
        assert actor_critic_loss(decision, block, ActorCritic()).drift < 1e-10
        assert block.log_probs.std() > 0.05


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 2e-4), (torch.float64, 1e-11)])
@torch.no_grad()
def test_a_trained_agent_reads_again_what_it_did_but_for_rounding(dtype, rounding):
    """What looks sharply at what has all but faded feels it most."""
    experiment, model = load_agent(EXAMPLES / "portal-fifty", "cpu")
    model, game = model.to(dtype), experiment.world.play()
    actor, memory = make_actor(model, game, 8), start_full(model, 8)
    situation, tally = begin(game, 8, 0), Tally.empty(game)
    for _ in range(3):  # of 144 steps, so that much of memory has faded
        block, situation, tally = actor.act_block(situation, memory, tally)
        step = model(block.observations, memory, starts=block.starts)
        read = model.head(step.hidden).logits.log_softmax(dim=-1)
        drift = (log_prob_of(read, block.actions) - block.log_probs).abs().max()
        assert drift < rounding
        memory = step.memory


@every_memory
@pytest.mark.parametrize(
    ("world", "norm", "limit"),
    [(WORLDS["corridor"], "pre", None), (WORLDS["portal"], "post", None), (WORLD, "pre", 4)],
)
def test_cached_acting_equals_plain_acting(memory, world, norm, limit):
    plain = make_agent(world, memory, block=20, norm=norm)
    expected, plain_end, plain_counts = act(plain, world, blocks=3, cached=False, limit=limit)
    full = with_dense_memory(world, plain)
    found, end, counts = act(full, world, blocks=3, cached=True, limit=limit)
    assert counts == plain_counts
    assert counts["episodes"] > 0
    for name, tensor in plain_end.tensors().items():
        assert torch.equal(tensor, end.tensors()[name]), name
    for (block, _), (wanted, _) in zip(found, expected, strict=True):
        for name, tensor in vars(wanted).items():
            assert_same(vars(block)[name], tensor)


@every_memory
def test_a_cut_is_felt_and_one_beyond_all_memory_is_not(memory):
    model = with_dense_memory(WORLD, make_agent(WORLD, memory, block=20))
    whole, *_ = act(model, WORLD, blocks=2, cached=True)
    for limit, same in ((1000, True), (2, False)):
        cut, *_ = act(model, WORLD, blocks=2, cached=True, limit=limit)
        pairs = zip(whole, cut, strict=True)
        assert all(torch.equal(a.log_probs, b.log_probs) for (a, _), (b, _) in pairs) == same


@every_memory
def test_an_agent_of_any_memory_is_cached(memory, caplog):
    model = with_dense_memory(WORLD, make_agent(WORLD, memory, block=20))
    with caplog.at_level(logging.INFO, logger="expire_span"):
        assert isinstance(make_actor(model, WORLD.play(), 4, limit=5), CachedActor)
    assert not caplog.records


def test_what_cannot_be_cached_acts_plainly_and_says_so_once(caplog):
    """Memory that deletes, as a model's own does, has no fixed shape."""
    model, game = make_agent(WORLD, MEMORIES["expire"], block=20), WORLD.play()
    _say_plain.cache_clear()
    with caplog.at_level(logging.INFO, logger="expire_span"):
        actors = [make_actor(model, game, 4, limit=5) for _ in range(2)]
    assert all(isinstance(actor, PlainActor) for actor in actors)
    (said,) = caplog.records
    assert said.message.startswith("ExpireSpan memory cannot be cached")


@pytest.mark.slow
@every_memory
def test_fused_attention_acts_as_the_reference_does(memory):
    """What a GPU runs, in the kernels' interpreter; float32 leaves rounding."""
    plain = make_agent(WORLD, memory, block=10, width=32).float()
    fused = build_agent(WORLD, dense(replace(plain.config, attention="fused"))).eval()
    fused.load_state_dict(plain.state_dict())
    expected, *_ = act(plain, WORLD, blocks=2, cached=False, batch=2)
    found, *_ = act(fused, WORLD, blocks=2, cached=True, batch=2)
    for (block, _), (wanted, _) in zip(found, expected, strict=True):
        assert torch.equal(block.actions, wanted.actions)
        assert_same(block.log_probs, wanted.log_probs, tolerance=1e-4)


# PyTorch 2.13's compiler makes an object of every autograd function that it traces.
@pytest.mark.filterwarnings("ignore:.*Function.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@every_world
@every_memory
def test_a_step_is_one_graph_for_the_compiler(world, memory):
    """Nothing in it breaks the graph, and what is written in place is what is returned."""
    model = with_dense_memory(world, make_agent(world, memory, block=10))
    game = world.play()
    actor, memory = CachedActor(model, game, 3), start_full(model, 3)
    zero = torch.zeros((), dtype=torch.int64)
    with torch.no_grad():
        plain = Carry(begin(game, 3, 0), zero, memory.origin, Tally.empty(game))
        traced, caches = plain.clone(), [actor.open(memory) for _ in range(2)]
        torch.compiler.reset()
        advance = torch.compile(actor.advance, fullgraph=True, dynamic=False, backend="eager")
        for _ in range(10):
            plain = actor.step(caches[0], plain)
            advance(caches[1], traced)
            for name, tensor in plain.tensors().items():
                assert torch.equal(tensor, traced.tensors()[name]), name


def test_the_batch_does_not_change_what_a_row_does():
    model = make_agent(WORLD, MEMORIES["fixed"], block=20)
    few, many = (act(model, WORLD, 3, cached=True, batch=batch)[0] for batch in (2, 7))
    for (small, _), (large, _) in zip(few, many, strict=True):
        assert torch.equal(small.actions, large.actions[:2])
        assert torch.equal(small.observations, large.observations[:2])


def test_actions_come_as_often_as_their_probabilities_say():
    model, rows = make_agent(WORLD, MEMORIES["fixed"]), 40_000
    decision = model.head(torch.randn(1, 16, dtype=torch.float64).expand(rows, -1))
    key = begin(WORLD.play(), rows, 0).key
    actions, log_probs = choose(decision, key, torch.tensor(5))
    wanted = decision.logits[0].softmax(dim=-1)
    share = torch.bincount(actions, minlength=4) / rows
    assert ((share - wanted).abs() < 5 * (wanted * (1 - wanted) / rows).sqrt()).all()
    assert_same(log_probs, wanted.log()[actions])
    others, _ = choose(decision, key, torch.tensor(6))
    assert not torch.equal(actions, others)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted without a GPU only")
@every_memory
def test_a_step_by_one_kernel_for_each_layer_is_any_other(monkeypatch, memory):
    """As on a GPU, but interpreted."""
    pytest.importorskip("triton", reason="the kernel needs Triton")
    model = with_dense_memory(WORLD, make_agent(WORLD, memory, block=20)).float()
    game, blocks, finish = WORLD.play(), [], Mock(wraps=layer.finish_layer)
    monkeypatch.setattr(layer, "finish_layer", finish)
    for fused in (False, True):
        assert finish.call_count == 0
        monkeypatch.setattr(cached, "can_finish", lambda *about, fused=fused: fused)
        actor, situation, tally = CachedActor(model, game, 4), begin(game, 4, 0), Tally.empty(game)
        blocks.append(actor.act_block(situation, start_full(model, 4), tally)[0])
    for name, tensor in vars(blocks[0]).items():
        torch.testing.assert_close(vars(blocks[1])[name], tensor, rtol=1e-4, atol=1e-5)
    assert finish.call_count == (20 + 1) * model.config.layers


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what the compiler says of itself
@every_memory
@every_world
def test_blocks_acted_by_graphs_are_those_read_again(memory, world):
    model = make_agent(world, memory, block=20, width=32, attention="auto").float()
    model = with_dense_memory(world, model).float().cuda()
    game = world.play("cuda")
    actor, tally = CachedActor(model, game, 64), Tally.empty(game)
    situation, now = begin(game, 64, 0), start_full(model, 64)
    for _ in range(4):
        block, situation, tally = actor.act_block(situation, now, tally)
        with torch.no_grad():
            step = model(block.observations, now, starts=block.starts)
            loss = actor_critic_loss(model.head(step.hidden), block, ActorCritic())
        assert loss.drift < 1e-4
        now = step.memory
    assert int(situation.time) == 80
    assert tally.read(game)["episodes"] > 0


# Mistakes -----------------------------------------------------------------------------------------


def test_a_memory_or_a_situation_of_another_batch_is_refused():
    model, game = make_agent(WORLD, MEMORIES["fixed"], block=20), WORLD.play()
    actor, tally = CachedActor(model, game, 4), Tally.empty(game)
    with pytest.raises(ValueError, match="This actor has 4 rows, but the memory has 3"):
        actor.act_block(begin(game, 4, 0), model.start(3), tally)
    with pytest.raises(ValueError, match="This actor has 4 rows, but the situation has 5"):
        actor.act_block(begin(game, 5, 0), model.start(4), tally)
    with pytest.raises(ValueError, match="This memory has 3 rows"):
        PlainActor(model, game).act_block(begin(game, 4, 0), model.start(3), tally)


def test_memory_that_cannot_be_cached_is_refused():
    model, game = make_agent(WORLD, MEMORIES["expire"], block=20), WORLD.play()
    actor = CachedActor(model, game, 4)
    with pytest.raises(ValueError, match="Only memories of the last states or of their means can"):
        actor.act_block(begin(game, 4, 0), model.start(4), Tally.empty(game))


def test_memory_in_the_middle_of_a_mean_is_refused():
    model, game = make_agent(WORLD, MEMORIES["compressive"], block=20), WORLD.play()
    memory = model(random_views(WORLD, 4, 7), start_full(model, 4)).memory
    actor, situation = CachedActor(model, game, 4), begin(game, 4, 0)
    with pytest.raises(ValueError, match="this memory stands 7 steps after one"):
        actor.act_block(situation, memory, Tally.empty(game))


@pytest.mark.parametrize("memory", [*MEMORIES.values(), Compressive(40, 3, 10)], ids=str)
def test_memory_that_has_just_begun_is_cached_like_any_other(memory):
    """It holds nothing yet, not even means to come."""
    model = with_dense_memory(WORLD, make_agent(WORLD, memory, block=20))
    game, blocks = WORLD.play(), []
    for actor in (CachedActor(model, game, 4), PlainActor(model, game)):
        block, *_ = actor.act_block(begin(game, 4, 0), model.start(4), Tally.empty(game))
        blocks.append(block)
    assert_same(blocks[0].log_probs, blocks[1].log_probs)


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.1},
        {"edge_dropout": 0.1},
        {"layer_drop": 0.1},
        {"memory": ExpireSpan(8, 2, shorten=True)},
    ],
)
def test_agents_refuse_what_would_differ_between_acting_and_learning(settings: dict[str, Any]):
    config = replace(make_agent(WORLD, FixedSpan(5)).config, **settings)
    with pytest.raises(ValueError, match="nothing may be dropped at random"):
        build_agent(WORLD, config)


def test_agents_refuse_zero_states_and_budgets():
    config = make_agent(WORLD, FixedSpan(5)).config
    with pytest.raises(ValueError, match="start='empty'"):
        build_agent(WORLD, replace(config, start="zeros"))
    with pytest.raises(ValueError, match="cannot have a budget"):
        dense(replace(config, memory=ExpireSpan(8, 2, budget=3)))


def test_an_observation_is_the_sum_of_its_words():
    world = Corridor()
    model = make_agent(world, FixedSpan(5))
    view = random_views(world, 1, 1)
    weights = model.inputs.linear.weight.view(16, 3, 3, len(world.words))
    expected = model.inputs.linear.bias
    for row, column, word in view[0, 0].nonzero().tolist():
        expected = expected + weights[:, row, column, word]
    assert_same(model.inputs(view)[0, 0], expected)


@pytest.mark.parametrize(
    "seen",
    [
        random_views(Corridor(), 4, 1)[:, 0],
        random_views(Portal(rooms=7), 4, 1),
        torch.zeros(4, 5, dtype=torch.int64),
    ],
    ids=["no axis of steps", "another world", "tokens"],
)
def test_what_an_agent_cannot_see_is_refused(seen):
    world = Corridor()
    model = make_agent(world, FixedSpan(5))
    words = len(world.words)
    with pytest.raises(ValueError, match=rf"sees observations \[rows, steps, 3, 3, {words}\], but"):
        model(seen, model.start(4))
