"""The price of memory: a constant, a schedule, or whatever meets a target."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from expire_span import AdaptiveSpan, ExpireSpan, FixedSpan
from expire_span.experiments.recall import recall
from expire_span.training.control import CUT, GAIN, LARGEST, PenaltyControl, Standing
from expire_span.training.evaluation import Evaluation
from expire_span.training.schedule import PenaltySchedule
from expire_span.training.trainer import Trainer
from small_runs import small_experiment

MEMORY = ExpireSpan(64, 4, penalty=1e-3)
CPU = torch.device("cpu")


def control(block: int = 64, **settings) -> PenaltyControl:
    return PenaltyControl(PenaltySchedule(**settings), MEMORY, block, CPU)


def drive(controller: PenaltyControl, plant, steps: int, first: int = 1) -> list[float]:
    """Let a controller and a plant act on each other; the live memory at every step."""
    found = []
    for step in range(first, first + steps):
        now = Standing(step, None)
        live = plant(float(controller.weight(now)))
        controller.observe(now, torch.tensor(live))
        found.append(live)
    return found


def weights(controller: PenaltyControl, metrics: Sequence[float | None]) -> list[float]:
    """The weight of each update, given the metric as last reported before it."""
    found = []
    for step, metric in enumerate(metrics):
        now = Standing(step, metric)
        found.append(float(controller.weight(now)))
        controller.observe(now, torch.tensor(1e6))
    return found


class AdamLike:
    """Spans that move at a pace given by the sign of the pull, hardly by its strength.

    The task pulls them longer while there are fewer than `wanted`, and not at all beyond. A weight
    of 1 counts for `scale`.
    """

    def __init__(self, live: float, wanted: float, pace: float = 0.02, scale: float = 1.0):
        self.log, self.wanted, self.pace, self.scale = math.log(live), wanted, pace, scale

    def __call__(self, weight: float) -> float:
        task = 0.3 if math.exp(self.log) < self.wanted else 0.0
        pull = task - self.scale * weight
        self.log += self.pace * math.tanh(3 * pull)
        return math.exp(self.log)


def test_without_a_target_the_weight_is_that_of_the_schedule():
    assert weights(control(delay=2, warmup=2), [None] * 7) == [0, 0, 0.5, 1, 1, 1, 1]


def test_memory_is_paid_for_while_the_metric_is_too_bad_once_the_penalty_has_begun():
    metrics = [None, 0.7, 0.85, 0.95, 0.85, 0.7, 0.79, 0.8]
    controller = control(after_metric=0.9, while_metric=0.8, warmup=2)
    assert weights(controller, metrics) == [0, 0, 0, 0.5, 1, -1, -1, 1]
    assert weights(control(while_metric=0.8), metrics) == [0, -1, 1, 1, 1, -1, -1, 1]


def test_looking_at_the_weight_changes_nothing():
    controller = control(after_metric=0.9)
    assert controller.weight(Standing(3, 0.95)) == 1
    assert controller.opened is None
    controller.observe(Standing(3, 0.95), torch.tensor(5.0))
    assert controller.opened == 3
    assert controller.weight(Standing(4, 0.1)) == 1


def test_a_band_turns_the_weight_round_step_by_step():
    found = weights(
        control(while_metric=0.8, while_band=0.1, warmup=2), [0.7, 0.85, 0.85, 0.95, 0.8, 0.75, 0.6]
    )
    assert found == pytest.approx([-0.5, 0.5, 0.5, 1, 0, -0.5, -1])


def test_nothing_is_adjusted_while_a_target_pauses():
    controller = control(target_live=10, while_metric=0.8)
    for step, metric in enumerate([0.9, 0.9, 0.1, 0.1, 0.9], start=1):
        now = Standing(step, metric)
        weight = controller.weight(now)
        before = controller.tensors()["state"].clone()
        controller.observe(now, torch.tensor(40.0))
        assert (weight == 0) == (metric < 0.8 or step == 1)
        assert torch.equal(before, controller.tensors()["state"]) == (metric < 0.8)


@pytest.mark.parametrize("wanted", [10.0, 1000.0], ids=["less", "more"])
@pytest.mark.parametrize("start", [20.0, 100.0, 4000.0])
def test_a_target_is_met_from_either_side_whatever_the_task_would_keep(start, wanted):
    found = drive(control(target_live=100.0), AdamLike(start, wanted), 1000)
    settled = found[-300:]
    assert min(settled) > 95
    assert max(settled) < 105


@pytest.mark.parametrize("scale", [0.001, 0.03, 30.0])
def test_the_coefficient_may_be_wrong_by_orders_of_magnitude(scale):
    found = drive(control(target_live=100.0), AdamLike(150.0, 1000.0, 0.004, scale), 2000)
    assert min(found[-300:]) > 95
    assert max(found[-300:]) < 105


def test_a_long_way_to_the_target_does_not_carry_the_spans_past_it():
    found = drive(control(target_live=100.0), AdamLike(4000.0, 1000.0, pace=0.004), 2000)
    assert min(found) > 80
    assert found[-1] == pytest.approx(100, rel=0.05)


def test_the_weight_stays_in_bounds_where_nothing_helps():
    controller = control(target_live=10.0)
    drive(controller, lambda _: 50.0, 1500)
    assert controller.weight(Standing(9999, None)) == pytest.approx(math.sinh(LARGEST + GAIN * CUT))


@pytest.mark.parametrize("memory", [MEMORY, AdaptiveSpan(64, 4, penalty=1e-3)])
def test_nothing_is_adjusted_while_memory_is_still_filling(memory):
    filling = PenaltyControl(PenaltySchedule(target_live=10.0), memory, 16, CPU)
    drive(filling, lambda _: 1.0, 3)
    assert filling.weight(Standing(3, None)) == 0
    drive(filling, lambda _: 1.0, 1, first=4)  # the longest span is four blocks
    assert filling.weight(Standing(5, None)) < 0


def test_nothing_is_adjusted_while_the_penalty_waits():
    waiting = control(target_live=10.0, delay=50)
    drive(waiting, lambda _: 1.0, 40)
    assert waiting.opened is None
    assert waiting.weight(Standing(60, None)) == 0


def test_what_is_not_finite_does_not_stay_in_the_controller():
    controller = control(target_live=10.0)
    drive(controller, lambda _: 12.0, 5)
    before = float(controller.weight(Standing(6, None)))
    controller.observe(Standing(6, None), torch.tensor(torch.nan))
    assert float(controller.weight(Standing(7, None))) == before


def test_a_controller_goes_on_from_its_saved_state():
    one, plant, twin = control(target_live=30.0), AdamLike(90, 10), AdamLike(90, 10)
    drive(one, plant, 30)
    drive(control(target_live=30.0), twin, 30)
    other = control(target_live=30.0)
    other.restore(one.tensors(), one.values())
    assert drive(one, plant, 30, first=31) == drive(other, twin, 30, first=31)


def test_a_target_needs_something_to_adjust():
    schedule = PenaltySchedule(target_live=5.0)
    for memory in (FixedSpan(8), ExpireSpan(8, 2, penalty=0.0)):
        with pytest.raises(ValueError, match=r"^target_live needs a memory with a penalty above 0"):
            Trainer(small_experiment(memory=memory, penalty=schedule))
    with pytest.raises(
        ValueError, match=r"^target_live is 5\.0, but memories that fade over 6 .*ramp\.$"
    ):
        Trainer(small_experiment(memory=ExpireSpan(64, 6, penalty=1.0), penalty=schedule))
    with pytest.raises(ValueError, match=r"^target_live must be above 0, but is 0\.$"):
        PenaltySchedule(target_live=0)


@pytest.mark.parametrize("target", [None, 30.0])
def test_spans_rest_once_it_is_time_and_the_task_is_done_well(target):
    settings = {"rest_after": 2, "while_metric": 0.9, "target_live": target}
    resting = control(**settings)
    found = weights(resting, [1.0, 1.0, 0.8, 1.0, 0.8, 1.0])
    assert found[3:] == [0, 0, 0]
    assert resting.closed == 3
    resumed = control(**settings)
    resumed.restore(resting.tensors(), resting.values())
    for one in (resting, resumed):
        assert one.weight(Standing(6, 0.1)) == 0
        assert not one.spans_learn(Standing(6, 0.1))
    if target is None:
        assert found[:3] == [1, 1, -1]


def test_spans_do_not_rest_before_memory_has_cost_anything():
    early = control(after_metric=0.97, while_metric=0.9, rest_after=2)
    assert weights(early, [0.5, 0.8, 0.92, 0.98, 0.99]) == [0, 0, 0, 1, 0]
    assert (early.opened, early.closed) == (3, 4)


@pytest.mark.parametrize("memory", [MEMORY, AdaptiveSpan(32, 4, penalty=1e-3, initial=0.5)])
@pytest.mark.parametrize(
    ("schedule", "moves"),
    [
        (PenaltySchedule(delay=2, spans_wait=True), (False, False, True, True)),
        (PenaltySchedule(rest_after=2), (True, True, False, False)),
    ],
)
def test_spans_wait_and_rest_where_they_are_told_to(memory, schedule, moves):
    trainer = Trainer(small_experiment(memory=memory, penalty=schedule))
    spans = [p for layer in trainer.model.layers for p in layer.keeper.parameters()]
    others = list(trainer.model.head.parameters())
    for spans_learn in moves:
        former_spans, former_others = ([p.detach().clone() for p in ps] for ps in (spans, others))
        trainer.update()
        assert all(map(torch.equal, spans, former_spans)) != spans_learn
        assert not all(map(torch.equal, others, former_others))


@pytest.mark.slow
@pytest.mark.parametrize("target", [15.0, 30.0, 60.0])
def test_recall_meets_its_target_within_a_tenth(target):
    experiment = recall()
    penalty = replace(experiment.penalty, target_live=target)
    trainer = Trainer(replace(experiment, device="cpu", steps=1000, penalty=penalty))
    while trainer.step < trainer.experiment.steps:
        trainer.update()
    found = Evaluation(trainer.model, experiment.task, "valid", batch=16, blocks=64).run()
    assert found["live"] == pytest.approx(target, rel=0.1)
    assert found["accuracy"] > 0.95
