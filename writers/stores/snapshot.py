"""The files of a store's snapshot directory, as a task finds them on its own disk."""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from holdfast.catalog.errors import UsageError

# What stores call the files that they never change: sorted runs of RocksDB and LevelDB, RocksDB's large values.
IMMUTABLE = ("*.sst", "*.ldb", "*.blob")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFile:
    """A file of a snapshot: its path, its name within the directory ("/" between the parts), its size, and whether it ever changes."""

    path: Path
    name: str
    size_bytes: int
    is_immutable: bool


def files_of(directory: Path, immutable: Sequence[str]) -> list[SnapshotFile]:
    """Every file below a directory, in the order of their names; directories without files are left out.

    Raises UsageError: it is not a directory, or vanishes meanwhile; or has links, devices, or names that are not text, which a
    restore could not give back.
    """
    if not os.path.isdir(directory):
        msg = f"{directory} is not a directory: give the snapshot that the store has just made"
        raise UsageError(msg)
    try:
        found = sorted(_walk(directory, ""), key=lambda each: each[1])
    except FileNotFoundError as error:
        msg = (
            f"{error.filename} vanished while {directory} was read: give a snapshot that the store leaves alone, or the function that "
            "takes one"
        )
        raise UsageError(msg) from error
    return [
        SnapshotFile(path=path, name=name, size_bytes=size_bytes, is_immutable=_is_immutable(name, immutable))
        for path, name, size_bytes in found
    ]


def require_patterns(patterns: object) -> tuple[str, ...]:
    """The patterns of names themselves. Raises UsageError for what is no collection of texts."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence) or not all(isinstance(each, str) for each in patterns):
        msg = f"immutable={patterns!r} is not a list of patterns: pass those of the files that the store never changes, as ['*.sst']"
        raise UsageError(msg)
    if any("/" in each for each in patterns):
        msg = f"immutable={patterns!r}: a pattern is of a file's own name, in whichever directory, and has no '/'"
        raise UsageError(msg)
    return tuple(patterns)


def _walk(directory: Path, prefix: str) -> Iterator[tuple[Path, str, int]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            _require_text(name, directory)
            mode = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(mode.st_mode):
                yield from _walk(Path(entry.path), f"{name}/")
            elif stat.S_ISREG(mode.st_mode):
                yield Path(entry.path), name, mode.st_size
            else:
                msg = f"{entry.path} is neither a file nor a directory (a link or a device): give a snapshot of plain files"
                raise UsageError(msg)


def _require_text(name: str, directory: Path) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        msg = f"{directory} has a file whose name is not UTF-8: {name!r}. Rename it"
        raise UsageError(msg) from None
    if "\\" in name:
        msg = f"{directory} has a file with a backslash in its name: {name!r}. Rename it"
        raise UsageError(msg)


def _is_immutable(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name.rpartition("/")[2], pattern) for pattern in patterns)
