"""What memory and time the models take (`tab:efficiency`): the runs of three other tables.

The paper, peak GPU memory and time of an update, on GPUs and with a batch that it does not name:

| | Transformer-XL | Compressive | Adaptive-Span | Expire-Span |
|---|---|---|---|---|
| enwik8 | 27 GB, 649 ms | 21 GB, 838 ms | 20 GB, 483 ms | 15 GB, 408 ms |
| PG-19 | | 17 GB, 753 ms | 13 GB, 427 ms | 15 GB, 388 ms |
| object collision | | 12 GB, 327 ms | 17 GB, 365 ms | 12 GB, 130 ms |
"""

from dataclasses import replace

from expire_span.experiments.collision import ADAPTIVE_SPAN as COLLIDING_ADAPTIVE_SPAN
from expire_span.experiments.collision import COMPRESSIVE as COLLIDING_COMPRESSIVE
from expire_span.experiments.collision import EXPIRE_SPAN as COLLIDING_EXPIRE_SPAN
from expire_span.experiments.enwik8 import ADAPTIVE_SPAN as ENWIK8_ADAPTIVE_SPAN
from expire_span.experiments.enwik8 import COMPRESSIVE as ENWIK8_COMPRESSIVE
from expire_span.experiments.enwik8 import EXPIRE_SPAN as ENWIK8_EXPIRE_SPAN
from expire_span.experiments.enwik8 import TRANSFORMER_XL as ENWIK8_TRANSFORMER_XL
from expire_span.experiments.pg19 import ADAPTIVE_SPAN as PG19_ADAPTIVE_SPAN
from expire_span.experiments.pg19 import COMPRESSIVE as PG19_COMPRESSIVE
from expire_span.experiments.pg19 import EXPIRE_SPAN as PG19_EXPIRE_SPAN
from expire_span.experiments.table import Line, Table


def _table(where: str, metric: str, *lines: Line, remark: str = "") -> Table:
    rows = lines[0].experiment("single").batch
    return Table(
        label="tab:efficiency",
        title=f"{where}: performance, peak GPU memory and time of an update",
        metric=metric,
        lines=lines,
        columns=("peak_gb", "milliseconds", "live"),
        remark=f"The paper's are of other GPUs and a batch of its own; ours at `single` is {rows}."
        + remark,
    )


EFFICIENCY_ENWIK8 = _table(
    "enwik8",
    "bpb",
    replace(ENWIK8_TRANSFORMER_XL, paper={"bpb": 1.06, "peak_gb": 27, "milliseconds": 649}),
    replace(ENWIK8_COMPRESSIVE, paper={"bpb": 1.05, "peak_gb": 21, "milliseconds": 838}),
    replace(ENWIK8_ADAPTIVE_SPAN, paper={"bpb": 1.04, "peak_gb": 20, "milliseconds": 483}),
    replace(ENWIK8_EXPIRE_SPAN, paper={"bpb": 1.03, "peak_gb": 15, "milliseconds": 408}),
    remark=" Its bits are those before 10,000 further updates at a tenth of the rate; ours at "
    "`paper` are of the runs of tab:enwik8, and after them.",
)
EFFICIENCY_PG19 = _table(
    "PG-19",
    "bpc",
    replace(PG19_COMPRESSIVE, paper={"bpc": 1.07, "peak_gb": 17, "milliseconds": 753}),
    replace(PG19_ADAPTIVE_SPAN, paper={"bpc": 1.07, "peak_gb": 13, "milliseconds": 427}),
    replace(PG19_EXPIRE_SPAN, paper={"bpc": 1.07, "peak_gb": 15, "milliseconds": 388}),
)
EFFICIENCY_COLLIDING = _table(
    "Object collision",
    "error",
    replace(COLLIDING_COMPRESSIVE, paper={"error": 63.8, "peak_gb": 12, "milliseconds": 327}),
    replace(COLLIDING_ADAPTIVE_SPAN, paper={"error": 59.8, "peak_gb": 17, "milliseconds": 365}),
    replace(COLLIDING_EXPIRE_SPAN, paper={"error": 52.2, "peak_gb": 12, "milliseconds": 130}),
)
