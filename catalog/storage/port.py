"""The storage port: everything that Holdfast asks of the place where files live. Adapters: `local`, `memory`, `prefix`.

Paths are relative to the catalog's root, with "/" between their parts. Nothing outside an adapter knows them as files of an
operating system. Every verb is one call to storage, so that a test can fail or reorder each.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping
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
class StoredDirectory:
    """A directory in a walk."""

    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Size and SHA-256 (hex) of an object's bytes, read from storage."""

    size_bytes: int
    sha256: str


class StorageConflictError(Exception):
    """What is at the place is not what was expected there; nothing was changed."""


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

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        """Put an object in the place of the one with the expected bytes (None: of none), durably. Readers see one or the other, whole.

        Of many callers that expect the same, one succeeds: among all processes of a host, and among hosts as far as the file system's
        locks reach. Only `replace` and `create` may write to such a place; what is deleted meanwhile may come back.

        Raises:
            StorageConflictError: something else is there, or nothing; nothing was changed. What was found may not be durable.
            AddressError: as `create`.
            NotDurableError: the object was replaced, and a loss of power may undo that.
        """

    def link_or_copy(self, source: str, target: str) -> None:
        """Give an object a second name, or a copy where storage has no second names; durable, its bytes too. Never replaces an object.

        A copy is read back and compared. Neither name is affected by the deletion of the other.
        Raises FileExistsError, FileNotFoundError (a link is not an object, and is not followed), AddressError, NotDurableError.
        """

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below a prefix (a directory's path, "" for all), hidden ones included, in no order, and in bounded memory.

        Objects that appear or go meanwhile may or may not be seen. A caller that needs an order sorts.
        """

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        """As `list`, with the directories below the prefix, where directories exist.

        What is in a directory comes together, and the directory itself after it.
        """

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        """Delete objects; returns those that are not confirmed gone, with the reason. All others are gone, durably. Missing is gone.

        After a failed sync nothing of that directory is confirmed by this process any more, in this call or a later one: the next sync
        would succeed over what may be lost.
        Raises AddressError: the root is missing; nothing is confirmed.
        """

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        """Remove those directories that are empty, the deepest first, where directories exist; returns the failures with their reasons.

        Never recursive; a missing or filled one is no error. What was removed is gone durably. Raises AddressError as `delete_many`.
        """


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

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        return self.inner.walk(prefix)

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        self.inner.replace(path, data, expected)

    def link_or_copy(self, source: str, target: str) -> None:
        self.inner.link_or_copy(source, target)

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return self.inner.delete_many(paths)

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return self.inner.remove_empty_directories(paths)
