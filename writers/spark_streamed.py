"""The streamed vehicle: each task uploads one file as its rows come, through storage itself.

For object stores, where a rename is a copy, for hosts without a shared file system, and for state made in Python.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.clock import Environment, SystemEnvironment
from holdfast.catalog.errors import CorruptionError
from holdfast.catalog.paths import streamed_file
from holdfast.catalog.types import Ack
from holdfast.writers.parquet_layout import Part, PartDigests, parts_of
from holdfast.writers.spark_files import FileReport, ack_for, collect_reports, milliseconds, report_batch, report_schema, require_all_rows
from holdfast.writers.spark_frame import counted, keyed
from holdfast.writers.spark_key_groups import arranged
from holdfast.writers.spark_session import settings
from holdfast.writers.upload import SAVEPOINT_ROW_GROUP_BYTES, UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Ten times Spark's default: twice the rows a second.
ACTION_SETTINGS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100000"}
ROW_GROUP_BYTES = 64 * 1024 * 1024  # in memory, per task


@dataclass(frozen=True, slots=True)
class StreamedVehicle:
    """Uploads with pyarrow from the tasks of one action, whose result is what they uploaded."""

    environment: Environment = field(default_factory=SystemEnvironment)

    def write(self, df: "DataFrame", context: UploadContext) -> list[Ack]:
        """Upload every row once; see `Vehicle`. One ack for the call, of the tasks that won, however many they were.

        Raises:
            UsageError: the DataFrame cannot be a state.
            CorruptionError: the files are not the whole of what Spark handed to the tasks.
        """
        frame, observation = counted(arranged(keyed(df, context), context))
        started = self.environment.monotonic_s()
        with settings(df.sparkSession, ACTION_SETTINGS):
            reports = collect_reports(
                _plain_names(frame).mapInArrow(partial(_upload, context, self.environment, frame.columns), report_schema())
            )
        require_all_rows(reports, observation, context)
        return [ack_for(reports, context, upload_ms=milliseconds(started, self.environment))]


def _plain_names(frame: "DataFrame") -> "DataFrame":
    """`mapInArrow` looks its columns up by name and stumbles over dots and backticks: the tasks give the names back."""
    return frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])


def _upload(
    context: UploadContext, environment: Environment, columns: list[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: one file of its rows, durable before its report goes to the driver; no file without rows."""
    filled = (batch.rename_columns(columns) for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is not None:
        yield report_batch([_upload_file(first, filled, _task_path(context, environment), context, environment)])


def _upload_file(
    first: pa.RecordBatch, others: Iterator[pa.RecordBatch], path: str, context: UploadContext, environment: Environment
) -> FileReport:
    footers: list[Any] = []
    row_group_bytes = SAVEPOINT_ROW_GROUP_BYTES if context.metadata.is_savepoint else ROW_GROUP_BYTES
    with context.storage.create_stream(path) as target:
        stream = DigestingStream(target, environment)
        # Without the Arrow schema the file says what Spark's own would: times in UTC, not in this session's zone.
        with pq.ParquetWriter(stream, first.schema, store_schema=False, metadata_collector=footers) as writer:
            for table in _row_groups(first, others, row_group_bytes):
                writer.write_table(table, row_group_size=table.num_rows)
                stream.cut()
        stream.cut()
    return FileReport(
        path=path,
        size_bytes=stream.size_bytes,
        sha256=stream.digests.whole,
        parts=tuple(_digested(parts_of(footers[0], stream.size_bytes), stream)),
        digest_ms=round(stream.digest_s * 1000),
    )


def _digested(parts: list[Part], stream: "DigestingStream") -> Iterator[Part]:
    """The parts that the footer tells, with the digests that were taken before there was one."""
    if len(parts) == 1:
        yield replace(parts[0], sha256=stream.digests.whole)
        return
    stretches = [*pairwise([0, *stream.cuts])]
    if stretches != [(part.offset_bytes, part.end_bytes) for part in parts]:
        msg = f"row groups end at {stream.cuts} and the footer tells of {parts}: pyarrow held bytes back, as none known to Holdfast does"
        raise CorruptionError(msg)
    yield from (replace(part, sha256=sha256) for part, sha256 in zip(parts, stream.digests.parts, strict=True))


def _task_path(context: UploadContext, environment: Environment) -> str:
    """A name that no other task takes: (stage, partition, attempt number) comes again with a stage, a new application counts from 0."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    name = f"{context.call}_{task.taskAttemptId()}_{environment.new_id()}"
    if context.directory is not None:
        return f"{context.directory}/{name}-0.parquet"
    return streamed_file(context.job_id, context.metadata.checkpoint_id, context.attempt, name, 0)


def _row_groups(first: pa.RecordBatch, others: Iterator[pa.RecordBatch], row_group_bytes: int) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in _pieces(chain([first], others), row_group_bytes):
        if held and held_bytes + batch.nbytes > row_group_bytes:
            yield pa.Table.from_batches(held)
            held, held_bytes = [], 0
        held.append(batch)
        held_bytes += batch.nbytes
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
