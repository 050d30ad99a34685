"""A part of a storage as a storage of its own: what a savepoint's directory is to its writer and its readers."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import BinaryIO

from holdfast.catalog.storage.port import Digest, Storage, StoredDirectory, StoredObject


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
        return (replace(found, path=self._seen(found.path)) for found in self.inner.list(self._below(prefix)))

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        return (replace(found, path=self._seen(found.path)) for found in self.inner.walk(self._below(prefix)))

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        self.inner.replace(self._within(path), data, expected)

    def link_or_copy(self, source: str, target: str) -> None:
        self.inner.link_or_copy(self._within(source), self._within(target))

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return self._of(self.inner.delete_many([self._within(path) for path in paths]))

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        return self._of(self.inner.remove_empty_directories([self._within(path) for path in paths]))

    def _within(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def _below(self, prefix: str) -> str:
        return self._within(prefix) if prefix else self.prefix

    def _seen(self, path: str) -> str:
        return path.removeprefix(f"{self.prefix}/")

    def _of(self, errors: Mapping[str, OSError]) -> dict[str, OSError]:
        return {self._seen(path): error for path, error in errors.items()}
