"""The ledger as a Delta table, through delta-rs, on a local file system.

Two habits of delta-rs shape this module (measured; `tests/catalog/ledger_contract.py` holds them):
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import AddressError, AlreadyExistsError, DamagedLedgerError, FencedError
from holdfast.catalog.facts import KINDS, Fact
from holdfast.catalog.forks import ledger_engine
from holdfast.catalog.ledger import delta_checkpoint, delta_data, delta_entry, delta_log, log_repair, turns
from holdfast.catalog.ledger.delta_commit import Committer, Entry, load, read_whole
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, TornCommitError
from holdfast.catalog.ledger.log_repair import LedgerRepairWarning, LogPlan
from holdfast.catalog.ledger.port import LedgerConflictError, LoggedCommit, SnapshotLostError
from holdfast.catalog.schema import SCHEMA, Operation, from_table, to_table

CONFIGURATION = {
    "delta.appendOnly": "true",
    # The cleaning hook lists the whole log at every commit: 50 to 150 ms of it at 5,000 commits.
    "delta.enableExpiredLogCleanup": "false",
    # Without Delta checkpoints a commit costs 400 to 800 ms at 5,000 commits.
    "delta.checkpointInterval": str(delta_checkpoint.EVERY_COMMITS),
}

_CATALOG_ID = "holdfast.catalogId"
_undurable: dict[tuple[int, int, str], Exception] = {}  # for the whole process: after a failed sync Linux calls the pages clean


class DeltaLedger:
    """A handle on the ledger's table. Not for two threads at once: callers hold one lock over refresh, validate and append."""

    def __init__(
        self, directory: str | os.PathLike[str], table: DeltaTable, environment: Environment | None = None, plan: LogPlan | None = None
    ) -> None:
        self._directory = Path(directory)
        self._log = self._directory / "_delta_log"
        self._environment = environment or SystemEnvironment()
        self._table = table
        self._table_id = str(table.metadata().id)
        self._committer = Committer(self._directory, table.schema(), self._environment)
        self._told_version = self._loaded_version = self.version  # refresh has returned everything up to here
        self._tip = self._sha256_of(self.version)  # the entry at the held version: another table at this place has another
        self._torn = plan is not None and bool(plan.void)
        self._synced_base = plan.base if plan is not None and plan.is_synced else -1
        self._durable_version = -1
        self._checkpoint_due: int | None = None
        self._sent: dict[str, tuple[Fact, ...]] = {}  # by data file: one's own facts need not be read back
        self._verified: set[str] = set()  # data files whose digest this handle has compared

    @classmethod
    def exists(cls, directory: str | os.PathLike[str]) -> bool:
        """Whether the directory holds a Delta table, whole or damaged."""
        log = Path(directory) / "_delta_log"
        return bool(delta_log.commit_versions(log) or delta_log.checkpoint_versions(log))

    @classmethod
    @ledger_engine()
    def create(cls, directory: str | os.PathLike[str], *, catalog_id: str, environment: Environment | None = None) -> "DeltaLedger":
        """Make an empty ledger that carries the catalog's id, durable when this returns. Of several at once exactly one succeeds.

        Raises:
            AlreadyExistsError: the directory holds a Delta table.
        """
        path = Path(directory).absolute()
        log = path / "_delta_log"
        msg = f"{path} holds a ledger already: open it"
        if cls.exists(path):
            raise AlreadyExistsError(msg)
        missing = [p for p in (log, *log.parents) if not p.exists()]
        log.mkdir(parents=True, exist_ok=True)
        # Two `DeltaTable.create` at once may both succeed, the second as version 1 with its own metadata (seen): so it runs aside.
        with tempfile.TemporaryDirectory() as aside:
            configuration = CONFIGURATION | {_CATALOG_ID: catalog_id}
            DeltaTable.create(aside, SCHEMA, mode="error", configuration=configuration, raise_if_key_not_exists=False)
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
    def open(cls, directory: str | os.PathLike[str], environment: Environment | None = None) -> "DeltaLedger":
        """A handle at the newest version that is believed (`log_repair.examine`): below a torn tail, if there is one.

        Raises:
            DamagedLedgerError: the ledger is gone, or has damage that cannot be mended; the message names the file.
        """
        path = Path(directory).absolute()
        log = path / "_delta_log"
        plan = log_repair.examine(log)
        log_repair.take_caches_away(log, plan)
        for reason in plan.reasons:
            warnings.warn(reason, LedgerRepairWarning, stacklevel=3)
        return cls(path, load(path, plan.version), environment, plan)

    @property
    def catalog_id(self) -> str:
        """The id of the catalog that this ledger was made for; empty for a table that is none."""
        return str(self._table.metadata().configuration.get(_CATALOG_ID, ""))

    @property
    def address(self) -> str:
        """The table's directory, as DuckDB and Spark take it."""
        return str(self._directory)

    @property
    def is_torn(self) -> bool:
        """Whether entries above the held version are torn, or stand on a torn one: engines of others cannot read the newest version."""
        return self._torn

    @property
    def version(self) -> int:
        return int(self._table.version())

    def refresh(self) -> Sequence[LoggedCommit]:
        if not self._torn or self._is_mended():
            self._move()
        passed: list[LoggedCommit] = []
        tip = self._tip
        for version in range(self._told_version + 1, self.version + 1):
            try:
                commit = read_whole(self._log, version)
            except FileNotFoundError as error:
                raise self._lost() from error
            files = tuple(file.path for file in commit.added if file.data_change)
            if files:
                passed.append(LoggedCommit(version, commit.operation_id, commit.keys, partial(self._facts_of, files, self._sent)))
            tip = commit.sha256
        self._told_version, self._tip = self.version, tip
        self._sent = {}
        self._start_from_newer_checkpoint()
        return passed

    def _start_from_newer_checkpoint(self) -> None:
        """delta-rs goes over all entries since the Delta checkpoint that a handle began with at each of its calls: five times the work at
        200 commits. So a handle is made again now and then, at the same version, once there is another one to begin with."""
        if self.version - self._loaded_version > delta_checkpoint.EVERY_COMMITS:
            self._begin_anew()

    def _begin_anew(self) -> None:
        with suppress(DamagedLedgerError):  # the handle that is there does as well, only slower
            self._table = load(self._directory, self.version)
            self._loaded_version = self.version

    def turn(self) -> AbstractContextManager[object]:
        return turns.turn(str(self._log), self._environment, self._moved_at)

    def _moved_at(self) -> int | None:
        try:
            return os.stat(self._log).st_mtime_ns
        except OSError:
            return None

    def mend(self) -> Sequence[str]:
        if not self._torn:
            return ()
        plan = log_repair.examine(self._log)
        if plan.void:
            log_repair.mend(self._log, plan)
        self._torn = False
        return plan.reasons

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        if self._told_version != self.version:
            # A refresh moved the table's handle and failed before it reported what it passed over: a conflict would be missed.
            msg = f"the caller has seen version {self._told_version} and the handle stands at {self.version}: refresh first"
            raise LedgerConflictError(msg)
        self._require_same_table()
        self.make_durable()  # what this stands on: the entry says so, and is then the proof that what lies below it was whole
        table = to_table(facts, operation)
        data = delta_data.encode(table)
        name = delta_data.write_durably(self._directory, self.version, operation.operation_id, len(self._sent), data)
        self._sent[name] = tuple(facts)
        entry = Entry(
            name=name,
            size_bytes=len(data),
            modified_ms=int(operation.at.timestamp() * 1000),
            statistics=delta_data.statistics(table),
            keys=dict(keys),
            operation_id=operation.operation_id,
            durable_to=self._durable_version,
        )
        landed = self._committer.commit(self._table, entry, self._require_same_table)
        if landed is not None and landed % delta_checkpoint.EVERY_COMMITS == 0:
            self._checkpoint_due = landed

    def make_durable(self) -> None:
        version = self.version
        if version <= self._durable_version:
            return
        here = os.stat(self._log)
        key = (here.st_dev, here.st_ino, self._table_id)
        if (before := _undurable.get(key)) is not None:
            msg = f"an earlier sync of this ledger failed in this process ({before}), and the next would succeed over lost data"
            raise OSError(errno.EIO, msg)
        first = self._durable_version < 0
        todo = (
            [v for v in delta_log.commit_versions(self._log) if v > self._synced_base]
            if first
            else range(self._durable_version + 1, version + 1)
        )
        try:
            for commit in todo:
                with suppress(FileNotFoundError):  # the process that cleaned the log synced a Delta checkpoint above it first
                    delta_log.sync(self._log / delta_log.commit_name(commit))
            delta_log.sync(self._log)
        except delta_log.NotSyncedError as error:
            _undurable[key] = error
            raise
        self._durable_version = version
        if self._checkpoint_due is not None and self._checkpoint_due <= version:
            self._make_checkpoint(self._checkpoint_due)

    def scan(self, kinds: Iterable[str] | None = None, job_id: str | None = None, scope: str | None = None) -> Sequence[Fact]:
        """The facts at the held snapshot.

        Order: of two commits of which the later one's writer had seen the earlier (so of any two with a key in common), the earlier
        comes first. Delta's own compaction forgets that order (it was seen to reverse it); where it has run, facts come in the order
        of `seq`, those without one last, and those of one commit in the commit's order.
        """
        bounds: dict[str, tuple[str, str]] = {}
        condition = pc.scalar(True)
        wanted = None if kinds is None else frozenset(kinds)
        if wanted is not None:
            if not wanted:
                return []
            bounds["kind"] = min(wanted), max(wanted)
            condition &= pc.field("kind").isin(sorted(wanted))
        if job_id is not None:
            bounds["job_id"] = job_id, job_id
            condition &= pc.field("job_id") == job_id
        if scope is not None:
            condition &= pc.field("scope") == scope
        names, are_ours = delta_data.in_order_of_writing(list(self._files(bounds)))
        table = self._read(names, condition, _columns_of(wanted))
        try:
            return list(from_table(table if are_ours else delta_data.by_seq(table)))
        except (ValueError, TypeError) as error:
            msg = f"the ledger {self._directory} says what no version of Holdfast writes: {error}; restore it from a backup"
            raise DamagedLedgerError(msg) from error

    def has_operation(self, operation_id: str) -> bool:
        paths = list(self._files({"operation_id": (operation_id, operation_id)}))
        return bool(self._read(paths, pc.field("operation_id") == operation_id, ["kind"]).num_rows)

    def count_rows(self) -> int | None:
        """How many facts the held snapshot has, by the log's statistics; None where a file has none."""
        counts = pa.table(self._table.get_add_actions(flatten=True))["num_records"]
        return None if counts.null_count else pc.sum(counts, min_count=0).as_py()

    def verify_files(self) -> Iterator[tuple[str, int]]:
        """(path below the table, size) of each data file of the held snapshot, each once its digest is compared.

        Raises DamagedLedgerError for one that is not what was written.
        """
        actions = pa.table(self._table.get_add_actions(flatten=True))
        for name, size_bytes in zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True):
            self._require_digest(name)
            yield name, size_bytes

    def _make_checkpoint(self, version: int) -> None:
        self._checkpoint_due = None
        # The commit has landed and is durable. A Delta checkpoint that fails is one that the next twenty commits do without.
        with suppress(OSError, DeltaError, pa.ArrowException, TornCommitError, DamagedCommitError, ValueError):
            if delta_checkpoint.make(self._log, version):
                self._begin_anew()

    # ---- moving ---------------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Bring the table's handle to the newest version."""
        old = self._told_version
        try:
            self._require_same_table()
            self._table.update_incremental()
        except SnapshotLostError:
            self._table = load(self._directory)
            raise self._lost() from None
        except DeltaError as error:
            # delta-rs steps over commits that were cleaned, or fails, as the Delta checkpoints lie.
            if (self._log / delta_log.commit_name(old + 1)).exists():
                msg = f"the ledger {self._directory} cannot be read above version {old}: {error}; open the catalog again"
                raise DamagedLedgerError(msg) from error
            self._table = load(self._directory)
            raise self._lost() from error

    def _lost(self) -> SnapshotLostError:
        msg = f"commits after version {self._told_version} of {self._directory} are no longer in the log: read the snapshot again"
        self._told_version, self._tip = self.version, self._sha256_of(self.version)
        self._durable_version = self._synced_base = -1  # it may be a copy that was put back, of which nothing was synced here
        self._checkpoint_due, self._sent = None, {}
        self._verified.clear()
        return SnapshotLostError(msg)

    def _is_mended(self) -> bool:
        """Whether the torn entry above the held version is torn no more: another process has mended it."""
        try:
            delta_log.read_commit(self._log, self.version + 1)
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
        if not self._log.is_dir():
            msg = (
                f"the ledger {self._directory} is not there on host {socket.gethostname()}: the catalog was removed, or this host does not "
                "see its file system any more. Mount it at the same path, then call again; nothing was committed"
            )
            raise AddressError(msg)
        here = load(self._directory).metadata()
        if str(here.id) != self._table_id:
            msg = (
                f"another ledger stands at {self._directory} (of catalog {here.configuration.get(_CATALOG_ID)!r}, this process opened "
                f"{self.catalog_id!r}): the catalog was deleted and made again, or replaced. Nothing was committed; stop this process"
            )
            raise FencedError(msg)
        msg = f"version {self._told_version} of {self._directory} is no longer in the log"
        raise SnapshotLostError(msg)

    def _sha256_of(self, version: int) -> str | None:
        try:
            return hashlib.sha256((self._log / delta_log.commit_name(version)).read_bytes()).hexdigest()
        except FileNotFoundError:
            return None

    # ---- reading --------------------------------------------------------------------------------------------------------

    def _facts_of(self, files: Sequence[str], sent: Mapping[str, tuple[Fact, ...]]) -> Sequence[Fact]:
        facts: list[Fact] = []
        for file in files:
            facts += sent[file] if file in sent else delta_data.read_facts(self._directory, file)
        return facts

    def _files(self, bounds: Mapping[str, tuple[str, str]]) -> Iterator[str]:
        """The data files at the held version that may hold rows with every named column within its bounds, by the log's statistics."""
        actions = pa.table(self._table.get_add_actions(flatten=True))
        keep: Any = pa.repeat(True, actions.num_rows)
        for column, (low, high) in bounds.items():
            if f"min.{column}" in actions.column_names:
                possible = pc.and_(pc.less_equal(actions[f"min.{column}"], high), pc.greater_equal(actions[f"max.{column}"], low))
                keep = pc.and_(keep, pc.fill_null(possible, True))  # a file without statistics may hold anything
        yield from actions["path"].filter(keep).to_pylist()

    def _read(self, names: Sequence[str], condition: pc.Expression, columns: list[str]) -> pa.Table:
        for name in names:
            self._require_digest(name)
        files = [str(self._directory / name) for name in names]
        try:
            return ds.dataset(files, schema=SCHEMA, format="parquet").to_table(columns=columns, filter=condition).combine_chunks()
        except (OSError, pa.ArrowException) as error:
            msg = f"a data file of the ledger {self._directory} cannot be read: {error}; restore it from a backup"
            raise DamagedLedgerError(msg) from error

    def _require_digest(self, name: str) -> None:
        if name not in self._verified:
            delta_data.require_digest(self._directory, name)
            self._verified.add(name)


def _columns_of(kinds: frozenset[str] | None) -> list[str]:
    """The columns that facts of these kinds are made of (None: all); enough to filter and to sort by as well."""
    if kinds is None:
        return list(SCHEMA.names)
    wanted = {"kind", "job_id", "seq"}.union(*({f.name for f in fields(KINDS[kind])} for kind in kinds if kind in KINDS))
    return [name for name in SCHEMA.names if name in wanted]
