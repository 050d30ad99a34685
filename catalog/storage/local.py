"""The storage port on a file system (POSIX): a root directory and everything below it.

An object is written under a name of its own next to its place, synced, and then linked to its place: it appears whole or not at
all, and never replaces another. Writing in place would be simpler, but a marker of which half is there would lock
everybody out after a crash, and a second process would read it half written. Hard links are no new demand: delta-rs makes its
commits exclusive in the same way. What a crash leaves is `<path>.<random>.tmp`, which carries the attempt's token as the path does.

A root is made by `make_root` alone, where a catalog or a copy is begun. Where it is missing later, this host does not see the file system.
Whether the directory that is there is the catalog, `guard` asks.

Every call that promises durability syncs all directories up to the root, each time. A memory of "synced already" would be
wrong whenever another process has made a directory and not yet synced it, or removed one and made it again.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from holdfast.catalog import arguments
from holdfast.catalog.errors import AddressError
from holdfast.catalog.paths import draft_name, require_relative
from holdfast.catalog.storage.local_walk import descend, require_directory, sync, sync_way_up
from holdfast.catalog.storage.port import Digest, StoredObject

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


def open_storage(address: str | os.PathLike[str]) -> "LocalStorage":
    """The storage at a path or `file:` URL; nothing is read or made yet. A leading `~` in a text is the user's home, as in a shell.

    Raises:
        AddressError: the address is of another kind of storage, or of none, or of a file name that no file system takes.
    """
    text = arguments.address(address)
    storage = LocalStorage(Path(arguments.address(_path_of_text(text)) if isinstance(address, str) else text))
    arguments.place(storage.address)
    return storage


def enclosing(address: str) -> Iterator["LocalStorage"]:
    """The storages at the directories that this address lies in, nearest first; links on the way are followed."""
    for parent in Path(os.path.realpath(open_storage(address).address)).parents:
        yield LocalStorage(parent)


def make_root(address: str) -> None:
    """Make the directory at this address, if it is not there, and its name durable. Only for what is begun: nothing else here makes a root.

    Raises OSError where it cannot be made.
    """
    root = open_storage(address).root
    missing = [directory for directory in (root, *root.parents) if not directory.exists()]
    root.mkdir(parents=True, exist_ok=True)
    # A root that was there, too: the process that made it may have died before the sync, or never thought of one.
    sync_way_up(Path(os.path.realpath(root)), at_least=len(missing))


def _path_of_text(text: str) -> str:
    if url := _SCHEME.fullmatch(text):
        return _path_of_url(text, url[1].lower(), url[2])
    path = os.path.expanduser(text)
    if path.startswith("~"):
        msg = f"{text!r}: there is no home directory of that user; give the whole path, or ./{text} for a directory of that name"
        raise AddressError(msg)
    return path


def _path_of_url(text: str, scheme: str, rest: str) -> str:
    if scheme != "file":
        msg = f"{text!r}: no storage for {scheme!r}, so far only file systems are supported: give a path (./{text}?) or a file: URL"
        raise AddressError(msg)
    host, slash, path = rest[2:].partition("/") if rest.startswith("//") else ("", rest[:1], rest[1:])
    if host not in ("", "localhost") or slash != "/":
        msg = f"{text!r} is not a directory of this machine: give file:///<absolute path>"
        raise AddressError(msg)
    return slash + unquote(path)


@dataclass(frozen=True, slots=True)
class LocalStorage:
    """Files below `root`, which is made absolute (executors stand in other directories). Holds nothing else: picklable, safe in threads."""

    root: Path

    def __post_init__(self) -> None:
        absolute = os.path.abspath(self.root)
        object.__setattr__(self, "root", Path("/" + absolute.lstrip("/")))  # two leading slashes would look like a host to an engine

    @property
    def address(self) -> str:
        return str(self.root)

    def create(self, path: str, data: bytes) -> None:
        with self.create_stream(path) as stream:
            stream.write(data)

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        place, (*directories, name) = self._place(path), path.split("/")
        # The name decides nothing: it only must not be anybody else's, so its randomness is not a port.
        draft = draft_name(name, os.urandom(4).hex())
        with descend(self.root, directories, make=True) as way:
            with _named(place.with_name(draft)):
                descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=way.last)
            try:
                with os.fdopen(descriptor, "wb") as stream:
                    yield stream
                    stream.flush()
                    sync(stream.fileno(), place)
                with _named(place):
                    os.link(draft, name, src_dir_fd=way.last, dst_dir_fd=way.last, follow_symlinks=False)
            finally:
                # Best effort: a draft that stays is an orphan of its attempt. It must not hide why the block failed.
                with suppress(OSError):
                    os.unlink(draft, dir_fd=way.last)
            way.sync_all()

    def require_root(self) -> None:
        require_directory(self.root)

    def read(self, path: str) -> bytes:
        with self._opened(path) as file:
            return file.read()

    @contextmanager
    def open_stream(self, path: str) -> Iterator[BinaryIO]:
        with self._opened(path) as file:
            yield BufferedReader(file)

    def size(self, path: str) -> int:
        with self._opened(path) as file:
            return os.fstat(file.fileno()).st_size

    def digest(self, path: str) -> Digest:
        with self._opened(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return Digest(size_bytes=file.tell(), sha256=sha256)  # the size of what was digested, not of a later stat

    def make_durable(self, path: str) -> None:
        place, (*above, name) = self._place(path), path.split("/")
        with descend(self.root, above) as way:
            if not way.is_whole:
                raise _missing(path)
            with _named(place), _regular(name, path, flags=os.O_NOFOLLOW, dir_fd=way.last) as file:
                sync(file.fileno(), place)
        for depth in range(len(above), -1, -1):
            with descend(self.root, above[:depth]) as way:
                way.sync_last()

    def list(self, prefix: str) -> Iterator[StoredObject]:
        start = self._place(prefix) if prefix else self.root
        return _walk(start, f"{prefix}/" if prefix else "")

    def delete(self, path: str) -> None:
        place, (*directories, name) = self._place(path), path.split("/")
        with descend(self.root, directories) as way:
            # Missing is no error; and a directory is no object, so that none is there.
            if way.is_whole:
                with _named(place), suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(name, dir_fd=way.last)
            # Also if it was missing: what removed it may have died before the sync. Where its directory is gone too, that is written above.
            way.sync_last()

    def remove_empty_directory(self, path: str) -> bool:
        place, (*directories, name) = self._place(path), path.split("/")
        if not self.root.is_dir():
            return False
        with descend(self.root, directories) as way:
            try:
                if not way.is_whole:
                    return False
                with _named(place):
                    os.rmdir(name, dir_fd=way.last)
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
            way.sync_last()
        return True

    def empty_directories(self, prefix: str) -> Iterator[str]:
        start = self._place(prefix) if prefix else self.root
        found: dict[str, None] = {}
        _collect_empty(start, f"{prefix}/" if prefix else "", found)
        return iter(sorted(found, key=lambda path: (-path.count("/"), path)))

    def _place(self, path: str) -> Path:
        return self.root.joinpath(require_relative(path))

    @contextmanager
    def _opened(self, path: str) -> Iterator[FileIO]:
        """The object open for reading, unbuffered. Links are followed: what is read is held against a digest, wherever it lies."""
        with _regular(self._place(path), path) as file:
            yield file


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


@contextmanager
def _regular(place: Path | str, path: str, *, flags: int = 0, dir_fd: int | None = None) -> Iterator[FileIO]:
    """The regular file at a place, open for reading. Whatever else is there is no object: opening a FIFO would wait for a writer for ever,
    and reading a device would never end."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | flags, dir_fd=dir_fd)
    except NotADirectoryError as error:
        raise _missing(path) from error
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.ELOOP):  # a socket, a device without a driver, a link that leads to itself
            raise FileNotFoundError(errno.ENOENT, f"Not a regular file ({os.strerror(error.errno)})", path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "Not a regular file", path)
    with FileIO(descriptor) as file:
        yield file


@contextmanager
def _named(place: Path) -> Iterator[None]:
    """Errors of calls that are relative to a directory's descriptor name the whole path."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            error.filename, error.filename2 = str(place), None
        raise


def _entries(directory: Path | str) -> list[tuple[str, os.DirEntry[str], bool]]:
    """(name, entry, is a directory) in the order of the paths below; empty if the directory is gone. Links are not followed."""
    try:
        with os.scandir(directory) as entries:
            found = [(entry.name, entry, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found, key=lambda item: item[0] + "/" if item[2] else item[0])  # "a.b" comes before "a/b"


def _walk(directory: Path | str, prefix: str) -> Iterator[StoredObject]:
    for name, entry, is_directory in _entries(directory):
        if is_directory:
            yield from _walk(entry.path, f"{prefix}{name}/")
            continue
        with suppress(FileNotFoundError):  # gone since the directory was read
            yield StoredObject(path=prefix + name, size_bytes=entry.stat(follow_symlinks=False).st_size)


def _collect_empty(directory: Path | str, prefix: str, found: dict[str, None]) -> bool:
    """Add every directory below that holds no object; says whether this one holds none."""
    empty = True
    for name, entry, is_directory in _entries(directory):
        if is_directory and _collect_empty(entry.path, f"{prefix}{name}/", found):
            found[prefix + name] = None
        else:
            empty = False
    return empty
