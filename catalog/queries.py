"""What maintenance asks of a whole ledger, as a port: by SQL on a real catalog, in memory for the reference ledger.

An answer may be as old as the moment of the call: garbage is stable (I2), so that nothing needs to be newer.
"""

from dataclasses import dataclass
from typing import Protocol

from holdfast.catalog import duckdb_engine
from holdfast.catalog.cleanup import Garbage, References, find_garbage
from holdfast.catalog.ledger import Ledger
from holdfast.catalog.types import FileId, Scope, StoredFile


class Queries(Protocol):
    """Questions to the ledger at its newest version."""

    def garbage(self) -> Garbage:
        """The cleanup query, and what was condemned and is not yet gone."""

    def present_paths(self) -> set[str]:
        """The paths of all file rows that are not gone."""

    def live_files(self) -> list[StoredFile]:
        """Every file that a live checkpoint refers to, once, in the order of paths."""


@dataclass(frozen=True, slots=True)
class SqlQueries:
    """DuckDB over the Delta table at this address."""

    ledger_address: str

    def garbage(self) -> Garbage:
        with duckdb_engine.connect(self.ledger_address) as connection:
            return duckdb_engine.garbage(connection)

    def present_paths(self) -> set[str]:
        with duckdb_engine.connect(self.ledger_address) as connection:
            return {path for (path,) in connection.execute("SELECT path FROM files WHERE status <> 'gone'").fetchall()}

    def live_files(self) -> list[StoredFile]:
        query = """
            SELECT file_id, path, size_bytes, sha256, scope, owner FROM files
            WHERE file_id IN (SELECT file_id FROM checkpoint_files) ORDER BY path
        """
        with duckdb_engine.connect(self.ledger_address) as connection:
            rows = connection.execute(query).fetchall()
        return [
            StoredFile(file_id=FileId(i), path=path, size_bytes=size, sha256=sha256, scope=Scope(scope), owner=owner)
            for i, path, size, sha256, scope, owner in rows
        ]


@dataclass(frozen=True, slots=True)
class FoldedQueries:
    """The Python twin over a ledger's facts."""

    ledger: Ledger

    def _references(self) -> References:
        self.ledger.refresh()
        return References.of(self.ledger.scan())

    def garbage(self) -> Garbage:
        return find_garbage(self._references())

    def present_paths(self) -> set[str]:
        return self._references().present_paths()

    def live_files(self) -> list[StoredFile]:
        references = self._references()
        live = {(job_id, row.fact.seq, row.line) for job_id, job in references.state.jobs.items() for row in job.live.values()}
        used = {handle.file_id for job_id, seq, line in live for handle in references.content(job_id, seq, line)}
        rows = sorted((references.files[file_id] for file_id in used if file_id in references.files), key=lambda row: row.path)
        return [
            StoredFile(file_id=r.file_id, path=r.path, size_bytes=r.size_bytes, sha256=r.sha256, scope=r.scope, owner=r.owner) for r in rows
        ]
