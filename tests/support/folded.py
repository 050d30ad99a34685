"""A real ledger and its history, to which facts are committed, told, folded and carried over at will: what a catalog's views read."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from holdfast.catalog import folding
from holdfast.catalog.facts import Fact
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.schema import Operation
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.duckdb_engine import Table
from holdfast.compaction.fold import run_fold
from tests.support.history import T0
from tests.support.model_ports import ModelEnvironment

BY = "ann@host"
FILE_ROWS = 4  # so that folds leave files where they are


class Clerk(ModelEnvironment):
    """Who folds: the operations are numbered with those of who commits."""

    def __init__(self, tables: "Tables") -> None:
        self.tables, self.actor = tables, BY

    def now(self) -> datetime:
        return T0

    def new_id(self) -> str:
        return self.tables.operation().operation_id


class Tables:
    """The ledger of today, and the history."""

    def __init__(self, root: Path, name: str = "ledger") -> None:
        """Those that are there, with a ledger of this name, or new ones."""
        self.root, self.operations = root, 0
        if not DeltaHistory.exists(root / "history"):
            DeltaLedger.create(root / name, catalog_id="c0ffee")
            DeltaHistory.make(root / "history", HISTORY_SCHEMA, catalog_id="c0ffee")
        self.ledger, self.history = DeltaLedger.open(root / name), DeltaHistory.of(root / "history", name)

    @property
    def name(self) -> str:
        return self.history.ledger

    def operation(self, at: datetime = T0) -> Operation:
        self.operations += 1
        return Operation(operation_id=f"op{self.operations}", at=at, by=BY)

    def commit(self, facts: Sequence[Fact], at: datetime) -> int:
        """The version."""
        self.ledger.append(facts, keys={}, operation=self.operation(at))
        self.ledger.refresh()
        return self.ledger.version

    def tell(self) -> None:
        """The first step of a fold."""
        self.ledger.make_durable()
        if self.ledger.version > self.history.told_to:
            self.history.tell(self.ledger.commits(self.history.told_to), self.ledger.version)

    def fold(self) -> None:
        """As upkeep does it; nothing, where nothing is new."""
        run_fold(self.ledger, self.history, Clerk(self), file_rows=FILE_ROWS)
        self.ledger.refresh()
        assert not self.ledger.commits(self.ledger.folded_to)

    def carry_over(self) -> None:
        """A new ledger in place of this one, as an upgrade makes it: it begins with what a fold keeps, all of which the history has."""
        self.tell()
        name = f"ledger-{len([*self.root.glob('ledger*')])}"
        successor = DeltaLedger.create(self.root / name, catalog_id="c0ffee")
        kept = folding.fold(self.ledger.rows(), operation := self.operation())
        assert successor.fold(kept, operation)
        successor.refresh()
        self.ledger, self.history = successor, DeltaHistory.of(self.root / "history", name)

    def connect(self):
        """The views, as `Catalog.duckdb` gives them."""
        return duckdb_engine.connect(self.ledger.address, history=Table(self.history.address), root=str(self.root))
