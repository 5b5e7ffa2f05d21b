"""The loop: what one update does, what it says about itself, and that it learns."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from expire_span import ExpireSpan, FixedSpan
from expire_span.experiments.recall import recall
from expire_span.model.transformer import Transformer
from expire_span.tasks import Recall
from expire_span.training.distributed import choose_device
from expire_span.training.evaluation import Evaluation
from expire_span.training.experiment import EvaluationConfig
from expire_span.training.folder import load_run
from expire_span.training.loop import train
from expire_span.training.schedule import PenaltySchedule
from expire_span.training.spans import task_share
from expire_span.training.trainer import Trainer
from small_runs import MEMORIES, small_experiment, tasks


def test_one_update_is_adam_on_loss_plus_penalty():
    experiment = small_experiment(penalty=PenaltySchedule())
    plain = replace(experiment.model, dropout=0.0, layer_drop=0.0)
    experiment = replace(experiment, model=plain)
    trainer, twin = Trainer(experiment), Trainer(experiment)
    batch = twin.stream.read(8)
    step = twin.model(batch.inputs, *twin.memories, generator=twin.memory_draws())
    loss = twin.model.head.nll(step.hidden, batch.targets)[batch.scored].mean()
    (loss + step.penalty).backward()
    torch.nn.utils.clip_grad_norm_(twin.model.parameters(), 0.5)
    keepers = [p for n, p in twin.model.named_parameters() if ".keeper." in n]
    others = [p for n, p in twin.model.named_parameters() if ".keeper." not in n]
    rate = 1e-2 / 3  # the first of three warm-up steps
    torch.optim.Adam([{"params": others}, {"params": keepers, "lr": 2 * rate}], lr=rate).step()
    trainer.update()
    for ours, theirs in zip(trainer.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_shapes_memory_is_drawn_once_an_update_for_all_parts():
    trainer = Trainer(small_experiment(accumulate=2, steps=12))
    drawn, used = [], []
    draw, forward = trainer.model.draw_limit, trainer.model.forward

    def drawing(generator: torch.Generator | None) -> int | None:
        drawn.append(draw(generator))
        return drawn[-1]

    def reading(inputs, memory, starts, limit, **settings):
        used.append(limit.item())
        return forward(inputs, memory, starts, limit, **settings)

    trainer.model.draw_limit, trainer.model.forward = drawing, reading  # type: ignore[method-assign]
    for _ in range(4):
        trainer.update()
    assert len(set(drawn)) == 4
    assert used == [limit for limit in drawn for _ in range(2)]


def test_memory_is_carried_from_block_to_block_without_its_history():
    trainer = Trainer(small_experiment())
    for n in range(1, 4):
        trainer.update()
        (memory,) = trainer.memories
        assert memory.clock == 8 * n
        assert not any(tensor.requires_grad for tensor in memory.tensors().values())


def test_a_block_without_anything_to_score_changes_no_task_weight(tmp_path):
    experiment = small_experiment(tasks(tmp_path)["copy"], memory=FixedSpan(8))
    trainer = Trainer(experiment)
    trainer.stream.read = lambda steps: _unscored(trainer, steps)  # type: ignore[method-assign]
    before = [p.clone() for p in trainer.model.parameters()]
    trainer.update()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def _unscored(trainer: Trainer, steps: int):
    batch = trainer.experiment.task.stream("train", trainer.experiment.batch, 0).read(steps)
    return replace(batch, scored=torch.zeros_like(batch.scored))


def test_adaptive_spans_stay_in_range_after_every_update():
    experiment = small_experiment(memory=replace(MEMORIES["adaptive"], penalty=10.0, initial=0.01))
    trainer = Trainer(replace(experiment, penalty=PenaltySchedule()))
    for _ in range(5):
        trainer.update()
        for layer in trainer.model.stack():
            assert layer.keeper.ratio.min() >= 0
    assert any(layer.keeper.ratio.min() == 0 for layer in trainer.model.stack())


def test_penalty_opens_when_the_reported_metric_is_good_enough():
    trainer = Trainer(small_experiment(penalty=PenaltySchedule(after_metric=0.5)))
    trainer.update()
    assert trainer.report()["penalty_weight"] == 0
    trainer.metric = 0.6
    trainer.update()
    assert trainer.control.opened == 1
    trainer.metric = 0.1
    trainer.update()
    assert trainer.report()["penalty_weight"] == 1  # it never closes again


def test_share_of_span_gradients_equals_two_separate_backward_passes():
    torch.manual_seed(0)
    experiment = small_experiment(memory=ExpireSpan(20, 6, penalty=0.3, initial=0.3))
    trainer = Trainer(experiment)
    trainer.model.eval()
    (memory,) = trainer.memories
    for _ in range(3):
        batch = trainer.stream.read(8)
        step = trainer.model(batch.inputs, memory)
        memory = step.memory.detach()
    loss = trainer.model.head.nll(step.hidden, batch.targets).mean()
    deadlines = [d for layer in step.deadlines for d in layer if d is not None]
    sums = [
        sum(g.abs().sum() for g in torch.autograd.grad(part, deadlines, retain_graph=True))
        for part in (loss, 0.5 * step.penalty)
    ]
    share = task_share(step, loss, 0.5 * step.penalty)
    assert share is not None
    torch.testing.assert_close(share, sums[0] / (sums[0] + sums[1]))
    assert 0 < share < 1


def test_watching_spans_changes_nothing_else():
    experiment = small_experiment(penalty=PenaltySchedule(), accumulate=2)
    watched, plain = Trainer(experiment), Trainer(experiment)
    torch.manual_seed(0)
    for _ in range(6):
        watched.update(watch_spans=True)
    torch.manual_seed(0)
    for _ in range(6):
        plain.update()
    assert "task_share_of_span_gradient" in watched.means.take()
    plain.means.take()
    states = [trainer.checkpoint() for trainer in (watched, plain)]
    names = states[0].own.tensors.keys() - {"random.cpu"}
    assert all(torch.equal(states[0].own.tensors[n], states[1].own.tensors[n]) for n in names)
    assert states[0].shared is not None
    for name, tensor in states[0].shared.tensors.items():
        assert torch.equal(tensor, states[1].shared.tensors[name]), name


@pytest.mark.parametrize("name", ["fixed", "adaptive", "compressive"])
def test_no_span_gradients_where_the_penalty_acts_on_no_deadline(name):
    trainer = Trainer(small_experiment(memory=MEMORIES[name]))
    for _ in range(3):
        trainer.update(watch_spans=True)
    assert "task_share_of_span_gradient" not in trainer.means.take()


def test_a_run_whose_spans_collapse_is_warned_of(tmp_path):
    memory = ExpireSpan(200, 4, penalty=100.0, initial=0.1)
    experiment = small_experiment(memory=memory, steps=100, log_every=10, save_every=100)
    optimizer = replace(experiment.optimizer, span_rate=30.0, clip=None)
    with pytest.warns(UserWarning, match="all spans have collapsed"):
        train(replace(experiment, optimizer=optimizer), tmp_path, progress=False)


def test_metrics_are_written_line_by_line(tmp_path):
    train(small_experiment(steps=12, log_every=5), tmp_path, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 10, 12, 12]
    wanted = {"loss", "accuracy", "penalty", "live", "held", "mean_span", "max_span"}
    wanted |= {
        "live/layer_1",
        "tokens_per_second",
        "seconds_per_step",
        "gradient_norm",
        "timed_updates",
    }
    assert wanted <= lines[0].keys()
    assert "valid/accuracy" in lines[3]
    for line in lines[:3]:
        histogram = line.pop("span_histogram")
        assert histogram.pop("edges") == [0, 1, 2, 4, 8, 16, 24]
        assert histogram.keys() == {"layer_0", "layer_1"}
        assert all(sum(shares) == pytest.approx(1) for shares in histogram.values())
    assert all(math.isfinite(value) for line in lines for value in line.values())
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_evaluation_carries_memory_across_the_whole_stream(tmp_path):
    task = tasks(tmp_path)["text"]
    experiment = small_experiment(task, memory=FixedSpan(12))
    torch.manual_seed(0)
    model = Transformer(experiment.model).eval()
    found = Evaluation(model, task, "valid", batch=3, precision="float32").run()
    stream, memory, total, count = task.stream("valid", 3, 0), model.start(3), 0.0, 0
    while stream.remaining:
        batch = stream.read(5)  # other blocks, the same stream
        step = model(batch.inputs, memory)
        memory = step.memory
        nll = model.head.nll(step.hidden, batch.targets)
        total += nll[batch.scored].sum().item()
        count += int(batch.scored.sum())
    assert found["scored"] == count == Path(task.path).stat().st_size // 20 - 1
    assert found["bpb"] == pytest.approx(total / count / math.log(2), rel=1e-5)


def test_evaluation_leaves_model_and_random_state_alone():
    trainer = Trainer(small_experiment())
    before = torch.get_rng_state()
    Evaluation(trainer.model.train(), Recall(period=16), "valid", batch=2, blocks=3).run()
    assert trainer.model.training
    assert torch.equal(before, torch.get_rng_state())


def test_an_endless_stream_needs_a_number_of_blocks():
    model = Transformer(small_experiment().model)
    with pytest.raises(
        ValueError, match=r"never ends: say how many blocks of it, with --blocks\.$"
    ):
        Evaluation(model, Recall(period=16), "valid", batch=2).run()
    with pytest.raises(ValueError, match=r"at least 1 block to evaluate on, but blocks is 0\.$"):
        Evaluation(model, Recall(period=16), "valid", batch=2, blocks=0).run()


def test_a_trained_run_can_be_loaded(tmp_path):
    result = train(small_experiment(), tmp_path, progress=False)
    experiment, model, step = load_run(tmp_path, device="cpu")
    assert step == experiment.steps
    assert Evaluation.of(experiment, model, "valid").run() == result
    with pytest.raises(ValueError, match="is not a run"):
        load_run(tmp_path / "nowhere")


def test_bfloat16_trains_too():
    trainer = Trainer(small_experiment(precision="bfloat16"))
    for _ in range(3):
        trainer.update()
    assert math.isfinite(trainer.report()["loss"])
    assert trainer.model.positions.dtype == torch.float32


def test_an_absent_gpu_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"There is no GPU here .* choose cpu or auto\.$"):
        choose_device("cuda")


def test_vocabulary_of_task_and_model_must_fit():
    experiment = small_experiment()
    with pytest.raises(ValueError, match=r"raise model\.vocab\.$"):
        replace(experiment, model=replace(experiment.model, vocab=3))


@pytest.mark.slow
def test_expire_span_learns_recall_with_little_memory():
    trainer = Trainer(replace(recall(), device="cpu"))
    while trainer.step < trainer.experiment.steps:
        trainer.update()
    found = Evaluation(trainer.model, trainer.experiment.task, "test", batch=16, blocks=64).run()
    assert found["accuracy"] > 0.95
    assert found["live"] < 20


def test_what_cannot_be_evaluated_is_found_out_at_the_start(tmp_path):
    endless = EvaluationConfig(every=1000, batch=2)
    with pytest.raises(ValueError, match="never ends: say how many blocks"):
        train(small_experiment(evaluation=endless), tmp_path, progress=False)
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler trips over in its own code
def test_span_gradients_can_be_watched_in_a_compiled_model():
    torch.compiler.reset()
    memory = ExpireSpan(12, 6, penalty=0.1, initial=0.3)
    experiment = small_experiment(memory=memory, penalty=PenaltySchedule())
    experiment = replace(experiment, model=replace(experiment.model, layer_drop=0.0))
    trainer = Trainer(experiment)
    for layer in trainer.model.stack():
        layer.compile(backend="aot_eager", fullgraph=True)
    shares = []
    for watched in (False, False, False, True, False):  # compiled from the third on
        trainer.update(watch_spans=watched)
        shares.append(trainer.means.take().get("task_share_of_span_gradient"))
    assert shares[2] is None
    assert shares[3] is not None
    assert 0 < shares[3] < 1


def test_an_infinite_loss_where_nothing_is_scored_does_not_count():
    trainer = Trainer(small_experiment(memory=FixedSpan(8)))
    head = trainer.model.sequence_head()
    plain = head.nll
    head.nll = lambda hidden, targets: plain(hidden, targets) + trap  # type: ignore[method-assign]
    batch = trainer.experiment.task.stream("train", trainer.experiment.batch, 0).read(8)
    trap = torch.where(batch.scored, 0.0, torch.inf)
    trainer.update()
    assert math.isfinite(trainer.report()["loss"])
