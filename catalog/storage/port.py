"""The storage port: everything that Holdfast asks of the place where files live. Adapters: `local`, `memory`, `prefix`.

Paths are relative to the catalog's root, with "/" between their parts. Nothing outside an adapter knows them as files of an
operating system. Every verb is one call to storage, so that a test can fail or reorder each.
"""

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

COPY_BYTES = 8 * 1024 * 1024  # held at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object in a listing."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Size and SHA-256 (hex) of an object's bytes, read from storage."""

    size_bytes: int
    sha256: str


def copy_stream(source: BinaryIO, target: BinaryIO, limit_bytes: int | None = None) -> Digest:
    """Copy one stream into another, to its end or until it has more bytes than it should; what was copied."""
    sha256, size_bytes = hashlib.sha256(), 0
    while (limit_bytes is None or size_bytes <= limit_bytes) and (piece := source.read(COPY_BYTES)):
        sha256.update(piece)
        size_bytes += len(piece)
        target.write(piece)
    return Digest(size_bytes=size_bytes, sha256=sha256.hexdigest())


def read_committed(storage: "Storage", path: str, size_bytes: int) -> bytes:
    """The bytes of an object that was committed with this size; at most one more, by which it is known that it is another."""
    with storage.open_stream(path) as stream:
        return stream.read(size_bytes + 1)


class Storage(Protocol):
    """Duties of a storage adapter. A missing object raises FileNotFoundError, a taken name FileExistsError."""

    @property
    def address(self) -> str:
        """The root as engines (Spark, DuckDB, deltalake) take it: a path or URL without a trailing slash."""

    def require_root(self) -> None:
        """Raises AddressError where this process does not see the root: for an engine that would make a missing one by itself."""

    def create(self, path: str, data: bytes) -> None:
        """Write a new object and make it durable, name and new directories included. Never replaces one: raises FileExistsError.

        Raises:
            AddressError: the root itself is missing (it is never made: this host does not see it), or the place lies behind a link.
            NotDurableError: a sync failed: nothing may be acknowledged that was written together with this object.
        """

    def create_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        """As `create`, for bytes that come in pieces: durable when the block ends well, absent (best effort) when it raises."""

    def read(self, path: str) -> bytes:
        """All bytes of an object."""

    def open_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        """The object's bytes as a seekable stream, for parts of it and for what does not fit into memory."""

    def size(self, path: str) -> int:
        """The object's size in bytes."""

    def digest(self, path: str) -> Digest:
        """Read all bytes and digest them."""

    def make_durable(self, path: str) -> None:
        """Make an object that an engine wrote under the root survive power loss: its bytes, its name, and every directory on the way.

        Raises AddressError, NotDurableError as `create`.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below a prefix (a directory's path, "" for all), hidden ones included, in the order of their paths.

        Objects that appear or go meanwhile may or may not be seen.
        """

    def delete(self, path: str) -> None:
        """Delete an object; returns only once it is confirmed gone. Deleting a missing one is no error."""

    def remove_empty_directory(self, path: str) -> bool:
        """Remove one directory if it is empty, where directories exist; says whether it went.

        Never recursive; a missing or filled one is no error.
        """

    def empty_directories(self, prefix: str) -> Iterator[str]:
        """Directories below a prefix that hold no object at any depth, deepest first; none where directories do not exist."""


@dataclass(frozen=True, slots=True)
class PassingStorage:
    """Passes every verb on, for a storage that only differs in some of them."""

    inner: Storage

    @property
    def address(self) -> str:
        return self.inner.address

    def require_root(self) -> None:
        self.inner.require_root()

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(path, data)

    def create_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.inner.create_stream(path)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def open_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.inner.open_stream(path)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def digest(self, path: str) -> Digest:
        return self.inner.digest(path)

    def make_durable(self, path: str) -> None:
        self.inner.make_durable(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.inner.list(prefix)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def remove_empty_directory(self, path: str) -> bool:
        return self.inner.remove_empty_directory(path)

    def empty_directories(self, prefix: str) -> Iterator[str]:
        return self.inner.empty_directories(prefix)
