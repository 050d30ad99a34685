"""A job's coordinator: starts an epoch, opens attempts, commits checkpoints. A newer one fences it.

A checkpoint costs one ledger commit: the commit of checkpoint n opens the attempt for n + 1 in the same transaction.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

from holdfast.catalog import lifecycle
from holdfast.catalog.clock import Environment
from holdfast.catalog.commit_facts import CommitRequest
from holdfast.catalog.errors import AttemptEndedError, FencedError, RefusedError, UnknownOutcomeError
from holdfast.catalog.facts import AttemptOpened, CheckpointCommitted
from holdfast.catalog.lifecycle import Transaction
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Retention, Status
from holdfast.writers.checkpoint_writer import CheckpointResult, CheckpointWriter
from holdfast.writers.restore import Checkpoint, load_committed
from holdfast.writers.vehicles import StateWriter

Begin = Callable[[CatalogState], Ref | None]


class Coordinator:
    """What `catalog.coordinate(...)` gives. One epoch of one job; use it from one thread."""

    def __init__(
        self,
        *,
        transactor: Transactor,
        storage: Storage,
        environment: Environment,
        state_writer: StateWriter,
        job_id: JobId,
        retention: Retention,
        begin: Begin,
    ) -> None:
        self._transactor, self._storage, self._environment, self._state_writer = transactor, storage, environment, state_writer
        self._job_id, self._retention = job_id, retention
        transactor.keep_handles_of(job_id)
        started: tuple[int, Ref | None] = transactor.run(lambda state: _start(state, job_id, begin))
        self.epoch, self._parent = started
        self._manifest: Manifest | None = None  # of the parent, loaded when first needed
        self._opened: AttemptOpened | None = None  # the attempt that the last commit opened
        self._writing = self._closed = False
        self._in_doubt = False  # a commit was sent and has not been heard of

    @property
    def job_id(self) -> JobId:
        return self._job_id

    def latest(self) -> Checkpoint | None:
        """The checkpoint that this job continues from, or None before the first.

        It stays readable until this coordinator's next commit; read again from `latest()` after each.
        Raises FencedError: a newer coordinator of the job has started.
        """
        self._go_on()
        manifest = self._parent_manifest()
        return None if manifest is None else Checkpoint(manifest, self._storage)

    @contextmanager
    def checkpoint(self, progress: Mapping[str, Any] | None = None) -> Iterator[CheckpointWriter]:
        """Write one checkpoint: committed when the block ends, aborted when it raises.

        Raises:
            FencedError: a newer coordinator of the job has started.
            AttemptEndedError: somebody killed the attempt; nothing was committed, the next checkpoint may be tried.
            ConflictError: the commit lost too many races, and was aborted.
        """
        if self._closed:
            msg = f"this coordinator of job {self._job_id} (epoch {self.epoch}) is closed: call catalog.coordinate again"
            raise RefusedError(msg)
        if self._writing:
            msg = f"job {self._job_id} is already writing a checkpoint: end that block first"
            raise RefusedError(msg)
        self._writing = True
        try:
            writer = self._open(progress)
            try:
                yield writer
                self._commit(writer)
            except BaseException as error:
                if not (self._in_doubt and isinstance(error, UnknownOutcomeError)):
                    self._abort(writer, error)
                raise  # in doubt it may have landed: neither abort nor reuse; the next opening reads the ledger
            finally:
                writer.close()
        finally:
            self._writing = False

    def drop(self, checkpoint_id: int) -> None:
        """Drop a checkpoint as this epoch's coordinator. Raises FencedError, RefusedError (held, or the head), NotFoundError."""
        ref = Ref(self._job_id, CheckpointId(checkpoint_id))
        self._transactor.run(lambda state: lifecycle.drop(state, ref, f"dropped by epoch {self.epoch}", self.epoch))

    def close(self) -> None:
        """End the attempt that the last commit opened, so that it pins nothing. The job stays as it is.

        Raises RefusedError inside the block of a checkpoint.
        """
        if self._writing:
            msg = f"job {self._job_id} is writing a checkpoint: end that block before the coordinator is closed"
            raise RefusedError(msg)
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(AttemptEndedError, FencedError):  # somebody ended it first, as was wanted
                self._end(opened.attempt, "the coordinator closed", ())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the coordinator failed as well: {failure}")

    def _open(self, progress: Mapping[str, Any] | None) -> CheckpointWriter:
        job = self._go_on()
        if self._opened is not None and self._opened.attempt not in job.open_attempts:  # asked before anything is uploaded in vain
            self._opened = None
        opened, self._opened = self._opened, None
        if opened is None:
            token = AttemptToken(self._environment.new_id())
            opened = self._transactor.run(lambda state: lifecycle.open_checkpoint(state, self._job_id, self.epoch, token, self._parent))
        try:
            return CheckpointWriter(
                storage=self._storage,
                environment=self._environment,
                state_writer=self._state_writer,
                job=self._transactor.known().job(self._job_id),
                opened=opened,
                parent=self._parent_manifest(),
                progress=progress,
            )
        except BaseException:
            self._opened = opened  # nothing was written: the attempt serves the next call
            raise

    def _go_on(self) -> JobState:
        """The job as it is now, if this coordinator is still its newest.

        After a commit that nobody answered, the job's head says whether it landed, and is what to go on from.
        """
        job = self._transactor.fresh().job(self._job_id)
        lifecycle.require_newest_epoch(job, self.epoch, "go on with a checkpoint")
        if self._in_doubt:
            self._parent, self._manifest, self._in_doubt = job.begin, None, False
        return job

    def _commit(self, writer: CheckpointWriter) -> None:
        next_attempt = AttemptToken(self._environment.new_id())
        request, manifest = writer.seal(self._retention, next_attempt)
        self._in_doubt = True
        fact: CheckpointCommitted
        fact, self._opened = self._transactor.run(lambda state: _commit(state, self._job_id, request))
        self._parent, self._manifest = Ref(self._job_id, fact.checkpoint_id), manifest
        self._in_doubt = False
        writer.result = CheckpointResult.of(fact)

    def _abort(self, writer: CheckpointWriter, error: BaseException) -> None:
        writer.close()
        try:
            self._end(writer.attempt, f"{type(error).__name__}: {error}"[:500], writer.acked_files)
        except (AttemptEndedError, FencedError) as ended:  # by somebody else; scrub finds its files, or took them while they were written
            if type(ended) is not type(error):
                error.add_note(f"the attempt had been ended before: {ended}")
        except Exception as failure:  # noqa: BLE001 - the caller's own error matters more
            error.add_note(f"the attempt could not be aborted ({failure}); scrub finds what it left once the attempt is ended")

    def _end(self, token: AttemptToken, reason: str, files: Any) -> None:
        self._transactor.run(lambda state: lifecycle.end_attempt(state, self._job_id, token, Status.ABORTED, reason, files))

    def _parent_manifest(self) -> Manifest | None:
        if self._manifest is None and self._parent is not None:
            fact = self._transactor.known().checkpoint(self._parent).fact
            self._manifest = load_committed(self._storage, fact)
        return self._manifest


def _start(state: CatalogState, job_id: JobId, begin: Begin) -> Transaction:
    parent = begin(state)
    started = lifecycle.start(state, job_id, parent)
    return Transaction(started.facts, started.keys, (started.result, parent))


def _commit(state: CatalogState, job_id: JobId, request: CommitRequest) -> Transaction:
    committed = lifecycle.commit_checkpoint(state, job_id, request)
    opened = next((fact for fact in committed.facts if isinstance(fact, AttemptOpened)), None)
    return Transaction(committed.facts, committed.keys, (committed.result, opened))
