"""The streamed uploader: each task uploads one file as its rows come, through storage itself.

For storage where a rename is a copy, and for state made in Python. Every host must see the catalog at its address, as for any uploader.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import CorruptionError, NotDurableError
from holdfast.catalog.paths import streamed_file
from holdfast.catalog.types import Ack
from holdfast.writers.parquet.layout import Part, PartDigests, parts_of
from holdfast.writers.parquet.report import FileReport, acks_for, milliseconds, report_batch
from holdfast.writers.spark.file_jobs import collect_reports, report_schema, require_all_rows
from holdfast.writers.spark.frames import counted, keyed, with_word_names
from holdfast.writers.spark.partitioning import arranged
from holdfast.writers.spark.session import settings
from holdfast.writers.spark.sort_time import timed_sort_of_savepoint
from holdfast.writers.upload import SAVEPOINT_ROW_GROUP_BYTES, UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Ten times Spark's default: twice the rows a second.
ACTION_SETTINGS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100000"}
ROW_GROUP_BYTES = 64 * 1024 * 1024  # in memory, per task


@dataclass(frozen=True, slots=True)
class StreamedUploader:
    """Uploads with pyarrow from the tasks of one action, whose result is what they uploaded."""

    environment: Environment = field(default_factory=SystemEnvironment)

    def write(self, df: "DataFrame", context: UploadContext) -> list[Ack]:
        """Upload every row once; see `Uploader`. One ack for each task that won and had rows.

        Raises:
            UsageError: the DataFrame cannot be a state.
            CorruptionError: the files are not the whole of what Spark handed to the tasks.
        """
        frame, observation = counted(arranged(keyed(df, context), context))
        upload = partial(_upload, context, self.environment, frame.columns)
        started = self.environment.monotonic_s()
        sorting = timed_sort_of_savepoint(df.sparkSession, context, self.environment)
        with settings(df.sparkSession, ACTION_SETTINGS), sorting as sort:
            reports = collect_reports(with_word_names(frame).mapInArrow(upload, report_schema()))
        require_all_rows(reports, observation, context)
        return acks_for(reports, context, upload_ms=milliseconds(started, self.environment), sort_ms=sort.ms)


def _upload(
    context: UploadContext, environment: Environment, columns: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: one file of its rows, durable before its report is sent to the driver; no file without rows."""
    filled = (batch.rename_columns(columns) for batch in batches if batch.num_rows)
    row_group_bytes = SAVEPOINT_ROW_GROUP_BYTES if context.metadata.is_savepoint else ROW_GROUP_BYTES
    yield from upload_of_task(row_groups(filled, row_group_bytes), context, environment)


def upload_of_task(tables: Iterator[pa.Table], context: UploadContext, environment: Environment) -> Iterator[pa.RecordBatch]:
    """In a task: its file, with a row group for each table, and the report of it (or of its failed sync); nothing without a table."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    report = report_of_task(tables, task.taskAttemptId(), context, environment)
    if report is not None:
        yield report_batch([replace(report, subtask=task.partitionId())])


def report_of_task(tables: Iterator[pa.Table], task_id: int, context: UploadContext, environment: Environment) -> FileReport | None:
    """As `upload_tables`, for a task that Spark would try again: a failed sync is an answer, which ends the attempt."""
    try:
        return upload_tables(tables, task_id, context, environment)
    except NotDurableError as error:
        return FileReport.of_failed_sync(context.storage.address, error)


def upload_tables(tables: Iterator[pa.Table], writer_id: int | str, context: UploadContext, environment: Environment) -> FileReport | None:
    """One file with a row group for each table, durable when this returns, digested on its way; None where there is no table."""
    first = next(tables, None)
    if first is None:
        return None
    started = environment.monotonic_s()
    footers: list[Any] = []
    path = _path(context, writer_id, environment)
    with context.storage.create_stream(path) as target:
        stream = DigestingStream(target, environment)
        # Without the Arrow schema the file says what Spark's own would: times in UTC, not in this session's zone.
        with pq.ParquetWriter(stream, first.schema, store_schema=False, metadata_collector=footers) as writer:
            for table in chain([first], tables):
                writer.write_table(table, row_group_size=table.num_rows)
                stream.cut()
        stream.cut()
    return FileReport(
        path=path,
        size_bytes=stream.size_bytes,
        sha256=stream.digests.whole,
        parts=tuple(_digested(parts_of(footers[0], stream.size_bytes), stream)),
        digest_ms=round(stream.digest_s * 1000),
        upload_ms=milliseconds(started, environment),
    )


def _digested(parts: list[Part], stream: "DigestingStream") -> Iterator[Part]:
    """The parts that the footer tells, with the digests that were taken before there was one."""
    if len(parts) == 1:
        yield replace(parts[0], sha256=stream.digests.whole)
        return
    stretches = [*pairwise([0, *stream.cuts])]
    if stretches != [(part.offset_bytes, part.end_bytes) for part in parts]:
        msg = f"row groups end at {stream.cuts} and the footer states {parts}: pyarrow held bytes back, as no known version does"
        raise CorruptionError(msg)
    yield from (replace(part, sha256=sha256) for part, sha256 in zip(parts, stream.digests.parts, strict=True))


def _path(context: UploadContext, writer_id: int | str, environment: Environment) -> str:
    """A name that no other writer takes: (stage, partition, attempt number) comes again with a stage, a new application counts from 0."""
    name = f"{context.call}_{writer_id}_{environment.new_id()}"
    if context.directory is not None:
        return f"{context.directory}/{name}-0.parquet"
    return streamed_file(context.job_id, context.metadata.checkpoint_id, context.attempt, name, 0)


def row_groups(batches: Iterator[pa.RecordBatch], row_group_bytes: int) -> Iterator[pa.Table]:
    """The batches, none of which is empty, put together to tables of about this size in memory."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in _pieces(batches, row_group_bytes):
        if held and held_bytes + batch.nbytes > row_group_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
        held.append(batch)
        held_bytes += batch.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _pieces(batches: Iterator[pa.RecordBatch], limit_bytes: int) -> Iterator[pa.RecordBatch]:
    """The batches, those above the limit in slices."""
    for batch in batches:
        rows = max(1, batch.num_rows // -(-batch.nbytes // limit_bytes))
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


class DigestingStream(io.RawIOBase):
    """Passes bytes on and digests them on their way, in parts and as a whole."""

    def __init__(self, target: BinaryIO, environment: Environment) -> None:
        super().__init__()
        self._target = target
        self._environment = environment
        self.digests = PartDigests()
        self.cuts: list[int] = []
        self.size_bytes = 0
        self.digest_s = 0.0

    def cut(self) -> None:
        """A part ends here."""
        self.digests.cut()
        self.cuts.append(self.size_bytes)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: Any) -> int:
        started = self._environment.monotonic_s()
        self.digests.update(data)
        self.digest_s += self._environment.monotonic_s() - started
        self._target.write(data)
        self.size_bytes += len(data)
        return len(data)
