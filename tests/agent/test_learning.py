"""The loss is what it says, its gradient is the policy gradient, and agents learn."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from agent.small_agents import (
    MEMORIES,
    WORLDS,
    every_memory,
    every_world,
    make_agent,
    tiny_experiment,
    with_dense_memory,
)
from expire_span import FixedSpan
from expire_span.agent.dense import dense, start_full
from expire_span.agent.episodes import play_episodes
from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiments import corridor
from expire_span.agent.learner import AgentOptimizer, Learner, build_optimizer, read_again
from expire_span.agent.loss import ActorCritic, actor_critic_loss, discounted_returns
from expire_span.agent.ports import Decision, build_agent
from expire_span.agent.rollout import Block, PlainActor, begin
from expire_span.agent.tally import Tally
from expire_span.agent.trainer import AgentTrainer
from expire_span.worlds import Corridor
from policies import assert_same

CPU = torch.device("cpu")
WORLD = WORLDS["corridor"]


def some_block(batch: int = 3, steps: int = 7) -> Block:
    generator = torch.Generator().manual_seed(0)
    return Block(
        observations=torch.zeros(batch, steps, 3, 3, 6, dtype=torch.uint8),
        starts=torch.zeros(batch, steps, dtype=torch.bool),
        actions=torch.randint(4, (batch, steps), generator=generator),
        log_probs=torch.zeros(batch, steps, dtype=torch.float64),
        rewards=torch.rand(batch, steps, generator=generator),
        done=torch.rand(batch, steps, generator=generator) < 0.3,
        cut=torch.zeros(batch, steps, dtype=torch.bool),
        next_value=torch.randn(batch, generator=generator, dtype=torch.float64),
    )


def test_returns_are_discounted_sums_up_to_the_end_of_the_episode():
    block, discount = some_block(), 0.9
    found = discounted_returns(block, discount)
    for row in range(3):
        for begins in range(7):
            expected, factor = 0.0, 1.0
            for t in range(begins, 7):
                expected += factor * block.rewards[row, t].item()
                factor *= discount
                if block.done[row, t]:
                    break
            else:
                expected += factor * block.next_value[row].item()
            assert found[row, begins].item() == pytest.approx(expected)


def test_the_loss_has_the_gradient_of_its_definition():
    block, settings = some_block(), ActorCritic(value_weight=0.3, entropy_weight=0.02)
    logits = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    value = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    loss = actor_critic_loss(Decision(logits, value), block, settings)
    by_logits, by_value = torch.autograd.grad(loss.total, (logits, value))
    with torch.no_grad():
        surprise = discounted_returns(block, settings.discount) - value
        probs = logits.softmax(dim=-1)
        entropy = -(probs * probs.log()).sum(dim=-1, keepdim=True)
        of_entropy = -probs * (probs.log() + entropy)
        of_policy = -(one_hot(block.actions, 4) - probs) * surprise[..., None]
        assert_same(by_logits, (of_policy - settings.entropy_weight * of_entropy) / 21)
        assert_same(by_value, -2 * settings.value_weight * surprise / 21)
    assert loss.entropy.item() == pytest.approx(entropy.mean().item())


@every_memory
def test_gradient_flows_within_the_block_and_not_before_it(memory):
    model, game, one = make_agent(WORLD, memory, block=20), WORLD.play(), torch.ones(())
    situation, tally = begin(game, 4, 0), Tally.empty(game)
    actor = PlainActor(model, game)
    block, situation, tally = actor.act_block(situation, model.start(4), tally)
    first = read_again(model, block, model.start(4), one, ActorCritic())
    assert all(not tensor.requires_grad for tensor in first.memory.tensors().values())
    block, *_ = actor.act_block(situation, first.memory, tally)
    read_again(model, block, first.memory, one, ActorCritic()).objective.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@every_world
def test_whole_episodes_are_counted_one_a_row(world):
    model = make_agent(world, MEMORIES["fixed"], block=20).float()
    found = evaluate_agent(model, world, rows=37)
    assert found["episodes"] == 37
    assert 1 <= found["episode_steps"] <= world.limit
    assert 0 < found["live"] <= 30


def test_live_memories_of_a_window_are_those_of_first_episodes():
    """At step t of an episode, from 0, there are min(t, window) of them; rows end far apart."""
    world, window, rows = Corridor(longest=9, limit=30), 5, 16
    model = make_agent(world, FixedSpan(window), block=8).float()
    lengths = play_episodes(model, world, rows=rows, seed=3).lengths().tolist()
    assert len(set(lengths)) > 4
    seen = sum(min(t, window) for length in lengths for t in range(length))
    found = evaluate_agent(model, world, rows=rows, seed=3)
    assert found["episode_steps"] == sum(lengths) / rows
    assert found["live"] == pytest.approx(seen / sum(lengths))


@every_memory
@torch.no_grad()
def test_memory_used_in_an_evaluation_is_that_of_each_first_episode_read_alone(memory):
    world = Corridor(longest=3, limit=40)
    model = with_dense_memory(world, make_agent(world, memory, block=10))
    episodes = play_episodes(model, world, rows=12, seed=1)
    assert episodes.lengths().min() < 30  # while others go on for 40 steps
    (live, spans, longest), steps = torch.zeros(3, 2), 0
    for row in range(12):
        now = start_full(model, 1)
        for part in episodes.first_of(row).blocks(10):
            step = model(part.observations, now, starts=part.starts)
            now = step.memory
            live += step.stats.live * part.steps
            spans += step.stats.mean_span * part.steps
            longest = torch.maximum(longest, step.stats.max_span)
            steps += part.steps
    found = evaluate_agent(model, world, rows=12, seed=1)
    for layer in range(2):
        assert found[f"live/layer_{layer}"] == pytest.approx((live[layer] / steps).item())
        assert found[f"mean_span/layer_{layer}"] == pytest.approx((spans[layer] / steps).item())
        assert found[f"max_span/layer_{layer}"] == pytest.approx(longest[layer].item())


def test_an_evaluation_remembers_no_further_than_its_limit():
    model = make_agent(WORLD, FixedSpan(30), block=8).float()
    whole, cut = (evaluate_agent(model, WORLD, rows=99, limit=limit) for limit in (None, 2))
    assert cut["live"] < 2 < whole["live"]
    assert cut["episode_steps"] != whole["episode_steps"]  # it acts without it, too


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_parameters_that_learn_spans_have_their_own_rate(kind):
    model = make_agent(WORLD, MEMORIES["expire"])
    optimizer = build_optimizer(model, AgentOptimizer(method=kind, span_rate=3.0))
    scales = {p: group["scale"] for group in optimizer.param_groups for p in group["params"]}
    assert len(scales) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert scales[parameter] == (3.0 if ".keeper." in name else 1.0)


def test_an_update_is_one_clipped_step_against_the_gradient():
    model, game = make_agent(WORLD, MEMORIES["expire"], block=20), WORLD.play()
    memory, settings = model.start(4), ActorCritic()
    block, *_ = PlainActor(model, game).act_block(begin(game, 4, 0), memory, Tally.empty(game))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    objective = read_again(model, block, memory, torch.full((), 0.5), settings).objective
    gradients = torch.autograd.grad(objective, list(model.parameters()))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
    learner = Learner(model, settings, AgentOptimizer(method="rmsprop", rate=0.01, clip=0.1))
    lesson = learner.learn(block, memory, weight=0.5)
    assert lesson.parts["gradient_norm"].item() == pytest.approx(norm)
    assert norm > 0.1
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        clipped = gradient * 0.1 / (norm + 1e-6)
        expected = before[name] - 0.01 * clipped / ((0.03 * clipped.square()).sqrt() + 1e-6)
        assert_same(parameter.detach(), expected, tolerance=1e-7)


def test_the_penalty_waits_for_the_metric_and_then_stays():
    experiment = tiny_experiment()
    schedule = replace(experiment.penalty, delay=0, warmup=0, after_metric=0.5)
    trainer = AgentTrainer(replace(experiment, penalty=schedule), CPU)
    weights = []
    for metric in (None, 0.4, 0.6, 0.1):
        trainer.metric = metric
        weights.append(trainer._penalty_weight())
        trainer.update()
    assert weights == [0, 0, 1, 1]


def test_whoever_learns_from_other_probabilities_than_were_acted_with_is_told_once():
    trainer = AgentTrainer(tiny_experiment(), CPU)
    trainer.update()
    assert trainer.report()["log_prob_drift"] < 1e-5
    sizes = []
    for drift in (0.2, 0.5, 0.1):
        trainer.update()
        trainer.means.add(log_prob_drift=torch.tensor(drift))
        told = pytest.warns(UserWarning, match="2.0e-01 from those") if not sizes else nullcontext()
        with told:
            sizes.append(trainer.report()["log_prob_drift"])
    assert sizes == pytest.approx([0.2, 0.5, 0.1])  # the largest of each report, not the mean


@pytest.mark.gpu
@every_memory
@every_world
def test_updates_replayed_as_graphs_are_those_made_one_by_one(memory, world):
    """The same blocks, learned by a graph and by plain calls on the same GPU."""
    changes = {"width": 32, "attention": "auto"}
    replayed, plain = (
        build_agent(world, dense(make_agent(world, memory, block=20, **changes).config)).cuda()
        for _ in range(2)
    )
    plain.load_state_dict(replayed.state_dict())
    game, settings = world.play("cuda"), AgentOptimizer(rate=1e-3, clip=0.5)
    learner, optimizer = (
        Learner(replayed, ActorCritic(), settings),
        build_optimizer(plain, settings),
    )
    actor = PlainActor(replayed, game)
    situation, tally = begin(game, 32, 0), Tally.empty(game)
    now, other = start_full(replayed, 32), start_full(plain, 32)
    for weight in (0.0, 0.5, 1.0):
        block, situation, tally = actor.act_block(situation, now, tally)
        lesson = learner.learn(block, now, weight)
        expected = read_again(plain, block, other, torch.full((), weight).cuda(), ActorCritic())
        expected.objective.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        plain.clamp_parameters()
        for name, part in expected.parts.items():
            torch.testing.assert_close(lesson.parts[name], part, rtol=1e-3, atol=1e-4)
        now, other = lesson.memory, expected.memory
        for found, wanted in zip(replayed.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=2e-3)


@pytest.mark.slow
def test_the_smoke_experiment_learns_a_short_corridor():
    experiment = corridor("smoke")
    trainer = AgentTrainer(experiment, CPU)
    while trainer.step < experiment.steps:
        trainer.update()
        if trainer.step % experiment.log_every == 0:
            assert trainer.report()["log_prob_drift"] < 1e-4
    found = evaluate_agent(trainer.model, experiment.world, rows=1000, seed=99)
    assert found["success"] > 0.9
    # Some layer has learned to forget the walk; one that forgets nothing has 7 live memories.
    assert min(found["live/layer_0"], found["live/layer_1"]) < 5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ActorCritic(discount=1.5), "discount must lie between 0 and 1"),
        (lambda: ActorCritic(entropy_weight=-1), "must not be negative"),
        (lambda: AgentOptimizer(method="sgd"), "method must be one of adam, rmsprop"),
        (lambda: AgentOptimizer(rate=0), "rate must be above 0"),
        (lambda: AgentOptimizer(clip=0), "clip must be above 0"),
        (lambda: tiny_experiment(batch=0), "batch must be a whole number of at least 1"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
