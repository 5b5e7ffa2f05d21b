"""What memory and time the models take (`tab:efficiency`): the runs of three other tables."""

from dataclasses import replace

from expire_span.experiments.collision import COLLIDING
from expire_span.experiments.enwik8 import ENWIK8
from expire_span.experiments.pg19 import PG19_TABLE
from expire_span.experiments.table import Table


def _table(where: str, of: Table, **paper: dict[str, float]) -> Table:
    """Lines of another table, known by their names, with the numbers that this one has for them."""
    lines = {line.name.split("/")[1].replace("-", "_"): line for line in of.lines}
    rows = of.lines[0].experiment("single").batch
    return Table(
        label="tab:efficiency",
        title=f"{where}: performance, peak GPU memory and time of an update",
        metric=of.metric,
        lines=tuple(replace(lines[name], paper=numbers) for name, numbers in paper.items()),
        columns=("peak_gb", "milliseconds", "live"),
        remark=f"The paper's are of other GPUs and a batch of its own; ours at `single` is {rows}.",
    )


EFFICIENCY_ENWIK8 = _table(
    "enwik8",
    ENWIK8,
    transformer_xl_512={"bpb": 1.06, "peak_gb": 27, "milliseconds": 649},
    compressive_5k={"bpb": 1.05, "peak_gb": 21, "milliseconds": 838},
    adaptive_span_8k={"bpb": 1.04, "peak_gb": 20, "milliseconds": 483},
    expire_span_16k={"bpb": 1.03, "peak_gb": 15, "milliseconds": 408},
)
EFFICIENCY_PG19 = _table(
    "PG-19",
    PG19_TABLE,
    compressive_16k={"bpc": 1.07, "peak_gb": 17, "milliseconds": 753},
    adaptive_span_16k={"bpc": 1.07, "peak_gb": 13, "milliseconds": 427},
    expire_span_16k={"bpc": 1.07, "peak_gb": 15, "milliseconds": 388},
)
EFFICIENCY_COLLIDING = _table(
    "Object collision",
    COLLIDING,
    compressive_8k={"error": 63.8, "peak_gb": 12, "milliseconds": 327},
    adaptive_span_16k={"error": 59.8, "peak_gb": 17, "milliseconds": 365},
    expire_span_16k={"error": 52.2, "peak_gb": 12, "milliseconds": 130},
)
