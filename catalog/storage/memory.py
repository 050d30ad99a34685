"""The storage port in memory: the reference that the other adapters are held to. As in an object store, there are no directories."""

import hashlib
import io
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import BinaryIO

from holdfast.catalog.paths import require_relative
from holdfast.catalog.storage.port import Digest, StorageConflictError, StoredDirectory, StoredObject


class MemoryStorage:
    """Objects in a dict. Safe in threads; lives and ends with the process."""

    def __init__(self, address: str = "memory:catalog") -> None:
        self._address = address
        self._objects: dict[str, bytes] = {}
        self._volatile: set[str] = set()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return self._address

    def require_root(self) -> None:
        """It is always there."""

    def create(self, path: str, data: bytes) -> None:
        require_relative(path)
        with self._lock:
            if path in self._objects:
                raise FileExistsError(path)
            self._objects[path] = bytes(data)

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        require_relative(path)
        stream = io.BytesIO()
        yield stream
        self.create(path, stream.getvalue())

    def read(self, path: str) -> bytes:
        require_relative(path)
        with self._lock:
            try:
                return self._objects[path]
            except KeyError:
                raise FileNotFoundError(path) from None

    @contextmanager
    def open_stream(self, path: str) -> Iterator[BinaryIO]:
        yield io.BytesIO(self.read(path))

    def size(self, path: str) -> int:
        return len(self.read(path))

    def digest(self, path: str) -> Digest:
        data = self.read(path)
        return Digest(size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def make_durable(self, path: str) -> None:
        self.read(path)
        with self._lock:
            self._volatile.discard(path)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        below = f"{require_relative(prefix)}/" if prefix else ""
        with self._lock:
            found = sorted((path, len(data)) for path, data in self._objects.items() if path.startswith(below))
        return (StoredObject(path=path, size_bytes=size) for path, size in found)

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        return self.list(prefix)

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        require_relative(path)
        with self._lock:
            if self._objects.get(path) != expected:
                msg = f"{path} in {self._address} is not what was expected: nothing was replaced"
                raise StorageConflictError(msg)
            self._objects[path] = bytes(data)
            self._volatile.discard(path)

    def link_or_copy(self, source: str, target: str) -> None:
        self.create(target, self.read(source))

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        for path in paths:
            require_relative(path)
        errors: dict[str, OSError] = {}
        for path in paths:
            try:
                self.delete(path)
            except OSError as error:
                errors[path] = error
        return errors

    def delete(self, path: str) -> None:
        """Delete one object; a subclass may fail here."""
        with self._lock:
            self._objects.pop(path, None)
            self._volatile.discard(path)

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        for path in paths:
            require_relative(path)
        return {}

    def write_as_engine(self, path: str, data: bytes) -> None:
        """What an engine does that writes under the root by itself: replaces silently, and is not durable."""
        require_relative(path)
        with self._lock:
            self._objects[path] = bytes(data)
            self._volatile.add(path)

    def lose_power(self) -> None:
        """Forget every object that nobody made durable."""
        with self._lock:
            for path in self._volatile:
                del self._objects[path]
            self._volatile.clear()
