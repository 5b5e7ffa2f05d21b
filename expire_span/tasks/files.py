"""Data on disk: found, unpacked, checked and prepared, with one clear sentence if something is off.

A data set is looked for at the path that its task names, or else in the folder that the environment
variable EXPIRE_SPAN_DATA names, or else in `data/`. What is made of it, unpacked files and tokens,
is kept in EXPIRE_SPAN_CACHE (`~/.cache/expire-span` if it is not set), in folders that appear only
when they are whole and are named by what they were made of, so that changed data are prepared anew.
"""

import errno
import hashlib
import json
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from expire_span.locks import claim

ARCHIVES = (".zip", ".tar", ".tar.xz", ".tar.gz", ".tgz", ".tar.bz2")
LISTING = "made.json"
VOCABULARY_FILE, TOKENIZER_FILE = "vocabulary.json", "tokenizer.json"
PACKED = (*ARCHIVES, ".xz")
BROKEN = (
    EOFError,
    OSError,
    RuntimeError,  # encrypted, or packed by a method that Python does not know
    ValueError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
NOT_THE_FILES_FAULT = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)


class WrongData(ValueError):
    """A file or folder that cannot be what it should be.

    Args:
        path: which one.
        why: what is wrong with it, as the end of a sentence that begins with the path.
        advice: what to do.
    """

    def __init__(self, path: Path, why: str, advice: str):
        super().__init__(f"{path} {why}: {advice}.")
        self.why = why


@dataclass(frozen=True)
class Source:
    """A public data set: what it is called, under which names it is looked for, how to get it."""

    name: str
    names: tuple[str, ...]  # of the file or folder, without what a packed one ends with
    advice: str
    archive: str = ""  # the name of the file that is to be had
    md5: str = ""  # and what a file of that name must be

    def find(self, path: str) -> Path:
        """The file or folder at `path`, or by one of its names in the folder that path is."""
        place = Path(path or os.environ.get("EXPIRE_SPAN_DATA", "data")).expanduser()
        if place.is_file():
            return place
        wanted = (place / f"{name}{ending}" for name in self.names for ending in ("", *PACKED))
        found = next((file for file in wanted if file.exists()), None)
        if found is not None:
            return found
        if path and place.is_dir():  # perhaps the folder itself is the data set
            return place
        names = ", ".join(self.names)
        variable = "" if path else ", or by EXPIRE_SPAN_DATA"
        raise FileNotFoundError(
            f"There is no {self.name} in {place} (looked for {names}, packed or not): "
            f"{self.advice}, then put it there, or name its place by --data where that is an "
            f"option (--task.path in `train`){variable}."
        )

    def broken(self, path: Path, why: str) -> WrongData:
        """What to say of a file that cannot be what it should be."""
        return WrongData(path, why, self.advice)

    def verify(self, path: Path) -> None:
        """Refuse a file that has the archive's name, but is not it."""
        if path.name == self.archive and md5_of(path) != self.md5:
            raise self.broken(path, f"is not the archive of that name, whose md5 is {self.md5}")

    @contextmanager
    def unpacking(self, path: Path) -> Iterator[None]:
        """Say what to do if the file cannot be read to its end; a full disk is not its fault."""
        try:
            yield
        except BROKEN as error:
            if isinstance(error, OSError) and error.errno in NOT_THE_FILES_FAULT:
                raise
            why = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
            raise self.broken(path, f"is cut off or damaged ({why})") from error


def cache_folder() -> Path:
    """Where everything made of data is kept."""
    return Path(os.environ.get("EXPIRE_SPAN_CACHE", "~/.cache/expire-span")).expanduser()


def is_archive(path: Path) -> bool:
    """Whether a file is one that `unpacked` opens."""
    return path.name.endswith(ARCHIVES)


def unpacked(path: Path, source: Source, look: Callable[[Path], object]) -> Path:
    """The folder with an archive's files; a folder is returned as it is.

    Args:
        path: the archive, or the folder.
        source: what it should be.
        look: finds the files of the data set in a folder, or raises `WrongData`. An archive in
            which it does not find them is named to the user, and nothing of it is kept.
    """
    if path.is_dir():
        return path
    if not is_archive(path):
        raise source.broken(path, "is neither a folder nor an archive")

    def unpack(folder: Path) -> None:
        source.verify(path)
        with source.unpacking(path):
            if path.suffix == ".zip":
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(folder)
            else:
                with tarfile.open(path) as archive:
                    archive.extractall(folder, filter="data")
        try:
            look(folder)
        except WrongData as error:
            raise source.broken(path, error.why) from None

    return made_once(f"{source.name}-unpacked", [path], unpack)


def made_once(
    name: str, made_of: Iterable[Path], make: Callable[[Path], None], settings: str = ""
) -> Path:
    """The folder that `make` fills, made only if it is not there yet for these files.

    Args:
        name: what it is, for the folder's name.
        made_of: the files it is made of; another size or time of change means another folder.
        make: writes into the folder it is given. If it fails nothing is left behind.
        settings: whatever else decides about the contents.
    """
    identity = [settings]
    for path in made_of:
        about = path.stat()
        identity.append(f"{path.name} {about.st_size} {about.st_mtime_ns}")
    digest = hashlib.blake2b("\n".join(identity).encode(), digest_size=8).hexdigest()
    finished = cache_folder() / f"{name}-{digest}"
    if _is_whole(finished):
        return finished
    with claim(finished.with_name(f".{finished.name}.lock")):
        if not _is_whole(finished):  # another process may have been first
            _make(finished, make)
    return finished


def _make(finished: Path, make: Callable[[Path], None]) -> None:
    """Fill a folder under another name, then give it its own; a damaged one makes way.

    What a process that was killed has left is removed: nobody else is at it, unless the file system
    has no locks; then another process finds its own gone, and says so.
    """
    for left in finished.parent.glob(f".{finished.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    unfinished = finished.with_name(f".{finished.name}-{os.getpid()}")
    unfinished.mkdir()
    try:
        make(unfinished)
        (unfinished / LISTING).write_text(json.dumps(_sizes(unfinished)))
        shutil.rmtree(finished, ignore_errors=True)
        unfinished.rename(finished)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _sizes(folder: Path) -> dict[str, int]:
    """Size of every file in a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.stat().st_size for p in files if p.name != LISTING}


def _is_whole(folder: Path) -> bool:
    """Whether a folder has all that was put into it."""
    try:
        return json.loads((folder / LISTING).read_text()) == _sizes(folder)
    except (OSError, ValueError):
        return False


def folder_with(names: Sequence[str], root: Path, source: Source) -> Path:
    """The folder that has all these entries: `root` or one just below it."""
    for folder in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
        if all((folder / name).exists() for name in names):
            return folder
    raise source.broken(root, f"does not hold {source.name} (it has no {', '.join(names)})")


def md5_of(path: Path) -> str:
    """Checksum of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
