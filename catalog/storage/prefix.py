"""A part of a storage as a storage of its own: what a savepoint's directory is to its writer and its readers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO

from holdfast.catalog.storage.port import Digest, Storage, StoredObject


@dataclass(frozen=True, slots=True)
class PrefixStorage:
    """Every verb on `<prefix>/<path>` of the inner storage."""

    inner: Storage
    prefix: str

    @property
    def address(self) -> str:
        return f"{self.inner.address}/{self.prefix}"

    def require_root(self) -> None:
        self.inner.require_root()

    def create(self, path: str, data: bytes) -> None:
        self.inner.create(self._within(path), data)

    def create_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.inner.create_stream(self._within(path))

    def read(self, path: str) -> bytes:
        return self.inner.read(self._within(path))

    def open_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.inner.open_stream(self._within(path))

    def size(self, path: str) -> int:
        return self.inner.size(self._within(path))

    def digest(self, path: str) -> Digest:
        return self.inner.digest(self._within(path))

    def make_durable(self, path: str) -> None:
        self.inner.make_durable(self._within(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        found = self.inner.list(self._below(prefix))
        return (StoredObject(path=o.path.removeprefix(f"{self.prefix}/"), size_bytes=o.size_bytes) for o in found)

    def delete(self, path: str) -> None:
        self.inner.delete(self._within(path))

    def remove_empty_directory(self, path: str) -> bool:
        return self.inner.remove_empty_directory(self._within(path))

    def empty_directories(self, prefix: str) -> Iterator[str]:
        found = self.inner.empty_directories(self._below(prefix))
        return (directory.removeprefix(f"{self.prefix}/") for directory in found)

    def _within(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _below(self, prefix: str) -> str:
        return self._within(prefix) if prefix else self.prefix
