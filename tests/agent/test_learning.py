"""The loss is what it says, its gradient is the policy gradient, and agents learn."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
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
from expire_span import AdaptiveSpan, ExpireSpan, FixedSpan
from expire_span.agent.dense import dense, start_full
from expire_span.agent.episodes import play_episodes
from expire_span.agent.evaluation import evaluate_agent
from expire_span.agent.experiments import corridor, portal
from expire_span.agent.learner import AgentOptimizer, Learner, _clip, build_optimizer, read_again
from expire_span.agent.loss import ActorCritic, actor_critic_loss, discounted_returns
from expire_span.agent.ports import ActorCriticHead, Decision, build_agent
from expire_span.agent.rollout import Block, PlainActor, begin
from expire_span.agent.tally import Tally
from expire_span.agent.trainer import AgentTrainer
from expire_span.training.guard import NotFinite
from expire_span.training.schedule import PenaltySchedule, RateSchedule
from expire_span.worlds import Corridor
from policies import assert_same
from small_runs import refused_waits

CPU = torch.device("cpu")
WORLD = WORLDS["corridor"]


def some_block(batch: int = 3, steps: int = 7, ending: float = 0.3) -> Block:
    generator = torch.Generator().manual_seed(0)
    return Block(
        observations=torch.zeros(batch, steps, 3, 3, 6, dtype=torch.uint8),
        starts=torch.zeros(batch, steps, dtype=torch.bool),
        actions=torch.randint(4, (batch, steps), generator=generator),
        log_probs=torch.zeros(batch, steps, dtype=torch.float64),
        rewards=torch.rand(batch, steps, generator=generator),
        done=(done := torch.rand(batch, steps, generator=generator) < ending),
        cut=done & (torch.arange(steps) % 2 == 0),
        next_value=torch.randn(batch, generator=generator, dtype=torch.float64),
    )


def some_values(block: Block) -> Tensor:
    return torch.randn(block.actions.shape, dtype=torch.float64)


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 100])
@pytest.mark.parametrize("ending", [0.3, 0.01])
def test_returns_are_discounted_sums_up_to_the_end_of_the_episode(steps, ending):
    """Be it that it came to its end or that it was cut off."""
    block, discount = some_block(steps=steps, ending=ending), 0.9
    found = discounted_returns(block, some_values(block), ActorCritic(discount=discount))
    for row in range(3):
        for begins in range(steps):
            expected, factor = 0.0, 1.0
            for t in range(begins, steps):
                expected += factor * block.rewards[row, t].item()
                factor *= discount
                if block.done[row, t]:
                    break
            else:
                expected += factor * block.next_value[row].item()
            assert found[row, begins].item() == pytest.approx(expected, rel=1e-5)


def test_an_episode_that_was_cut_off_may_count_for_what_was_expected_of_it():
    block = some_block()
    expected, cut = some_values(block), block.cut
    assert 0 < cut.sum() < block.done.sum()
    ended, found = (
        discounted_returns(block, expected, ActorCritic(discount=0.9, cut_off=kind))
        for kind in ("ended", "expected")
    )
    assert torch.equal(found[cut], expected[cut])
    for row, step in (~cut).nonzero().tolist():
        if block.done[row, step:].any() and not cut[row, step:][block.done[row, step:]][0]:
            assert found[row, step] == ended[row, step]  # what ended by itself did end
        elif step < 6:
            later = block.rewards[row, step] + 0.9 * found[row, step + 1]
            assert found[row, step].item() == pytest.approx(later.item())
    decision = Decision(torch.randn(3, 7, 4, dtype=torch.float64), expected)
    losses = [
        actor_critic_loss(decision, block, ActorCritic(discount=0.9, cut_off=kind)).value
        for kind in ("ended", "expected")
    ]
    assert_same(losses[0], (ended - expected).square().mean())
    assert_same(losses[1], (found - expected).square().mean())


@pytest.mark.parametrize("trace", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("cut_off", ["ended", "expected"])
def test_a_trace_mixes_what_came_with_what_was_expected(trace, cut_off):
    """By its definition, step by step."""
    block, discount = some_block(steps=20), 0.9
    expected = some_values(block)
    settings = ActorCritic(discount=discount, trace=trace, cut_off=cut_off)
    found = discounted_returns(block, expected, settings)
    later, ahead = block.next_value, block.next_value
    for step in reversed(range(20)):
        mixed = trace * later + (1 - trace) * ahead
        later = block.rewards[:, step] + discount * torch.where(block.done[:, step], 0, mixed)
        if cut_off == "expected":
            later = torch.where(block.cut[:, step], expected[:, step], later)
        assert_same(found[:, step], later)
        ahead = expected[:, step]


def test_normalised_advantages_have_mean_0_and_deviation_1_and_values_learn_as_before():
    block, value = some_block(), torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    plain, normalised = (
        actor_critic_loss(Decision(logits, value), block, ActorCritic(normalise=kind))
        for kind in (False, True)
    )
    surprise = discounted_returns(block, value.detach(), ActorCritic()) - value.detach()
    wanted = (surprise - surprise.mean()) / surprise.std()
    chosen = logits.log_softmax(dim=-1).gather(-1, block.actions[..., None])[..., 0]
    assert_same(normalised.policy, -(chosen * wanted).mean().detach())
    of_values = [torch.autograd.grad(loss.total, value)[0] for loss in (plain, normalised)]
    assert_same(*of_values)


def test_the_loss_has_the_gradient_of_its_definition():
    block = some_block()
    settings = ActorCritic(value_weight=0.3, entropy_weight=0.02, trace=0.8)
    logits = torch.randn(3, 7, 4, dtype=torch.float64, requires_grad=True)
    value = torch.randn(3, 7, dtype=torch.float64, requires_grad=True)
    loss = actor_critic_loss(Decision(logits, value), block, settings)
    by_logits, by_value = torch.autograd.grad(loss.total, (logits, value))
    with torch.no_grad():
        surprise = discounted_returns(block, value, settings) - value
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
    model = make_agent(world, MEMORIES["fixed"], block=4).float()
    for seed in range(8):  # some of these pairs do not end within the same block
        assert evaluate_agent(model, world, rows=2, seed=seed)["episodes"] == 2
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
    assert found["held"] == window  # room for as many, from the beginning


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


@pytest.mark.parametrize(("decay", "epsilon"), [(0.97, 1e-6), (0.8, 1e-3)])
def test_an_update_is_one_clipped_step_against_the_gradient(decay, epsilon):
    model, game = make_agent(WORLD, MEMORIES["expire"], block=20), WORLD.play()
    memory, settings = model.start(4), ActorCritic()
    block, *_ = PlainActor(model, game).act_block(begin(game, 4, 0), memory, Tally.empty(game))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    objective = read_again(model, block, memory, torch.full((), 0.5), settings).objective
    gradients = torch.autograd.grad(objective, list(model.parameters()))
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
    numbers = {"rmsprop_decay": decay, "rmsprop_epsilon": epsilon} if decay != 0.97 else {}
    optimizer = AgentOptimizer(method="rmsprop", rate=0.01, clip=0.1, **numbers)
    learner = Learner(model, settings, optimizer)
    lesson = learner.learn(block, memory, weight=0.5)
    assert lesson.parts["gradient_norm"].item() == pytest.approx(norm)
    assert norm > 0.1
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        clipped = gradient * 0.1 / (norm + 1e-6)
        root = ((1 - decay) * clipped.square()).sqrt()
        expected = before[name] - 0.01 * clipped / (root + epsilon)
        assert_same(parameter.detach(), expected, tolerance=1e-7)


def test_blocks_record_which_episodes_were_cut_off():
    world = Corridor(longest=4, limit=5)
    model, game = make_agent(world, MEMORIES["fixed"], block=20), world.play()
    begun = begin(game, 64, 0), model.start(64), Tally.empty(game)
    block, *_ = PlainActor(model, game).act_block(*begun)
    steps = torch.zeros(64, dtype=torch.int64)
    for time in range(20):
        steps += 1
        ended = block.done[:, time]
        assert (steps[block.cut[:, time]] == 5).all()
        assert (ended | (steps < 5)).all()
        rewarded = block.rewards[:, time] > 0
        assert not (rewarded & block.cut[:, time]).any()
        steps[ended] = 0
    assert 0 < block.cut.sum() < block.done.sum()


def test_what_one_block_leaves_in_memory_the_next_one_reads():
    experiment = tiny_experiment(Corridor(shortest=30, longest=30, limit=100), batch=2)
    trainer, block = AgentTrainer(experiment, CPU), experiment.model.block
    for _ in range(3):
        before = trainer.memory
        trainer.update()
        kept, given = trainer.memory.layers[0].states, before.layers[0].states
        assert torch.equal(kept[:, :-block], given[:, block:])
    # Spans begin with 8 steps and blocks have 10: the mean would be below 5 if each began anew.
    assert trainer.take_stats().live.min() > 6


def test_the_rate_follows_its_schedule():
    schedule = RateSchedule(warmup=3, decay="linear")
    optimizer = AgentOptimizer(rate=0.01, schedule=schedule, span_rate=0.5)
    trainer = AgentTrainer(tiny_experiment(optimizer=optimizer, steps=8), CPU)
    for factor in (1 / 3, 2 / 3, 1, 1, 4 / 5, 3 / 5):
        trainer.update()
        rates = {g["scale"]: g["lr"] for g in trainer.learner.optimizer.param_groups}
        assert rates == pytest.approx({1.0: 0.01 * factor, 0.5: 0.005 * factor})


def test_spans_wait_and_rest_where_they_are_told_to():
    schedule = PenaltySchedule(delay=1, spans_wait=True, rest_after=2)
    trainer = AgentTrainer(tiny_experiment(penalty=schedule), CPU)
    spans = [p for layer in trainer.model.layers for p in layer.keeper.parameters()]
    for spans_learn in (False, True, False):
        before = [p.detach().clone() for p in spans]
        trainer.update()
        assert all(map(torch.equal, spans, before)) != spans_learn


def test_learned_spans_stay_in_their_range_after_an_update():
    memory = AdaptiveSpan(30, 5, penalty=10.0, initial=0.1)
    model, game = make_agent(WORLD, memory, block=20), WORLD.play()
    now = model.start(4)
    block, *_ = PlainActor(model, game).act_block(begin(game, 4, 0), now, Tally.empty(game))
    Learner(model, ActorCritic(), AgentOptimizer(rate=2.0)).learn(block, now, weight=1.0)
    for layer in model.stack():
        assert (layer.keeper.ratio == 0).all()  # it would be below


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


def test_a_metric_that_is_not_told_stays_what_it_was():
    world = Corridor(shortest=8, longest=8, limit=8)  # every episode takes eight steps
    model = replace(tiny_experiment(world).model, block=4)
    trainer = AgentTrainer(tiny_experiment(world, model=model), CPU)
    told = []
    for _ in range(4):
        trainer.update()
        told.append("success" in trainer.report())
        assert (trainer.metric is not None) == (True in told)
    assert told == [False, True, False, True]


@pytest.mark.parametrize(("share", "asked"), [(0.8, True), (1.25, False)])
def test_a_target_is_compared_with_the_mean_of_the_layers(share, asked):
    """Ten and more memories each; of both together there are twice as many."""
    settings = {"memory": ExpireSpan(16, 4, penalty=1e-9, initial=0.9), "steps": 60}
    trainer = AgentTrainer(tiny_experiment(**settings), CPU)
    for _ in range(20):
        trainer.update()
    live = trainer.take_stats().live
    target = share * live.mean().item()
    schedule = PenaltySchedule(target_live=target)
    trainer = AgentTrainer(tiny_experiment(penalty=schedule, **settings), CPU)
    for _ in range(20):
        trainer.update()
    assert (trainer._penalty_weight() > 0) == asked


def test_no_report_is_made_of_what_is_not_finite():
    trainer = AgentTrainer(tiny_experiment(), CPU)
    trainer.update()
    trainer.means.add(gradient_norm=torch.tensor(float("nan")))
    with pytest.raises(NotFinite, match="before step 1; no weight was changed by it"):
        trainer.report()


def test_seeds_decide_on_weights_worlds_and_actions():
    one, same, other = (AgentTrainer(tiny_experiment(seed=seed), CPU) for seed in (0, 0, 1))
    for trainer, equal in ((same, True), (other, False)):
        for name, weight in one.model.state_dict().items():
            if len(weight.unique()) > 1:  # others begin as constants
                assert torch.equal(weight, trainer.model.state_dict()[name]) == equal, name
        for keys in (lambda t: t.situation.world.key, lambda t: t.situation.key):
            assert (keys(one) == keys(trainer)).all() == equal
            assert (keys(one) == keys(trainer)).any() == equal


def test_actions_know_nothing_of_the_world_they_are_done_in():
    begun = begin(WORLD.play(), 1000, 0)
    assert not set(begun.key.tolist()) & set(begun.world.key.tolist())


def test_at_first_all_actions_are_nearly_as_likely():
    trainer = AgentTrainer(tiny_experiment(), CPU)
    block, *_ = trainer.actor.act_block(trainer.situation, trainer.memory, trainer.tally)
    chances = block.log_probs.exp()
    assert (chances - 0.25).abs().max() < 0.02
    assert chances.std() > 0


def report_drifts(trainer: AgentTrainer, *drifts: float) -> list[float]:
    """What reports say, each of two updates of which one is off by so much."""
    said = []
    for drift in drifts:
        trainer.update()
        trainer.means.add(log_prob_drift=torch.tensor(drift))
        trainer.update()
        said.append(trainer.report()["log_prob_drift"])
    return said


def test_whoever_learns_from_other_probabilities_than_were_acted_with_is_told_once():
    trainer = AgentTrainer(tiny_experiment(), CPU)
    trainer.update()
    assert trainer.report()["log_prob_drift"] < 1e-5
    said = report_drifts(trainer, 0.5, 0.0, 0.002)  # no fault of the whole is so rare
    with pytest.warns(UserWarning, match="2.0e-01 from those"):
        said += report_drifts(trainer, 0.2)
    said += report_drifts(trainer, 0.1, 0.0, 0.1, 0.1)
    wanted = [0.5, 0.0, 0.002, 0.2, 0.1, 0.0, 0.1, 0.1]
    assert said == pytest.approx(wanted, abs=1e-5)  # the largest, not the mean


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_are_clipped_to_nothing(broken):
    parameters = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    assert _clip(parameters, 0.5).item() == pytest.approx(6**0.5)
    assert parameters[0].grad.tolist() == pytest.approx([0.5 / 6**0.5] * 3, rel=1e-5)
    parameters[1].grad[1] = broken
    assert not _clip(parameters, 0.5).isfinite()
    assert all(not parameter.grad.any() for parameter in parameters)


def test_the_head_is_two_linear_maps():
    head, hidden = ActorCriticHead(16, 4).double(), torch.randn(5, 2, 16, dtype=torch.float64)
    found = head(hidden)
    assert_same(found.logits, head.policy(hidden))
    assert_same(found.value, head.value(hidden)[..., 0])


@pytest.mark.gpu
@every_memory
@every_world
def test_updates_replayed_as_graphs_are_those_made_one_by_one(memory, world):
    """The same blocks, learned by a graph and by plain calls on the same GPU, from equal weights.

    An epsilon of 1 makes an update nearly proportional to the gradient. Those that divide by its
    size turn what is rounding, where it should be 0, into a whole step either way.
    """
    changes = {"width": 32, "attention": "auto"}
    replayed, plain = (
        build_agent(world, dense(make_agent(world, memory, block=20, **changes).config)).cuda()
        for _ in range(2)
    )
    plain.load_state_dict(replayed.state_dict())
    game, clip = world.play("cuda"), 0.5
    settings = AgentOptimizer(method="rmsprop", rate=0.1, rmsprop_epsilon=1.0, clip=clip)
    learner, optimizer = (
        Learner(replayed, ActorCritic(), settings),
        build_optimizer(plain, settings),
    )
    actor = PlainActor(replayed, game)
    situation, tally = begin(game, 32, 0), Tally.empty(game)
    now = start_full(replayed, 32)
    for weight in (0.0, 0.5, 1.0):
        block, situation, tally = actor.act_block(situation, now, tally)
        plain.load_state_dict(replayed.state_dict())
        expected = read_again(plain, block, now, torch.full((), weight).cuda(), ActorCritic())
        expected.objective.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        before = [parameter.detach().clone() for parameter in plain.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        plain.clamp_parameters()
        lesson = learner.learn(block, now, weight)
        for name, part in {**expected.parts, "gradient_norm": norm}.items():
            # Rounding may move a span over the edge of a step, and a memory into or out of a count.
            rtol = 1e-3 if name == "live" else 1e-4
            torch.testing.assert_close(lesson.parts[name], part, rtol=rtol, atol=1e-5)
        for name, tensor in expected.memory.tensors().items():
            torch.testing.assert_close(lesson.memory.tensors()[name], tensor, rtol=1e-4, atol=1e-5)
        moved = [
            (new - old).abs().max() for new, old in zip(plain.parameters(), before, strict=True)
        ]
        assert max(moved) > 1e-4
        for found, wanted in zip(replayed.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
        now = lesson.memory


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # what the compiler says of itself
@pytest.mark.parametrize("method", ["adam", "rmsprop"])
@every_world
def test_a_block_is_acted_and_learned_without_the_host_waiting_for_the_device(world, method):
    """PyTorch raises wherever it would; graphs are captured in the first updates."""
    optimizer = AgentOptimizer(method=method, rate=1e-2, clip=0.5, span_rate=2.0)
    experiment = tiny_experiment(world, optimizer=optimizer, device="cuda")
    trainer = AgentTrainer(experiment, torch.device("cuda"))
    for _ in range(3):
        trainer.update()
    with refused_waits():
        for _ in range(3):
            trainer.update()
    assert trainer.report()["world_steps"] == 6 * 6 * 10


@pytest.mark.gpu
def test_agents_side_by_side_learn_what_they_learn_alone():
    """Each on a stream of its own. Room shared between their graphs would show, or block them."""
    experiment = replace(corridor("paper"), compile=False)

    def learned(between_updates: Callable[[], None]) -> list[Tensor]:
        agents = [
            AgentTrainer(replace(experiment, seed=seed), torch.device("cuda")) for seed in (0, 1, 2)
        ]
        torch.cuda.synchronize()
        streams = [torch.cuda.Stream() for _ in agents]
        for _ in range(8):
            for agent, stream in zip(agents, streams, strict=True):
                with torch.cuda.stream(stream):
                    agent.update()
                between_updates()
        torch.cuda.synchronize()
        return [parameter for agent in agents for parameter in agent.model.parameters()]

    together, alone = learned(lambda: None), learned(torch.cuda.synchronize)
    for found, wanted in zip(together, alone, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


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
    assert found["live"] < 8.5  # where memory costs nothing there are 9.1 and more


@pytest.mark.slow
def test_the_smoke_experiment_finds_its_way_through_five_rooms_and_forgets():
    experiment = portal("smoke")
    trainer = AgentTrainer(experiment, CPU)
    reports = []
    while trainer.step < experiment.steps:
        trainer.update()
        if trainer.step % experiment.log_every == 0:
            reports.append(trainer.report())
    begun = next(n for n, report in enumerate(reports) if report["penalty_weight"] > 0)
    assert reports[-1]["live"] < reports[begun]["live"]
    found = evaluate_agent(trainer.model, experiment.world, rows=1000, seed=99)
    assert found["return"] > 1.3  # 0.43 without memory
    assert found["live"] < 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ActorCritic(discount=1.5), "discount must lie between 0 and 1"),
        (lambda: ActorCritic(trace=-0.1), "trace must lie between 0 and 1"),
        (lambda: ActorCritic(entropy_weight=-1), "must not be negative"),
        (lambda: AgentOptimizer(method="sgd"), "method must be one of adam, rmsprop"),
        (lambda: AgentOptimizer(rate=0), "rate must be above 0"),
        (lambda: AgentOptimizer(clip=0), "clip must be above 0"),
        (lambda: AgentOptimizer(rmsprop_decay=1.0), "rmsprop_decay must be at least 0 and below 1"),
        (lambda: ActorCritic(cut_off="never"), "cut_off must be one of ended, expected"),
        (lambda: tiny_experiment(seed=2**63 - 1), r"seed must be at most 2\*\*63 - 2"),
        (lambda: tiny_experiment(batch=0), "batch must be a whole number of at least 1"),
    ],
)
def test_impossible_settings_are_refused_in_one_sentence(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
