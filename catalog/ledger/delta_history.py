"""The history: every fact that the ledger ever had, in a Delta table of its own (design, section 4b).

A fold tells it what is new before it takes anything out of the ledger. Each row says of which ledger and which version it is; inline bytes
are left out. No decision reads it but scrub's, about tokens that have ended, and the question whether an operation landed.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from holdfast.catalog.environment import Environment
from holdfast.catalog.facts import AttemptEnded, AttemptOpened
from holdfast.catalog.ledger import delta_data
from holdfast.catalog.ledger.delta_table import OurTable
from holdfast.catalog.ledger.log_repair import LogPlan
from holdfast.catalog.ledger.port import LedgerConflictError, SnapshotLostError, Tidied, ToldCommit
from holdfast.catalog.schema import SCHEMA, FactColumns, Operation, from_table
from holdfast.catalog.types import Purpose, Status

SMALL_BYTES = 4 * 1024 * 1024
MERGE_FROM_FILES = 50  # of small ones

HISTORY_SCHEMA = pa.schema(
    [
        pa.field("ledger", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),  # among the first columns: of others Delta has no statistics
        *(field for field in SCHEMA if field.name != "inline"),
    ]
)


class DeltaHistory(OurTable):
    """A handle on the history, as one ledger (the name of its directory) tells it."""

    def __init__(
        self, directory: str | os.PathLike[str], table: DeltaTable, environment: Environment | None = None, plan: LogPlan | None = None
    ) -> None:
        super().__init__(directory, table, environment, plan)
        self.ledger = ""

    @classmethod
    def of(cls, directory: str | os.PathLike[str], ledger: str, environment: Environment | None = None) -> "DeltaHistory":
        """The history in this directory, for the ledger of this name. Raises DamagedLedgerError."""
        history = cls.open(directory, environment)
        history.ledger = ledger
        return history

    @property
    def told_to(self) -> int:
        return self.told_of(self.ledger)

    def told_of(self, ledger: str) -> int:
        """The version up to which it was told of the ledger of this name; -1: of nothing."""
        return self.transaction_version(_key(ledger))

    def refresh(self) -> None:
        with suppress(SnapshotLostError):  # it has moved all the same, and nothing of it is remembered
            self.move()

    def tell(self, commits: Sequence[ToldCommit], upto: int) -> None:
        if upto <= self.told_to:
            msg = f"the history was told of version {self.told_to} of {self.ledger!r}, and is told of {upto}"
            raise LedgerConflictError(msg)
        self.mend()
        operation = Operation.new(self._environment)
        self.add(self.table_of(commits), keys={_key(self.ledger): upto}, operation=operation)
        self.refresh()
        self.make_durable()

    def operation_at(self, version: int) -> str | None:
        """The operation that committed this version of the ledger; None where the history has no row of it."""
        condition = (pc.field("version") == version) & (pc.field("ledger") == self.ledger)
        names = [file.path for file in self.files({"version": (version, version)})]
        found = self.read(names, HISTORY_SCHEMA, condition, ["operation_id"])
        return str(found["operation_id"][0]) if found.num_rows else None

    def has_operation(self, operation_id: str) -> bool:
        names = [file.path for file in self.files({"operation_id": (operation_id, operation_id)})]
        return bool(self.read(names, HISTORY_SCHEMA, pc.field("operation_id") == operation_id, ["kind"]).num_rows)

    def ended_attempts(self, upto: int) -> FactColumns:
        """Every attempt that the history knows to have ended, told of versions up to this one of the ledger, or of ledgers before it."""
        condition = pc.field("kind").isin([AttemptOpened.kind, AttemptEnded.kind])
        condition &= (pc.field("version") <= upto) | (pc.field("ledger") != self.ledger)
        names = {"kind"}.union(*((field.name for field in fields(fact)) for fact in (AttemptOpened, AttemptEnded)))
        table = self.read([file.path for file in self.files()], HISTORY_SCHEMA, condition, [n for n in SCHEMA.names if n in names])
        is_end, purposes, ends = pc.equal(table["kind"], AttemptEnded.kind), pa.array([*Purpose]), pa.array([*Status])
        known = pc.if_else(is_end, pc.is_in(table["status"], value_set=ends), pc.is_in(table["purpose"], value_set=purposes))
        for _ in from_table(table.filter(pc.invert(known))):  # of millions these alone are looked at one by one, which raises
            pass
        ended = table.filter(is_end)["attempt"]
        opened = table.filter(pc.invert(is_end))
        return FactColumns(opened.filter(pc.is_in(opened["attempt"], value_set=ended)).sort_by("attempt"))

    def tidy(self) -> Tidied:
        self.make_durable()
        small = [file for file in self.files() if file.size_bytes < SMALL_BYTES]
        if len(small) >= MERGE_FROM_FILES:
            names = sorted(file.path for file in small)
            merged = self.read(names, HISTORY_SCHEMA, pc.scalar(True), list(HISTORY_SCHEMA.names)).sort_by("version")
            operation = Operation.new(self._environment)
            self.replace(small, [merged], operation)
            self.refresh()
            self.make_durable()
        return self.clean(self.version)

    def table_of(self, commits: Sequence[ToldCommit]) -> pa.Table:
        """What these commits of the ledger said, as rows of the history."""
        table = delta_data.table_of([row for commit in commits for row in commit.rows]).drop_columns(["inline"])
        ledger = pa.array([self.ledger] * table.num_rows, pa.string())
        version = pa.array([commit.version for commit in commits for _ in commit.rows], pa.int64())
        return pa.table([ledger, version, *table.columns], schema=HISTORY_SCHEMA)


def _key(ledger: str) -> str:
    return f"holdfast/history/{ledger}"
