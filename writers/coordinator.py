"""A job's coordinator: starts an epoch, opens attempts, commits checkpoints. A newer one fences it.

A checkpoint costs one ledger commit: the commit of checkpoint n opens the attempt for n + 1 in the same transaction.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.catalog import arguments
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import (
    AttemptEndedError,
    DamagedFileError,
    FencedError,
    HoldfastError,
    NotFoundError,
    RefusedError,
    UnknownOutcomeError,
    UsageError,
)
from holdfast.catalog.facts import AttemptOpened, CheckpointCommitted
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.rules import checkpoints, decision, jobs
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.texts import require_line
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, ChainLimit, CheckpointId, JobId, OnEnd, Outcome, Retention, Status, StoredFile
from holdfast.writers.attempt import CheckpointResult
from holdfast.writers.checkpoint import Checkpoint, kept_by, open_committed
from holdfast.writers.checkpoint_block import CheckpointBlock
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.engine_errors import reason_of
from holdfast.writers.failure_policy import AttemptWatch, FailureCount, FailurePolicy
from holdfast.writers.pins import DROPPED, Loans
from holdfast.writers.savepoints.content import spark_reader
from holdfast.writers.savepoints.writer import SavepointWriter
from holdfast.writers.start import StartPoint, StateMapping
from holdfast.writers.stores.canonical import StoreAdapter
from holdfast.writers.upload import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        start: StartPoint,
        on_end: OnEnd = OnEnd(),  # noqa: B008 - frozen
        chain: ChainLimit = ChainLimit(),  # noqa: B008 - frozen
        failure_policy: FailurePolicy = FailurePolicy(),  # noqa: B008 - frozen
    ) -> None:
        self._transactor, self._storage, self._environment, self._state_writer = transactor, storage, environment, state_writer
        self._job_id, self._retention, self._on_end, self._chain = job_id, retention, on_end, chain
        self._timeout_s, self._failures = failure_policy.timeout_s, FailureCount(failure_policy.tolerated_failures, job_id)
        transactor.keep_handles_of(job_id)
        self._parent: Ref | None = None
        self._manifest: Manifest | None = None  # of the parent, loaded when first needed
        self._opened: AttemptOpened | None = None  # the attempt that the last commit opened
        self._writing = self._closed = False
        self._doubt: tuple[CheckpointWriter, AttemptToken] | None = None  # a commit was sent and not heard of, and what it opens next
        self._loans: dict[Ref, Loans] = {}  # what `latest` gave, of each checkpoint
        self._left: tuple[str, ...] = ()  # states that the first checkpoint does not carry
        self.epoch = self._start(start)
        if start.source is not None:
            self._copy(start.source, start.mapping)

    @property
    def job_id(self) -> JobId:
        return self._job_id

    def latest(self) -> Checkpoint | None:
        """The checkpoint that this job continues from, or None before the first.

        It stays readable until this coordinator's next commit; read again from `latest()` after each. A DataFrame of it that is used when
        the job's retention has dropped it raises RefusedError, unless it was cached.
        Raises FencedError: a newer coordinator of the job has started.
        """
        self._go_on()
        manifest = self._parent_manifest()
        if manifest is None or self._parent is None:
            return None
        loans = self._loans.setdefault(self._parent, Loans())
        return Checkpoint(manifest, self._storage, is_kept=kept_by(self._transactor, self._parent), loans=loans)

    def past_progress(self) -> Iterator[dict[str, Any]]:
        """The progress of what the job continues from, and of every checkpoint before it, newest first; of the dropped ones too.

        Raises FencedError: a newer coordinator of the job has started.
        """
        self._go_on()
        rows = self._transactor.known().ancestry(self._parent)
        return (json.loads(row.fact.progress) for row in rows if row.fact.progress is not None)

    def checkpoint(self, progress: Mapping[str, Any] | None = None) -> CheckpointBlock:
        """Write one checkpoint: committed when the block ends, aborted when it raises.

        With `checkpoint_timeout_s` the attempt is ended in the ledger once the block has run for so long, though the block goes on: its
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
        return CheckpointBlock(self._checkpoint(progress), self._job_id)

    @contextmanager
    def _checkpoint(self, progress: Mapping[str, Any] | None) -> Iterator[CheckpointWriter]:
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
                with self._committing(writer, self._timeout_s):
                    yield writer
                self._failures.end()
            except Exception as error:
                if not (writer.is_own(error) and self._failures.tolerates(error, writer.checkpoint_id)):
                    raise
                writer.failure = error
        finally:
            self._writing = False

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
        """A savepoint of the latest checkpoint: in the catalog, or in a directory of its own within `target`. Checkpoints may go on.

        States that are DataFrames are read with `spark`, or the active session. `stores` are adapters of embedded stores by their states,
        which then have the canonical format, as rows that can be rescaled; a state without one is copied as the directories that it is.
        Raises:
            NotFoundError: there is no checkpoint yet.
            AlreadyExistsError: the job has had a savepoint of this name, or has tried to.
            UsageError, RefusedError: there is no session to read a DataFrame, or the target cannot be one; nothing was opened.
        """
        self._go_on()
        if self._parent is None or self._is_forked:
            msg = f"job {self._job_id} has no checkpoint of its own that a savepoint could be taken of: write one first"
            raise NotFoundError(msg)
        writer = SavepointWriter(
            transactor=self._transactor,
            storage=self._storage,
            environment=self._environment,
            state_writer=self._state_writer,
            read_state=spark_reader(spark, stores),
            stores={} if stores is None else stores,
        )
        return open_committed(self._storage, writer.take(self._parent, name, None if target is None else open_storage(target)))

    def end(self, outcome: Outcome | str, reason: str | None = None) -> None:
        """The program is done with the job: finished, cancelled or failed. Its checkpoints stay or go by the policy `on_end`.

        The job may be coordinated again. Raises FencedError, UsageError (no such outcome), RefusedError inside the block of a checkpoint.
        """
        known = [each.value for each in Outcome]
        if outcome not in known:
            msg = f"outcome={outcome!r} is not how job {self._job_id} can end: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
            raise UsageError(msg)
        ended = Outcome(outcome)
        if reason is not None:
            require_line(reason, "the reason for the end of a job")
        self._refuse_if_writing("the job is ended")
        self._transactor.run(lambda state: jobs.end_job(state, self._job_id, self.epoch, ended, reason, self._on_end))
        self._opened, self._closed = None, True

    def drop(self, checkpoint_id: int) -> None:
        """Drop a checkpoint as this epoch's coordinator. Raises FencedError, RefusedError (held, the head, a savepoint), NotFoundError."""
        ref = Ref(self._job_id, CheckpointId(arguments.checkpoint_number(checkpoint_id, self._job_id)))
        self._transactor.run(lambda state: checkpoints.drop(state, ref, f"dropped by epoch {self.epoch}", self.epoch))

    def close(self) -> None:
        """End the attempt that the last commit opened, so that it pins nothing. The job stays as it is.

        Raises RefusedError inside the block of a checkpoint.
        """
        self._refuse_if_writing("the coordinator is closed")
        self._closed = True
        if self._doubt is not None:
            with suppress(HoldfastError):  # it was told when the commit was; a start, and the next commit, end what stays open
                self._go_on()
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(AttemptEndedError, FencedError):  # somebody ended it first, as was wanted
                self._end(opened.attempt, "the coordinator closed")

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
            opened = self._open_attempt(self._parent)
        try:
            writer = self._writer(opened, self._parent_manifest(), progress)
            for state in self._left:
                writer.remove(state)
        except BaseException:
            self._opened = opened  # nothing was written: the attempt serves the next call
            raise
        return writer

    def _open_attempt(self, parent: Ref | None) -> AttemptOpened:
        token = AttemptToken(self._environment.new_id())
        opened: AttemptOpened = self._transactor.run(
            lambda state: checkpoints.open_checkpoint(state, self._job_id, self.epoch, token, parent)
        )
        return opened

    def _writer(self, opened: AttemptOpened, parent: Manifest | None, progress: Mapping[str, Any] | None) -> CheckpointWriter:
        return CheckpointWriter(
            storage=self._storage,
            environment=self._environment,
            state_writer=self._state_writer,
            job=self._transactor.known().job(self._job_id),
            opened=opened,
            parent=parent,
            progress=progress,
            chain=self._chain,
        )

    def _start(self, start: StartPoint) -> int:
        """Start an epoch, and pin what is another job's. Checked before: a start that is refused has not happened."""
        if start.source is not None:
            self._require_same_groups(start.source.manifest)
        while True:
            found = self._transactor.look(start.find)
            pins = start.source is not None or (found is not None and found.job_id != self._job_id)
            first = AttemptToken(self._environment.new_id()) if pins else None
            manifest = None
            if start.source is None and found is not None and (pins or start.mapping != StateMapping()):
                manifest = self._checked(found, start)
                if manifest is None:
                    continue
            started = self._transactor.run(lambda state, f=found, t=first: _start(state, self._job_id, start, f, t))  # type: ignore[misc]
            if started is not None:
                epoch, self._parent, self._opened = started
                self._manifest = manifest
                return int(epoch)

    def _checked(self, ref: Ref, start: StartPoint) -> Manifest | None:
        """The manifest of what is gone on from, if this job can, and no state would be lost without a word; None if it is another now."""
        try:
            manifest = load_committed(self._storage, self._transactor.look(lambda state: state.checkpoint(ref)).fact)
        except DamagedFileError:
            if self._transactor.look(start.find) != ref:
                return None
            self._transactor.look(lambda state: decision.require_live(state, ref, "begin with"))
            raise
        self._require_same_groups(manifest)
        names = start.mapping.names_in(Checkpoint(manifest, self._storage), copies=False)
        self._left = tuple(info.state for info in manifest.states if info.state not in names)
        return manifest

    def _copy(self, source: Checkpoint, mapping: StateMapping) -> None:
        """A first checkpoint that has everything of the source and refers to nothing of it."""
        opened, self._opened = self._opened, None
        assert opened is not None
        names = mapping.names_in(source)
        with self._committing(self._writer(opened, None, source.progress)) as writer:
            for info in source.manifest.states:
                if info.state in names:
                    writer.adopt(source, info, names[info.state])

    def _require_same_groups(self, manifest: Manifest) -> None:
        job = self._transactor.known().job(self._job_id)
        if manifest.max_parallelism != job.registered.max_parallelism:
            msg = (
                f"checkpoint {manifest.checkpoint_id} of job {manifest.job!r} has max_parallelism={manifest.max_parallelism}, and job "
                f"{job.name!r} has {job.registered.max_parallelism}: rewrite a savepoint of it with "
                f"holdfast.rekey(savepoint, max_parallelism={job.registered.max_parallelism})"
            )
            raise RefusedError(msg)

    def _refuse_if_writing(self, what: str) -> None:
        if self._writing:
            msg = f"job {self._job_id} is writing a checkpoint: end that block before {what}"
            raise RefusedError(msg)

    def _go_on(self) -> JobState:
        """The job as it is now, if this coordinator is still its newest. A commit that nobody answered is settled first."""
        job = self._transactor.fresh().job(self._job_id)
        decision.require_newest_epoch(job, self.epoch, "go on with a checkpoint")
        if self._doubt is not None:
            self._settle(*self._doubt)
            job = self._transactor.known().job(self._job_id)
        return job

    def _settle(self, writer: CheckpointWriter, next_attempt: AttemptToken) -> None:
        """Go on from a commit as if it had been answered, if it landed; else its attempt is ended, if nobody has.

        Whichever it is, the job's head is what to go on from. Durable first: nothing is written into an attempt whose opening a loss of
        power may take back.
        """
        self._transactor.settle()
        job = self._transactor.known().job(self._job_id)
        if writer.checkpoint_id in job.checkpoints:
            following = job.open_attempts.get(next_attempt)
            self._opened, self._left = None if following is None else following.opened, ()
        elif writer.attempt in job.open_attempts:
            with suppress(AttemptEndedError):
                self._abandon(writer, "its commit was not answered, and had not landed")
        self._parent, self._manifest, self._doubt = job.begin, None, None

    @contextmanager
    def _committing(self, writer: CheckpointWriter, timeout_s: float | None = None) -> Iterator[CheckpointWriter]:
        """Commit what the block wrote, or abort the attempt if it raises."""
        watch = AttemptWatch(
            timeout_s=timeout_s,
            environment=self._environment,
            end=partial(self._abandon, writer),
            ask=partial(self._require_open, writer.attempt),
        )
        writer.watched_by(watch)
        try:
            with watch:
                yield writer
                with writer.step("the commit"):
                    self._commit(writer)
        except BaseException as error:
            if not (self._doubt and isinstance(error, UnknownOutcomeError)):
                self._abort(writer, error)
            raise  # in doubt it may have landed: neither abort nor reuse; the next opening reads the ledger
        finally:
            writer.close()

    def _commit(self, writer: CheckpointWriter) -> None:
        next_attempt = AttemptToken(self._environment.new_id())
        request, manifest = writer.seal(self._retention, next_attempt)
        writer.require_there(manifest, lambda: self._transactor.look(lambda state: _commit(state, self._job_id, request)))
        self._doubt = writer, next_attempt
        fact: CheckpointCommitted
        fact, self._opened = self._transactor.run(lambda state: _commit(state, self._job_id, request))
        self._parent, self._manifest = Ref(self._job_id, fact.checkpoint_id), manifest
        self._doubt, self._left = None, ()
        writer.result = CheckpointResult.of(fact)
        self._recall_loans()

    def _recall_loans(self) -> None:
        """DataFrames of checkpoints that nothing keeps any more refuse to run, before Spark finds their files gone."""
        self._loans = {ref: loans for ref, loans in self._loans.items() if loans}
        if not self._loans:
            return
        state = self._transactor.known()
        pinned = state.pinned()
        for ref in [ref for ref in self._loans if not state.checkpoint(ref).live and ref not in pinned]:
            self._loans.pop(ref).recall(DROPPED)

    def _abort(self, writer: CheckpointWriter, error: BaseException) -> None:
        writer.close()
        try:
            self._abandon(writer, reason_of(error))
        except (AttemptEndedError, FencedError) as ended:  # by somebody else; scrub finds its files, or took them while they were written
            if type(ended) is not type(error):
                error.add_note(f"the attempt had been ended before: {ended}")
        except Exception as failure:  # noqa: BLE001 - the caller's own error matters more
            error.add_note(f"the attempt could not be aborted ({failure}); scrub finds what it left once the attempt is ended")

    def _abandon(self, writer: CheckpointWriter, reason: str) -> None:
        """End the attempt of a writer, with what it has acknowledged so far. Called from the thread of an alarm as well."""
        self._storage.require_root()  # what lies at the catalog's path may be another's ledger by now
        # What another job's checkpoint is pinned by is this attempt alone: the next one takes the pin over.
        again = AttemptToken(self._environment.new_id()) if self._is_forked else None
        self._opened = self._end(writer.attempt, reason, writer.written_files, again)

    def _require_open(self, token: AttemptToken) -> None:
        """Raises AttemptEndedError, FencedError."""
        self._transactor.look(lambda state: decision.require_open(state.job(self._job_id), token, "go on with"))

    def _end(
        self, token: AttemptToken, reason: str, files: Sequence[StoredFile] = (), again: AttemptToken | None = None
    ) -> AttemptOpened | None:
        opened: AttemptOpened | None = self._transactor.run(
            lambda state: checkpoints.end_attempt(state, self._job_id, token, Status.ABORTED, reason, files, again)
        )
        return opened

    @property
    def _is_forked(self) -> bool:
        """Whether what the next checkpoint goes on from is another job's."""
        return self._parent is not None and self._parent.job_id != self._job_id

    def _parent_manifest(self) -> Manifest | None:
        if self._manifest is None and self._parent is not None:
            fact = self._transactor.known().checkpoint(self._parent).fact
            self._manifest = load_committed(self._storage, fact)
        return self._manifest


def _start(state: CatalogState, job_id: JobId, start: StartPoint, found: Ref | None, first: AttemptToken | None) -> Decision:
    """The start, if what it begins with is still what was found and checked; else nothing, and None.

    What is copied becomes the head when its copy is committed; until then it stays what it was, if that is still there.
    """
    if start.find(state) != found:
        return Decision([], {}, None)
    parent, source = found, None
    if start.source is not None:
        before, source = state.job(job_id).begin, found
        parent = before if before is not None and state.checkpoint(before).live else None
    started = jobs.start(state, job_id, parent, claim=start.claim, first=first, source=source)
    return Decision(started.facts, started.keys, (started.result, parent, _opened_by(started)))


def _commit(state: CatalogState, job_id: JobId, request: CommitRequest) -> Decision:
    committed = checkpoints.commit_checkpoint(state, job_id, request)
    return Decision(committed.facts, committed.keys, (committed.result, _opened_by(committed)))


def _opened_by(transaction: Decision) -> AttemptOpened | None:
    return next((fact for fact in transaction.facts if isinstance(fact, AttemptOpened)), None)
