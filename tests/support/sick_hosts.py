"""Hosts that do not have what they should at the catalog's root, or a disk that refuses: what an executor, or the driver, may suffer from.

catalog = open_sick(root, sickness)       # here all is well; a copy that travels by pickle, as to a task, is on the sick host
travelled(writer).write(...)              # what a task on it does
sickness.befall(root)                     # this very host falls sick; `heal` gives the catalog back
"""

import errno
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import holdfast
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.marker import read_marker
from holdfast.catalog.storage.local import LocalStorage
from holdfast.facade import Catalog
from holdfast.opening import catalog_at

T = TypeVar("T")

ELSEWHERE = ("missing", "empty", "made-by-an-engine", "another-catalog")  # another directory is at the path of the root
REFUSING = {"read-only": errno.EROFS, "full": errno.ENOSPC, "failed-sync": errno.EIO}
SICKNESSES = (*ELSEWHERE, *REFUSING)


@dataclass(frozen=True, slots=True)
class Sickness:
    """What a host has in `place` at the path of the catalog's root; or how its disk refuses, while the file `armed` is there."""

    name: str
    place: Path
    armed: Path

    @classmethod
    def of(cls, name: str, aside: Path) -> "Sickness":
        """The sickness of this name, with what it needs within a directory of its own."""
        aside.mkdir(exist_ok=True)
        place = aside / "seen"
        if name == "empty":
            place.mkdir()
        elif name == "made-by-an-engine":
            (place / "jobs").mkdir(parents=True)
        elif name == "another-catalog":
            holdfast.open(place, create=True).close()
        return cls(name, place, aside / "armed")

    def on(self, root: Path) -> LocalStorage:
        """The catalog's storage as the sick host has it."""
        return RefusingStorage(root, REFUSING[self.name], self.armed) if self.name in REFUSING else LocalStorage(self.place)

    def befall(self, root: Path) -> None:
        if self.name in REFUSING:
            self.armed.touch()
        else:
            root.rename(root.with_name("healthy"))
            with suppress(FileNotFoundError):
                self.place.rename(root)

    def heal(self, root: Path) -> None:
        self.armed.unlink(missing_ok=True)
        if self.name in ELSEWHERE:
            with suppress(FileNotFoundError):
                root.rename(self.place)
            root.with_name("healthy").rename(root)

    def strangers(self) -> list[str]:
        """What was written to the wrong disk, but for what another catalog has of its own."""
        found = (str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_file())
        return [path for path in found if not path.startswith(("ledger", "history", "holdfast.json"))]


@dataclass(frozen=True, slots=True)
class RefusingStorage(LocalStorage):
    """A disk that refuses what is written: at once, in the middle of a file, or when it is synced (which the system reports once)."""

    number: int
    armed: Path

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        with self._refusing(), LocalStorage.create_stream(self, path) as stream:
            if self.number == errno.ENOSPC and self.armed.exists():
                raise OSError(self.number, os.strerror(self.number))
            yield stream

    def make_durable(self, path: str) -> None:
        with self._refusing():
            if self.number == errno.ENOSPC and self.armed.exists():
                raise OSError(self.number, os.strerror(self.number))
            LocalStorage.make_durable(self, path)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        if self.number == errno.EROFS and self.armed.exists():
            raise OSError(self.number, os.strerror(self.number), f"{self.root}/jobs")
        if self.number != errno.EIO:
            yield
            return
        real = os.fsync

        def fsync(descriptor: int) -> None:
            try:
                self.armed.unlink()  # by whoever comes first, of all threads and processes
            except FileNotFoundError:
                return real(descriptor)
            raise OSError(self.number, os.strerror(self.number))

        os.fsync = fsync
        try:
            yield
        finally:
            os.fsync = real


@dataclass(frozen=True, slots=True)
class TravellingStorage(LocalStorage):
    """The catalog's storage, as it is here; where it comes to by pickle, the host is sick."""

    sickness: Sickness

    def __reduce__(self) -> Any:
        return Sickness.on, (self.sickness, self.root)


def open_sick(root: Path, sickness: Sickness, *, here: bool = False) -> Catalog:
    """The catalog at this root, whose executors are on the sick host; or (here) this process."""
    storage = TravellingStorage(root, sickness)
    marker = read_marker(storage)
    given = sickness.on(root) if here and sickness.name in REFUSING else LocalStorage(root) if here else storage
    return catalog_at(given, marker, SystemEnvironment())


def travelled(thing: T) -> T:
    """As a task on an executor gets it."""
    arrived: T = pickle.loads(pickle.dumps(thing))
    return arrived
