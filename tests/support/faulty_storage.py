"""A storage that breaks on script: wraps any adapter, and is one itself."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from holdfast.catalog.paths import parent
from holdfast.catalog.storage import Digest, Storage, StoredDirectory, StoredObject
from tests.support.faults import Faults


class FaultyStorage:
    """Passes every verb on to `inner` through `faults`. A stream is two calls: `create_stream` (its start) and `publish` (its end).

    A deletion of many is a call `delete` for each path, and then `sync` for each directory that they were in: each may fail, and then the
    others go on; and the process may die at any of them.
    """

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

    def walk(self, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
        return self.faults.run("walk", prefix, lambda: iter([*self.inner.walk(prefix)]))

    def replace(self, path: str, data: bytes, expected: bytes | None) -> None:
        self.faults.run("replace", path, lambda: self.inner.replace(path, data, expected))

    def link_or_copy(self, source: str, target: str) -> None:
        self.faults.run("link_or_copy", target, lambda: self.inner.link_or_copy(source, target))

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        self.faults.require_alive()
        errors = self._each("delete", paths, lambda path: self.inner.delete_many([path]))
        for directory, error in self._each("sync", sorted({parent(path) for path in paths}), lambda _: {}).items():
            errors |= {path: error for path in paths if parent(path) == directory and path not in errors}
        return errors

    def remove_empty_directories(self, paths: Collection[str]) -> Mapping[str, OSError]:
        deepest_first = sorted(paths, key=lambda path: -path.count("/"))
        return self._each("remove_empty_directory", deepest_first, lambda path: self.inner.remove_empty_directories([path]))

    def _each(self, verb: str, paths: Collection[str], act: Callable[[str], Mapping[str, OSError]]) -> dict[str, OSError]:
        errors: dict[str, OSError] = {}
        for path in paths:
            try:
                errors |= self.faults.run(verb, path, lambda path=path: act(path))
            except OSError as error:
                errors[path] = error
        return errors
