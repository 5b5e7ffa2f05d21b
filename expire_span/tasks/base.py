"""What a task is: a vocabulary, streams of data and a way to score predictions.

Shapes: B rows, T steps.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from expire_span.tasks.batch import Batch
from expire_span.tasks.stream import Split, Stream

LARGEST_NLL = 700.0  # the exponential of much more is no float


class Score(ABC):
    """Adds up how well a stream is predicted.

    Everything is summed on the device of the losses, without waiting for it; only `result` and
    `state` bring numbers to the host.
    """

    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    needs_predictions: ClassVar[bool]

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def update(self, batch: Batch, nll: Tensor, predictions: Tensor | None = None) -> None:
        """Add one block; what counts is `batch.judged`.

        Args:
            batch: what was read.
            nll: [B, T], loss of every step in nats; ignored where not judged.
            predictions: int64 [B, T], the likeliest token of every step, if the score needs it.
        """
        if nll.shape != batch.targets.shape:
            raise ValueError(
                f"nll must have one loss for each target, {tuple(batch.targets.shape)}, "
                f"not {tuple(nll.shape)}."
            )
        # Long streams outgrow float32 sums; Apple's GPUs have nothing better.
        exact = torch.float32 if nll.device.type == "mps" else torch.float64
        self._add("nll", nll.detach().masked_fill(~batch.judged, 0.0).sum(dtype=exact))
        self._add("scored", batch.judged.sum())
        self._judge(batch, predictions)

    def restart(self) -> None:
        """Begin to sum anew; what is open at the moment, such as half an answer, goes on."""
        self._sums.clear()

    def result(
        self, everywhere: Callable[[dict[str, float]], dict[str, float]] = dict
    ) -> dict[str, float]:
        """The metric, the mean "nll" and the number "scored"; empty while there is no metric.

        Args:
            everywhere: adds up the sums of several processes, each of which scored other rows.
        """
        sums = everywhere(self._on_host())
        if not sums.get("scored"):
            return {}
        nll = sums["nll"] / sums["scored"]
        metrics = self._metrics(nll, sums)
        return {**metrics, "nll": nll, "scored": sums["scored"]} if metrics else {}

    def state(self) -> dict[str, Any]:
        """All sums so far, JSON-able."""
        return {"score": type(self).__name__, "sums": self._on_host()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from sums that `state` returned."""
        if state.get("score") != type(self).__name__:
            raise ValueError(
                f"These sums belong to the score {state.get('score')!r}: restore them into one of "
                f"that kind, not into {type(self).__name__}."
            )
        self._sums = {
            name: torch.tensor(amount, dtype=torch.float64 if name == "nll" else torch.int64)
            for name, amount in state["sums"].items()
        }

    def _add(self, name: str, amount: Tensor) -> None:
        """Add to the sum of that name."""
        before = self._sums.get(name)
        self._sums[name] = amount if before is None else before.to(amount) + amount

    def _on_host(self) -> dict[str, float]:
        return {name: amount.item() for name, amount in self._sums.items()}

    @abstractmethod
    def _judge(self, batch: Batch, predictions: Tensor | None) -> None:
        """Count what the metric needs."""

    @abstractmethod
    def _metrics(self, nll: float, sums: dict[str, float]) -> dict[str, float]:
        """The metrics, from the mean loss and the sums of at least one scored step; or none yet."""


def _agreement(batch: Batch, predictions: Tensor | None) -> Tensor:
    """Where the prediction is the target, [B, T]."""
    if predictions is None:
        raise ValueError("This score needs predictions: pass the likeliest token of every step.")
    return predictions == batch.targets


class TokenAccuracy(Score):
    """Share of the scored steps whose prediction is the target."""

    metric = "accuracy"
    higher_is_better = True
    needs_predictions = True

    def _judge(self, batch: Batch, predictions: Tensor | None) -> None:
        self._add("right", (_agreement(batch, predictions) & batch.judged).sum())

    def _metrics(self, nll: float, sums: dict[str, float]) -> dict[str, float]:
        return {"accuracy": sums["right"] / sums["scored"]}


class ErrorRate(TokenAccuracy):
    """Scored steps whose prediction is not the target, in percent."""

    metric = "error"
    higher_is_better = False

    def _metrics(self, nll: float, sums: dict[str, float]) -> dict[str, float]:
        return {"error": 100 * (1 - sums["right"] / sums["scored"])}


class ExactMatch(Score):
    """Share of the answers that are right in every token.

    An answer is the scored steps of a row up to and including the one whose target is `end`. It may
    straddle two blocks, and counts in the block where it ends.
    """

    metric = "accuracy"
    higher_is_better = True
    needs_predictions = True

    def __init__(self, end: int) -> None:
        super().__init__()
        self._end = end
        # Wrong tokens, [B], in the answer that each row is in the middle of.
        self._wrong_so_far: Tensor | None = None

    def state(self) -> dict[str, Any]:
        """All sums so far, JSON-able."""
        wrong = self._wrong_so_far
        return {**super().state(), "wrong_so_far": None if wrong is None else wrong.tolist()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from sums that `state` returned."""
        super().restore(state)
        wrong = state["wrong_so_far"]
        self._wrong_so_far = None if wrong is None else torch.tensor(wrong)

    def _judge(self, batch: Batch, predictions: Tensor | None) -> None:
        right = _agreement(batch, predictions) & batch.judged
        ends = batch.judged & (batch.targets == self._end)
        # An answer is right if no mistake was added between the previous end and its own. Mistakes
        # only ever add up, so the count at the latest end is the largest count at any end so far.
        wrong = (batch.judged & ~right).cumsum(dim=1) + self._carried(batch)[:, None]
        settled = torch.where(ends, wrong, 0).cummax(dim=1).values
        settled_before = torch.nn.functional.pad(settled[:, :-1], (1, 0))
        self._wrong_so_far = wrong[:, -1] - settled[:, -1]
        self._add("right_tokens", right.sum())
        self._add("answers", ends.sum())
        self._add("right_answers", (ends & (wrong == settled_before)).sum())

    def _carried(self, batch: Batch) -> Tensor:
        """Mistakes in the answers that were open when the block began, [B]."""
        rows = len(batch.targets)
        if self._wrong_so_far is None:
            return torch.zeros(rows, dtype=torch.int64, device=batch.targets.device)
        if len(self._wrong_so_far) != rows:
            raise ValueError(
                f"Answers are followed from block to block, so every batch must have the "
                f"{len(self._wrong_so_far)} rows of the first one, not {rows}."
            )
        return self._wrong_so_far.to(batch.targets.device)

    def _metrics(self, nll: float, sums: dict[str, float]) -> dict[str, float]:
        if not sums["answers"]:
            return {}
        return {
            "accuracy": sums["right_answers"] / sums["answers"],
            "token_accuracy": sums["right_tokens"] / sums["scored"],
            "answers": sums["answers"],
        }


class BitsPerByte(Score):
    """Mean loss of a byte, in bits."""

    metric = "bpb"
    higher_is_better = False
    needs_predictions = False

    def _judge(self, batch: Batch, predictions: Tensor | None) -> None:
        """Nothing to count: the loss says it all."""

    def _metrics(self, nll: float, sums: dict[str, float]) -> dict[str, float]:
        return {self.metric: nll / log(2)}


class BitsPerCharacter(BitsPerByte):
    """Mean loss of a character, in bits."""

    metric = "bpc"


class Perplexity(Score):
    """Among how many equally likely words a model that knew as much would have to guess."""

    metric = "perplexity"
    higher_is_better = False
    needs_predictions = False

    def _judge(self, batch: Batch, predictions: Tensor | None) -> None:
        """Nothing to count: the loss says it all."""

    def _metrics(self, nll: float, sums: dict[str, float]) -> dict[str, float]:
        return {"perplexity": exp(min(nll, LARGEST_NLL))}


class Task(ABC):
    """Something to learn from a stream. A task is a frozen dataclass of its settings."""

    ahead: ClassVar[int] = 1
    """Which step's token is predicted at a step: the next one, or 0 where the step is answered."""
    one_file: ClassVar[bool] = False
    """Whether its data are one file of any name."""

    @property
    @abstractmethod
    def vocab(self) -> int:
        """Number of different tokens, of inputs and targets alike."""

    @abstractmethod
    def stream(self, split: Split, batch: int, seed: int) -> Stream:
        """A new stream of `batch` rows, at its beginning."""

    @abstractmethod
    def score(self) -> Score:
        """A new score with nothing added up."""

    def oracle(self, memory: int, length: int | None = None) -> float | None:
        """The metric of a perfect reader that holds the last `memory` steps, where it is known.

        Args:
            memory: how far back the reader looks.
            length: steps of each row that are judged from its beginning; matters where much is
                asked for that lies ever further back.
        """
        return None

    def files(self) -> tuple[Path, ...]:
        """The files that the data is read from; none for made-up data."""
        return ()

    def subset(self) -> str:
        """What was read of a public data set, where that is not all of it; else empty."""
        return ""

    def spelling(self) -> dict[str, bytes]:
        """Files that say what tokens stand for, by name, if the settings alone do not."""
        return {}

    def has_data(self) -> bool:
        """Whether its data lie in files, by a setting `path`, rather than being made up."""
        return hasattr(self, "path")

    def with_data(self, path: str) -> Self:
        """The same task with its data elsewhere; one file is found in a folder by its name."""
        if not self.has_data():
            raise ValueError(f"{type(self).__name__} makes up its data: leave out --data.")
        place = Path(path).expanduser()
        if self.one_file and place.is_dir():
            path = str(place / Path(self.path).name)  # type: ignore[attr-defined]
        return replace(self, path=path)  # type: ignore[type-var]

    def _source(self) -> dict[str, Any]:
        """Name and settings, by which the streams of different tasks are told apart."""
        return {"task": type(self).__name__, **vars(self)}
