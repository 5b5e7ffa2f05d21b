"""Training on a GPU: kernel as reference, compiled as eager, resumed as never stopped."""

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch
from torch._dynamo.utils import counters

from expire_span import AdaptiveSpan, Compressive, ExpireSpan, FixedSpan
from expire_span.experiments.recall import recall
from expire_span.tasks import Copy
from expire_span.training import checkpoint as checkpoints
from expire_span.training.experiment import EvaluationConfig, Experiment
from expire_span.training.guard import NotFinite
from expire_span.training.interruption import Stopped
from expire_span.training.loop import train
from expire_span.training.schedule import PenaltySchedule
from expire_span.training.trainer import Trainer
from policies import CASES
from small_runs import MEMORIES, last_of, refused_waits, same_checkpoints, small_experiment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # what the compiler says of itself
]


def losses(experiment: Experiment, steps: int, replayed: bool = True) -> torch.Tensor:
    """Of each step; if `replayed`, blocks are replayed where that can be."""
    trainer = Trainer(replace(experiment, device="cuda"))
    if not replayed:
        trainer.replay = None
    return losses_of(trainer, steps)


def losses_of(trainer: Trainer, steps: int) -> torch.Tensor:
    """Of each of the next steps."""
    found = []
    for _ in range(steps):
        trainer.update()
        found.append(trainer.means.take()["loss"])
    return torch.stack(found)


def on_gpu(**changes: object) -> Experiment:
    """Small, with the deterministic kernel; every random draw, or whatever lets it be replayed."""
    experiment = small_experiment(**{"precision": "bfloat16", "compile": False, **changes})
    wide = replace(experiment.model, width=32, attention="fused", dropout=0.2)
    if experiment.compile:
        wide = replace(wide, layer_drop=0.0)
    return replace(experiment, model=wide, device="cuda")


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES.keys())
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    ("stop", "replayed"), [(1, False), (7, False), (1, True), (3, True), (7, True)]
)
def test_resume_equals_no_stop_bit_for_bit(memory, accumulate, stop, replayed, tmp_path):
    penalty = PenaltySchedule(delay=2, warmup=4)
    if getattr(memory, "penalty", 0):
        penalty = replace(penalty, target_live=9.0)
    experiment = on_gpu(memory=memory, accumulate=accumulate, penalty=penalty, compile=replayed)
    unbroken = Trainer(experiment)
    advance(unbroken, 12)
    assert (unbroken.replay is not None and unbroken.replay.replayed > 0) == replayed
    broken = Trainer(experiment)
    advance(broken, stop)
    path = checkpoints.save(broken.checkpoint().on_host(), tmp_path, stop)
    torch.manual_seed(99)  # another process would not have this one's random state
    resumed = Trainer(experiment)
    resumed.restore(checkpoints.load(path))
    advance(resumed, 12)
    ends = [trainer.checkpoint().on_host() for trainer in (unbroken, resumed)]
    assert same_checkpoints(*ends)


def test_resume_equals_no_stop_bit_for_bit_with_muon(tmp_path):
    experiment = on_gpu(compile=True)
    experiment = replace(experiment, optimizer=replace(experiment.optimizer, method="muon"))
    broken = Trainer(experiment)
    advance(broken, 5)
    path = checkpoints.save(broken.checkpoint().on_host(), tmp_path, 5)
    resumed = Trainer(experiment)
    resumed.restore(checkpoints.load(path))
    advance(resumed, 12)
    after = resumed.checkpoint().on_host()
    unbroken = Trainer(experiment)
    advance(unbroken, 12)
    assert same_checkpoints(unbroken.checkpoint().on_host(), after)


def advance(trainer: Trainer, steps: int) -> None:
    while trainer.step < steps:
        trainer.update(watch_spans=trainer.step % 3 == 0)
        if trainer.step % 5 == 0:
            trainer.report()


def test_a_run_stopped_by_sigterm_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """With compiled layers, in the background saver's hands, through an evaluation."""
    experiment = replace(on_gpu(compile=True), save_every=100)
    whole = train(experiment, tmp_path / "whole", progress=False)
    update = Trainer.update

    def interrupted(trainer: Trainer, **settings: bool) -> None:
        if trainer.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        update(trainer, **settings)

    monkeypatch.setattr(Trainer, "update", interrupted)
    with pytest.raises(Stopped):
        train(experiment, tmp_path / "run", progress=False)
    monkeypatch.undo()
    assert train(experiment, tmp_path / "run", resume=True, progress=False) == whole
    assert same_checkpoints(last_of(tmp_path / "whole"), last_of(tmp_path / "run"))


def test_what_is_not_finite_never_reaches_the_weights():
    """The flag is read one step late; the device has refused the update by then."""
    trainer = Trainer(on_gpu(memory=MEMORIES["fixed"]))
    advance(trainer, 3)
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    weight = trainer.model.stack()[1].feedforward.outer.weight
    handle = weight.register_hook(lambda gradient: gradient * torch.nan)
    trainer.update()
    handle.remove()
    with pytest.raises(
        NotFinite, match=r"Step 4 .* gradient of layers\.1\.feedforward\.outer\.weight"
    ):
        trainer.update()
    pairs = zip(weights, trainer.model.parameters(), strict=True)
    assert all(torch.equal(before, after) for before, after in pairs)


def with_attention(experiment: Experiment, attention: str) -> Experiment:
    return replace(experiment, model=replace(experiment.model, attention=attention))


def nudged(experiment: Experiment, steps: int, seed: int) -> torch.Tensor:
    """Losses of each step, from weights that are changed in their last digits."""
    trainer = Trainer(replace(experiment, device="cuda"))
    generator = torch.Generator("cuda").manual_seed(seed)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            noise = torch.randn(weight.shape, generator=generator, device="cuda")
            weight.mul_(1 + 3e-7 * noise)
    return losses_of(trainer, steps)


def test_300_steps_with_the_kernel_follow_the_reference():
    """As closely as the reference follows itself when its weights are rounded otherwise."""
    experiment = replace(recall(), precision="float32", compile=False)
    fused = losses(with_attention(experiment, "fused"), 300)
    plain = with_attention(experiment, "reference")
    reference = losses(plain, 300)
    torch.testing.assert_close(fused[:50], reference[:50], rtol=1e-3, atol=1e-3)
    others = torch.stack([nudged(plain, 300, seed) for seed in range(4)])
    usual, ours = (
        (each - reference).unflatten(-1, (6, 50)).mean(-1).abs() for each in (others, fused)
    )
    assert (ours <= 2 * usual.amax(0) + 0.01).all()
    assert fused[-50:].mean() < 0.5 * fused[:50].mean()


def test_compiled_steps_equal_eager_ones():
    experiment = replace(recall(), precision="float32")
    compiled = losses(experiment, 60)
    eager = losses(replace(experiment, compile=False), 60)
    torch.testing.assert_close(compiled, eager, rtol=1e-3, atol=1e-3)


def test_the_same_seed_gives_the_same_bits_on_a_gpu():
    experiment = small_experiment(precision="bfloat16", compile=False)
    wide = replace(experiment.model, width=32, attention="fused", dropout=0.2)
    runs = [losses(replace(experiment, model=wide), 12) for _ in range(2)]
    assert torch.equal(runs[0], runs[1])


@pytest.mark.parametrize(
    ("memory", "norm", "precision"),
    [
        ("expire-budget", "post", "bfloat16"),
        ("expire-long", "post", "bfloat16"),
        ("expire-long", "pre", "bfloat16"),
        ("expire-long", "post", "float32"),
        ("fixed-under-block", "post", "bfloat16"),
        ("fixed-over-block", "post", "bfloat16"),
        ("adaptive", "post", "bfloat16"),
        ("compressive", "post", "bfloat16"),
    ],
)
def test_replayed_steps_equal_launched_ones_bit_for_bit(memory, norm, precision):
    case = CASES[memory]
    experiment = small_experiment(memory=case.memory, precision=precision)
    model = replace(
        experiment.model,
        width=32,
        block=case.block,
        norm=norm,
        attention="fused",
        layer_drop=0.0,
    )
    experiment = replace(experiment, model=model)
    trainer = Trainer(replace(experiment, device="cuda"))
    found = losses_of(trainer, 40)
    assert trainer.replay.replayed > 10
    assert torch.equal(found, losses(experiment, 40, replayed=False))


def test_a_replayed_update_never_makes_the_host_wait_for_the_device_to_be_done():
    """Numbers that it needs come by events; PyTorch raises wherever it would stop for all work."""
    trainer = Trainer(on_gpu(compile=True))
    advance(trainer, 12)
    assert trainer.replay.replayed > 0
    with refused_waits():
        for _ in range(3):
            trainer.update()


REAL_SIZES = {
    "expire": ExpireSpan(2048, 64, penalty=1e-6, initial=0.3),
    "expire-short": ExpireSpan(2048, 64, penalty=1e-6, initial=0.05),  # nothing far at first
    "fixed": FixedSpan(1024),
    "adaptive": AdaptiveSpan(2048, 32, penalty=1e-6, initial=0.3),
    "compressive": Compressive(512, 1024, 4),
}


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("memory", REAL_SIZES.values(), ids=REAL_SIZES.keys())
def test_layers_of_some_size_are_compiled_once_or_twice_learn_and_are_judged(
    memory, norm, tmp_path
):
    """A compiler does more with large tensors, and counts how often it has to begin anew."""
    experiment = small_experiment(
        memory=memory, task=Copy(max_distance=600, restart=True), precision="bfloat16", batch=64
    )
    model = replace(
        experiment.model, width=256, heads=4, feedforward=512, block=256, norm=norm, layer_drop=0.0
    )
    judged = EvaluationConfig(every=20, batch=16, blocks=24)
    experiment = replace(experiment, model=model, evaluation=judged, steps=40, device="cuda")
    graphs = counters["stats"]["unique_graphs"]
    result = train(experiment, tmp_path, progress=False)
    assert math.isfinite(result["nll"])
    assert 1 <= counters["stats"]["unique_graphs"] - graphs <= 2
    reports = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert max(report.get("replayed_share", 0) for report in reports) == 1


def test_attention_that_is_not_fused_is_not_replayed():
    experiment = on_gpu(compile=True)
    trainer = Trainer(with_attention(experiment, "reference"))
    advance(trainer, 8)
    assert trainer.replay is None
