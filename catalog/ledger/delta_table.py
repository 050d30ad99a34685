"""A Delta table of ours on a local file system, through delta-rs: a handle on one snapshot, appends to it by compare-and-swap, its syncs.

The ledger is one such table, the history another. Two habits of delta-rs shape this module (measured; `tests/catalog/ledger_contract.py`
holds them):
* A handle that moves hides conflicts. So the handle is the snapshot, and only `refresh` moves it; a commit that loses its race uses another
  handle (`delta_commit.py`).
* It syncs nothing. A data file and its name are synced before the commit is sent; commits when `make_durable` is called.

A crash between the data file and its commit leaves a file that no commit names: no reader sees it.
"""

import errno
import hashlib
import os
import socket
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import AddressError, AlreadyExistsError, DamagedLedgerError, FencedError
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
from holdfast.catalog.ledger.delta_commit import Committer, Entry, load, read_whole
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, LogCommit, TornCommitError
from holdfast.catalog.ledger.delta_fold import NewFile, Replacement
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning, LogPlan
from holdfast.catalog.ledger.port import LedgerConflictError, SnapshotLostError, Tidied
from holdfast.catalog.schema import FORMAT_VERSION, Operation

FORMAT = "holdfast.format"
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

CATALOG_ID = "holdfast.catalogId"
_undurable: dict[tuple[int, int, str], Exception] = {}  # for the whole process: after a failed sync Linux calls the pages clean


class AddedFile(NamedTuple):
    """A data file of a snapshot."""

    path: str
    size_bytes: int


class OurTable:
    """A handle on one of our tables. Not for two threads at once: callers hold one lock over refresh, validate and append."""

    def __init__(
        self, directory: str | os.PathLike[str], table: DeltaTable, environment: Environment | None = None, plan: LogPlan | None = None
    ) -> None:
        self.directory = Path(directory)
        self.log = self.directory / "_delta_log"
        self._environment = environment or SystemEnvironment()
        self._table = table
        self._table_id = str(table.metadata().id)
        self._successor = delta_close.successor_of(table)
        self._is_digested = self.format_version > 1
        self._committer = Committer(self.directory, table.schema(), self._environment)
        self._told_version = self._loaded_version = self.version  # refresh has returned everything up to here
        self._tip = self._sha256_of(self.version)  # the entry at the held version: another table at this place has another
        self._torn = plan is not None and bool(plan.void)
        self._synced_base = plan.base if plan is not None and plan.is_synced else -1
        self._durable_version = -1
        self._checkpoint_due: int | None = None
        self._sent = 0  # since the last refresh
        self._verified: set[str] = set()  # data files whose digest this handle has compared

    @classmethod
    def exists(cls, directory: str | os.PathLike[str]) -> bool:
        """Whether the directory holds a Delta table, whole or damaged."""
        log = Path(directory) / "_delta_log"
        return bool(delta_log.commit_versions(log) or delta_log.checkpoint_versions(log))

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
        if plan.base >= 0 and not plan.is_synced and _format_of(table) > 1:
            plan = log_repair.examine(log, is_digested=True)
            log_repair.take_caches_away(log, plan)
            table = load(path, plan.version)
        for reason in plan.reasons:
            warnings.warn(reason, LedgerRepairWarning, stacklevel=3)
        opened = cls(path, table, environment, plan)
        if plan.undigested is not None:
            opened.require_ours(plan.undigested)
        return opened

    @property
    def format_version(self) -> int:
        """The format of the catalog that it was made for. From 2 on every entry and every data file has a digest of ours."""
        return _format_of(self._table)

    @property
    def successor(self) -> str | None:
        """The directory of the table that succeeds this one, if it is closed at the held version."""
        return self._successor

    @property
    def catalog_id(self) -> str:
        """The id of the catalog that this table was made for; empty for a table that is none of ours."""
        return str(self._table.metadata().configuration.get(CATALOG_ID, ""))

    @property
    def address(self) -> str:
        """The table's directory, as DuckDB and Spark take it."""
        return str(self.directory)

    @property
    def is_torn(self) -> bool:
        """Whether entries above the held version are torn, or stand on a torn one: engines of others cannot read the newest version."""
        return self._torn

    @property
    def version(self) -> int:
        return int(self._table.version())

    def transaction_version(self, key: str) -> int:
        """The version that the newest commit with this key gave it, at the held snapshot; -1 for none."""
        found = self._table.transaction_version(key)
        return -1 if found is None else int(found)

    def move(self) -> list[LogCommit]:
        """Move the snapshot to the newest version; every entry in between, oldest first. Raises as `Ledger.refresh` does."""
        if not self._torn or self._is_mended():
            self._move()
        passed: list[LogCommit] = []
        tip = self._tip
        for version in range(self._told_version + 1, self.version + 1):
            try:
                commit = read_whole(self.log, version)
            except FileNotFoundError as error:
                self._table = load(self.directory)
                raise self._lost() from error
            if not commit.is_digested:
                self.require_ours(version)
            passed.append(commit)
            tip = commit.sha256
        if self._told_version + 1 < delta_boundary.newest(self.directory):
            # One of these may be an entry that a stalled writer made where the log had been cleaned: no fresh snapshot has it.
            self._table = load(self.directory)
            raise self._lost()
        self._told_version, self._tip, self._sent = self.version, tip, 0
        if any(commit.changes_table for commit in passed):
            self._successor = delta_close.successor_of(self._table)
        self._start_from_newer_checkpoint()
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

    def replace(self, removed: Sequence[AddedFile], tables: Sequence[pa.Table], operation: Operation) -> bool:
        """Put these rows in the place of data files of the held snapshot, in one commit without a change of data.

        False: another replacement, or a change of the table, came first; nothing was changed. Any exception leaves the outcome unknown.
        """
        self.require_told()
        self.make_durable()
        added = [self._write_kept(table, n, operation) for n, table in enumerate(tables)]
        at_ms = int(operation.at.timestamp() * 1000)
        replacement = Replacement(of=self.version, removed=removed, added=added, operation_id=operation.operation_id, at_ms=at_ms)
        with self.turn():
            landed = delta_fold.commit(self.log, replacement, self._environment.pause)
        # Who stood still while the log was cleaned may have made the entry where there was a hole.
        return landed is not None and landed >= delta_boundary.newest(self.directory)

    def _write_kept(self, table: pa.Table, n: int, operation: Operation) -> NewFile:
        data = delta_data.encode(table)
        part = f"{operation.operation_id}-{n:06d}"  # in the order of names, as they are scanned
        name = delta_data.write_before_all(self.directory, self.version, part, 0, data)
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

    # ---- reading --------------------------------------------------------------------------------------------------------

    def files(self, bounds: Mapping[str, tuple[Any, Any]] | None = None, known: Mapping[str, pa.Array] | None = None) -> list[AddedFile]:
        """The data files at the held version that may hold rows with every named column within its bounds, by the log's statistics.

        Also one where a bound of a column is not among its `known` values: what is not known is not passed over.
        """
        actions = pa.table(self._table.get_add_actions(flatten=True))
        keep: Any = pa.repeat(True, actions.num_rows)
        for column, (low, high) in (bounds or {}).items():
            if f"min.{column}" in actions.column_names:
                possible = pc.and_(pc.less_equal(actions[f"min.{column}"], high), pc.greater_equal(actions[f"max.{column}"], low))
                if known and column in known:
                    are_known = (pc.is_in(actions[f"{bound}.{column}"], known[column]) for bound in ("min", "max"))
                    possible = pc.or_(possible, pc.invert(pc.and_(*are_known)))
                keep = pc.and_(keep, pc.fill_null(possible, True))  # a file without statistics may hold anything
        found = actions.filter(keep)
        if self._is_digested and (strangers := [path for path in found["path"].to_pylist() if not delta_entry.digest_in_name(path)]):
            raise self._not_ours("data file " + strangers[0])
        return [AddedFile(path, size) for path, size in zip(found["path"].to_pylist(), found["size_bytes"].to_pylist(), strict=True)]

    def read(self, names: Sequence[str], schema: pa.Schema, condition: pc.Expression, columns: list[str]) -> pa.Table:
        """Rows of these data files, each held against the digest in its name before. Raises DamagedLedgerError."""
        for name in names:
            self.require_digest(name)
        files = [str(self.directory / name) for name in names]
        try:
            return ds.dataset(files, schema=schema, format="parquet").to_table(columns=columns, filter=condition).combine_chunks()
        except FileNotFoundError as error:
            raise self._gone(names, error) from error
        except (OSError, pa.ArrowException) as error:
            msg = f"a data file of the ledger {self.directory} cannot be read: {error}; restore it from a backup"
            raise DamagedLedgerError(msg) from error

    def require_ours(self, undigested: int) -> None:
        """Raises DamagedLedgerError for an entry without a digest, which in format 1 was one of before there were any."""
        if self._is_digested:
            raise self._not_ours("log entry " + delta_log.commit_name(undigested))

    def _not_ours(self, what: str) -> DamagedLedgerError:
        msg = (
            f"the {what} of {self.directory} has no digest, so that Holdfast did not write it, and it is not believed. Nothing was "
            "changed. See which other program writes to this table (one that compacts Delta tables, for instance), stop it, and restore "
            "the directory from a backup"
        )
        return DamagedLedgerError(msg)

    def require_digest(self, name: str) -> None:
        """Raises DamagedLedgerError unless the file's bytes have the digest in its name; each is read once."""
        if name in self._verified:
            return
        if not (self.directory / name).exists():
            raise self._gone([name], FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name))
        delta_data.require_digest(self.directory, name)
        self._verified.add(name)

    def _gone(self, names: Sequence[str], error: FileNotFoundError) -> Exception:
        """A data file of the held snapshot is gone: it was replaced since, and deleted after a time; or it is lost."""
        newest = set(pa.table(load(self.directory).get_add_actions(flatten=True))["path"].to_pylist())
        if lost := [name for name in names if name in newest and not (self.directory / name).exists()]:
            return delta_data.unreadable(self.directory / lost[0], error)
        return SnapshotLostError(f"data files of version {self.version} of {self.directory} were replaced and deleted since: {error}")

    def verify_files(self) -> Iterator[tuple[str, int]]:
        """(path below the table, size) of each data file of the held snapshot, each once its digest is compared.

        Raises DamagedLedgerError for one that is not what was written.
        """
        for name, size_bytes in self.files():
            self.require_digest(name)
            yield name, size_bytes

    def count_rows(self) -> int | None:
        """How many rows the held snapshot has, by the log's statistics; None where a file has none."""
        counts = pa.table(self._table.get_add_actions(flatten=True))["num_records"]
        return None if counts.null_count else pc.sum(counts, min_count=0).as_py()

    # ---- moving ---------------------------------------------------------------------------------------------------------

    def make_checkpoint(self, version: int) -> None:
        """Make a Delta checkpoint of a version whose entries are all durable, and begin with it. One that fails is done without."""
        with suppress(OSError, DeltaError, pa.ArrowException, TornCommitError, DamagedCommitError, ValueError):
            if delta_checkpoint.make(self.log, version):
                self._begin_anew()

    def _make_checkpoint(self, version: int) -> None:
        self._checkpoint_due = None
        self.make_checkpoint(version)

    def _start_from_newer_checkpoint(self) -> None:
        """delta-rs goes over all entries since the Delta checkpoint that a handle began with at each of its calls: five times the work at
        200 commits. So a handle is made again now and then, at the same version, once there is another one to begin with."""
        if self.version - self._loaded_version > delta_checkpoint.EVERY_COMMITS:
            self._begin_anew()

    def _begin_anew(self) -> None:
        with suppress(DamagedLedgerError):  # the handle that is there does as well, only slower
            self._table = load(self.directory, self.version)
            self._loaded_version = self.version

    def _moved_at(self) -> int | None:
        try:
            return os.stat(self.log).st_mtime_ns
        except OSError:
            return None

    def _move(self) -> None:
        """Bring the table's handle to the newest version."""
        old = self._told_version
        try:
            self._require_same_table()
            self._table.update_incremental()
        except SnapshotLostError:
            self._table = load(self.directory)
            raise self._lost() from None
        except DeltaError as error:
            # delta-rs steps over commits that were cleaned, or fails, as the Delta checkpoints lie.
            if (self.log / delta_log.commit_name(old + 1)).exists():
                msg = f"the ledger {self.directory} cannot be read above version {old}: {error}; open the catalog again"
                raise DamagedLedgerError(msg) from error
            self._table = load(self.directory)
            raise self._lost() from error

    def _lost(self) -> SnapshotLostError:
        msg = f"commits after version {self._told_version} of {self.directory} are no longer in the log: read the snapshot again"
        self._told_version, self._tip = self.version, self._sha256_of(self.version)
        self._durable_version = self._synced_base = -1  # it may be a copy that was put back, of which nothing was synced here
        self._checkpoint_due, self._sent = None, 0
        self._successor = delta_close.successor_of(self._table)
        self._verified.clear()
        return SnapshotLostError(msg)

    def _is_mended(self) -> bool:
        """Whether the torn entry above the held version is torn no more: another process has mended it."""
        try:
            delta_log.read_commit(self.log, self.version + 1)
        except (TornCommitError, FileNotFoundError):
            return False
        except DamagedCommitError:
            return True
        self._torn = False
        return True

    def _require_same_table(self) -> None:
        """Raises FencedError if another ledger stands here, AddressError if none does, SnapshotLostError if the log was cleaned above."""
        tip = self._sha256_of(self._told_version)
        if tip == self._tip:
            return
        if not self.log.is_dir():
            msg = (
                f"the ledger {self.directory} is not there on host {socket.gethostname()}: the catalog was removed, or this host does not "
                "see its file system any more. Mount it at the same path, then call again; nothing was committed"
            )
            raise AddressError(msg)
        here = load(self.directory).metadata()
        if str(here.id) != self._table_id:
            msg = (
                f"another ledger stands at {self.directory} (of catalog {here.configuration.get(CATALOG_ID)!r}, this process opened "
                f"{self.catalog_id!r}): the catalog was deleted and made again, or replaced. Nothing was committed; stop this process"
            )
            raise FencedError(msg)
        msg = f"version {self._told_version} of {self.directory} is no longer in the log"
        raise SnapshotLostError(msg)

    def _sha256_of(self, version: int) -> str | None:
        try:
            return hashlib.sha256((self.log / delta_log.commit_name(version)).read_bytes()).hexdigest()
        except FileNotFoundError:
            return None


def _format_of(table: DeltaTable) -> int:
    found = str(table.metadata().configuration.get(FORMAT, "1"))
    return int(found) if found.isdecimal() else 0
