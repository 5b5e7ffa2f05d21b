"""Loss along a stream with the memory in use under it, and where it goes wrong (fig:enwik8_ovefit).

Shapes: N calls of the model (blocks), layers.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expire_span.analysis.codec import Codec
from expire_span.analysis.recording import Recording


@dataclass(frozen=True)
class Along:
    """One row of a stream, block by block."""

    ends: NDArray[np.int32]
    """[N], steps read."""
    bits: NDArray[np.float64]
    """[N], mean loss of the block."""
    live: NDArray[np.float32]
    """[layers, N], memories in use, mean over rows."""
    held: NDArray[np.float32]
    """[layers, N], memories stored, mean over rows."""


@dataclass(frozen=True)
class Spike:
    """A block that a model does badly on."""

    first: int
    bits: float
    live: float
    """Mean over layers."""
    text: str


def along(recording: Recording, row: int = 0) -> Along:
    """Means of every block."""
    begins = np.concatenate([[0], recording.ends[:-1]])
    bits = [
        _mean_bits(recording.loss[row, a:b]) for a, b in zip(begins, recording.ends, strict=True)
    ]
    return Along(recording.ends, np.array(bits), recording.live, recording.held)


def spikes(recording: Recording, codec: Codec, *, row: int = 0, most: int = 10) -> list[Spike]:
    """The blocks with the highest loss, worst first."""
    found = along(recording, row)
    begins = np.concatenate([[0], found.ends[:-1]])
    order = np.argsort(-np.nan_to_num(found.bits, nan=-1.0), kind="stable")[:most]
    return [
        Spike(
            first=int(begins[n]),
            bits=float(found.bits[n]),
            live=float(found.live[:, n].mean()),
            text="".join(codec.pieces(recording.tokens[row, begins[n] : found.ends[n]].tolist())),
        )
        for n in order
    ]


def _mean_bits(losses: NDArray[np.float32]) -> float:
    scored = losses[~np.isnan(losses)].astype(np.float64)
    return float(scored.mean() / np.log(2)) if len(scored) else np.nan
