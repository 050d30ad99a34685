"""The ledger as a Delta table, through delta-rs, on a local file system.

Two habits of delta-rs shape this module (measured; `tests/ledger_contract.py` holds them):
* It compares the app ids of a commit with those of the commits since *the handle's* version, never their versions. So the
  handle is the snapshot, and only `refresh` moves it. `write_deltalake` would load the newest version first and miss conflicts.
* It syncs nothing. A data file and its name are synced before the commit is sent; commits when `make_durable` is called.

A crash between the data file and its commit leaves a file that no commit names: no reader sees it.
"""

import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from holdfast.catalog import delta_log, delta_tail
from holdfast.catalog.errors import AlreadyExistsError, DamagedLedgerError
from holdfast.catalog.facts import KINDS, Fact
from holdfast.catalog.ledger import LedgerConflictError, LoggedCommit, SnapshotLostError
from holdfast.catalog.schema import SCHEMA, Operation, from_table, to_table

CONFIGURATION = {
    "delta.appendOnly": "true",
    # The cleaning hook lists the whole log at every commit: 50 to 150 ms of it at 5,000 commits.
    "delta.enableExpiredLogCleanup": "false",
    # Without Delta checkpoints a commit costs 400 to 800 ms at 5,000 commits.
    "delta.checkpointInterval": "20",
}
PRUNING_COLUMNS = ("kind", "operation_id", "job_id", "seq")

_CATALOG_ID = "holdfast.catalogId"
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)
_OWN_FILE = re.compile(r"\d{20}-.*")
_DICTIONARY_FROM_ROWS = 1000  # below it, dictionaries cost more than they save


class DeltaLedger:
    """A handle on the ledger's table. Not for two threads at once: callers hold one lock over refresh, validate and append."""

    def __init__(self, directory: str | os.PathLike[str], table: DeltaTable) -> None:
        self._directory = Path(directory)
        self._log = self._directory / "_delta_log"
        self._table = table
        self._schema = table.schema()
        self._told_version = self.version  # refresh has returned everything up to here
        self._durable_version = -1
        self._sent: dict[str, tuple[Fact, ...]] = {}  # by data file: one's own facts need not be read back

    @classmethod
    def exists(cls, directory: str | os.PathLike[str]) -> bool:
        """Whether the directory holds a Delta table, whole or damaged."""
        log = Path(directory) / "_delta_log"
        return bool(delta_log.commit_versions(log) or delta_log.checkpoint_versions(log))

    @classmethod
    def create(cls, directory: str | os.PathLike[str], *, catalog_id: str) -> "DeltaLedger":
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
        # Of two `DeltaTable.create` at once both may succeed, the second as version 1 with its own metadata (seen): so it runs aside.
        with tempfile.TemporaryDirectory() as aside:
            configuration = CONFIGURATION | {_CATALOG_ID: catalog_id}
            DeltaTable.create(aside, SCHEMA, mode="error", configuration=configuration, raise_if_key_not_exists=False)
            first = (Path(aside) / "_delta_log" / delta_log.commit_name(0)).read_bytes()
        try:
            delta_log.create_commit(log, 0, first)
        except FileExistsError as error:
            raise AlreadyExistsError(msg) from error
        for new in missing:
            delta_log.sync(new.parent)
        return cls(path, _load(path))

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> "DeltaLedger":
        """A handle at the newest version, once the tail of the log is found or made whole (`delta_tail.check_tail`).

        Raises:
            DamagedLedgerError: the ledger is gone, or has damage that cannot be mended; the message names the file.
        """
        path = Path(directory).absolute()
        delta_tail.check_tail(path / "_delta_log")
        return cls(path, _load(path))

    @property
    def catalog_id(self) -> str:
        """The id of the catalog that this ledger was made for; empty for a table that is none."""
        return str(self._table.metadata().configuration.get(_CATALOG_ID, ""))

    @property
    def address(self) -> str:
        """The table's directory, as DuckDB and Spark take it."""
        return str(self._directory)

    @property
    def version(self) -> int:
        return int(self._table.version())

    def refresh(self) -> Sequence[LoggedCommit]:
        self._move()
        passed: list[LoggedCommit] = []
        for version in range(self._told_version + 1, self.version + 1):
            try:
                commit = delta_log.read_commit(self._log, version)
            except FileNotFoundError as error:
                raise self._lost() from error
            except delta_log.TornCommitError as error:
                msg = f"{self._log / delta_log.commit_name(version)} {error}: open the catalog again"
                raise DamagedLedgerError(msg) from error
            files = tuple(file.path for file in commit.added if file.data_change)
            if files:
                passed.append(LoggedCommit(version, commit.operation_id, commit.keys, partial(self._facts_of, files, self._sent)))
        self._told_version = self.version
        self._sent = {}
        return passed

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        if self._told_version != self.version:
            # A refresh moved the table's handle and failed before it told what it passed over: delta-rs would miss the conflict.
            msg = f"the caller has seen version {self._told_version} and the handle stands at {self.version}: refresh first"
            raise LedgerConflictError(msg)
        table = to_table(facts, operation)
        name, size_bytes = self._write_durably(table, operation.operation_id)
        self._sent[name] = tuple(facts)
        properties = CommitProperties(
            app_transactions=[Transaction(key, version) for key, version in keys.items()],
            custom_metadata={delta_log.OPERATION_ID: operation.operation_id, delta_log.ACTIONS: 1 + len(keys)},
        )
        modified_ms = int(operation.at.timestamp() * 1000)
        try:
            self._table.create_write_transaction(
                [AddAction(name, size_bytes, {}, modified_ms, True, _statistics(table))],
                mode="append",
                schema=self._schema,
                partition_by=[],
                commit_properties=properties,
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError as error:
            if "concurrent transaction" in str(error).lower():  # only the message tells the causes apart
                msg = f"one of {sorted(keys)} was committed after version {self.version}"
                raise LedgerConflictError(msg) from error
            raise
        except DeltaError as error:
            if "invalid table version" in str(error).lower():
                msg = f"version {self.version} of {self._directory} is no longer in the log"
                raise SnapshotLostError(msg) from error
            raise

    def make_durable(self) -> None:
        version = self.version
        if version <= self._durable_version:
            return
        first = self._durable_version < 0
        for commit in delta_log.commit_versions(self._log) if first else range(self._durable_version + 1, version + 1):
            try:
                delta_log.sync(self._log / delta_log.commit_name(commit))
            except FileNotFoundError:
                continue  # whoever cleaned the log synced a Delta checkpoint above it first
        delta_log.sync(self._log)
        self._durable_version = version

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
        paths = sorted(self._files(bounds), key=lambda path: (_OWN_FILE.fullmatch(path) is not None, path))
        table = self._read(paths, condition, _columns_of(wanted))
        return list(from_table(table if all(_OWN_FILE.fullmatch(path) for path in paths) else _by_seq(table)))

    def has_operation(self, operation_id: str) -> bool:
        paths = list(self._files({"operation_id": (operation_id, operation_id)}))
        return bool(self._read(paths, pc.field("operation_id") == operation_id, ["kind"]).num_rows)

    def _move(self) -> None:
        """Bring the table's handle to the newest version."""
        old = self.version
        try:
            self._table.update_incremental()
        except DeltaError as error:
            # delta-rs steps over commits that were cleaned, or fails, as the Delta checkpoints lie.
            if (self._log / delta_log.commit_name(old + 1)).exists():
                msg = f"the ledger {self._directory} cannot be read above version {old}: {error}; open the catalog again"
                raise DamagedLedgerError(msg) from error
            self._table = _load(self._directory)
            raise self._lost() from error

    def _lost(self) -> SnapshotLostError:
        msg = f"commits after version {self._told_version} of {self._directory} are no longer in the log: read the snapshot again"
        self._told_version = self.version
        self._sent = {}
        return SnapshotLostError(msg)

    def _write_durably(self, table: pa.Table, operation_id: str) -> tuple[str, int]:
        """Write a data file under a name of its own; the file, then its directory.

        Columns without a value are left out, which halves the cost of a small commit: Delta reads them as null.
        """
        columns = [f.name for f in SCHEMA if not f.nullable or table.column(f.name).null_count < table.num_rows]
        sink = pa.BufferOutputStream()
        pq.write_table(
            table.select(columns),
            sink,
            compression="snappy",
            store_schema=False,
            use_dictionary=table.num_rows >= _DICTIONARY_FROM_ROWS,
            write_statistics=list(PRUNING_COLUMNS),
        )
        data = sink.getvalue()
        name, stream = self._create_exclusively(operation_id)
        with stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        delta_log.sync(self._directory)
        return name, data.size

    def _create_exclusively(self, operation_id: str) -> tuple[str, Any]:
        """A new file; its name sorts by the version that its writer had seen. Never an old name: that file may be committed."""
        prefix = f"{self.version:020d}-{re.sub(r'[^A-Za-z0-9_-]', '_', operation_id)}"
        n = 0
        while True:
            name = f"{prefix}-{n}.parquet"
            try:
                return name, open(self._directory / name, "xb")
            except FileExistsError:
                n += 1

    def _facts_of(self, files: Sequence[str], sent: Mapping[str, tuple[Fact, ...]]) -> Sequence[Fact]:
        facts: list[Fact] = []
        for file in files:
            if file in sent:
                facts += sent[file]
                continue
            try:
                with pq.ParquetFile(self._directory / file) as parquet:
                    facts += from_table(_with_all_columns(parquet.read()))
            except FileNotFoundError as error:
                msg = f"{self._directory / file} is gone; if the ledger was compacted, the newest snapshot holds its facts"
                raise SnapshotLostError(msg) from error
            except pa.ArrowException as error:
                msg = f"the ledger's data file {self._directory / file} cannot be read: {error}; restore it from a backup"
                raise DamagedLedgerError(msg) from error
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

    def _read(self, paths: Sequence[str], condition: pc.Expression, columns: list[str]) -> pa.Table:
        files = [str(self._directory / path) for path in paths]
        try:
            return ds.dataset(files, schema=SCHEMA, format="parquet").to_table(columns=columns, filter=condition).combine_chunks()
        except (OSError, pa.ArrowException) as error:
            msg = f"a data file of the ledger {self._directory} cannot be read: {error}; restore it from a backup"
            raise DamagedLedgerError(msg) from error


def _by_seq(table: pa.Table) -> pa.Table:
    keys = pa.table({"seq": table["seq"], "position": pa.array(range(table.num_rows), pa.int64())})
    return table.take(pc.sort_indices(keys, sort_keys=[("seq", "ascending"), ("position", "ascending")]))


def _load(directory: Path) -> DeltaTable:
    try:
        return DeltaTable(directory)
    except DeltaError as error:
        msg = f"the ledger {directory} cannot be read: {error}; restore it from a backup"
        raise DamagedLedgerError(msg) from error


def _columns_of(kinds: frozenset[str] | None) -> list[str]:
    """The columns that facts of these kinds are made of (None: all); enough to filter and to sort by as well."""
    if kinds is None:
        return list(SCHEMA.names)
    wanted = {"kind", "job_id", "seq"}.union(*({f.name for f in fields(KINDS[kind])} for kind in kinds if kind in KINDS))
    return [name for name in SCHEMA.names if name in wanted]


def _statistics(table: pa.Table) -> str:
    """What engines skip files by, as Delta writes it."""
    bounds = {name: pc.min_max(table[name]).as_py() for name in PRUNING_COLUMNS}
    return json.dumps(
        {
            "numRecords": table.num_rows,
            "minValues": {name: b["min"] for name, b in bounds.items() if b["min"] is not None},
            "maxValues": {name: b["max"] for name, b in bounds.items() if b["max"] is not None},
        }
    )


def _with_all_columns(table: pa.Table) -> pa.Table:
    columns = [table[f.name].cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type) for f in SCHEMA]
    return pa.table(columns, schema=SCHEMA)
