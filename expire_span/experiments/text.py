"""Text: predict the next byte of any file, or the next token of documents."""

from dataclasses import replace

from expire_span.model.config import TransformerConfig
from expire_span.model.memory import ExpireSpan
from expire_span.tasks import Documents, Text
from expire_span.training.experiment import EvaluationConfig, Experiment, OptimizerConfig
from expire_span.training.schedule import RateSchedule


def text() -> Experiment:
    """A byte-level language model over `--task.path FILE`, sized for one GPU.

    8 layers of width 256 with spans up to 4,096 bytes. No number of the paper belongs to it.
    """
    return Experiment(
        task=Text(path="text.txt"),
        model=TransformerConfig(
            vocab=256,
            layers=8,
            width=256,
            heads=4,
            feedforward=1024,
            block=256,
            memory=ExpireSpan(max_span=4096, ramp=64, penalty=1e-6, initial=0.02, divisor=64),
        ),
        optimizer=OptimizerConfig(rate=3e-4, schedule=RateSchedule(warmup=1000), clip=0.3),
        evaluation=EvaluationConfig(every=1000, batch=64),
        batch=64,
        steps=20_000,
    )


def documents() -> Experiment:
    """The same model over documents in `--task.path FILE.jsonl`, memory beginning anew with each.

    Bytes are the tokens, or those of `--task.tokenizer tokenizer.json`, with as many in
    `--task.vocabulary` and `--model.vocab`. No number of the paper belongs to it.
    """
    return replace(text(), task=Documents(path="documents.jsonl"))
