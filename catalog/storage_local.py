"""The storage port on a file system (POSIX): a root directory and everything below it.

An object is written under a name of its own beside its place, synced, and then linked to its place: it appears whole or not at
all, and never replaces another. Writing in place would be simpler, but a marker of which half is there would lock
everybody out after a crash, and a second process would read it half written. Hard links are no new demand: delta-rs makes its
commits exclusive in the same way. What a crash leaves is `<path>.<random>.tmp`, which carries the attempt's token as the path does.

A root is made by `make_root` alone, where a catalog or a copy is begun. Where it is missing later, this host does not see the file system.

Every call that promises durability syncs all directories up to the root, each time. A memory of "synced already" would be
wrong whenever another process has made a directory and not yet synced it, or removed one and made it again.
"""

import errno
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from holdfast.catalog import arguments
from holdfast.catalog.errors import AddressError
from holdfast.catalog.paths import draft_name, require_relative
from holdfast.catalog.storage import Digest, StoredObject

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
    """Make the directory at this address durably, if it is not there. Only for what is begun: nothing else ever makes a root.

    Raises OSError where it cannot be made.
    """
    root = open_storage(address).root
    missing = [directory for directory in (root, *root.parents) if not directory.exists()]
    root.mkdir(parents=True, exist_ok=True)
    for directory in missing:
        _sync_directory(directory.parent)


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
        target = self._place(path)
        self._make_directory(target.parent)
        # The name decides nothing: it only must not be anybody else's, so its randomness is not a port.
        draft = target.with_name(draft_name(target.name, os.urandom(4).hex()))
        stream = draft.open("xb")
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            os.link(draft, target)
        finally:
            # Best effort: a draft that stays is an orphan of its attempt. It must not hide why the block failed.
            with suppress(OSError):
                draft.unlink()
        self._sync_up(target.parent)

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
        self.make_durable_many([path])

    def make_durable_many(self, paths: Iterable[str]) -> None:
        """As `make_durable` for each, with one sync of each directory."""
        directories: dict[Path, None] = {}
        for path in paths:
            with self._opened(path) as file:
                os.fsync(file.fileno())
            directories |= dict.fromkeys(self._way_up(self._place(path).parent))
        for directory in sorted(directories, key=lambda d: -len(d.parts)):
            _sync_directory(directory)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        start = self._place(prefix) if prefix else self.root
        return _walk(start, f"{prefix}/" if prefix else "")

    def delete(self, path: str) -> None:
        place = self._place(path)
        # Missing is no error; and a directory is no object, so that none is there.
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            place.unlink()
        # Also if it was missing: who removed it may have died before the sync.
        self._sync_nearest(place.parent)

    def remove_empty_directory(self, path: str) -> bool:
        place = self._place(path)
        try:
            place.rmdir()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        self._sync_nearest(place.parent)
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
        """The object open for reading, unbuffered; what is no regular file is no object that could be read."""
        try:
            file = self._place(path).open("rb", buffering=0)
        except (IsADirectoryError, NotADirectoryError) as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        with file:
            yield file

    def _make_directory(self, directory: Path) -> None:
        """Make a directory below the root, never the root: a host that lacks the mount would write to a disk of its own."""
        if directory.is_dir():
            return
        if directory == self.root:
            msg = (
                f"{self.root} is no directory on host {socket.gethostname()}: it was removed, or this host does not see the catalog's file "
                "system. Mount it on every host of the session at the same path, then write again; nothing was written here"
            )
            raise AddressError(msg)
        self._make_directory(directory.parent)
        directory.mkdir(exist_ok=True)

    def _way_up(self, directory: Path) -> Iterator[Path]:
        """The directory, its parent, and so on up to the root."""
        while True:
            yield directory
            if directory == self.root:
                return
            directory = directory.parent

    def _sync_up(self, directory: Path) -> None:
        for each in self._way_up(directory):
            _sync_directory(each)

    def _sync_nearest(self, directory: Path) -> None:
        """Sync the directory, or where that is gone too, the nearest above it that is not: there its absence is written."""
        for each in self._way_up(directory):
            with suppress(FileNotFoundError, NotADirectoryError):
                _sync_directory(each)
                return


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
