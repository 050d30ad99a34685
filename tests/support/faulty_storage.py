"""A storage that breaks on script: wraps any adapter, and is one itself."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from holdfast.catalog.storage import Digest, Storage, StoredObject
from tests.support.faults import Faults


class FaultyStorage:
    """Passes every verb on to `inner` through `faults`. A stream is two calls: `create_stream` (its start) and `publish` (its end)."""

    def __init__(self, inner: Storage, faults: Faults | None = None) -> None:
        self.inner = inner
        self.faults = faults or Faults()

    @property
    def address(self) -> str:
        return self.inner.address

    def require_root(self) -> None:
        self.faults.require_alive()  # not counted: it has no effect, and asks for nothing that could come late
        self.inner.require_root()

    def create(self, path: str, data: bytes) -> None:
        self.faults.run("create", path, lambda: self.inner.create(path, data))

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        manager = self.inner.create_stream(path)
        begun = ended = False

        def begin() -> BinaryIO:
            nonlocal begun
            begun = True
            return manager.__enter__()

        def publish() -> None:
            nonlocal ended
            ended = True
            manager.__exit__(None, None, None)

        try:
            stream = self.faults.run("create_stream", path, begin)
            yield stream
            self.faults.run("publish", path, publish)
        except BaseException as error:
            if begun and not ended:  # the inner stream must not wait for the garbage collector to end
                manager.__exit__(type(error), error, error.__traceback__)
            raise

    def read(self, path: str) -> bytes:
        return self.faults.run("read", path, lambda: self.inner.read(path))

    def open_stream(self, path: str) -> AbstractContextManager[BinaryIO]:
        return self.faults.run("open_stream", path, lambda: self.inner.open_stream(path))

    def size(self, path: str) -> int:
        return self.faults.run("size", path, lambda: self.inner.size(path))

    def digest(self, path: str) -> Digest:
        return self.faults.run("digest", path, lambda: self.inner.digest(path))

    def make_durable(self, path: str) -> None:
        self.faults.run("make_durable", path, lambda: self.inner.make_durable(path))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self.faults.run("list", prefix, lambda: iter([*self.inner.list(prefix)]))

    def delete(self, path: str) -> None:
        self.faults.run("delete", path, lambda: self.inner.delete(path))

    def remove_empty_directory(self, path: str) -> bool:
        return self.faults.run("remove_empty_directory", path, lambda: self.inner.remove_empty_directory(path))

    def empty_directories(self, prefix: str) -> Iterator[str]:
        return self.faults.run("empty_directories", prefix, lambda: iter([*self.inner.empty_directories(prefix)]))
