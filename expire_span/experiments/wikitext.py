"""WikiText-103 (`tab:wiki103`, `fig:wiki103_memsize`)."""

from dataclasses import replace
from functools import partial

from expire_span.experiments.scale import SAMPLES, Scale, smoke, with_patient_spans
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

    `single` reads 49M words of WikiText-2 (many times over) in batches of 64, with half the width
    and a vocabulary of at most 40k words, of which the first 8k are a band of their own; its rate
    is 5e-4 after 200 updates, then falls along a cosine to a twentieth; spans begin with a block
    and learn slowly, as on enwik8.
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
        schedule = RateSchedule(warmup=200, decay="cosine", final=0.05)
        optimizer = replace(experiment.optimizer, rate=5e-4, schedule=schedule)
        small = replace(
            experiment,
            task=task,
            model=model,
            optimizer=optimizer,
            batch=64,
            accumulate=1,
            steps=3000,
        )
        return with_patient_spans(small)
    return experiment


def wikitext_point(memory: AnyMemory, scale: Scale) -> Experiment:
    """One point of performance against memory size: at `single`, a third of the updates.

    Learned memories come from two seeds each, since chance has a share in how much they come to
    hold; the size of a window is given, and one run says what it is worth.
    """
    experiment = wikitext(memory, scale)
    return replace(experiment, steps=1000) if scale == "single" else experiment


WIKITEXT = Table(
    label="tab:wiki103",
    title="WikiText, test perplexity",
    metric="perplexity",
    lines=(
        Line(
            "wikitext/transformer-xl-256", "Transformer-XL 256", partial(wikitext, FixedSpan(256))
        ),
        Line(
            "wikitext/expire-span-8k",
            "Expire-Span 8k",
            partial(wikitext, EXPIRE_SPAN_8K),
            {"perplexity": 19.6, "parameters": 140},
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
        *(
            Line(
                f"wikitext-memory/transformer-xl-{span}",
                f"Transformer-XL {span}",
                partial(wikitext_point, FixedSpan(span)),
            )
            for span in (64, 128, 256, 512, 1024)
        ),
        *(
            Line(
                f"wikitext-memory/expire-span-{penalty:g}",
                f"Expire-Span, weight {penalty:g}",
                partial(wikitext_point, replace(EXPIRE_SPAN_8K, penalty=penalty)),
                seeds=2,
            )
            for penalty in (1e-7, 1e-6, 1e-5)
        ),
    ),
    picture="memory",
    remark="The paper's figure gives no numbers.",
)
