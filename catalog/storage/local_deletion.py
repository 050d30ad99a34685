"""Many files or directories of a file system deleted at once: all are unlinked, by threads, and then each directory is synced once.

A sync makes every unlink in its directory durable, and on a journal the first one does so for all: so none comes before the last unlink.
Until its directory is synced, nothing is called gone.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from holdfast.catalog.errors import AddressError, NotDurableError
from holdfast.catalog.paths import require_relative
from holdfast.catalog.storage.local_walk import Way, descend, not_durable, require_directory

THREADS = 8
PIECE = 64  # names for one thread at a time: the freeing of a file waits for the disk, and not for its directory

_FILLED = {errno.ENOTEMPTY, errno.EEXIST}
_doubted: dict[tuple[int, int], NotDurableError] = {}  # directories of which a sync failed, for the whole process

Errors = dict[str, OSError]
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is deleted, by which call, and of which errors nothing is left to do."""

    unlink: Callable[[str, int], None]
    is_done: Callable[[OSError], bool]


_FILE = _Kind(
    lambda name, directory: os.unlink(name, dir_fd=directory), lambda error: isinstance(error, FileNotFoundError | IsADirectoryError)
)  # a directory is no object
_DIRECTORY = _Kind(
    lambda name, directory: os.rmdir(name, dir_fd=directory),
    lambda error: isinstance(error, FileNotFoundError | NotADirectoryError) or error.errno in _FILLED,
)


@dataclass(slots=True)
class _Unlinked:
    """What became of some paths. Those without an error are in `reached`, by the deepest directory above that is still there."""

    removed: set[str] = field(default_factory=set)
    reached: dict[str, list[str]] = field(default_factory=dict)
    errors: Errors = field(default_factory=dict)


def delete_files(root: Path, paths: Collection[str]) -> Errors:
    """Delete the files at these paths, which may be missing; the errors of those that are not durably gone.

    Raises AddressError: the root is missing.
    """
    return _delete(root, paths, [paths], _FILE)


def remove_directories(root: Path, paths: Collection[str]) -> Errors:
    """Remove those of the directories that are empty, the deepest first; the errors of those that are not durably gone.

    Raises AddressError: the root is missing.
    """
    depths = sorted({path.count("/") for path in paths}, reverse=True)
    return _delete(root, paths, [[path for path in paths if path.count("/") == depth] for depth in depths], _DIRECTORY)


def _delete(root: Path, paths: Collection[str], levels: Iterable[Collection[str]], kind: _Kind) -> Errors:
    for path in paths:
        require_relative(path)
    if not paths:
        return {}
    require_directory(root)
    with ThreadPoolExecutor(THREADS) as pool:
        done = [unlinked for level in levels for unlinked in _in_threads(pool, lambda piece: _unlink(root, piece, kind), level)]
        return _synced(root, pool, done)


def _synced(root: Path, pool: ThreadPoolExecutor, done: Sequence[_Unlinked]) -> Errors:
    """Sync each directory that had something of what was unlinked, once; the errors of both."""
    removed = {path for unlinked in done for path in unlinked.removed}
    relying: dict[str, list[str]] = {}
    for unlinked in done:
        for reached, paths in unlinked.reached.items():
            relying.setdefault(_surviving(reached, removed), []).extend(paths)
    errors = {path: error for unlinked in done for path, error in unlinked.errors.items()}
    for failures in _in_threads(pool, lambda piece: _sync(root, piece), relying):
        errors |= {path: error for directory, error in failures.items() for path in relying[directory]}
    return errors


def _unlink(root: Path, paths: Sequence[str], kind: _Kind) -> _Unlinked:
    """Unlink what is at these paths, which are in order. Nothing is synced yet."""
    done = _Unlinked()
    with descend(root) as way:
        for directory, group in groupby(paths, _directory_of):
            here = list(group)
            try:
                _lead(way, directory)
            except (AddressError, OSError) as error:
                told = _of_path(error, root)
                done.errors |= dict.fromkeys(here, told)
                continue
            if way.is_whole:
                here = _unlink_here(way, here, kind, done)
            done.reached.setdefault(way.reached(), []).extend(here)
    return done


def _unlink_here(way: Way, paths: Sequence[str], kind: _Kind, done: _Unlinked) -> list[str]:
    """Those of the directory's paths at which nothing is left to delete. No more is done for each than must be: there are millions."""
    directory, unlink, left = way.last, kind.unlink, []
    for path in paths:
        try:
            unlink(path.rpartition("/")[2], directory)
            done.removed.add(path)
        except OSError as error:
            if not kind.is_done(error):
                error.filename = str(way.root / path)
                done.errors[path] = error
                continue
        left.append(path)
    return left


def _sync(root: Path, directories: Sequence[str]) -> Errors:
    """Make what was unlinked in these directories durable; those of which it is not. If one was removed since, that is in the one above."""
    errors: Errors = {}
    with descend(root) as way:
        for directory in directories:
            try:
                _lead(way, directory)
                _sync_last(way)
            except (AddressError, OSError) as error:
                errors[directory] = _of_path(error, root)
    return errors


def _sync_last(way: Way) -> None:
    found = os.fstat(way.last)
    key = (found.st_dev, found.st_ino)
    if (before := _doubted.get(key)) is not None:
        raise before.with_traceback(None)
    try:
        os.fsync(way.last)
    except OSError as error:
        told = not_durable(way.root / way.reached(), error, "then delete again in a new process")
        raise _doubted.setdefault(key, told) from error


def _of_path(error: AddressError | OSError, root: Path) -> OSError:
    """The error as that of one path; unless the root is missing, which is raised."""
    if isinstance(error, OSError):
        return error
    require_directory(root)
    return OSError(errno.ELOOP, str(error))  # a link stands in the way of this path alone


def _directory_of(path: str) -> str:
    return path.rpartition("/")[0]


def _lead(way: Way, directory: str) -> None:
    way.lead_to(directory.split("/") if directory else ())


def _surviving(directory: str, removed: Collection[str]) -> str:
    while directory in removed:
        directory = directory.rpartition("/")[0]
    return directory


def _in_threads(pool: ThreadPoolExecutor, work: Callable[[Sequence[str]], R], paths: Collection[str]) -> list[R]:
    """The work on each piece of the paths, in their order, by which neighbours share their way."""
    ordered = sorted(paths)
    size = max(1, min(PIECE, len(ordered) // THREADS))  # few directories are worth all threads, too: a sync only waits
    pieces = [ordered[first : first + size] for first in range(0, len(ordered), size)]
    if len(pieces) == 1:
        return [work(pieces[0])]
    return list(pool.map(work, pieces))
