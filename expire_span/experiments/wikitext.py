"""WikiText-103 (`tab:wiki103`, `fig:wiki103_memsize`)."""

from dataclasses import replace
from functools import partial

from expire_span.experiments.scale import (
    SAMPLES,
    Scale,
    by_our_recipe,
    smoke,
    with_patient_spans,
)
from expire_span.experiments.table import Line, Table
from expire_span.model.config import TransformerConfig
from expire_span.model.memory import AnyMemory, ExpireSpan, FixedSpan
from expire_span.tasks import WikiText
from expire_span.training.experiment import EvaluationConfig, Experiment, OptimizerConfig
from expire_span.training.schedule import RateSchedule

EXPIRE_SPAN_8K = ExpireSpan(8192, ramp=128, penalty=1e-6, initial=0.05, shorten=True)


def wikitext(memory: AnyMemory = EXPIRE_SPAN_8K, scale: Scale = "single") -> Experiment:
    """The words of Wikipedia, with adaptive input and softmax. One GPU.

    The paper: a test perplexity of 19.6 with 140M parameters. For comparison it cites
    Transformer-XL, 18.3 with 257M, and Compressive, 17.1 with 277M. The bands of the vocabulary are
    those of Baevski and Auli: 20k words, 40k, the rest.

    `single` reads 16M words of WikiText-2 (eight times over) in batches of 64, by our own recipe,
    with half the width and a vocabulary of at most 40k words, of which the first 8k are a band of
    their own; spans begin with a block and learn slowly, as on enwik8. Two seeds each, as there.
    It has 33k different words: the others are never seen, and cost next to nothing.
    """
    task = WikiText()
    experiment = Experiment(
        task=task,
        model=TransformerConfig(
            vocab=task.vocab,
            layers=8,
            width=1024,
            heads=8,
            feedforward=4096,
            block=256,
            memory=memory,
            dropout=0.3,
            edge_dropout=0.2,
            shortlist=20_000,
        ),
        optimizer=OptimizerConfig(rate=7e-4, schedule=RateSchedule(warmup=8000), clip=0.1),
        evaluation=EvaluationConfig(every=10_000, batch=32),
        batch=512,
        accumulate=8,
        steps=300_000,
    )
    if scale == "smoke":
        return smoke(experiment, WikiText(str(SAMPLES / "words"), vocabulary=60))
    if scale == "single":
        task = WikiText(vocabulary=40_000, edition="2")
        model = replace(
            experiment.model, vocab=task.vocab, width=512, feedforward=2048, shortlist=8000
        )
        small = replace(experiment, task=task, model=model, batch=64, accumulate=1, steps=1000)
        return with_patient_spans(by_our_recipe(small))
    return experiment


def _window(span: int) -> Line:
    name, label = f"wikitext/transformer-xl-{span}", f"Transformer-XL {span}"
    return Line(name, label, partial(wikitext, FixedSpan(span)), seeds=2)


def _expiring(penalty: float) -> Line:
    memory = replace(EXPIRE_SPAN_8K, penalty=penalty)
    name, label = f"wikitext/expire-span-{penalty:g}", f"Expire-Span 8k, weight {penalty:g}"
    return Line(name, label, partial(wikitext, memory), seeds=2)


WIKITEXT = Table(
    label="tab:wiki103",
    title="WikiText, test perplexity",
    metric="perplexity",
    lines=(
        _window(256),
        replace(
            _expiring(EXPIRE_SPAN_8K.penalty),
            label="Expire-Span 8k",
            paper={"perplexity": 19.6, "parameters": 140},
        ),
    ),
    columns=("parameters", "live", "peak_gb", "milliseconds"),
    remark="At `single` scale the text is WikiText-2: its numbers cannot be compared.",
)

WIKITEXT_MEMORY = Table(
    label="fig:wiki103_memsize",
    title="WikiText, performance as a function of memory size",
    metric="perplexity",
    lines=(
        *(_window(span) for span in (64, 128, 256, 512, 1024)),
        *(_expiring(penalty) for penalty in (1e-7, 1e-6, 1e-5)),
    ),
    picture="memory",
    remark="The paper's figure gives no numbers. At `single` scale the text is WikiText-2.",
)
