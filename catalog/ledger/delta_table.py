"""A Delta table of ours on a local file system, through delta-rs: made, opened, appended to by compare-and-swap, synced.

The ledger is one such table, the history another; `delta_handle.py` has what reads. delta-rs syncs nothing: here a data file and its name
are synced before the commit is sent, and commits when `make_durable` is called. A commit that loses its race uses another handle than
this one, which stays where it is (`delta_commit.py`).

A crash between the data file and its commit leaves a file that no commit names: no reader sees it.
"""

import errno
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import AlreadyExistsError, FencedError
from holdfast.catalog.forks import ledger_engine
from holdfast.catalog.ledger import (
    delta_boundary,
    delta_checkpoint,
    delta_clean,
    delta_close,
    delta_data,
    delta_entry,
    delta_fold,
    delta_log,
    log_repair,
    turns,
)
from holdfast.catalog.ledger.delta_commit import Committer, Entry, load
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, LogCommit, TornCommitError
from holdfast.catalog.ledger.delta_fold import NewFile, Replacement
from holdfast.catalog.ledger.delta_handle import CATALOG_ID, FORMAT, AddedFile, TableHandle, format_of
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning, LogPlan
from holdfast.catalog.ledger.port import LedgerConflictError, SnapshotLostError, Tidied
from holdfast.catalog.schema import FORMAT_VERSION, Operation

CONFIGURATION = {
    FORMAT: str(FORMAT_VERSION),
    "delta.appendOnly": "true",
    # The cleaning hook lists the whole log at every commit: 50 to 150 ms of it at 5,000 commits.
    "delta.enableExpiredLogCleanup": "false",
    # Without Delta checkpoints a commit costs 400 to 800 ms at 5,000 commits.
    "delta.checkpointInterval": str(delta_checkpoint.EVERY_COMMITS),
    # What a fold has replaced leaves the Delta checkpoint at once: 10,000 removals there cost 12 ms at each opening.
    "delta.deletedFileRetentionDuration": "interval 0 seconds",
}

_undurable: dict[tuple[int, int, str], Exception] = {}  # for the whole process: after a failed sync Linux calls the pages clean


class OurTable(TableHandle):
    """A handle on one of our tables. Not for two threads at once: callers hold one lock over refresh, validate and append."""

    def __init__(
        self, directory: str | os.PathLike[str], table: DeltaTable, environment: Environment | None = None, plan: LogPlan | None = None
    ) -> None:
        super().__init__(directory, table, is_torn=plan is not None and bool(plan.void))
        self._environment = environment or SystemEnvironment()
        self._committer = Committer(self.directory, table.schema(), self._environment)
        self._synced_base = plan.base if plan is not None and plan.is_synced else -1
        self._durable_version = -1
        self._checkpoint_due: int | None = None
        self._sent = 0  # since the last refresh

    @classmethod
    @ledger_engine()
    def make(cls, directory: str | os.PathLike[str], schema: pa.Schema, *, catalog_id: str, environment: Environment | None = None) -> Self:
        """Make an empty table that carries the catalog's id, durable when this returns. Of several at once exactly one succeeds.

        Raises:
            AlreadyExistsError: the directory holds a Delta table.
        """
        path = Path(directory).absolute()
        log = path / "_delta_log"
        msg = f"{path} holds a Delta table already: open it"
        if cls.exists(path):
            raise AlreadyExistsError(msg)
        missing = [p for p in (log, *log.parents) if not p.exists()]
        log.mkdir(parents=True, exist_ok=True)
        # Two `DeltaTable.create` at once may both succeed, the second as version 1 with its own metadata (seen): so it runs aside.
        with tempfile.TemporaryDirectory() as aside:
            configuration = CONFIGURATION | {CATALOG_ID: catalog_id}
            DeltaTable.create(aside, schema, mode="error", configuration=configuration, raise_if_key_not_exists=False)
            first = (Path(aside) / "_delta_log" / delta_log.commit_name(0)).read_bytes()
        try:
            delta_log.create_commit(log, 0, delta_entry.with_digest(0, first))
        except FileExistsError as error:
            raise AlreadyExistsError(msg) from error
        for new in missing:
            delta_log.sync(new.parent)
        return cls(path, load(path), environment)

    @classmethod
    @ledger_engine()
    def open(cls, directory: str | os.PathLike[str], environment: Environment | None = None) -> Self:
        """A handle at the newest version that is believed (`log_repair.examine`): below a torn tail, if there is one.

        Raises:
            DamagedLedgerError: the table is gone, or has damage that cannot be mended; the message names the file.
        """
        path = Path(directory).absolute()
        log = path / "_delta_log"
        plan = log_repair.examine(log)
        log_repair.take_caches_away(log, plan)
        table = load(path, plan.version)
        if plan.base >= 0 and not plan.is_synced and format_of(table) > 1:
            plan = log_repair.examine(log, is_digested=True)
            log_repair.take_caches_away(log, plan)
            table = load(path, plan.version)
        for reason in plan.reasons:
            warnings.warn(reason, LedgerRepairWarning, stacklevel=3)
        opened = cls(path, table, environment, plan)
        if plan.undigested is not None:
            opened.require_ours(plan.undigested)
        return opened

    def move(self) -> list[LogCommit]:
        passed = super().move()
        self._sent = 0
        return passed

    def turn(self) -> AbstractContextManager[object]:
        return turns.turn(str(self.log), self._environment, self._moved_at)

    def mend(self) -> Sequence[str]:
        if not self._torn:
            return ()
        plan = log_repair.examine(self.log, is_digested=self._is_digested)
        if plan.void:
            log_repair.mend(self.log, plan)
        self._torn = False
        return plan.reasons

    def add(self, rows: pa.Table, *, keys: Mapping[str, int], operation: Operation) -> str:
        """Commit rows as one transaction; the name of their data file. Promises and raises as `Ledger.append`."""
        self.require_told()
        self.make_durable()  # what this stands on: the entry says so, and is then the proof that what lies below it was whole
        data = delta_data.encode(rows)
        name = delta_data.write_durably(self.directory, self.version, operation.operation_id, self._sent, data)
        self._sent += 1
        entry = Entry(
            name=name,
            size_bytes=len(data),
            modified_ms=int(operation.at.timestamp() * 1000),
            statistics=delta_data.statistics(rows),
            keys=dict(keys),
            operation_id=operation.operation_id,
            durable_to=self._durable_version,
        )
        landed = self._committer.commit(self._table, entry, self._require_same_table)
        if landed is not None and landed % delta_checkpoint.EVERY_COMMITS == 0:
            self._checkpoint_due = landed
        return name

    def replace(
        self, removed: Sequence[AddedFile], tables: Iterable[pa.Table], operation: Operation, *, big: Iterable[pa.Table] = ()
    ) -> bool:
        """Put these rows in the place of data files of the held snapshot, in one commit without a change of data.

        Each table becomes a file, those that are `big` one that says so in its name; each is written before the next is asked for.
        False: another replacement, or a change of the table, came first; nothing was changed. Any exception leaves the outcome unknown.
        """
        self.require_told()
        self.make_durable()
        added = [self._write_kept(table, n, operation, is_big=True) for n, table in enumerate(big)]
        added += [self._write_kept(table, n, operation, is_big=False) for n, table in enumerate(tables)]
        at_ms = int(operation.at.timestamp() * 1000)
        replacement = Replacement(of=self.version, removed=removed, added=added, operation_id=operation.operation_id, at_ms=at_ms)
        with self.turn():
            landed = delta_fold.commit(self.log, replacement, self._environment.pause)
        # Who stood still while the log was cleaned may have made the entry where there was a hole.
        return landed is not None and landed >= delta_boundary.newest(self.directory)

    def _write_kept(self, table: pa.Table, n: int, operation: Operation, *, is_big: bool) -> NewFile:
        data = delta_data.encode(table)
        part = f"{operation.operation_id}-{n:06d}"  # in the order of names, as they are scanned
        name = delta_data.write_before_all(self.directory, self.version, part, 0, data, is_big=is_big)
        return NewFile(name=name, size_bytes=len(data), statistics=delta_data.statistics(table))

    def clean(self, told_to: int) -> Tidied:
        """Make a Delta checkpoint of the held version, which is durable; then delete what nobody needs any more (`delta_clean`)."""
        self.make_checkpoint(self.version)
        return delta_clean.clean(self.directory, told_to, self._environment.now())

    def require_told(self) -> None:
        """Raises LedgerConflictError where a refresh moved the table's handle and failed before it reported what it passed over: a
        conflict would be missed. And as `_require_same_table`."""
        self.require_open()
        if self._told_version != self.version:
            msg = f"the caller has seen version {self._told_version} and the handle stands at {self.version}: refresh first"
            raise LedgerConflictError(msg)
        self._require_same_table()

    def require_open(self) -> None:
        """Raises FencedError where the table is closed at the held version."""
        if self._successor is not None:
            msg = (
                f"{self.directory} is closed: {self._successor} next to it has its facts since the catalog was upgraded. Nothing was "
                "committed; stop this process, and open the catalog again"
            )
            raise FencedError(msg)

    def close(self, successor: str, operation: Operation) -> bool:
        """Close the table directly above the held version: no commit lands above it. Durable on return, with all below.

        False: another commit came first, and nothing was changed. Raises as `add`.
        """
        self.require_told()
        self.make_durable()
        return delta_close.close(self.log, self._table, successor, operation)

    def make_durable(self) -> None:
        version = self.version
        if version <= self._durable_version:
            return
        here = os.stat(self.log)
        key = (here.st_dev, here.st_ino, self._table_id)
        if (before := _undurable.get(key)) is not None:
            msg = f"an earlier sync of this ledger failed in this process ({before}), and the next would succeed over lost data"
            raise OSError(errno.EIO, msg)
        first = self._durable_version < 0
        todo = (
            [v for v in delta_log.commit_versions(self.log) if v > self._synced_base]
            if first
            else range(self._durable_version + 1, version + 1)
        )
        try:
            for commit in todo:
                with suppress(FileNotFoundError):  # the process that cleaned the log synced a Delta checkpoint above it first
                    delta_log.sync(self.log / delta_log.commit_name(commit))
            delta_log.sync(self.log)
        except delta_log.NotSyncedError as error:
            _undurable[key] = error
            raise
        self._durable_version = version
        if self._checkpoint_due is not None and self._checkpoint_due <= version:
            self._make_checkpoint(self._checkpoint_due)

    def make_checkpoint(self, version: int) -> None:
        """Make a Delta checkpoint of a version whose entries are all durable, and begin with it. One that fails is done without."""
        with suppress(OSError, DeltaError, pa.ArrowException, TornCommitError, DamagedCommitError, ValueError):
            if delta_checkpoint.make(self.log, version):
                self._begin_anew()

    def _make_checkpoint(self, version: int) -> None:
        self._checkpoint_due = None
        self.make_checkpoint(version)

    def _moved_at(self) -> int | None:
        try:
            return os.stat(self.log).st_mtime_ns
        except OSError:
            return None

    def _lost(self) -> SnapshotLostError:
        error = super()._lost()
        self._durable_version = self._synced_base = -1  # it may be a copy that was put back, of which nothing was synced here
        self._checkpoint_due, self._sent = None, 0
        return error
