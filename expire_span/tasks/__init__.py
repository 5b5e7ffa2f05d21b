"""What is learned: streams of tokens to predict, and how predictions are scored.

A task knows nothing of models and training. To add one, write its file and its line in `TASKS`.
"""

from expire_span.tasks.base import BitsPerByte, ExactMatch, Score, Task, TokenAccuracy
from expire_span.tasks.batch import Batch
from expire_span.tasks.copy import Copy
from expire_span.tasks.recall import Recall
from expire_span.tasks.stream import SPLITS, PieceStream, Split, Stream
from expire_span.tasks.text import Text

TASKS: dict[str, type[Task]] = {
    "recall": Recall,
    "copy": Copy,
    "text": Text,
}

__all__ = [
    "SPLITS",
    "TASKS",
    "Batch",
    "BitsPerByte",
    "Copy",
    "ExactMatch",
    "PieceStream",
    "Recall",
    "Score",
    "Split",
    "Stream",
    "Task",
    "Text",
    "TokenAccuracy",
]
