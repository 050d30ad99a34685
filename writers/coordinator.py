"""A job's coordinator: what a program opens, writes and commits checkpoints by. A newer one fences it."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from holdfast.catalog import arguments
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import (
    NotFoundError,
    RefusedError,
    UsageError,
)
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.state import Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.texts import require_line
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import ChainLimit, CheckpointId, JobId, OnEnd, Outcome, Retention
from holdfast.writers.attempt import OpenAttempt
from holdfast.writers.checkpoint import Checkpoint, kept_by, open_committed
from holdfast.writers.checkpoint_block import CheckpointBlock
from holdfast.writers.checkpoint_writer import CheckpointResult, CheckpointWriter
from holdfast.writers.epoch import start_epoch
from holdfast.writers.failure_policy import FailureCount, FailurePolicy
from holdfast.writers.line import Line
from holdfast.writers.pins import DROPPED, Loans
from holdfast.writers.savepoints.content import spark_reader
from holdfast.writers.savepoints.writer import SavepointWriter
from holdfast.writers.start import StartPoint
from holdfast.writers.stores.canonical import StoreAdapter
from holdfast.writers.upload import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def coordinate(
    *,
    transactor: Transactor,
    storage: Storage,
    environment: Environment,
    state_writer: StateWriter,
    job_id: JobId,
    retention: Retention,
    start: StartPoint,
    on_end: OnEnd = OnEnd(),  # noqa: B008 - frozen
    chain: ChainLimit = ChainLimit(),  # noqa: B008 - frozen
    failure_policy: FailurePolicy = FailurePolicy(),  # noqa: B008 - frozen
    upkeep: "AfterCommit | None" = None,
) -> "Coordinator":
    """Start an epoch of a job, which fences those before it, and copy what it starts from where that cannot be shared.

    Raises what `start_epoch` does; then no epoch was started.
    """
    transactor.work_for(job_id)
    line = Line(transactor=transactor, storage=storage, environment=environment, job_id=job_id, retention=retention, epoch=0)
    start_epoch(line, start)
    return Coordinator(line=line, state_writer=state_writer, on_end=on_end, chain=chain, failure_policy=failure_policy, upkeep=upkeep)


class AfterCommit(Protocol):
    """What a commit may set off, outside of its path and of the checkpoint's block: the catalog's upkeep, which the front door hands in."""

    def after_commit(self, landed: int, folded_to: int) -> None:
        """A commit landed as this version of a ledger whose newest fold stands for `folded_to`. Returns at once, and raises nothing."""

    def close(self) -> None:
        """End what is under way."""


class Coordinator:
    """What `catalog.coordinate(...)` gives. One epoch of one job; use it from one thread."""

    def __init__(
        self,
        *,
        line: Line,
        state_writer: StateWriter,
        on_end: OnEnd,
        chain: ChainLimit,
        failure_policy: FailurePolicy,
        upkeep: AfterCommit | None = None,
    ) -> None:
        self._line, self._state_writer, self._on_end, self._chain = line, state_writer, on_end, chain
        self._upkeep = upkeep
        self._transactor = line.transactor
        self._timeout_s = failure_policy.timeout_s
        self._failures = FailureCount(failure_policy.tolerated_failures, line.job_id)
        self._writing = self._closed = False
        self._loans: dict[Ref, Loans] = {}  # what `latest` gave, of each checkpoint

    @property
    def epoch(self) -> int:
        return self._line.epoch

    @property
    def job_id(self) -> JobId:
        return self._line.job_id

    def latest(self) -> Checkpoint | None:
        """The checkpoint that this job continues from, or None before the first.

        It stays readable until this coordinator's next commit; read again from `latest()` after each. A DataFrame of it that is used when
        the job's retention has dropped it raises RefusedError, unless it was cached.
        Raises FencedError: a newer coordinator of the job has started.
        """
        self._line.go_on()
        manifest, parent = self._line.parent_manifest(), self._line.parent
        if manifest is None or parent is None:
            return None
        loans = self._loans.setdefault(parent, Loans())
        return Checkpoint(manifest, self._line.storage, is_kept=kept_by(self._transactor, parent), loans=loans)

    def past_progress(self) -> Iterator[dict[str, Any]]:
        """The progress of what the job continues from, and of the checkpoints before it, newest first; of the dropped ones too, until the
        ledger is folded: then of those the newest of each streaming query.

        Raises FencedError: a newer coordinator of the job has started.
        """
        self._line.go_on()
        return self._progress_from(self._line.parent)

    def _progress_from(self, ref: Ref | None) -> Iterator[dict[str, Any]]:
        """Job by job: what the caller does not come to is not read."""
        while ref is not None:
            rows = self._transactor.look(lambda state, n=ref: [*state.job(n.job_id).ancestry(n.checkpoint_id)])  # type: ignore[misc]
            yield from (json.loads(row.fact.progress) for row in rows if row.fact.progress is not None)
            ref = rows[-1].parent

    def checkpoint(self, progress: Mapping[str, Any] | None = None) -> CheckpointBlock:
        """Write one checkpoint: committed when the block ends, aborted when it raises.

        With `checkpoint_timeout_s` the attempt is ended in the ledger once the block has run for that long, though the block continues: its
        next step raises AttemptEndedError. With `tolerated_failures`, so many checkpoints in a row may fail by such an end, a kill, a lost
        race, or a failure of storage or of an upload: the block then raises nothing, `result` is None and `failure` is the error. The next
        one is again on the last that was committed, so that its changes must be all since then.
        The reason of an attempt that failed is kept in the ledger: of an error of the program or an engine its type alone, never its text.
        `progress` is anything that JSON can hold, of at most a megabyte.
        Raises:
            UsageError: the progress is something else.
            FencedError: a newer coordinator of the job has started.
            AttemptEndedError: somebody killed the attempt, or its time was over; nothing was committed, the next one may be tried.
            ConflictError: the commit lost too many races, and was aborted.
            TooManyFailuresError: more checkpoints in a row have failed than are tolerated; the last one's failure is the cause.
        """
        return CheckpointBlock(self._checkpoint(progress), self.job_id)

    @contextmanager
    def _checkpoint(self, progress: Mapping[str, Any] | None) -> Iterator[CheckpointWriter]:
        """One checkpoint by the steps of the design's section 5: open, upload, acknowledge, write the manifest, commit."""
        with self._alone():
            attempt, writer = self._open(progress)
            try:
                with self._line.ending(attempt, self._timeout_s):
                    yield writer  # the program uploads
                    with attempt.step("the commit"):
                        content = attempt.acknowledged()
                        manifest = attempt.write_manifest(content)
                        writer.result = CheckpointResult.of(self._line.commit(attempt, content, manifest))
                self._failures.end()
                self._recall_loans()
            except Exception as error:
                if not (attempt.is_own(error) and self._failures.tolerates(error, attempt.checkpoint_id)):
                    raise
                writer.failure = error
        if self._upkeep is not None and self._transactor.landed is not None:
            self._upkeep.after_commit(self._transactor.landed, self._transactor.ledger.folded_to)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One block at a time, and none once the coordinator is closed. Raises RefusedError."""
        if self._closed:
            msg = f"this coordinator of job {self.job_id} (epoch {self.epoch}) is closed: call catalog.coordinate again"
            raise RefusedError(msg)
        if self._writing:
            msg = f"job {self.job_id} is already writing a checkpoint: end that block first"
            raise RefusedError(msg)
        self._writing = True
        try:
            yield
        finally:
            self._writing = False

    def _open(self, progress: Mapping[str, Any] | None) -> tuple[OpenAttempt, CheckpointWriter]:
        attempt = self._line.open(progress)
        return attempt, CheckpointWriter(attempt, self._state_writer, self._chain)

    @property
    def tolerated_failures(self) -> int:
        """How many checkpoints in a row may fail without an error."""
        return self._failures.tolerated

    def savepoint(
        self,
        name: str,
        *,
        target: str | os.PathLike[str] | None = None,
        spark: "SparkSession | None" = None,
        stores: Mapping[str, StoreAdapter] | None = None,
    ) -> Checkpoint:
        """A savepoint of the latest checkpoint: in the catalog, or in a directory of its own within `target`. Checkpoints may continue.

        States that are DataFrames are read with `spark`, or the active session. `stores` are adapters of embedded stores by their states,
        which then have the canonical format, as rows that can be rescaled; a state without one is copied as the directories that it is.
        Raises:
            NotFoundError: there is no checkpoint yet.
            AlreadyExistsError: the job has had a savepoint of this name, or has tried to.
            UsageError, RefusedError: there is no session to read a DataFrame, or the target cannot be one; nothing was opened.
        """
        self._line.go_on()
        if self._line.parent is None or self._line.is_forked:
            msg = f"job {self.job_id} has no checkpoint of its own that a savepoint could be taken of: write one first"
            raise NotFoundError(msg)
        writer = SavepointWriter(
            transactor=self._transactor,
            storage=self._line.storage,
            environment=self._line.environment,
            state_writer=self._state_writer,
            read_state=spark_reader(spark, stores),
            stores={} if stores is None else stores,
        )
        return open_committed(self._line.storage, writer.take(self._line.parent, name, None if target is None else open_storage(target)))

    def end(self, outcome: Outcome | str, reason: str | None = None) -> None:
        """The program is done with the job: finished, cancelled or failed. Its checkpoints stay or go by the policy `on_end`.

        The job may be coordinated again. Raises FencedError, UsageError (no such outcome), RefusedError inside the block of a checkpoint.
        """
        known = [each.value for each in Outcome]
        if outcome not in known:
            msg = f"outcome={outcome!r} is not how job {self.job_id} can end: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
            raise UsageError(msg)
        ended = Outcome(outcome)
        if reason is not None:
            require_line(reason, "the reason for the end of a job")
        self._refuse_if_writing("the job is ended")
        self._transactor.run(lambda state: jobs.end_job(state, self.job_id, self.epoch, ended, reason, self._on_end))
        self._line.opened, self._closed = None, True

    def drop(self, checkpoint_id: int) -> None:
        """Drop a checkpoint as this epoch's coordinator. Raises FencedError, RefusedError (held, the head, a savepoint), NotFoundError."""
        ref = Ref(self.job_id, CheckpointId(arguments.checkpoint_number(checkpoint_id, self.job_id)))
        self._transactor.run(lambda state: checkpoints.drop(state, ref, f"dropped by epoch {self.epoch}", self.epoch))

    def close(self) -> None:
        """End the attempt that the last commit opened, so that it pins nothing. The job stays as it is.

        Raises RefusedError inside the block of a checkpoint.
        """
        self._refuse_if_writing("the coordinator is closed")
        self._closed = True
        self._line.close()
        if self._upkeep is not None:
            self._upkeep.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the coordinator failed as well: {failure}")

    def _refuse_if_writing(self, what: str) -> None:
        if self._writing:
            msg = f"job {self.job_id} is writing a checkpoint: end that block before {what}"
            raise RefusedError(msg)

    def _recall_loans(self) -> None:
        """DataFrames of checkpoints that nothing keeps any more refuse to run, before Spark finds their files gone."""
        self._loans = {ref: loans for ref, loans in self._loans.items() if loans}
        if not self._loans:
            return
        kept = self._transactor.recall(lambda state: {ref for ref in self._loans if state.job(ref.job_id).keeps(ref.checkpoint_id)})
        for ref in self._loans.keys() - kept:
            self._loans.pop(ref).recall(DROPPED)
