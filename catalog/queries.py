"""What maintenance asks of a whole ledger, as a port: by SQL on a real catalog, in memory for the reference ledger.

An answer may be as old as the moment of the call: garbage is stable (I2), so that nothing needs to be newer. Every deletion rests on these
answers: so SQL is asked at one version, of which every entry and every data file has been held against its digest before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import duckdb

from holdfast.catalog.cleanup import Garbage, References, find_garbage
from holdfast.catalog.errors import DamagedLedgerError, RetryError
from holdfast.catalog.ledger import Ledger
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.types import FileId, Scope, StoredFile
from holdfast.catalog.views import duckdb_engine


class Queries(Protocol):
    """Questions to the ledger at its newest version."""

    def garbage(self) -> Garbage:
        """The cleanup query, and what was condemned and is not yet gone."""

    def present_paths(self, at_least: int) -> set[str]:
        """The paths of all file rows that are not gone, at this version of the ledger or a later one.

        Raises RetryError where only an older version is to be seen.
        """

    def live_files(self) -> list[StoredFile]:
        """Every file that a live checkpoint refers to, once, in the order of paths."""


@dataclass(frozen=True, slots=True)
class SqlQueries:
    """DuckDB over the Delta table at this address."""

    ledger_address: str

    def garbage(self) -> Garbage:
        with self._verified() as connection:
            return duckdb_engine.garbage(connection)

    def present_paths(self, at_least: int) -> set[str]:
        with self._verified(at_least) as connection:
            return {path for (path,) in connection.execute("SELECT path FROM files WHERE status <> 'gone'").fetchall()}

    def live_files(self) -> list[StoredFile]:
        query = """
            SELECT file_id, path, size_bytes, sha256, scope, owner FROM files
            WHERE file_id IN (SELECT file_id FROM checkpoint_files) ORDER BY path
        """
        with self._verified() as connection:
            rows = connection.execute(query).fetchall()
        return [
            StoredFile(file_id=FileId(i), path=path, size_bytes=size, sha256=sha256, scope=Scope(scope), owner=owner)
            for i, path, size, sha256, scope, owner in rows
        ]

    @contextmanager
    def _verified(self, at_least: int = 0) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection at the newest version, once all that it can read was found to be what was written.

        Raises DamagedLedgerError for what was not, and for what DuckDB cannot read.
        """
        ledger = self.verified()
        version = ledger.version
        _require_version(version, at_least)
        with duckdb_engine.connect(self.ledger_address, version=version) as connection:
            try:
                _require_all_rows(connection, ledger)
                yield connection
            except duckdb.Error as error:
                msg = f"the ledger {self.ledger_address} cannot be asked at version {version}: {error}; nothing was changed"
                raise DamagedLedgerError(msg) from error

    def verified(self) -> DeltaLedger:
        """A handle at the newest version, every entry and data file of which was read and holds its digest. Raises DamagedLedgerError."""
        ledger = DeltaLedger.open(self.ledger_address)
        for _ in ledger.verify_files():
            pass
        return ledger


def _require_all_rows(connection: duckdb.DuckDBPyConnection, ledger: DeltaLedger) -> None:
    """Raises RetryError unless DuckDB, which looks at the log by itself, sees what was verified."""
    found, wanted = connection.execute("SELECT count(*) FROM facts").fetchone(), ledger.count_rows()
    if wanted is not None and found != (wanted,):
        msg = (
            f"version {ledger.version} of the ledger {ledger.address} has {wanted} facts, and DuckDB sees {found and found[0]}: a listing "
            "of this file system lags behind. Nothing was changed; call again"
        )
        raise RetryError(msg)


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
        self.ledger.refresh()
        return References.of(self.ledger.scan())

    def garbage(self) -> Garbage:
        return find_garbage(self._references())

    def present_paths(self, at_least: int) -> set[str]:
        paths = self._references().present_paths()
        _require_version(self.ledger.version, at_least)
        return paths

    def live_files(self) -> list[StoredFile]:
        references = self._references()
        live = {(job_id, row.fact.seq, row.line) for job_id, job in references.state.jobs.items() for row in job.live.values()}
        used = {handle.file_id for job_id, seq, line in live for handle in references.content(job_id, seq, line)}
        rows = sorted((references.files[file_id] for file_id in used if file_id in references.files), key=lambda row: row.path)
        return [
            StoredFile(file_id=r.file_id, path=r.path, size_bytes=r.size_bytes, sha256=r.sha256, scope=r.scope, owner=r.owner) for r in rows
        ]
