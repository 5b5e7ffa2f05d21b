"""What a run says about itself: means, histograms, warnings, and where they are written."""

import json
import sys
import types
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from expire_span import ExpireSpan
from expire_span.model.transformer import MemoryStats
from expire_span.training.log import JsonLines, MetricLog
from expire_span.training.loop import train
from expire_span.training.metrics import (
    Means,
    Pace,
    combine,
    memory_metrics,
    peak_memory,
    span_edges,
    span_histogram,
    summary,
)
from expire_span.training.spans import EARLY, LOOK_EVERY, SpanWatch
from expire_span.training.trainer import Trainer
from small_runs import MEMORIES, small_experiment

CPU = torch.device("cpu")


def stats(**values: list[float]) -> MemoryStats:
    names = MemoryStats.__dataclass_fields__
    return MemoryStats(**{name: torch.tensor(values.get(name, [0.0])) for name in names})


def test_means_are_means_and_the_longest_span_is_the_longest():
    means = Means()
    means.add(loss=torch.tensor(1.0), live=torch.tensor([2.0, 4.0]), max_span=torch.tensor([3.0]))
    means.add(loss=torch.tensor(2.0), max_span=torch.tensor([1.0]))
    taken = means.take()
    assert taken["loss"].item() == 1.5
    assert taken["live"].tolist() == [2.0, 4.0]
    assert taken["max_span"].tolist() == [3.0]
    assert means.take() == {}


def test_means_go_on_from_where_they_were_saved():
    one, other = Means(), Means()
    one.add(loss=torch.tensor(1.0))
    other.restore(one.tensors(), one.counts(), CPU)
    for means in (one, other):
        means.add(loss=torch.tensor(4.0))
    assert one.take() == other.take() == {"loss": torch.tensor(2.5)}


def test_statistics_of_parts_are_those_of_the_whole():
    parts = [
        stats(live=[2.0, 6.0], max_span=[5.0, 1.0]),
        stats(live=[4.0, 0.0], max_span=[2.0, 9.0]),
    ]
    whole = combine(parts)
    assert whole.live.tolist() == [3.0, 3.0]
    assert whole.max_span.tolist() == [5.0, 9.0]
    found = memory_metrics(vars(whole))
    assert found["live"] == 3
    assert found["max_span"] == found["max_span/layer_1"] == 9


@pytest.mark.parametrize("longest", [1, 2, 10, 16, 1000])
def test_a_histogram_holds_every_span_in_one_bin(longest):
    spans = [torch.rand(3, 50) * longest, torch.tensor([0.0, 1.0, float(longest)])]
    edges = span_edges(longest)
    assert edges[0] == 0
    assert edges[-1] == longest
    assert edges == sorted(set(edges))
    found = span_histogram(spans, longest)
    for layer, shares in zip(spans, found, strict=True):
        expected, _ = np.histogram(layer.flatten().numpy(), np.array(edges, dtype=np.float32))
        np.testing.assert_allclose(shares.numpy(), expected / layer.numel(), atol=1e-12)


def test_collapse_and_saturation_are_warned_of_once_each_time():
    watch = SpanWatch(longest=1000)
    collapsed = stats(max_span=[4.0, 1.0], mean_span=[1.0, 1.0])
    with pytest.warns(UserWarning, match=r"Step 10: all spans have collapsed .*4\.0 of 1000"):
        watch.look(10, collapsed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.look(20, collapsed)
        watch.look(30, stats(max_span=[500.0, 1.0], mean_span=[20.0, 1.0]))
        SpanWatch(None).look(30, collapsed)
    with pytest.warns(UserWarning, match="Step 40: all spans have collapsed"):
        watch.look(40, collapsed)
    with pytest.warns(UserWarning, match=r"Step 50: all spans are at their maximum of 1000"):
        watch.look(50, stats(max_span=[1000.0], mean_span=[999.0]))


def test_layers_that_forget_all_before_much_can_be_learned_are_warned_of():
    def spans(*longest: float) -> MemoryStats:
        return stats(max_span=[*longest], mean_span=[*longest])

    watch = SpanWatch(longest=1000)
    with pytest.warns(UserWarning, match=r"Step 50: .* in 2 of 3 layers \(to less than 5 of 1000"):
        watch.look(50, spans(4.0, 4.9, 300.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.look(100, spans(0.0, 4.0, 300.0))  # it has been said
        watch.look(150, spans(4.0, 6.0, 300.0))
        watch.look(EARLY + 50, spans(0.0, 0.0, 300.0))  # which they may have learned
        watch.look(200, spans(0.0, 300.0))  # half of them


@pytest.mark.parametrize(("bias", "word"), [(-30.0, "collapsed"), (30.0, "at their maximum")])
def test_a_collapse_is_warned_of_within_100_steps_however_rarely_is_logged(
    bias, word, tmp_path, monkeypatch
):
    happens = 13
    update = Trainer.update

    def collapsing(trainer: Trainer, **settings: bool) -> None:
        if trainer.step == happens:
            for layer in trainer.model.stack():
                torch.nn.init.constant_(layer.keeper.predictor.bias, bias)
        update(trainer, **settings)

    monkeypatch.setattr(Trainer, "update", collapsing)
    memory = ExpireSpan(200, 4, penalty=0.0, initial=0.1)
    experiment = small_experiment(memory=memory, steps=100, log_every=100, save_every=100, batch=2)
    with pytest.warns(UserWarning, match=f"all spans (have|are) {word}") as told:
        train(replace(experiment, accumulate=2), tmp_path, progress=False)
    steps = [int(str(one.message).split()[1].rstrip(":")) for one in told]
    assert happens < steps[0] <= happens + 100
    assert 2 * LOOK_EVERY <= 100


def test_spans_that_are_long_in_few_blocks_have_not_collapsed():
    """Here in one of four, and never in the last one before a look."""
    memory = ExpireSpan(200, 4, penalty=0.0, initial=0.1)
    trainer, watch = Trainer(small_experiment(memory=memory)), SpanWatch(longest=200)

    def look(step: int, biases: list[float]) -> None:
        for bias in biases:
            for layer in trainer.model.stack():
                torch.nn.init.constant_(layer.keeper.predictor.bias, bias)
            trainer.update()
        watch.look(step, trainer.take_stats())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look(50, [-30.0, -30.0, 0.0, -30.0])
        look(100, [0.0, -30.0])
    with pytest.warns(UserWarning, match="Step 150: all spans have collapsed"):
        look(150, [-30.0, -30.0])


def test_nothing_is_watched_where_nothing_is_learned(tmp_path):
    lines = run_and_read(tmp_path, memory=MEMORIES["fixed"])
    assert not any("span_histogram" in line for line in lines)


def run_and_read(folder, **changes) -> list[dict]:
    train(small_experiment(**changes), folder, progress=False)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_pulls_on_spans_are_told_apart_now_and_then(tmp_path):
    lines = run_and_read(tmp_path, steps=4, log_every=2)
    assert "task_share_of_span_gradient" in lines[1]
    assert 0 <= lines[1]["task_share_of_span_gradient"] <= 1


def test_the_bar_shows_what_matters():
    metrics = {"loss": 1.23456, "accuracy": 0.5, "live": 12.0, "held": 20.0, "penalty_weight": 0.1}
    metrics |= {"tokens_per_second": 12345.0, "peak_memory_gb": 0.5, "gradient_norm": 3.0}
    shown = summary(metrics, "accuracy")
    assert list(shown) == ["loss", "accuracy", "live", "held", "weight", "tok/s", "GB"]
    assert shown["loss"] == "1.235"
    assert peak_memory(CPU) > 1e7


def test_the_peak_on_a_gpu_is_that_of_the_interval(monkeypatch):
    held = {"peak": 0.0, "now": 1e9}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: held["peak"])
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda _: held.update(peak=held["now"])
    )
    pace = Pace(8, torch.device("cuda"), 0)
    held["peak"] = 3e9
    assert pace.since_last(1)["peak_memory_gb"] == 3
    assert pace.since_last(2)["peak_memory_gb"] == 1
    held["peak"] = 9e9  # of an evaluation, after which
    pace.restart(2)
    assert pace.since_last(3)["peak_memory_gb"] == 1


def test_tensorboard_gets_scalars_and_a_histogram_of_each_layer(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(small_experiment(), tmp_path, progress=False)
    board = accumulator.EventAccumulator(str(tmp_path), {"histograms": 0})
    board.Reload()
    tags = board.Tags()
    assert {"loss", "accuracy", "live/layer_1", "valid/accuracy"} <= set(tags["scalars"])
    assert set(tags["histograms"]) == {"spans/layer_0", "spans/layer_1"}
    assert [event.step for event in board.Histograms("spans/layer_0")] == [5, 10, 12]


class FakeTracker(types.ModuleType):
    """What Weights & Biases and trackio have in common."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.told: list = []

    def init(self, **settings: object) -> None:
        self.told.append(("init", settings))

    def log(self, metrics: dict, step: int) -> None:
        self.told.append(("log", step, metrics))

    def finish(self) -> None:
        self.told.append(("finish",))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_is_told_if_asked_for(name, tmp_path, monkeypatch):
    tracker = FakeTracker()
    monkeypatch.setitem(sys.modules, name, tracker)
    train(small_experiment(tracker=name), tmp_path / "mine", progress=False)
    assert tracker.told[0][1]["name"] == "mine"
    assert tracker.told[0][1]["config"]["steps"] == 12
    logged = [told for told in tracker.told if told[0] == "log"]
    assert [told[1] for told in logged] == [5, 10, 12, 12]
    assert all(isinstance(v, (int, float)) for told in logged for v in told[2].values())
    assert tracker.told[-1] == ("finish",)
    train(small_experiment(), tmp_path / "quiet", progress=False)
    assert len([told for told in tracker.told if told[0] == "init"]) == 1


def test_a_resumed_run_keeps_its_id_and_another_has_its_own(tmp_path, monkeypatch):
    tracker = FakeTracker()
    monkeypatch.setitem(sys.modules, "wandb", tracker)
    for folder, step in (("mine", 0), ("mine", 5), ("other", 0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        with MetricLog(tmp_path / folder, step, "wandb"):
            pass
    settings = [told[1] for told in tracker.told if told[0] == "init"]
    assert all(one["resume"] == "allow" for one in settings)
    first, again, other = (one["id"] for one in settings)
    assert first == again != other
    monkeypatch.setitem(sys.modules, "trackio", tracker)
    with MetricLog(tmp_path / "mine", 5, "trackio"):
        pass
    assert "id" not in tracker.told[-2][1]  # it knows runs by their names


def test_a_tracker_that_is_not_installed_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(ValueError, match=r"^tracker is trackio, which is not installed: `pip inst"):
        train(small_experiment(tracker="trackio"), tmp_path, progress=False)
    train(small_experiment(steps=1), tmp_path, progress=False)  # nothing stands in the way
    with pytest.raises(ValueError, match=r"^tracker must be one of none, wandb, trackio, but"):
        small_experiment(tracker="x")


def test_lines_are_found_by_step_and_prefix(tmp_path):
    with MetricLog(tmp_path, 0) as log:
        log.write(5, {"loss": 1.0})
        log.write(5, {"valid/accuracy": 0.5})
        assert log.find(5, "valid/") == {"accuracy": 0.5}
        assert log.find(6, "valid/") is None
    with MetricLog(tmp_path, 4) as log:
        assert log.find(5, "valid/") is None


def test_a_line_that_lost_its_end_is_kept_and_so_is_the_next(tmp_path: Path) -> None:
    log = JsonLines(tmp_path, 0)
    log.write(10, {"loss": 1.0})
    log.write(10, {"valid/bpb": 2.0})
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text().removesuffix("\n"))  # by a power cut
    log = JsonLines(tmp_path, 10)
    log.write(20, {"loss": 0.5})
    assert [line["step"] for line in log.lines()] == [10, 10, 20]


def test_a_pace_says_of_how_many_updates_it_is() -> None:
    pace = Pace(tokens=8, device=torch.device("cpu"), step=16)  # where a run was stopped
    found = pace.since_last(20)
    assert found["timed_updates"] == 4
    assert pace.since_last(40)["timed_updates"] == 20
    assert found["tokens_per_second"] == pytest.approx(8 / found["seconds_per_step"])
