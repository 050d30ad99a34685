"""Rows of which there are few come from the tasks to the driver; where there are many, tasks upload them.

A change set is small as a rule: a file for each task, synced there, and read again here, costs more than its rows.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.catalog.environment import Environment
from holdfast.catalog.types import Ack
from holdfast.writers.parquet.report import REPORT_SCHEMA, FileReport, acks_for, milliseconds
from holdfast.writers.spark.file_jobs import report_schema, reports_of, require_all_rows
from holdfast.writers.spark.frames import counted, keyed, with_word_names
from holdfast.writers.spark.session import settings
from holdfast.writers.spark.streamed import ACTION_SETTINGS, ROW_GROUP_BYTES, row_groups, upload_of_task, upload_tables
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

# In memory, of one task: of the first tasks, and of the others, of which there may be ten thousand.
BROUGHT_BYTES, BRINGERS, BROUGHT_BYTES_OF_MANY = 1024 * 1024, 16, 16 * 1024
ROWS_AT_ONCE = 4096  # what is brought without being counted before: of 100 kB each they are 400 MB


@dataclass(frozen=True, slots=True)
class Gathered:
    """What tasks uploaded, and the rows that they left to this process, with their key groups last (None: no rows)."""

    context: UploadContext
    environment: Environment
    reports: Sequence[FileReport]
    rows: pa.Table | None
    upload_ms: int

    def keep(self) -> list[Ack]:
        """Upload what is here, as one file; the acks of all."""
        here = None if self.rows is None else upload_tables(_tables(self.rows), "driver", self.context, self.environment)
        reports = [*self.reports] if here is None else [*self.reports, here]
        return acks_for(reports, self.context, upload_ms=self.upload_ms)


def gather(df: "DataFrame", context: UploadContext, environment: Environment) -> Gathered:
    """Take every row of the DataFrame once, running its plan once. What is here is not uploaded before `keep` is called.

    Raises:
        UsageError: the DataFrame cannot be a state.
        CorruptionError: the rows are not all that Spark handed to the tasks.
    """
    started = environment.monotonic_s()
    frame, observation = counted(keyed(df, context))
    named = with_word_names(frame)
    reports: Sequence[FileReport] = ()
    with settings(df.sparkSession, ACTION_SETTINGS):
        # One way or the other, and never the other after the one: what the plan reads may be consumed by then.
        if _has_few_rows(named):  # without a task of Python, which takes longer to start than Spark takes for all of them
            brought = [named.toArrow().rename_columns(frame.columns)]
        else:
            brought, reports = _by_tasks(named, frame.columns, context, environment)
    rows = pa.concat_tables(brought) if any(map(len, brought)) else None
    require_all_rows(reports, observation, context, 0 if rows is None else rows.num_rows)
    return Gathered(context, environment, reports, rows, milliseconds(started, environment))


def _by_tasks(
    named: "DataFrame", columns: list[str], context: UploadContext, environment: Environment
) -> tuple[list[pa.Table], Sequence[FileReport]]:
    """The rows of tasks that have few, and the files of those that have many."""
    upload = partial(_upload_or_bring, context, environment, columns, BROUGHT_BYTES, BROUGHT_BYTES_OF_MANY)
    answers = named.mapInArrow(upload, _answers()).collect()
    brought = [_table_of(answer.rows) for answer in answers if answer.rows is not None]
    return brought, reports_of(answer.report for answer in answers if answer.report is not None)


def _has_few_rows(frame: "DataFrame") -> bool:
    """By the bound that Spark's optimizer has for the rows of ranges, local rows and limits, and of what is made of them row by row.

    Its estimate of bytes would say so of more plans, and is wrong of those in which a row becomes many: `explode`, functions of Python.
    """
    plan = getattr(frame, "_jdf", None)  # none over Spark Connect, which does not say
    if plan is None:
        return False
    most = plan.queryExecution().optimizedPlan().maxRows()
    return bool(most.isDefined()) and int(most.get()) <= ROWS_AT_ONCE


def upload_rows(rows: pa.Table, context: UploadContext, environment: Environment, gathered_ms: int) -> list[Ack]:
    """One file of these rows, made by this process, and its ack; an ack without a file where there are no rows.

    The time in the ack has that of gathering what the rows are made of.
    """
    started = environment.monotonic_s()
    report = upload_tables(_tables(rows), "driver", context, environment)
    upload_ms = gathered_ms + milliseconds(started, environment)
    return acks_for([] if report is None else [replace(report, upload_ms=upload_ms)], context, upload_ms=upload_ms)


def _tables(rows: pa.Table) -> Iterator[pa.Table]:
    return row_groups((batch for batch in rows.combine_chunks().to_batches() if batch.num_rows), ROW_GROUP_BYTES)


def _answers() -> "StructType":
    """Of what a task answers: its rows, as Arrow's stream, or the report of what it uploaded."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    return StructType([StructField("rows", BinaryType()), StructField("report", report_schema())])


def _upload_or_bring(
    context: UploadContext, environment: Environment, columns: list[str], of_first: int, of_others: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task: its rows, if they are few; else one file of them, durable before its report goes to the driver."""
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None
    limit_bytes = of_first if task.partitionId() < BRINGERS else of_others
    filled = (batch.rename_columns(columns) for batch in batches if batch.num_rows)
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in filled:
        held.append(batch)
        held_bytes += batch.nbytes
        if held_bytes > limit_bytes:
            for report in upload_of_task(row_groups(chain(held, filled), ROW_GROUP_BYTES), context, environment):
                yield _answer(pa.nulls(report.num_rows, pa.binary()), report.to_struct_array())
            return
    if held:
        yield _answer(pa.array([_stream_of(held)], pa.binary()), pa.nulls(1, pa.struct(REPORT_SCHEMA)))


def _answer(rows: pa.Array, report: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([rows, report], names=["rows", "report"])


def _stream_of(batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue()


def _table_of(stream: bytes | bytearray) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(bytes(stream))).read_all()
