"""What is learned: streams of tokens to predict, and how predictions are scored.

A task knows nothing of models and training. To add one, write its file and its name in `AnyTask`.
"""

from typing import get_args

from expire_span.tasks.base import (
    BitsPerByte,
    BitsPerCharacter,
    ErrorRate,
    ExactMatch,
    Perplexity,
    Score,
    Task,
    TokenAccuracy,
)
from expire_span.tasks.batch import Batch
from expire_span.tasks.collision import Collision
from expire_span.tasks.collision_easy import CollisionEasy
from expire_span.tasks.copy import Copy
from expire_span.tasks.documents import Documents
from expire_span.tasks.enwik8 import Enwik8
from expire_span.tasks.instruction import Instruction
from expire_span.tasks.pg19 import PG19
from expire_span.tasks.recall import Recall
from expire_span.tasks.stream import SPLITS, PieceStream, Split, Stream
from expire_span.tasks.text import Text
from expire_span.tasks.wikitext import WikiText

AnyTask = (
    Recall
    | Copy
    | Collision
    | CollisionEasy
    | Instruction
    | Text
    | Documents
    | Enwik8
    | PG19
    | WikiText
)

TASKS: dict[str, type[Task]] = {cls.__name__: cls for cls in get_args(AnyTask)}

__all__ = [
    "PG19",
    "SPLITS",
    "TASKS",
    "AnyTask",
    "Batch",
    "BitsPerByte",
    "BitsPerCharacter",
    "Collision",
    "CollisionEasy",
    "Copy",
    "Documents",
    "Enwik8",
    "ErrorRate",
    "ExactMatch",
    "Instruction",
    "Perplexity",
    "PieceStream",
    "Recall",
    "Score",
    "Split",
    "Stream",
    "Task",
    "Text",
    "TokenAccuracy",
    "WikiText",
]
