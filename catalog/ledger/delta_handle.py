"""A handle on one snapshot of a Delta table of ours: what it reads, each file held against its digest, and how it moves.

A handle of delta-rs that moves hides conflicts (measured; `tests/catalog/ledger_contract.py` holds it). So the handle is the snapshot: only
`move` moves it, and tells what it passed over. `delta_table.py` has what writes.
"""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from holdfast.catalog.errors import AddressError, DamagedLedgerError, FencedError
from holdfast.catalog.ledger import delta_boundary, delta_checkpoint, delta_close, delta_data, delta_entry, delta_log
from holdfast.catalog.ledger.delta_commit import load, read_whole
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, LogCommit, TornCommitError
from holdfast.catalog.ledger.port import SnapshotLostError

FORMAT = "holdfast.format"
CATALOG_ID = "holdfast.catalogId"


class AddedFile(NamedTuple):
    """A data file of a snapshot."""

    path: str
    size_bytes: int


class TableHandle:
    """A handle on one snapshot of a table. Not for two threads at once: callers hold one lock over refresh, validate and append."""

    def __init__(self, directory: str | os.PathLike[str], table: DeltaTable, *, is_torn: bool = False) -> None:
        self.directory = Path(directory)
        self.log = self.directory / "_delta_log"
        self._table = table
        self._table_id = str(table.metadata().id)
        self._successor = delta_close.successor_of(table)
        self._is_digested = self.format_version > 1
        self._told_version = self._loaded_version = self.version  # refresh has returned everything up to here
        self._tip = self._sha256_of(self.version)  # the entry at the held version: another table at this place has another
        self._torn = is_torn
        self._verified: set[str] = set()  # data files whose digest this handle has compared

    @classmethod
    def exists(cls, directory: str | os.PathLike[str]) -> bool:
        """Whether the directory holds a Delta table, whole or damaged."""
        log = Path(directory) / "_delta_log"
        return bool(delta_log.commit_versions(log) or delta_log.checkpoint_versions(log))

    @property
    def format_version(self) -> int:
        """The format of the catalog that it was made for. From 2 on every entry and every data file has a digest of ours."""
        return format_of(self._table)

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

    # ---- reading -----------------------------------------------------------------------------------------------------

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

    # ---- moving ------------------------------------------------------------------------------------------------------

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
        self._told_version, self._tip = self.version, tip
        if any(commit.changes_table for commit in passed):
            self._successor = delta_close.successor_of(self._table)
        self._start_from_newer_checkpoint()
        return passed

    def _move(self) -> None:
        """Bring the table's handle to the newest version."""
        old = self._told_version
        try:
            self._require_same_table()
            # Nothing newer: the log need not be listed. A hole that cleaning made is told apart by the boundary, where `move` looks next.
            if self.version == old and not (self.log / delta_log.commit_name(old + 1)).exists():
                return
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

    def _start_from_newer_checkpoint(self) -> None:
        """delta-rs goes over all entries since the Delta checkpoint that a handle began with at each of its calls: five times the work at
        200 commits. So a handle is made again now and then, at the same version, once there is another one to begin with."""
        if self.version - self._loaded_version > delta_checkpoint.EVERY_COMMITS:
            self._begin_anew()

    def _begin_anew(self) -> None:
        with suppress(DamagedLedgerError):  # the handle that is there does as well, only slower
            self._table = load(self.directory, self.version)
            self._loaded_version = self.version

    def _sha256_of(self, version: int) -> str | None:
        try:
            return hashlib.sha256((self.log / delta_log.commit_name(version)).read_bytes()).hexdigest()
        except FileNotFoundError:
            return None


def format_of(table: DeltaTable) -> int:
    """The format that a table says it has; 0 for what is no number."""
    found = str(table.metadata().configuration.get(FORMAT, "1"))
    return int(found) if found.isdecimal() else 0
