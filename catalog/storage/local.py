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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader, FileIO
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from holdfast.catalog import arguments
from holdfast.catalog.errors import AddressError
from holdfast.catalog.paths import require_relative
from holdfast.catalog.storage.local_deletion import delete_files, remove_directories
from holdfast.catalog.storage.local_files import draft, exchange, missing, named, regular, second_name
from holdfast.catalog.storage.local_listing import walk
from holdfast.catalog.storage.local_walk import descend, require_directory, sync, sync_way_up
from holdfast.catalog.storage.port import Digest, StorageConflictError, StoredDirectory, StoredObject, copy_stream

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
        with descend(self.root, directories, make=True) as way:
            with draft(way, place) as new:
                yield new.stream
                new.finish()
                with named(place):
                    os.link(new.name, name, src_dir_fd=way.last, dst_dir_fd=way.last, follow_symlinks=False)
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
                raise missing(path)
            with named(place), regular(name, path, flags=os.O_NOFOLLOW, dir_fd=way.last) as file:
                sync(file.fileno(), place)
        for depth in range(len(above), -1, -1):
            with descend(self.root, above[:depth]) as way:
                way.sync_last()

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        place, (*directories, _) = self._place(path), path.split("/")
        if expected is None:
            try:
                self.create(path, data)
            except FileExistsError as error:
                msg = f"{place} is there, and nothing was expected: nothing was replaced"
                raise StorageConflictError(msg) from error
            return
        with descend(self.root, directories) as way:
            if not way.is_whole:
                msg = f"{place} is not there: nothing was replaced"
                raise StorageConflictError(msg)
            exchange(way, place, data, expected)

    def link_or_copy(self, source: str, target: str) -> None:
        place, (*directories, _) = self._place(target), target.split("/")
        *above, name = require_relative(source).split("/")
        with descend(self.root, above) as way:
            if not way.is_whole:
                raise missing(source)
            with regular(name, source, flags=os.O_NOFOLLOW, dir_fd=way.last) as file:
                with descend(self.root, directories, make=True) as onto:
                    if second_name(file, way.last, name, onto, place):
                        return
                with self.create_stream(target) as stream:
                    copied = copy_stream(file, stream)
        if self.digest(target) != copied:
            self.delete_many([target])
            raise OSError(errno.EIO, f"The copy is not what {source} is, and was deleted", target)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return (found for found in self.walk(prefix) if isinstance(found, StoredObject))

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        return walk(self._place(prefix) if prefix else self.root, f"{prefix}/" if prefix else "")

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return delete_files(self.root, paths)

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return remove_directories(self.root, paths)

    def _place(self, path: str) -> Path:
        return self.root.joinpath(require_relative(path))

    @contextmanager
    def _opened(self, path: str) -> Iterator[FileIO]:
        """The object open for reading, unbuffered. Links are followed: what is read is held against a digest, wherever it lies."""
        with regular(self._place(path), path) as file:
            yield file
