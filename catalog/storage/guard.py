"""Nothing is written, synced or deleted unless the root is the catalog, as the process sees it that does so.

A path does not say what is mounted there. A host that lost the mount has an empty directory at the catalog's root, or what an engine made
of a missing one, or another catalog; it would write to a disk of its own, sync it, and acknowledge. So each process reads the marker before
each such call: a hundred bytes, cheap compared with a sync. Reads that find nothing ask as well, so that a host without the mount is
not reported as damage of the catalog. A copy of the catalog has the same id: it cannot be told from the original.
"""

import json
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from holdfast.catalog import paths
from holdfast.catalog.errors import AddressError
from holdfast.catalog.storage.port import Digest, PassingStorage, StoredDirectory, StoredObject

_REMEDY = "Mount the catalog's file system at that path on every host of the session, then write again; nothing was written here"


@dataclass(frozen=True, slots=True)
class GuardedStorage(PassingStorage):
    """The storage of the catalog with this id, and of no other. Picklable where the inner storage is: it asks wherever it is used."""

    catalog_id: str = ""

    def require_root(self) -> None:
        """Raises AddressError, which names the host, unless the root is here and has the marker of this catalog."""
        self.inner.require_root()
        try:
            with self.inner.open_stream(paths.MARKER) as stream:
                found = json.loads(stream.read(paths.MARKER_LIMIT_BYTES))["catalog_id"]
        except FileNotFoundError as error:
            raise self._elsewhere(error, f"it has no {paths.MARKER}, like the empty directory of a mount point") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._elsewhere(error, f"its {paths.MARKER} cannot be read") from error
        if found != self.catalog_id:
            raise self._elsewhere(found, f"its {paths.MARKER} is of another catalog")

    def create(self, path: str, data: bytes) -> None:
        self.require_root()
        self.inner.create(path, data)

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        self.require_root()
        with self.inner.create_stream(path) as stream:
            yield stream

    def make_durable(self, path: str) -> None:
        self.require_root()
        self.inner.make_durable(path)

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        self.require_root()
        self.inner.replace(path, data, expected)

    def link_or_copy(self, source: str, target: str) -> None:
        self.require_root()
        self.inner.link_or_copy(source, target)

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        self.require_root()
        errors = self.inner.delete_many(paths)
        self.require_root()  # a file that is not seen here is not gone: the mount may have been lost on the way
        return errors

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        self.require_root()
        return self.inner.remove_empty_directories(paths)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self.require_root()  # an empty listing would be an answer
        return self.inner.list(prefix)

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        self.require_root()
        return self.inner.walk(prefix)

    def read(self, path: str) -> bytes:
        with self._missing_here():
            return self.inner.read(path)

    @contextmanager
    def open_stream(self, path: str) -> Iterator[BinaryIO]:
        with ExitStack() as opened:
            with self._missing_here():
                stream = opened.enter_context(self.inner.open_stream(path))
            yield stream

    def size(self, path: str) -> int:
        with self._missing_here():
            return self.inner.size(path)

    def digest(self, path: str) -> Digest:
        with self._missing_here():
            return self.inner.digest(path)

    @contextmanager
    def _missing_here(self) -> Iterator[None]:
        """An object is missing only where the catalog is there."""
        try:
            yield
        except FileNotFoundError:
            self.require_root()
            raise

    def _elsewhere(self, found: object, how: str) -> AddressError:
        msg = f"{self.address} on host {socket.gethostname()} is not the root of catalog {self.catalog_id}: {how} ({found!r}). {_REMEDY}"
        return AddressError(msg)
