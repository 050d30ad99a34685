"""A working directory that vanishes: the disk port through a script of faults, and a scene that is played once for each of its calls.

    def scene(faults: Faults) -> T:                  # anything, over VanishingFiles(faults), FaultyStorage(..., faults), ...
        ...
        return result                                # what a caller was told, or what is committed

    assert_deleting_changes_nothing(scene, delete)   # `delete` removes all of the directory, before call k, for every k

Ports of one scene share its `Faults`, so that the directory is deleted between any two calls to any of them.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

from holdfast.catalog.storage import Digest
from holdfast.writers.local.disk import LocalFile, LocalFiles
from tests.support.faults import Faults, LostResponseError

T = TypeVar("T")


class RefusingFiles(LocalFiles):
    """This machine's disk, which refuses one verb: it is full, or read-only, or broken."""

    def __init__(self, verb: str, code: int) -> None:
        def refuse(*_: object) -> NoReturn:
            raise OSError(code, os.strerror(code))

        setattr(self, verb, refuse)


class VanishingFiles(LocalFiles):
    """This machine's disk, with every verb through `faults`."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.inner = LocalFiles()

    def make_directory(self, path: Path) -> None:
        self.faults.run("make_directory", str(path), lambda: self.inner.make_directory(path))

    def link_or_copy(self, source: Path, target: Path) -> bool:
        return self.faults.run("link_or_copy", str(target), lambda: self.inner.link_or_copy(source, target))

    def create(self, path: Path) -> BinaryIO:
        return self.faults.run("create", str(path), lambda: self.inner.create(path))

    def rename(self, source: Path, target: Path) -> None:
        self.faults.run("rename", str(target), lambda: self.inner.rename(source, target))

    def size(self, path: Path) -> int:
        return self.faults.run("size", str(path), lambda: self.inner.size(path))

    def digest(self, path: Path) -> Digest:
        return self.faults.run("digest", str(path), lambda: self.inner.digest(path))

    def touch(self, path: Path, used: datetime) -> None:
        self.faults.run("touch", str(path), lambda: self.inner.touch(path, used))

    def names(self, directory: Path) -> list[str]:
        return self.faults.run("names", str(directory), lambda: self.inner.names(directory))

    def listing(self, directory: Path) -> list[LocalFile]:
        return self.faults.run("listing", str(directory), lambda: self.inner.listing(directory))

    def discard(self, path: Path) -> None:
        with suppress(LostResponseError):  # it tells of no error
            self.faults.run("discard", str(path), lambda: self.inner.discard(path))


def assert_deleting_changes_nothing(scene: Callable[[Faults], T], *vanishing: Path) -> int:
    """Play the scene as it is, then once for each of its calls, with these directories deleted before it: every result is the same.

    The scene begins each time with what the directories then hold, nothing. Returns the number of calls.
    """
    delete_all(*vanishing)
    undisturbed = Faults()
    expected = scene(undisturbed)
    for n in range(1, undisturbed.calls + 1):
        delete_all(*vanishing)
        at = undisturbed.log[n - 1]

        def vanish(call: int, verb: str, path: str, n: int = n) -> None:
            if call == n:
                delete_all(*vanishing)

        found = scene(Faults(on_call=vanish))
        assert found == expected, f"all was deleted before call {n}, {at}"
    return undisturbed.calls


def read_at_once(get: Callable[[], Path]) -> bytes:
    """The bytes of a file that may be gone when its path has been told: then it is asked for again."""
    while True:
        try:
            return get().read_bytes()
        except FileNotFoundError:
            pass


def delete_all(*directories: Path) -> None:
    """As an operator would."""
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
