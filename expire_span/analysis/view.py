"""A recording as the page wants it: plain JSON, arrays as base64 of little-endian numbers.

Shapes: T tokens, layers, N calls of the model.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expire_span.analysis.codec import Codec
from expire_span.analysis.recording import Recording, live_along


def view_data(recording: Recording, pieces: Sequence[str], codec: Codec) -> dict[str, Any]:
    """All that `page/view.js` shows of the first row."""
    about = recording.about
    return {
        "name": about.name,
        "policy": about.policy,
        "layers": about.layers,
        "ramp": about.ramp,
        "unit": codec.unit,
        "whole": codec.whole,
        "cost": codec.cost,
        "pieces": list(pieces),
        "capacity": recording.steps,
        "spans": _packed(recording.spans[:, 0], np.float32),
        "deleted": _packed(recording.deleted[:, 0], np.int32),
        "pooled": _packed(recording.pooled[:, 0], np.int32),
        "heads": [] if np.isnan(recording.head_spans).any() else recording.head_spans.tolist(),
        "live": _packed(_live(recording), np.float32),
        "loss": _packed(recording.loss_by_token()[0] / np.log(2), np.float32),
    }


def _live(recording: Recording) -> NDArray[np.floating]:
    """Live memories at every step, [layers, T]: counted for Expire-Span, else means of calls."""
    if recording.about.policy == "ExpireSpan":
        return np.stack([live_along(recording, n) for n in range(recording.about.layers)])
    lengths = np.diff(recording.ends, prepend=0)
    return np.repeat(recording.live, lengths, axis=1)


def _packed(values: NDArray[Any], kind: type) -> str:
    little = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode("ascii")
