"""What cleanup may take: millions of files, in columns. And which they are, decided in memory: the Python twin of `unreferenced_files`.

A property test holds the twin equal to the SQL. It drives the in-memory ledger and the model; vacuum on a real catalog asks the SQL.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.facts import FileWritten
from holdfast.catalog.references import References
from holdfast.catalog.types import FileId, JobId
from holdfast.compaction.columns import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageFile:
    """A file that cleanup may take: its row in the ledger."""

    file_id: FileId
    job_id: JobId
    path: str
    size_bytes: int


class GarbageFiles(Rows[GarbageFile]):
    """Files that cleanup may take."""

    SCHEMA = pa.schema(
        [
            pa.field("file_id", pa.string()),
            pa.field("job_id", pa.string()),
            pa.field("path", pa.string()),
            pa.field("size_bytes", pa.int64()),
        ]
    )

    @property
    def paths(self) -> pa.ChunkedArray:
        return self.table["path"]

    @property
    def size_bytes(self) -> int:
        return int(pc.sum(self.table["size_bytes"], min_count=0).as_py())

    def without(self, paths: Collection[str]) -> "GarbageFiles":
        """Those that have none of these paths."""
        if not paths:
            return self
        return GarbageFiles(self.table.filter(pc.invert(pc.is_in(self.paths, value_set=pa.array(list(paths), pa.string())))))

    def __add__(self, others: "GarbageFiles") -> "GarbageFiles":
        return GarbageFiles(pa.concat_tables([self.table, others.table]))

    def _made(self, *values: Any) -> GarbageFile:
        file_id, job_id, path, size_bytes = values
        return GarbageFile(file_id=FileId(file_id), job_id=JobId(job_id), path=path, size_bytes=size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage:
    """What the ledger says at one version: unreferenced and not condemned, and condemned by some run but not yet gone; each in the order of
    paths, by which neighbours share their directory."""

    unreferenced: GarbageFiles
    condemned: GarbageFiles


def find_garbage(references: References) -> Garbage:
    """Both kinds of what cleanup may take."""
    return Garbage(unreferenced=_files(references.unreferenced()), condemned=_files(references.condemned()))


def _files(rows: Iterable[FileWritten]) -> GarbageFiles:
    found = (GarbageFile(file_id=row.file_id, job_id=row.job_id, path=row.path, size_bytes=row.size_bytes) for row in rows)
    return GarbageFiles.of(sorted(found, key=lambda file: file.path))
