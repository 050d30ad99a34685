"""The disk port: what the caches of a process ask of its own file system. Every verb is one call, so that a test can fail each, or have
the directory deleted before it.

Nothing here is synced. What is kept is only a cache, whose bytes are digested before they are used; after a power loss some of it does
not hold, and is fetched again.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from holdfast.catalog import paths
from holdfast.catalog.errors import UsageError
from holdfast.catalog.storage import Digest

STAGING = ".staging"  # in each cache's directory: what is not whole yet

_SHA256 = re.compile(r"[0-9a-f]{64}")

Figures = TypeVar("Figures", bound=Any)  # a frozen dataclass of counts


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A regular file in a listing; `used` is its time of modification, in nanoseconds since 1970."""

    name: str
    size_bytes: int
    used: int


class Copy(Enum):
    """What was found where a copy should be."""

    HOLDS = "holds"
    MISSING = "missing"
    DAMAGED = "damaged"  # and removed


class Tally(Generic[Figures]):
    """Figures that several threads add to."""

    def __init__(self, none_yet: Figures) -> None:
        self.now = none_yet
        self._lock = threading.Lock()

    def add(self, **more: int) -> None:
        with self._lock:
            self.now = replace(self.now, **{name: getattr(self.now, name) + count for name, count in more.items()})


class LocalFiles:
    """Files by their paths on this machine. A missing file or directory raises FileNotFoundError, whatever else fails another OSError."""

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it that are missing, each for this user only; one that is there is no error."""
        _make(path)

    def link_or_copy(self, source: Path, target: Path) -> bool:
        """Give a regular file a second name; where that cannot be (another volume), copy it. Says whether it was linked."""
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:  # each file system has its own word for what it cannot link, and a copy shows what else is wrong
            shutil.copyfile(source, target)
            return False
        return True

    def create(self, path: Path) -> BinaryIO:
        """A new file, open for writing."""
        return path.open("xb")

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or directory within its volume, at once. A file replaces what is there, a directory only an empty one."""
        source.rename(target)

    def size(self, path: Path) -> int:
        """The size in bytes of a regular file; anything else at its place raises OSError. Links are not followed."""
        try:
            found = path.lstat()
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return found.st_size

    def digest(self, path: Path) -> Digest:
        """Read all bytes of a file and digest them."""
        with path.open("rb", buffering=0) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return Digest(size_bytes=file.tell(), sha256=sha256)

    def touch(self, path: Path, used: datetime) -> None:
        """Write down when a file was used."""
        at = used.timestamp()
        os.utime(path, (at, at))

    def names(self, directory: Path) -> list[str]:
        """What is in a directory, in no order; nothing, if it is gone."""
        try:
            return os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def listing(self, directory: Path) -> list[LocalFile]:
        """The regular files in a directory, in no order."""
        return [*_regular(directory, self.names(directory))]

    def discard(self, path: Path) -> None:
        """Remove a file, or a directory with all that is in it, as far as that can be done; never an error. Links are not followed."""
        with suppress(OSError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                path.unlink()
                return
        shutil.rmtree(path, ignore_errors=True)


def _make(path: Path) -> None:
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make(path.parent)  # not by `parents=True`, which makes those for everybody
        path.mkdir(mode=0o700, exist_ok=True)


def look_at(files: LocalFiles, path: Path, expected: Digest) -> Copy:
    """Whether a file has these bytes, read now. What has others, or cannot be read, is removed."""
    try:
        if files.size(path) == expected.size_bytes and files.digest(path) == expected:
            return Copy.HOLDS
    except FileNotFoundError:
        return Copy.MISSING
    except OSError:  # a bad sector, a file of somebody else's: no use, as wrong bytes are
        pass
    files.discard(path)
    return Copy.DAMAGED


def is_digest(text: str) -> bool:
    """Whether a text is a SHA-256 as it is written everywhere here."""
    return _SHA256.fullmatch(text) is not None


def expect(name: str, size_bytes: int, sha256: str) -> Digest:
    """What the bytes of a file have to be. Raises UsageError for a digest that is none: it becomes a part of a path."""
    if not is_digest(sha256):
        msg = f"{sha256!r} is not a digest of {name!r}: pass the 64 lower-case hex digits of its SHA-256"
        raise UsageError(msg)
    return Digest(size_bytes=size_bytes, sha256=sha256)


def require_inside(name: str) -> None:
    """Raises UsageError for the name of a file that could lead out of its directory."""
    try:
        paths.require_relative(name)
    except ValueError as error:
        msg = f"{name!r} cannot be the name of a file in a directory: give its path relative to it, with '/' and without '..'"
        raise UsageError(msg) from error


def _regular(directory: Path, names: list[str]) -> Iterator[LocalFile]:
    for name in names:
        with suppress(OSError):  # gone since the directory was read
            found = (directory / name).lstat()
            if stat.S_ISREG(found.st_mode):
                yield LocalFile(name=name, size_bytes=found.st_size, used=found.st_mtime_ns)
