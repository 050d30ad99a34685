"""`df.write.format("holdfast")`: one attempt is opened on the driver's host, uploaded to by tasks, and committed in a third process.

Spark makes the writer once for each write, in a Python process of the driver's host; pickles it to every task; and gives its messages, one
for each partition, to a copy in yet another process. If `commit` raises, Spark calls `abort` with all of them, although the commit may have
landed: so `abort` asks the ledger, and nothing here ever deletes a file.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.catalog.creation import open_transactor
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import AttemptEndedError, CorruptionError, FencedError, UnknownOutcomeError, UsageError
from holdfast.catalog.facts import AttemptOpened
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.marker import read_marker
from holdfast.catalog.murmur3 import hash_columns, key_group_of
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.guard import GuardedStorage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import Ack, AttemptToken, JobId, KeepAll, Status, StoredFile
from holdfast.writers.attempt import OpenAttempt, require_state_name
from holdfast.writers.engine_errors import reason_of
from holdfast.writers.parquet.report import FileReport, acks_for, require_durable, state_info_of
from holdfast.writers.registration import register_job
from holdfast.writers.spark.frames import check_schema
from holdfast.writers.spark.streamed import ROW_GROUP_BYTES, report_of_task, row_groups
from holdfast.writers.start import head_to_go_on_from
from holdfast.writers.upload import UploadContext, WrittenState, in_full


@dataclass
class Uploaded(WriterCommitMessage):
    """What a task did: its file, if it had rows, and how many rows Spark handed to it."""

    report: FileReport | None
    rows: int


def open_write(path: str, job: str, state: str, key: Sequence[str], schema: StructType) -> "SourceWriter":
    """Start an epoch of the job, registered if it is new, and open its next attempt on its head.

    Raises UsageError, before that, if the rows cannot be a state of this name, and RefusedError if the job's head was dropped behind its
    back. Whatever else is raised leaves no open attempt.
    """
    require_state_name(state)
    check_schema(schema, state, key)
    _require_hashes(schema, state, key)
    place, environment = open_storage(path), SystemEnvironment()
    storage = GuardedStorage(place, read_marker(place).catalog_id)
    transactor = open_transactor(storage, environment)
    job_id = register_job(transactor, environment, job, None)
    token = AttemptToken(environment.new_id())
    opened: AttemptOpened = transactor.run(lambda known: _start(known, job_id, token))
    given = _Write(storage=storage, opened=opened, state=state, key=tuple(key), schema=schema)
    try:
        return SourceWriter(given, given.context(transactor))
    except BaseException as error:  # Spark has no writer that it could abort
        try:
            given.end(transactor, reason_of(error))
        except Exception as failure:  # noqa: BLE001 - the first error matters more
            error.add_note(f"the attempt could not be ended ({failure}); the job's next start ends it")
        raise


def _require_hashes(schema: StructType, state: str, key: Sequence[str]) -> None:
    """Raises UsageError for a key whose groups the tasks could not compute: they have no JVM."""
    types = to_arrow_schema(schema, timezone="UTC")
    for name in key:
        try:
            hash_columns([pa.array([], types.field(name).type)])
        except UsageError as error:
            msg = (
                f"state {state!r}: key column {name!r} has the type {schema[name].dataType.simpleString()}, whose key groups only Spark "
                "computes: cast it, for example to a string, or write by checkpoint.write in the job's program; nothing was started"
            )
            raise UsageError(msg) from error


def _start(state: CatalogState, job_id: JobId, token: AttemptToken) -> Decision:
    started = jobs.start(state, job_id, head_to_go_on_from(state, state.job(job_id)), first=token)
    return Decision(started.facts, started.keys, next(fact for fact in started.facts if isinstance(fact, AttemptOpened)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """One state of one attempt. Picklable, so that each process continues the same attempt."""

    storage: Storage
    opened: AttemptOpened
    state: str
    key: tuple[str, ...]
    schema: StructType

    def transactor(self) -> Transactor:
        return open_transactor(self.storage, SystemEnvironment())

    def context(self, transactor: Transactor) -> UploadContext:
        """What the tasks need to know."""
        return self.attempt(transactor).context(self.state, self.key)

    def attempt(self, transactor: Transactor) -> OpenAttempt:
        """For a checkpoint that has everything of its parent, the progress too, but for this state."""
        opened, parent = self.opened, None
        if opened.parent_job_id is not None and opened.parent_checkpoint_id is not None:
            ref = Ref(opened.parent_job_id, opened.parent_checkpoint_id)
            parent = load_committed(self.storage, transactor.look(lambda state: state.checkpoint(ref)).fact)
        return OpenAttempt(
            storage=self.storage,
            environment=SystemEnvironment(),
            job=transactor.recall(lambda state: state.job(opened.job_id)),
            opened=opened,
            parent=parent,
            progress=None if parent is None else parent.progress,
        )

    def end(self, transactor: Transactor, reason: str, files: Sequence[StoredFile] = ()) -> None:
        """End the attempt, unless it has been ended: by its commit, whose answer may have been lost, or by a later start of the job."""
        job_id, attempt = self.opened.job_id, self.opened.attempt
        with suppress(AttemptEndedError, FencedError):
            transactor.run(lambda state: checkpoints.end_attempt(state, job_id, attempt, Status.ABORTED, reason, files))

    def written(self, context: UploadContext, acks: Sequence[Ack]) -> WrittenState:
        return in_full(acks, state_info_of(self.schema, context, acks))


class SourceWriter(DataSourceArrowWriter):
    """One write: a file of each task that has rows, and one checkpoint."""

    def __init__(self, given: _Write, context: UploadContext) -> None:
        self._write, self._context = given, context

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """In a task: its file, durable before the message of it goes out."""
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        rows = 0

        def filled() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in iterator:
                rows += batch.num_rows
                if batch.num_rows:
                    yield self._with_groups(batch)

        environment = SystemEnvironment()
        report = report_of_task(row_groups(filled(), ROW_GROUP_BYTES), task.taskAttemptId(), self._context, environment)
        return Uploaded(None if report is None else replace(report, subtask=task.partitionId()), rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raises CorruptionError if a partition is missing or not whole, NotDurableError, and what the commit of a checkpoint raises."""
        reports = self._whole(messages)
        transactor = self._write.transactor()
        transactor.work_for(self._write.opened.job_id)  # by which the commit knows which intervals it ends
        attempt = self._write.attempt(transactor)
        context = attempt.context(self._write.state, self._write.key)
        attempt.take(self._write.written(context, acks_for(reports, context, upload_ms=0)), context)
        # Nothing continues from here in this process; and what the job keeps is for its own program to say.
        try:
            content = attempt.acknowledged()
            manifest = attempt.write_manifest(content)
            job_id, request = self._write.opened.job_id, attempt.commit_request(content, KeepAll(), next_attempt=None)
            attempt.require_there(manifest, lambda: transactor.look(lambda state: checkpoints.commit_checkpoint(state, job_id, request)))
            transactor.run(lambda state: checkpoints.commit_checkpoint(state, job_id, request))
        except UnknownOutcomeError:
            raise  # it may have landed
        except Exception as error:
            # Here and not in `abort`, which knows nothing of the manifest; it finds the attempt ended.
            with suppress(Exception):
                self._write.end(transactor, reason_of(error), attempt.written_files)
            raise

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the attempt, unless it has been ended.

        What the tasks uploaded becomes rows of files, which vacuum takes; scrub finds the rest.
        """
        durable = [report for report in _reports(messages) if report.not_durable is None]
        files = tuple(file for ack in acks_for(durable, self._context, upload_ms=0) for file in ack.files)
        self._write.end(self._write.transactor(), "Spark aborted the write", files)

    def _with_groups(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        named = batch.rename_columns(self._write.schema.names)
        keys = [named.column(name) for name in self._context.key_columns]
        groups = key_group_of(keys, self._context.max_parallelism) if keys else pa.array([0], pa.int32()).take([0] * batch.num_rows)
        return named.append_column(KEY_GROUP_COLUMN, groups)

    def _whole(self, messages: Sequence[WriterCommitMessage | None]) -> Sequence[FileReport]:
        untold = sum(not isinstance(message, Uploaded) for message in messages)
        given = sum(message.rows for message in messages if isinstance(message, Uploaded))
        reports = require_durable(_reports(messages))
        found = sum(report.rows for report in reports)
        if untold or given != found:
            msg = (
                f"state {self._write.state!r}, attempt {self._write.opened.attempt}: {untold} of {len(messages)} partitions reported "
                f"nothing, the others were given {given} rows, and their files hold {found}: the write is incomplete, and nothing was "
                "committed; write again"
            )
            raise CorruptionError(msg)
        return reports


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[FileReport]:
    """The files of the partitions that reported one; a partition without rows has none."""
    return [message.report for message in messages if isinstance(message, Uploaded) and message.report is not None]
