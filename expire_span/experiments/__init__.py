"""Experiments: functions that return a full configuration; each is registered by one line.

`EXPERIMENTS` are what `expire-span train` offers, `TABLES` what `expire-span reproduce` does.
"""

from collections.abc import Callable

from expire_span.experiments.ablations import ABLATIONS, ENWIK8_OVERFIT
from expire_span.experiments.collision import COLLIDING, COLLIDING_EASY, collision, collision_easy
from expire_span.experiments.copy import copy
from expire_span.experiments.efficiency import (
    EFFICIENCY_COLLIDING,
    EFFICIENCY_ENWIK8,
    EFFICIENCY_PG19,
)
from expire_span.experiments.enwik8 import (
    ENWIK8,
    ENWIK8_SPAN,
    ENWIK8_SPEEDRUN,
    enwik8,
    enwik8_large,
    enwik8_long_speedrun,
    enwik8_own_speedrun,
    enwik8_speedrun,
)
from expire_span.experiments.instruction import INSTRUCTION, INSTRUCTION_MEMORY, instruction
from expire_span.experiments.long_copy import COPY, long_copy
from expire_span.experiments.pg19 import PG19_TABLE, pg19
from expire_span.experiments.recall import recall
from expire_span.experiments.table import Table
from expire_span.experiments.text import documents, text
from expire_span.experiments.wikitext import WIKITEXT, WIKITEXT_MEMORY, wikitext
from expire_span.training.experiment import Experiment

EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    "recall": recall,
    "copy": copy,
    "text": text,
    "documents": documents,
    "long-copy": long_copy,
    "collision": collision,
    "collision-easy": collision_easy,
    "instruction": instruction,
    "enwik8": enwik8,
    "enwik8-large": enwik8_large,
    "enwik8-speedrun": enwik8_speedrun,
    "enwik8-own-speedrun": enwik8_own_speedrun,
    "enwik8-long-speedrun": enwik8_long_speedrun,
    "pg19": pg19,
    "wikitext": wikitext,
}

TABLES: dict[str, Table] = {
    "copy": COPY,
    "instruction": INSTRUCTION,
    "instruction-memory": INSTRUCTION_MEMORY,
    "enwik8": ENWIK8,
    "enwik8-span": ENWIK8_SPAN,
    "enwik8-overfit": ENWIK8_OVERFIT,
    "enwik8-speedrun": ENWIK8_SPEEDRUN,
    "pg19": PG19_TABLE,
    "colliding": COLLIDING,
    "colliding-easy": COLLIDING_EASY,
    "efficiency-enwik8": EFFICIENCY_ENWIK8,
    "efficiency-pg19": EFFICIENCY_PG19,
    "efficiency-colliding": EFFICIENCY_COLLIDING,
    "wikitext": WIKITEXT,
    "wikitext-memory": WIKITEXT_MEMORY,
    "ablations": ABLATIONS,
}
