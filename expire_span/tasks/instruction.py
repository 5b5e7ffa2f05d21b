"""Instruction: pass on what you were asked to, once you meet whom it is for (fig:corridor_result).

A story, word by word. You walk from place to place; people stand there. Some ask you to tell
somebody something; when you are where that person is, the story goes on with you telling it.
Several instructions wait at once, and much else is said in between.

    you enter the chapel . a grey cat waits outside . [...] the old cook asks : can you tell the
    town miller that the young guard wants to see them ? [...] you enter the cellar . [...] the town
    miller is here . you tell the town miller “ young guard wants to see you ! ” [...]

Every word is learned, or only the lines that pass an instruction on; these alone are judged, each
right if all of its words are. Nobody who waits for word is mentioned as present before that, so a
reader who remembers the instructions gets every line right; one who does not has to guess one of
the names.

The dialogues of the original data are not public in that form. Between the lines that matter stand
single sentences of LIGHT (places, personas, objects, utterances) or of a small built-in grammar.

Shapes: T words of a story
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, get_args

import numpy as np

from expire_span.checks import require_at_least, require_one_of
from expire_span.tasks.base import ExactMatch, Task
from expire_span.tasks.files import VOCABULARY_FILE
from expire_span.tasks.lore import CLOSING, OPENING, Lore, Words, built_in, light, said_of_light
from expire_span.tasks.stream import PieceStream, Split, Steps

STORY = 16  # length of a story in mean distances between an instruction and its execution
ASIDES_IN_A_ROW = 5  # at most; half as many on average, two to four times in a visit
MOST_WAITING = 5  # instructions at once, each about two people; there are more names than that
PASSERS_BY = 2  # people present who matter to nobody, at most

Telling = Literal["built-in", "light"]
Learned = Literal["all", "lines"]
Distances = Literal["uniform", "log", "mixed"]


@dataclass(frozen=True)
class Instruction(Task):
    """The settings; chance is one over the number of names."""

    text: Telling = "built-in"
    """What stories are told with: a small built-in grammar, or LIGHT."""
    path: str = ""
    """Folder or archive of LIGHT; if empty, looked for in the folder in EXPIRE_SPAN_DATA."""
    distance: int = 950
    """Words between an instruction and its execution, on average, if it is some hundred; in
    training too, if uniform. It comes to a little more, since somebody has to be met first: with
    LIGHT to 996 for 950, and where a visit takes longer than this, to about a visit."""
    rate: float = 0.5
    """Share of visits in which an instruction is given."""
    vocabulary: int = 16_384
    """Most words of LIGHT; the rarer ones become one, the unknown."""
    learned: Learned = "all"
    """What is learned: all words, as in the paper, or the judged lines, which is much quicker."""
    training_distances: Distances = "uniform"
    """How distances up to twice the mean are drawn in training. `log` makes many of them short, and
    looking back is learned from these first; `mixed` draws each one way or the other by chance, so
    that far ones are learned as well. Stories that are judged are always uniform."""

    def __post_init__(self) -> None:
        require_at_least(1, distance=self.distance)
        require_one_of(get_args(Telling), text=self.text)
        require_one_of(get_args(Learned), learned=self.learned)
        require_one_of(get_args(Distances), training_distances=self.training_distances)
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must lie above 0 and at most at 1, not at {self.rate}.")

    @property
    def vocab(self) -> int:
        """Number of different tokens; that of LIGHT is a setting, so that no file is needed."""
        return len(built_in().vocabulary()) if self.text == "built-in" else self.vocabulary

    def has_data(self) -> bool:
        """Only LIGHT lies in files; the built-in grammar makes up its stories."""
        return self.text == "light"

    def stream(self, split: Split, batch: int, seed: int) -> "InstructionStream":
        """A new endless stream; the splits differ in chance only."""
        source = {**self._source(), "words": self.tongue().fingerprint()}
        del source["path"]  # Files may move, but not change.
        return InstructionStream(self, source, split, batch, seed)

    def score(self) -> ExactMatch:
        """Share of the lines that pass on an instruction right, word for word."""
        return ExactMatch(end=self.tongue().token(CLOSING))

    def spelling(self) -> dict[str, bytes]:
        """The words of LIGHT; the built-in ones are known."""
        if self.text == "built-in":
            return {}
        return {VOCABULARY_FILE: json.dumps(self.tongue().words).encode()}

    def subset(self) -> str:
        """Whether it is not LIGHT as it was published, or without what people say."""
        return "" if self.text == "built-in" else said_of_light(self.path)

    def tongue(self) -> "Tongue":
        """Names, places and sentences as tokens."""
        if self.text == "built-in":
            return _tongue(built_in(), None)
        return _tongue(light(self.path), self.vocabulary)

    def oracle(self, memory: int, length: int | None = None, stories: int = 64) -> float:
        """Expected accuracy of a reader that holds `memory` words, found by telling stories.

        It knows the line if the whole instruction is among them, and guesses a name otherwise.
        """
        stream = self.stream("valid", batch=1, seed=0)
        lengths = [n for story in range(stories) for n in stream.tell(0, story).reach]
        known = sum(length <= memory for length in lengths) / len(lengths)
        return known + (1 - known) / len(self.tongue().names)


class Tongue:
    """A lore in tokens."""

    def __init__(self, lore: Lore, vocabulary: Sequence[str]) -> None:
        self.words = tuple(vocabulary)
        self._tokens = {word: token for token, word in enumerate(vocabulary)}
        self.names = [self.tokens(name) for name in lore.names]
        self.rooms = [self.tokens(room) for room in lore.rooms]
        self.asides = [self.tokens(aside) for aside in lore.asides]

    def fingerprint(self) -> str:
        """Checksum of everything that can be said."""
        everything = repr((self.words, self.names, self.rooms, self.asides))
        return blake2b(everything.encode(), digest_size=8).hexdigest()

    def token(self, word: str) -> int:
        """The token of a word; 0 if it has none of its own."""
        return self._tokens.get(word, 0)

    def tokens(self, words: Words | list[str]) -> list[int]:
        """The tokens of some words."""
        return [self.token(word) for word in words]

    def line(self, pattern: str, **parts: list[int]) -> list[int]:
        """The tokens of a pattern in which words such as `{name}` stand for tokens given."""
        return [
            token
            for word in pattern.split()
            for token in (parts[word[1:-1]] if word[0] == "{" else [self.token(word)])
        ]


@lru_cache(maxsize=4)
def _tongue(lore: Lore, most: int | None) -> Tongue:
    return Tongue(lore, lore.vocabulary(most))


@dataclass
class Story:
    """A story as it is written."""

    words: list[int] = field(default_factory=list)
    judged: list[tuple[int, int]] = field(default_factory=list)  # first and last + 1 of a line
    reach: list[int] = field(default_factory=list)  # words back from a line to its instruction

    def write(self, line: list[int]) -> int:
        """Add a line; gives the place at which it begins."""
        self.words += line
        return len(self.words) - len(line)

    def steps(self, learned: Learned) -> Steps:
        """The story as a piece: each word is to predict the next, the last one the next story's."""
        words = np.array(self.words)
        in_metric = np.zeros(len(words), dtype=bool)
        for first, end in self.judged:
            in_metric[first - 1 : end - 1] = True  # the step before a word predicts it
        scored = in_metric if learned == "lines" else np.ones(len(words), dtype=bool)
        return Steps(words, np.roll(words, -1), scored, in_metric=in_metric)


@dataclass(frozen=True)
class Waiting:
    """An instruction on its way."""

    due: int  # place from which on its person may be met
    given: int  # place at which it begins
    whom: int  # name of the one to be told
    who: int  # name of the one who wants to see them


class InstructionStream(PieceStream):
    """Pieces are stories, independent of each other."""

    def __init__(
        self, task: Instruction, source: dict[str, Any], split: Split, batch: int, seed: int
    ) -> None:
        self._task = task
        self._tongue = task.tongue()
        self.contents = self._tongue.fingerprint()
        aside = sum(map(len, self._tongue.asides)) / len(self._tongue.asides)
        self._half_visit = round(aside * ASIDES_IN_A_ROW)
        self._distances = task.training_distances if split == "train" else "uniform"
        super().__init__(source, split, batch, seed)

    def piece(self, row: int, index: int) -> Steps:
        """The next story of a row."""
        return self.tell(row, index).steps(self._task.learned)

    def tell(self, row: int, index: int) -> Story:
        """One story, visit after visit, until it is long enough and nobody waits any more."""
        random = self.random(row, index)
        story, waiting = Story(), list[Waiting]()
        length = STORY * self._task.distance
        while waiting or len(story.words) < length:
            self._visit(story, waiting, random, more=len(story.words) < length)
        return story

    def _visit(
        self, story: Story, waiting: list[Waiting], random: np.random.Generator, more: bool
    ) -> None:
        """Enter a room, meet people, tell those who are to be told, and perhaps be asked."""
        tongue = self._tongue
        story.write(tongue.line("you enter the {room} .", room=_any(tongue.rooms, random)))
        self._asides(story, random)
        for whom in self._strangers(int(random.integers(PASSERS_BY + 1)), waiting, random):
            story.write(tongue.line("the {whom} is here .", whom=tongue.names[whom]))
            self._asides(story, random)
        for one in [one for one in waiting if one.due <= len(story.words)]:
            waiting.remove(one)
            self._pass_on(story, one)
            self._asides(story, random)
        asked = random.random() < self._task.rate
        if asked and more and len(waiting) < MOST_WAITING:
            waiting.append(self._ask(story, waiting, random))
            self._asides(story, random)

    def _ask(self, story: Story, waiting: list[Waiting], random: np.random.Generator) -> Waiting:
        """Somebody gives an instruction about two people who are not yet part of any."""
        asker, whom, who = self._strangers(3, waiting, random)
        names = self._tongue.names
        pattern = "the {asker} asks : can you tell the {whom} that the {who} wants to see them ?"
        line = self._tongue.line(pattern, asker=names[asker], whom=names[whom], who=names[who])
        given = story.write(line)
        # On average, half a visit goes by before the next one in which it can be passed on.
        return Waiting(given + self._wait(random) - self._half_visit, given, whom, who)

    def _wait(self, random: np.random.Generator) -> int:
        """Words until an instruction is due, up to twice `distance`."""
        most = 2 * self._task.distance
        near = self._distances == "log" or (self._distances == "mixed" and random.random() < 0.5)
        return int(most ** random.random()) if near else int(random.integers(most + 1))

    def _pass_on(self, story: Story, one: Waiting) -> None:
        """Meet somebody and tell them."""
        tongue = self._tongue
        whom, who = tongue.names[one.whom], tongue.names[one.who]
        story.write(tongue.line("the {whom} is here .", whom=whom))
        pattern = f"you tell the {{whom}} {OPENING} {{who}} wants to see you ! {CLOSING}"
        first = story.write(tongue.line(pattern, whom=whom, who=who))
        story.judged.append((first, len(story.words)))
        story.reach.append(first - one.given)

    def _asides(self, story: Story, random: np.random.Generator) -> None:
        count = int(random.integers(ASIDES_IN_A_ROW + 1))
        for aside in random.integers(len(self._tongue.asides), size=count):
            story.write(self._tongue.asides[aside])

    def _strangers(
        self, count: int, waiting: list[Waiting], random: np.random.Generator
    ) -> list[int]:
        """So many different people about whom nothing waits."""
        busy = {name for one in waiting for name in (one.whom, one.who)}
        found: dict[int, None] = {}
        while len(found) < count:
            one = int(random.integers(len(self._tongue.names)))
            if one not in busy:
                found[one] = None
        return list(found)


def _any(choices: Sequence[list[int]], random: np.random.Generator) -> list[int]:
    return choices[int(random.integers(len(choices)))]
