"""What maintenance asks of a whole ledger, as a port: by SQL on a real catalog, in memory for the reference ledger.

An answer may be as old as the moment of the call: garbage is stable (I2), so that nothing needs to be newer. Every deletion rests on these
answers: so SQL is asked at one version, of which every entry and every data file has been held against its digest before. All of them are
about what is live: they read the ledger alone, and the history is for analysts.
"""

from collections.abc import Callable, Collection, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Protocol

import duckdb

from holdfast.catalog.environment import host_memory_bytes
from holdfast.catalog.errors import DamagedLedgerError, FormatError, RefusedError, RetryError
from holdfast.catalog.facts import KINDS
from holdfast.catalog.ledger import Ledger, SnapshotLostError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import DeltaHistory
from holdfast.catalog.ledger.delta_table import OurTable
from holdfast.catalog.ledger.delta_verify import LedgerFile, check_files
from holdfast.catalog.references import References
from holdfast.catalog.types import Purpose, Role, Scope, Status, StoredFile
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.duckdb_engine import Table
from holdfast.catalog.views.past import Past, at_time, at_version
from holdfast.compaction.columns import StoredFiles
from holdfast.compaction.garbage import Garbage, GarbageFiles, find_garbage
from holdfast.compaction.orphans import KnownPaths

PAGE = 100_000  # rows of an answer that are in memory at a time
MOST_BYTES = 2_500_000_000  # of memory for a query, which may run in a job's own process; what needs more goes by the temporary directory

_TRIES = 5
_IN_MEMORY = "the ledger of this catalog is in memory: no engine can read it"


class Queries(Protocol):
    """Questions to the ledger at its newest version."""

    def garbage(self) -> Garbage:
        """The cleanup query, and what was condemned and is not yet gone."""

    def present_paths(self, at_least: int) -> Container[str]:
        """The paths of all file rows that are not gone, at this version of the ledger or a later one.

        Raises RetryError where only an older version is to be seen.
        """

    def live_files(self) -> StoredFiles:
        """Every file that a live checkpoint refers to, once, in the order of paths."""

    def check_ledger(self) -> Iterator[LedgerFile]:
        """Each file of ledger and history, by its path below the root, and what is wrong with it."""

    def connect(self, root: str) -> duckdb.DuckDBPyConnection:
        """A connection for analysts, with the views of ledger and history at their newest believed versions; it reads nothing outside of
        `root`."""

    def past(self, when: int | datetime, of_ledger: str | None) -> Past:
        """The catalog at a version or time: see `views.past`. Raises as that does; RetryError if the log is cleaned all the time."""

    @property
    def ledger_address(self) -> str:
        """Where other engines find the Delta table. Raises RefusedError where there is none."""

    @property
    def history_address(self) -> str | None:
        """Where they find that of the history."""


@dataclass(frozen=True, slots=True)
class SqlQueries:
    """DuckDB over the Delta table at this address, and that of its history. `open_ledger` gives a handle at its newest version."""

    ledger_address: str
    open_ledger: Callable[[], DeltaLedger]
    history_address: str | None = None

    @classmethod
    def at(cls, ledger_address: str) -> "SqlQueries":
        """Over a ledger of whatever catalog."""
        return cls(ledger_address, partial(DeltaLedger.open, ledger_address))

    def garbage(self) -> Garbage:
        with self._verified() as connection:
            return garbage(connection)

    def present_paths(self, at_least: int) -> Container[str]:
        query = f"SELECT {KnownPaths.HASH_IN_SQL} FROM files WHERE status <> 'gone' ORDER BY 1"
        with self._verified(at_least) as connection:
            hashes = connection.execute(query)
            return KnownPaths(number for page in iter(lambda: hashes.fetchmany(PAGE), []) for (number,) in page)

    def live_files(self) -> StoredFiles:
        query = f"""
            SELECT {", ".join(StoredFiles.SCHEMA.names)} FROM files
            WHERE file_id IN (SELECT file_id FROM checkpoint_files) ORDER BY path
        """
        with self._verified() as connection:
            return StoredFiles(connection.execute(query).to_arrow_table())

    def check_ledger(self) -> Iterator[LedgerFile]:
        for address in filter(None, (self.ledger_address, self.history_address)):
            for file in check_files(address):
                yield replace(file, path=f"{PurePosixPath(address).name}/{file.path}")

    def connect(self, root: str) -> duckdb.DuckDBPyConnection:
        ledger = _believed(self.open_ledger())
        history = None if self.history_address is None else _believed(self._open_history())
        return duckdb_engine.connect(ledger.address, version=ledger.version, history=history, root=root)

    def past(self, when: int | datetime, of_ledger: str | None) -> Past:
        for _ in range(_TRIES):
            ledger, history = self.open_ledger(), self._open_history()  # in this order: what a fold took out of the ledger, the history has
            try:
                return at_time(ledger, history, when) if isinstance(when, datetime) else at_version(ledger, history, when, of_ledger)
            except SnapshotLostError:  # it was told more, and the log was cleaned, since it was read
                continue
        msg = f"the log of {self.ledger_address} was cleaned {_TRIES} times while it was read: nothing was changed; call again"
        raise RetryError(msg)

    def _open_history(self) -> DeltaHistory:
        if self.history_address is None:
            msg = f"{self.ledger_address} has no history: only a catalog that has one can be seen as it was"
            raise RefusedError(msg)
        return DeltaHistory.of(self.history_address, PurePosixPath(self.ledger_address).name)

    @contextmanager
    def _verified(self, at_least: int = 0) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection over the data files of the newest version, once each was found to be what was written.

        Raises DamagedLedgerError for what was not, and for what DuckDB cannot read.
        """
        ledger = self.verified()
        _require_version(ledger.version, at_least)
        with over_files(ledger) as connection:
            try:
                _require_understood(connection, ledger)
                yield connection
            except duckdb.OutOfMemoryException as error:
                msg = f"a query of the ledger {self.ledger_address} needs more room ({error}): nothing was changed; free some or set TMPDIR"
                raise RetryError(msg) from error
            except duckdb.Error as error:
                msg = f"the ledger {self.ledger_address} cannot be queried at version {ledger.version}: {error}; nothing was changed"
                raise DamagedLedgerError(msg) from error

    def verified(self) -> DeltaLedger:
        """A handle at the newest version, every entry and data file of which was read and holds its digest. Raises DamagedLedgerError."""
        ledger = self.open_ledger()
        for _ in ledger.verify_files():
            pass
        return ledger


def over_files(ledger: DeltaLedger) -> duckdb.DuckDBPyConnection:
    """A connection with the views over the data files of the held version, with as much memory as maintenance may take."""
    files = [f"{ledger.address}/{file.path}" for file in ledger.files()]
    return duckdb_engine.connect_files(files, ledger.address, memory_bytes=min(MOST_BYTES, host_memory_bytes() * 4 // 5))


def _believed(table: OurTable) -> Table:
    """The newest version of it; below a torn tail, which engines cannot read, that version."""
    return Table(table.address, table.version if table.is_torn else None)


# A program that does not know a kind of fact, or a purpose, does not know what it keeps: it must not delete.
_KNOWN: dict[str, Collection[str]] = {"kind": KINDS, "purpose": [*Purpose], "status": [*Status], "scope": [*Scope], "role": [*Role]}


def _require_understood(connection: duckdb.DuckDBPyConnection, ledger: DeltaLedger) -> None:
    """Raises DamagedLedgerError unless DuckDB sees as many facts as the log says; FormatError for an unknown word in them."""
    said = connection.execute(f"SELECT {', '.join(_KNOWN)}, count(*) FROM facts GROUP BY ALL").fetchall()
    found, wanted = sum(count for *_, count in said), ledger.count_rows()
    if wanted is not None and found != wanted:
        msg = (
            f"version {ledger.version} of the ledger {ledger.address} has {wanted} facts by its log, and {found} in its data files: "
            "nothing was changed; restore it from a backup"
        )
        raise DamagedLedgerError(msg)
    words = {(name, word) for *row, _ in said for name, word in zip(_KNOWN, row, strict=True) if word is not None}
    if unknown := [f"{name} {word!r:.60}" for name, word in sorted(words) if word not in _KNOWN[name]]:
        msg = (
            f"the ledger {ledger.address} says what this version does not know ({', '.join(unknown)}), and so not what is needed: use the "
            "newer Holdfast that wrote it; nothing was changed"
        )
        raise FormatError(msg)


_COLUMNS = ", ".join(GarbageFiles.SCHEMA.names)

# Not by the view `files`, which gives every file its status: few are condemned at a time.
_CONDEMNED = f"""
SELECT {_COLUMNS} FROM facts
WHERE kind = 'file' AND file_id IN (
  SELECT c.file_id FROM facts c ANTI JOIN facts g ON g.kind = 'gone' AND g.file_id = c.file_id WHERE c.kind = 'condemned'
)
ORDER BY path
"""


def garbage(connection: duckdb.DuckDBPyConnection) -> Garbage:
    """Both kinds of what cleanup may take, at one version: a file that another run condemns meanwhile is in one of them, never in both."""
    connection.begin()
    try:
        return Garbage(unreferenced=unreferenced_files(connection), condemned=condemned_files(connection))
    finally:
        connection.rollback()  # it only held the snapshot


def unreferenced_files(connection: duckdb.DuckDBPyConnection) -> GarbageFiles:
    """The files that cleanup may take now: the view `unreferenced_files`, in the order of paths."""
    return GarbageFiles(connection.execute(f"SELECT {_COLUMNS} FROM unreferenced_files ORDER BY path").to_arrow_table())


def condemned_files(connection: duckdb.DuckDBPyConnection) -> GarbageFiles:
    """The files that some run condemned and none has called gone, in the order of paths."""
    return GarbageFiles(connection.execute(_CONDEMNED).to_arrow_table())


def _require_version(found: int, at_least: int) -> None:
    if found < at_least:
        msg = (
            f"version {at_least} of the ledger was read, and now its newest is {found}: a listing of this file system lags behind. "
            "Nothing was changed; call again"
        )
        raise RetryError(msg)


@dataclass(frozen=True, slots=True)
class FoldedQueries:
    """The Python twin over a ledger's facts."""

    ledger: Ledger

    def _references(self) -> References:
        with suppress(SnapshotLostError):  # the snapshot has moved all the same
            self.ledger.refresh()
        return References.of(self.ledger.scan())

    @property
    def ledger_address(self) -> str:
        raise RefusedError(_IN_MEMORY)

    def check_ledger(self) -> Iterator[LedgerFile]:
        """It has no files."""
        return iter(())

    def connect(self, root: str) -> duckdb.DuckDBPyConnection:  # noqa: ARG002 - a duty of the port
        raise RefusedError(_IN_MEMORY)

    def past(self, when: int | datetime, of_ledger: str | None) -> Past:  # noqa: ARG002 - a duty of the port
        raise RefusedError(_IN_MEMORY)

    @property
    def history_address(self) -> str | None:
        raise RefusedError(_IN_MEMORY)

    def garbage(self) -> Garbage:
        return find_garbage(self._references())

    def present_paths(self, at_least: int) -> Container[str]:
        paths = self._references().present_paths()
        _require_version(self.ledger.version, at_least)
        return paths

    def live_files(self) -> StoredFiles:
        references = self._references()
        live = {(job_id, row.fact.seq, row.line) for job_id, job in references.state.jobs.items() for row in job.live.values()}
        used = {handle.file_id for job_id, seq, line in live for handle in references.content(job_id, seq, line)}
        rows = sorted((references.files[file_id] for file_id in used if file_id in references.files), key=lambda row: row.path)
        return StoredFiles.of(
            StoredFile(file_id=r.file_id, path=r.path, size_bytes=r.size_bytes, sha256=r.sha256, scope=r.scope, owner=r.owner) for r in rows
        )
