"""Schedules by their definition."""

import pytest

from expire_span.training.schedule import PenaltySchedule, RateSchedule


def test_warmup_rises_linearly_to_the_full_rate():
    schedule = RateSchedule(warmup=4)
    assert [schedule.factor(step, 100) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


def test_cosine_falls_from_one_to_the_final_share():
    schedule = RateSchedule(warmup=10, decay="cosine", final=0.1)
    factors = [schedule.factor(step, 110) for step in range(10, 111)]
    assert factors[0] == 1
    assert factors[50] == pytest.approx(0.55)
    assert factors[-1] == pytest.approx(0.1)
    assert factors == sorted(factors, reverse=True)


def test_a_line_falls_evenly():
    schedule = RateSchedule(warmup=10, decay="linear", final=0.2)
    factors = [schedule.factor(step, 110) for step in (10, 35, 60, 110)]
    assert factors == pytest.approx([1, 0.8, 0.6, 0.2])


def test_a_drop_comes_at_the_end():
    schedule = RateSchedule(warmup=2, decay="drop", final=0.1, last=3)
    assert [schedule.factor(step, 8) for step in range(8)] == [0.5, 1, 1, 1, 1, 0.1, 0.1, 0.1]


def test_penalty_waits_then_rises():
    schedule = PenaltySchedule(delay=3, warmup=2)
    assert [schedule.opens(step, None, True) for step in range(5)] == [False] * 3 + [True] * 2
    assert [schedule.factor(step, 3) for step in range(6)] == [0, 0, 0, 0.5, 1, 1]
    assert schedule.factor(100, None) == 0


@pytest.mark.parametrize(
    ("metric", "higher", "open_"), [(None, True, False), (0.8, True, False), (0.9, True, True),
                                    (1.2, False, False), (0.9, False, True), (0.5, False, True)]
)  # fmt: skip
def test_penalty_waits_for_the_metric(metric, higher, open_):
    assert PenaltySchedule(after_metric=0.9).opens(0, metric, higher) is open_
    assert PenaltySchedule().opens(0, metric, higher)
    assert PenaltySchedule(while_metric=0.9).opens(0, metric, higher)
    known = 0 if metric is None else -1
    assert PenaltySchedule(while_metric=0.9).consent(metric, higher) == (1 if open_ else known)
    assert PenaltySchedule().consent(metric, higher) == 1


@pytest.mark.parametrize(
    ("metric", "higher", "consent"),
    [(None, True, 0), (0.5, True, -1), (0.85, True, -0.5), (0.9, True, 0), (0.95, True, 0.5),
     (1.5, True, 1), (0.95, False, -0.5), (0.8, False, 1)],
)  # fmt: skip
def test_within_its_band_the_metric_sets_the_weight(metric, higher, consent):
    schedule = PenaltySchedule(while_metric=0.9, while_band=0.1)
    assert schedule.consent(metric, higher) == pytest.approx(consent)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: RateSchedule(warmup=-1),
        lambda: RateSchedule(decay="square"),  # type: ignore[arg-type]
        lambda: RateSchedule(final=1.5),
        lambda: PenaltySchedule(delay=-1),
        lambda: PenaltySchedule(rest_after=-1),
        lambda: PenaltySchedule(while_metric=0.9, while_band=-0.1),
        lambda: PenaltySchedule(while_band=0.1),
    ],
)
def test_impossible_schedules_are_refused_in_one_sentence(bad):
    with pytest.raises(ValueError, match=r"^[^\n]+, but (is|are) [^\n]+\.$"):
        bad()
