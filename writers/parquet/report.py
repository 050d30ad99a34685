"""What was found of a file of rows, wherever it was looked at, and the acknowledgement that follows from it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import NotDurableError
from holdfast.catalog.paths import file_id
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local_walk import not_durable
from holdfast.catalog.types import Ack, CheckpointMetrics, Chunk, Format, Role, Scope, StateInfo, StoredFile
from holdfast.writers.parquet.layout import Part, digest_all, digest_some, footer_of, parts_of
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


PART_FILE = re.compile(r"/part-(\d+)-[^/]*$")  # as Spark's writer names the file of a partition


PART = pa.struct(
    [
        pa.field("offset_bytes", pa.int64(), nullable=False),
        pa.field("length_bytes", pa.int64(), nullable=False),
        pa.field("sha256", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("key_group_from", pa.int32()),
        pa.field("key_group_to", pa.int32()),
    ]
)


REPORT_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
        pa.field("sha256", pa.string()),
        pa.field("parts", pa.list_(pa.field("item", PART, nullable=False)), nullable=False),
        pa.field("digest_ms", pa.int64(), nullable=False),
        pa.field("upload_ms", pa.int64()),
        pa.field("subtask", pa.int32()),
        pa.field("not_durable", pa.string()),
        pa.field("errno", pa.int32()),
        pa.field("damage", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """What was found of one file. Without a size: there is none where it was looked for; or its sync failed, and `not_durable` says how;
    or it is not a Parquet file, as `damage` says."""

    path: str
    size_bytes: int | None = None
    sha256: str | None = None
    parts: tuple[Part, ...] = ()
    digest_ms: int = 0
    upload_ms: int | None = None  # how long the task that made the file took, where it could be timed
    subtask: int | None = None  # the number of that task's partition
    not_durable: str | None = None
    errno: int | None = None
    damage: str | None = None

    @classmethod
    def of_failed_sync(cls, path: str, error: NotDurableError) -> "FileReport":
        """An answer, and not a failed task, which would be tried again: the next sync of the same bytes would succeed."""
        return cls(path=path, not_durable=str(error), errno=error.errno)

    @property
    def rows(self) -> int:
        return sum(part.rows or 0 for part in self.parts)


def acks_for(reports: Iterable[FileReport], context: UploadContext, *, upload_ms: int, sort_ms: int | None = None) -> list[Ack]:
    """The acks of a write call, in the order of the files' paths: one for each file, which is a task's; one without files if there is none.

    `upload_ms` is of the whole call, for tasks that could not time their own; `sort_ms` is of all tasks, and told once.
    """
    ordered = sorted(reports, key=lambda report: report.path)
    if not ordered:
        return [context.ack((), (), CheckpointMetrics(rows=0, upload_ms=upload_ms, sort_ms=sort_ms))]
    return [_file_ack(report, i, context, upload_ms, None if i else sort_ms) for i, report in enumerate(ordered)]


def _file_ack(report: FileReport, index: int, context: UploadContext, upload_ms: int, sort_ms: int | None) -> Ack:
    metrics = CheckpointMetrics(
        bytes_written=report.size_bytes or 0,
        rows=report.rows,
        upload_ms=upload_ms if report.upload_ms is None else report.upload_ms,
        digest_ms=report.digest_ms,
        sort_ms=sort_ms,
    )
    file = _stored_file(report, index, context)
    chunks = tuple(_chunk(part, file, context, report.subtask) for part in report.parts)
    return context.ack(chunks, (file,), metrics, subtask=report.subtask)


def state_info(df: "DataFrame", context: UploadContext, acks: Iterable[Ack]) -> StateInfo:
    """What the checkpoint says of the state that this write call made: the user's schema (names exactly as they are) and its figures."""
    return state_info_of(df.schema, context, acks)


def state_info_of(schema: "StructType", context: UploadContext, acks: Iterable[Ack]) -> StateInfo:
    """As `state_info`, of rows in this schema."""
    chunks = [chunk for ack in acks for chunk in ack.chunks]
    return StateInfo(
        operator=context.operator,
        state=context.state,
        format=Format.PARQUET,
        key_columns=context.key_columns,
        schema=schema.json(),
        rows=sum(chunk.rows or 0 for chunk in chunks),
        total_bytes=sum(chunk.length_bytes for chunk in chunks),
    )


def require_durable(reports: Sequence[FileReport]) -> Sequence[FileReport]:
    """The reports, if every file could be made durable. Raises NotDurableError, with the first one's words."""
    failed = next((report for report in reports if report.not_durable is not None), None)
    if failed is None:
        return reports
    error = NotDurableError(failed.not_durable)
    error.errno = failed.errno
    raise error


def report_batch(reports: Sequence[FileReport]) -> pa.RecordBatch:
    """Rows for the JVM, in the explicit types that it insists on."""
    return pa.RecordBatch.from_pylist([asdict(report) for report in reports], schema=REPORT_SCHEMA)


def _stored_file(report: FileReport, index: int, context: UploadContext) -> StoredFile:
    assert report.size_bytes is not None
    assert report.sha256 is not None
    return StoredFile(
        file_id=file_id(context.attempt, context.call, index),
        path=report.path,
        size_bytes=report.size_bytes,
        sha256=report.sha256,
        scope=Scope.EXCLUSIVE if context.metadata.is_savepoint else Scope.SHARED,
    )


def _chunk(part: Part, file: StoredFile, context: UploadContext, subtask: int | None) -> Chunk:
    """With its range of key groups; without keys, with the subtask that wrote it."""
    assert part.sha256 is not None
    low, high = part.key_group_from, part.key_group_to
    if not context.key_columns:
        low = high = None
    elif part.rows is not None and (low is None or high is None):
        low, high = 0, context.max_parallelism - 1  # without statistics (or rows) it may hold any group
    return context.chunk(
        file_id=file.file_id,
        scope=file.scope,
        role=Role.FOOTER if part.rows is None else context.role,
        layer=context.layer,
        offset_bytes=part.offset_bytes,
        length_bytes=part.length_bytes,
        sha256=part.sha256,
        rows=part.rows,
        subtask=None if context.key_columns else subtask,
        key_group_from=low,
        key_group_to=high,
    )


def digest_parts(storage: Storage, parts: Mapping[str, Sequence[Part]], path: str) -> FileReport:
    """Size of a file, and digests of these parts of it; the rest of it is not read."""
    try:
        size_bytes = storage.size(path)
        return FileReport(path=path, size_bytes=size_bytes, parts=digest_some(storage, path, parts[path]))
    except FileNotFoundError:
        return FileReport(path=path)


def sealed_report(storage: Storage, environment: Environment, path: str) -> FileReport:
    """Digest a file that Spark's own writer left, make it durable, read its footer."""
    started = environment.monotonic_s()
    try:
        footer = footer_of(storage, path)
    except FileNotFoundError:
        return FileReport(path=path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return FileReport(path=path, damage=f"not a Parquet file ({error})")  # pyarrow tells damage of the thrift as OSError
    try:
        digest, parts = digest_all(storage, path, parts_of(footer, storage.size(path)))
    except FileNotFoundError:
        return FileReport(path=path)
    digest_ms = milliseconds(started, environment)
    try:
        storage.make_durable(path)
    except NotDurableError as error:
        return FileReport.of_failed_sync(path, error)
    except FileNotFoundError:
        return FileReport(path=path)
    except OSError as error:  # whichever storage raised it: it is the sync that failed
        return FileReport.of_failed_sync(path, not_durable(path, error))
    part = PART_FILE.search(path)
    subtask = int(part[1]) if part else None
    return FileReport(path=path, size_bytes=digest.size_bytes, sha256=digest.sha256, parts=parts, digest_ms=digest_ms, subtask=subtask)


def milliseconds(started_s: float, environment: Environment) -> int:
    """Whole milliseconds since `started_s`, at least 1 of anything that was done."""
    return max(1, round((environment.monotonic_s() - started_s) * 1000))
