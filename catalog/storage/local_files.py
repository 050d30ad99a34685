"""One file of a file system: opened, drafted next to its place, exchanged for another, given a second name."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from holdfast.catalog.paths import draft_name
from holdfast.catalog.storage.local_walk import Way, sync
from holdfast.catalog.storage.port import StorageConflictError

_NOT_REGULAR = {errno.ENXIO, errno.ENODEV, errno.ELOOP, errno.EISDIR}  # a socket, a device without a driver, a link to itself
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


@dataclass(frozen=True, slots=True)
class Draft:
    """A file that is written under a name of its own."""

    name: str
    stream: BinaryIO
    place: Path

    def finish(self) -> None:
        """Everything written is durable, and nothing more can be."""
        self.stream.flush()
        sync(self.stream.fileno(), self.place)
        self.stream.close()


@contextmanager
def draft(way: Way, place: Path) -> Iterator[Draft]:
    """A draft in the directory that the way leads to, of the file that this will be; removed at the end, unless it was renamed."""
    # The name decides nothing: it only must not be anybody else's, so its randomness is not a port.
    name = draft_name(place.name, os.urandom(4).hex())
    with named(place.with_name(name)):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=way.last)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield Draft(name, stream, place)
    finally:
        # Best effort: a draft that stays is an orphan of its attempt. It must not hide why the block failed.
        with suppress(OSError):
            os.unlink(name, dir_fd=way.last)


def exchange(way: Way, place: Path, data: bytes, expected: bytes) -> None:
    """Put a new file in the place of the one with the expected bytes; durable. The file itself is the lock, which a rename gives away.

    Raises StorageConflictError where another is there, or none; OSError where the file system has no locks.
    """
    while True:
        try:
            with regular(place.name, str(place), flags=os.O_RDWR | os.O_NOFOLLOW, dir_fd=way.last) as file, _locked(file, place):
                if not _is_at(way, place, file):
                    continue  # it was replaced while we waited: the lock of what is there now is another
                if os.fstat(file.fileno()).st_size != len(expected) or file.readall() != expected:
                    raise _conflict(place)
                with named(place), draft(way, place) as new:
                    os.fchmod(new.stream.fileno(), stat.S_IMODE(os.fstat(file.fileno()).st_mode))
                    new.stream.write(data)
                    new.finish()
                    os.rename(new.name, place.name, src_dir_fd=way.last, dst_dir_fd=way.last)
                way.sync_all()
                return
        except FileNotFoundError as error:
            raise _conflict(place) from error


def second_name(file: FileIO, directory: int, name: str, target: Way, place: Path) -> bool:
    """Give the open file, which has this name in an open directory, another at a place; durable, the bytes too.

    False where the file system has no second name for it: nothing was done. Raises FileNotFoundError where the name is another's by now.
    """
    sync(file.fileno(), place)
    try:
        with named(place):
            os.link(name, place.name, src_dir_fd=directory, dst_dir_fd=target.last, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    if not _is_at(target, place, file):
        os.unlink(place.name, dir_fd=target.last)
        raise missing(name)
    target.sync_all()
    return True


@contextmanager
def regular(place: Path | str, path: str, *, flags: int = 0, dir_fd: int | None = None) -> Iterator[FileIO]:
    """The regular file at a place, open for reading. Whatever else is there is no object: opening a FIFO would wait for a writer for ever,
    and reading a device would never end."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | flags, dir_fd=dir_fd)
    except NotADirectoryError as error:
        raise missing(path) from error
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise FileNotFoundError(errno.ENOENT, f"Not a regular file ({os.strerror(error.errno)})", path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "Not a regular file", path)
    with FileIO(descriptor) as file:
        yield file


def missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


@contextmanager
def named(place: Path) -> Iterator[None]:
    """Errors of calls that are relative to a directory's descriptor name the whole path."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename, error.filename2 = str(place), None
        raise


@contextmanager
def _locked(file: FileIO, place: Path) -> Iterator[None]:
    """Alone with this file among all that lock it: threads, processes, and hosts where the file system shares its locks."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
    except OSError as error:
        msg = f"the file system has no locks, so that {place.name} cannot be replaced safely; nothing was replaced"
        raise OSError(error.errno, msg, str(place)) from error
    try:
        yield
    finally:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)  # a child that was forked meanwhile has the open file as well, and would keep the lock


def _is_at(way: Way, place: Path, file: FileIO) -> bool:
    """Whether a place's name is one of an open file's."""
    try:
        return os.path.samestat(os.stat(place.name, dir_fd=way.last, follow_symlinks=False), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _conflict(place: Path) -> StorageConflictError:
    return StorageConflictError(f"{place} is not what was expected: nothing was replaced")
