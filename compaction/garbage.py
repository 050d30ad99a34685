"""What cleanup may take, decided in memory: the Python twin of the view `unreferenced_files`.

A property test holds the twin equal to the SQL. It drives the in-memory ledger and the model; vacuum on a real catalog asks the SQL.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.catalog.facts import FileWritten
from holdfast.catalog.references import References
from holdfast.catalog.types import FileId, JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageFile:
    """A file that cleanup may take: its row in the ledger."""

    file_id: FileId
    job_id: JobId
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What the ledger says at one version: unreferenced and not condemned, and condemned by some run but not yet gone."""

    unreferenced: tuple[GarbageFile, ...]
    condemned: tuple[GarbageFile, ...]


def find_garbage(references: References) -> Garbage:
    """Both kinds of what cleanup may take."""
    return Garbage(unreferenced=_files(references.unreferenced()), condemned=_files(references.condemned()))


def _files(rows: Iterable[FileWritten]) -> tuple[GarbageFile, ...]:
    return tuple(GarbageFile(file_id=row.file_id, job_id=row.job_id, path=row.path, size_bytes=row.size_bytes) for row in rows)
