"""What the stories of the instruction task are told with: names, places and things to say.

Either a small built-in grammar, or the text of LIGHT (Urbanek et al., 2019): characters.json,
rooms.json, objects.json and light_utterances.tsv in one folder or archive.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

from expire_span.tasks.files import Source, folder_with, unpacked

SOURCE = Source(
    "LIGHT",
    ("light",),
    "get characters.json, rooms.json, objects.json and light_utterances.tsv of ParlAI's LIGHT",
)
FILES = ("characters.json", "rooms.json", "objects.json", "light_utterances.tsv")
ALL_NAMES = 1541
FEWEST_NAMES = 16  # so that somebody is always left whom nothing waits for
WORD = re.compile(r"[\w']+|[^\w\s]")
UNKNOWN = "<unk>"
OPENING, CLOSING = "“", "”"
# Every word of the lines that `instruction.py` writes itself.
FRAME = f"you enter the . is here asks : can tell that wants to see them ? {OPENING} ! {CLOSING}"

Words = tuple[str, ...]


@dataclass(frozen=True)
class Lore:
    """Words only; `asides` are whatever else is said between the lines that matter."""

    names: tuple[Words, ...]
    rooms: tuple[Words, ...]
    asides: tuple[Words, ...]

    def vocabulary(self, most: int | None = None) -> list[str]:
        """All words; if there are more than `most`, the rarest of the asides are left out.

        The first stands for what was left out.
        """
        needed = dict.fromkeys([UNKNOWN, *FRAME.split(), *_all(self.names), *_all(self.rooms)])
        counts = Counter(word for word in _all(self.asides) if word not in needed)
        others = sorted(counts, key=lambda word: (-counts[word], word))
        if most is not None and len(needed) > most:
            raise ValueError(
                f"Names and places alone have {len(needed)} words: raise vocabulary from {most}."
            )
        return [*needed, *others][:most]


def words_of(text: str) -> Words:
    """A text in lower case, cut into words and signs."""
    return tuple(WORD.findall(text.lower()))


@lru_cache(maxsize=1)
def built_in() -> Lore:
    """A small world of two dozen people in a dozen places."""
    titles = "old young town royal".split()
    trades = "butler miller smith cook guard priest".split()
    people = [f"{title} {trade}" for title, trade in product(titles, trades)]
    rooms = (
        "kitchen|great hall|chapel|stable yard|north tower|cellar|market square|old mill|"
        "castle garden|armoury|library|river bank"
    ).split("|")
    things = "a torch|an empty barrel|a grey cat|the wind|a loose shutter|a heavy door".split("|")
    doings = "creaks|waits|moves a little|makes no sound|can be heard|lies in the dark".split("|")
    places = "near the wall|by the stairs|outside|on the floor|not far away".split("|")
    asides = [
        f"{thing} {doing} {place} ." for thing, doing, place in product(things, doings, places)
    ]
    return Lore(*(tuple(map(words_of, texts)) for texts in (people, rooms, asides)))


def light(path: str) -> Lore:
    """The lore of LIGHT, found at this path or where the environment says."""
    return _read(folder_with(FILES, unpacked(SOURCE.find(path), SOURCE), SOURCE))


@lru_cache(maxsize=2)
def _read(folder: Path) -> Lore:
    """Every name once; rooms, personas, objects and utterances as asides."""
    people, rooms, objects = (_entries(folder / name) for name in FILES[:3])
    try:
        lines = (folder / FILES[3]).read_text(encoding="utf-8").splitlines()
        texts = [
            *(text for room in rooms for text in _sentences(room["description"])),
            *(text for person in people for text in (*person["persona"], person["description"])),
            *(text for thing in objects for text in thing["descripton"]),  # LIGHT's own spelling
            *(line.split("\t")[0] for line in lines),
        ]
        names = dict.fromkeys(words_of(person["name"]) for person in people)
        places = dict.fromkeys(words_of(room["name"]) for room in rooms)
        asides = [words for words in map(words_of, texts) if words]
    except (KeyError, TypeError, UnicodeDecodeError) as error:
        raise SOURCE.broken(folder, f"does not hold LIGHT ({error!r})") from error
    if len(names) < FEWEST_NAMES or not (places and asides):
        raise SOURCE.broken(folder, f"has fewer than {FEWEST_NAMES} names, no places or no text")
    return Lore(tuple(names), tuple(places), tuple(asides))


def _entries(path: Path) -> list[dict]:
    with SOURCE.unpacking(path):
        entries = json.loads(path.read_text(encoding="utf-8"))
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        raise SOURCE.broken(path, "is not a list of entries")
    return entries


def _sentences(text: str) -> list[str]:
    """A long description, cut after full stops."""
    return re.split(r"(?<=[.!?])\s+", text)


def _all(texts: Iterable[Sequence[str]]) -> list[str]:
    return [word for words in texts for word in words]
