"""Upgrades that break: every call to storage, the old ledger, the successor and the history goes through one script of faults."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import HoldfastError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.marker import Marker
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.state import Ref
from holdfast.catalog.storage.local import LocalStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import JobId
from holdfast.catalog.upgrade import Tables, UpgradeReport, upgrade
from tests.support import format_1
from tests.support.faults import Faults
from tests.support.faulty_storage import FaultyStorage

ENVIRONMENT = SystemEnvironment()
CALLS = frozenset(
    {"refresh", "make_durable", "rows", "commits", "fold", "take_over", "close", "tell", "has_operation", "operation_at", "mend"}
)


class FaultyTable:
    """A table of which every call that reads or writes may fail; all else is passed on."""

    def __init__(self, inner: Any, name: str, faults: Faults) -> None:
        self._inner, self._name, self._faults = inner, name, faults

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if verb not in CALLS:
            self._faults.require_alive()
            return found
        return lambda *args: self._faults.run(f"{self._name}.{verb}", "", lambda: found(*args))


class FaultyTables(Tables):
    """Of the catalog at this root, by this script."""

    @property
    def faults(self) -> Faults:
        assert isinstance(self.storage, FaultyStorage)
        return self.storage.faults

    def ledger(self, marker: Marker) -> Any:
        return self._made("ledger", lambda: super(FaultyTables, self).ledger(marker))

    def history(self, marker: Marker) -> Any:
        return self._made("history", lambda: super(FaultyTables, self).history(marker))

    def successor(self, catalog_id: str) -> Any:
        return self._made("successor", lambda: super(FaultyTables, self).successor(catalog_id))

    def discard(self, ledger: DeltaLedger) -> None:
        self.faults.run("discard", "", lambda: super(FaultyTables, self).discard(ledger))

    def _made(self, name: str, make: Callable[[], Any]) -> FaultyTable:
        return FaultyTable(self.faults.run(name, "", make), name, self.faults)


def upgrade_with(root: Path, faults: Faults) -> UpgradeReport:
    """An upgrade in which the script says what goes wrong."""
    storage = FaultyStorage(LocalStorage(root), faults)
    return upgrade(storage, FaultyTables(storage, ENVIRONMENT), ENVIRONMENT)


class OldWriter:
    """A program of format 1 that opened its ledger before: it holds a checkpoint under one name after the other."""

    def __init__(self, root: Path) -> None:
        ledger = DeltaLedger.open(root / "ledger")  # it does not look at the marker, as 0.1.0 does not
        self.transactor = Transactor(ledger, ENVIRONMENT)
        (job,) = [job for job in self.transactor.fresh().whole().jobs.values() if job.live]
        self.first, self.ref = len(job.holds), Ref(job.job_id, max(job.live))
        self.told: list[str] = []
        self.refused: list[HoldfastError] = []

    def write(self) -> None:
        """One commit: it was told that it landed, or that it did not."""
        name = f"hold {self.first + len(self.told) + len(self.refused)}"
        try:
            self.transactor.run(lambda state: checkpoints.hold(state, self.ref, name, None))
            self.told.append(name)
        except HoldfastError as error:
            self.refused.append(error)


def make_small(root: Path) -> Path:
    """A catalog of format 1 with a job of two checkpoints, a dropped one, and one small state."""
    format_1.make_catalog(root)
    with (
        format_1.open_catalog(root) as catalog,
        catalog.coordinate("flights", retention=holdfast.KeepLast(2)) as job,
    ):
        for n in range(3):
            with job.checkpoint({"n": n}) as checkpoint:
                checkpoint.write_bytes("state", b"%d" % n)
    return root


def holds_of(catalog: holdfast.Catalog) -> list[str]:
    """The names of all holds."""
    with catalog.duckdb() as connection:
        return sorted(name for (name,) in connection.execute("SELECT hold FROM holds").fetchall())


def register(transactor: Transactor, name: str) -> None:
    """A commit that any program may send."""
    transactor.run(lambda state: jobs.register(state, JobId(f"{name}-00000000"), name, 128))
