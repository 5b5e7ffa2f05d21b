"""What the stories of the instruction task are told with: names, places and things to say.

Either a small built-in grammar, or the text of LIGHT (Urbanek et al., 2019): characters.json,
rooms.json and objects.json in one folder or archive, as its repository has them. What people say is
not among these. If there is a file light_utterances.tsv as well, with an utterance to a line and
whatever may follow a tab, it is told too.
"""

import hashlib
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
    "get characters.json, rooms.json and objects.json from projects/aaai_world_building/"
    "ml-aided-maps/src of https://github.com/facebookresearch/LIGHT",
)
FILES = {  # with their checksums, as they were published
    "characters.json": "fb65d8eef26714353ea33e2eb42a9b45",
    "rooms.json": "b78f719af0ebddf29337778d18fbb2a0",
    "objects.json": "2a7ae03f4c5527e36c8be4506f31baf4",
}
UTTERANCES = "light_utterances.tsv"
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
    return _read(_found(path))


def said_of_light(path: str) -> str:
    """What has to be said of what is there instead of LIGHT and utterances; empty if nothing."""
    folder = _found(path)
    remarks = []
    if any(_md5_of_text(folder / name) != md5 for name, md5 in FILES.items()):
        remarks.append(f"not LIGHT as it was published ({len(_read(folder).names):,} people)")
    if not (folder / UTTERANCES).exists():
        remarks.append("LIGHT without utterances")
    return ", ".join(remarks)


def _md5_of_text(path: Path) -> str:
    """Checksum, however lines end: a repository is checked out with either kind."""
    return hashlib.md5(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def _found(path: str) -> Path:
    """The folder with its files, unpacked if need be."""
    return _folder(unpacked(SOURCE.find(path), SOURCE, _folder))


def _folder(root: Path) -> Path:
    """The same of a folder in which they lie."""
    return folder_with(tuple(FILES), root, SOURCE)


@lru_cache(maxsize=2)
def _read(folder: Path) -> Lore:
    """Every name once; rooms, personas, objects and utterances as asides."""
    people, rooms, objects = (_entries(folder / name) for name in FILES)
    spoken = folder / UTTERANCES
    try:
        lines = spoken.read_text(encoding="utf-8").splitlines() if spoken.exists() else []
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
