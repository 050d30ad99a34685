"""What the processes of the model run on: ids that count, a ledger around whose commits one may die, a storage whose deletes come late."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.catalog.ledger import LoggedCommit
from holdfast.catalog.ledger.memory import MemoryLedger
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.catalog.transactions import READ_TRIES
from tests.support.faults import Crash
from tests.support.threads import T, at_once

if TYPE_CHECKING:
    from tests.support.model_world import World

NOW = datetime(2013, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class ModelEnvironment:
    """Ids are numbers, so that a seed is a history; time stands still."""

    ids: int = 0
    actor: str = "model"

    def now(self) -> datetime:
        return NOW

    def monotonic_s(self) -> float:
        return 0.0

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:016x}"

    def pause(self, attempt: int) -> None:
        pass

    def start(self, work: Callable[[], T]) -> "Future[T]":
        return at_once(work)

    def alarm(self, after_s: float, ring: Callable[[], None]) -> Callable[[], None]:
        raise AssertionError("nothing of the model is impatient")


class ModelLedger(MemoryLedger):
    """A process's handle on the log. The process may die around a commit, not hear of it, or stand still before it for long."""

    READS_BOUNDARY = True  # after a commit, and before it is believed

    def __init__(self, world: "World") -> None:
        super().__init__(world.log)
        self._world = world
        self._blind = 0
        self._phantom: LoggedCommit | None = None

    def refresh(self):
        if self._blind:
            self._blind -= 1
            raise OSError("the log cannot be read")
        phantom, self._phantom = self._phantom, None
        if phantom is not None and not self.READS_BOUNDARY:
            return [phantom]  # it is there, at the version after the held one
        return super().refresh()

    def append(self, facts, *, keys, operation) -> None:
        fate = self._world.fate()
        if self._world.stalls(self) and self.version + 1 < self._world.log.cleaned_below:
            self._world.story.append(f"{operation.operation_id} is committed where the log was cleaned: in no snapshot")
            self._phantom = LoggedCommit(self.version + 1, operation.operation_id, frozenset(keys), lambda: facts)
            return
        if fate == "dies before":
            raise Crash(fate)
        if fate == "refused":
            raise OSError(fate)
        super().append(facts, keys=keys, operation=operation)
        self._world.observe()
        if fate == "dies after":  # visible to all, durable for none
            raise Crash(fate)
        if fate == "outcome unknown":
            self._blind = READ_TRIES
        if fate in ("response lost", "outcome unknown"):
            raise OSError(fate)


class ModelStorage(MemoryStorage):
    """Deletes may fail, may land once more later, and leave the others time to run before them."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self.objects = self._objects
        self._world = world

    def delete(self, path: str) -> None:
        self._world.interleave()
        if not self._world.calm:
            roll = self._world.random.random()
            if roll < 0.04:
                raise Crash("dies before a delete")
            if roll < 0.07:
                raise OSError("the delete failed")
            if roll < 0.25:
                self._world.in_flight.append(("delete", path, b""))
        super().delete(path)

    def land(self, what: str, path: str, data: bytes) -> None:
        """A request of long ago arrives. A write never replaces an object, as every creation here is exclusive."""
        if what == "put":
            self._objects.setdefault(path, data)
        else:
            self._objects.pop(path, None)
