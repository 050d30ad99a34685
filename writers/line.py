"""The line of checkpoints that one epoch of a job writes: what it continues from, the attempt that is open, the commit that is in doubt.

A checkpoint costs one ledger commit: the commit of checkpoint n opens the attempt for n + 1 in the same transaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import AttemptEndedError, FencedError, HoldfastError, UnknownOutcomeError
from holdfast.catalog.facts import AttemptOpened, CheckpointCommitted
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.rules import checkpoints, decision
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, JobId, Retention, Status, StoredFile
from holdfast.writers.attempt import AcknowledgedContent, OpenAttempt
from holdfast.writers.engine_errors import reason_of
from holdfast.writers.failure_policy import AttemptWatch


class Line:
    """What one epoch of one job commits. `epoch`, `parent` and `opened` are those of its start, and move with each commit."""

    def __init__(
        self, *, transactor: Transactor, storage: Storage, environment: Environment, job_id: JobId, retention: Retention, epoch: int
    ) -> None:
        self.transactor, self.storage, self.environment = transactor, storage, environment
        self.job_id, self.retention, self.epoch = job_id, retention, epoch
        self.parent: Ref | None = None
        self.manifest: Manifest | None = None  # the parent's, loaded when first needed
        self.opened: AttemptOpened | None = None  # the attempt that the last commit opened
        self.not_carried: tuple[str, ...] = ()  # states of the parent that the first checkpoint does not carry
        self._doubt: tuple[OpenAttempt, AttemptToken] | None = None  # a commit was sent and not heard of, and what it opens next

    @property
    def is_forked(self) -> bool:
        """Whether what the next checkpoint continues from is another job's."""
        return self.parent is not None and self.parent.job_id != self.job_id

    def _own(self, state: CatalogState) -> JobState:
        return state.job(self.job_id)

    def parent_manifest(self) -> Manifest | None:
        """What the next checkpoint continues from. Raises DamagedFileError."""
        if self.manifest is None and self.parent is not None:
            self.manifest = load_committed(self.storage, self.transactor.recall(lambda state, ref=self.parent: state.checkpoint(ref)).fact)  # type: ignore[misc]
        return self.manifest

    def go_on(self) -> JobState:
        """The job as it is now, if this epoch is still its newest. A commit that nobody answered is settled first. Raises FencedError."""
        job = self.transactor.look(self._own)
        decision.require_newest_epoch(job, self.epoch, "continue with a checkpoint")
        if self._doubt is not None:
            self._settle(*self._doubt)
            job = self.transactor.recall(self._own)
        return job

    # ---- attempts -------------------------------------------------------------------------------------------------------

    def open(self, progress: Mapping[str, Any] | None) -> OpenAttempt:
        """The attempt at the next checkpoint: the one that the last commit opened, if it is still open, or another."""
        job = self.go_on()
        if self.opened is not None and self.opened.attempt not in job.open_attempts:  # asked before anything is uploaded in vain
            self.opened = None
        opened, self.opened = self.opened, None
        if opened is None:
            opened = self._open_attempt()
        try:
            attempt = self.attempt_of(opened, self.parent_manifest(), progress)
        except BaseException:
            self.opened = opened  # nothing was written: the attempt serves the next call
            raise
        for state in self.not_carried:
            attempt.remove(state)
        return attempt

    def attempt_of(self, opened: AttemptOpened, parent: Manifest | None, progress: Mapping[str, Any] | None) -> OpenAttempt:
        """What is written into an attempt that was opened. `parent` is what it may carry from."""
        return OpenAttempt(
            storage=self.storage,
            environment=self.environment,
            job=self.transactor.recall(self._own),
            opened=opened,
            parent=parent,
            progress=progress,
        )

    @contextmanager
    def ending(self, attempt: OpenAttempt, timeout_s: float | None = None) -> Iterator[None]:
        """The block commits the attempt, or it is aborted with the reason that the block raises; after `timeout_s` by an alarm.

        In doubt it may have landed, and is neither aborted nor used again: `go_on` finds out.
        """
        watch = AttemptWatch(
            timeout_s=timeout_s,
            environment=self.environment,
            end=partial(self._abandon, attempt),
            ask=partial(self.require_open, attempt.token),
        )
        attempt.watched_by(watch)
        try:
            with watch:
                yield
        except BaseException as error:
            if not (self._doubt and isinstance(error, UnknownOutcomeError)):
                self._abort(attempt, error)
            raise
        finally:
            attempt.close()

    def close(self) -> None:
        """End the attempt that the last commit opened, so that it pins nothing."""
        if self._doubt is not None:
            with suppress(HoldfastError):  # it was reported when the commit was; a start, and the next commit, end what stays open
                self.go_on()
        opened, self.opened = self.opened, None
        if opened is not None:
            with suppress(AttemptEndedError, FencedError):  # somebody ended it first, as was wanted
                self.end_attempt(opened.attempt, "the coordinator closed")

    def require_open(self, token: AttemptToken) -> None:
        """Raises AttemptEndedError, FencedError."""
        self.transactor.look(lambda state: decision.require_open(state.job(self.job_id), token, "continue with"))

    def end_attempt(
        self, token: AttemptToken, reason: str, files: Sequence[StoredFile] = (), again: AttemptToken | None = None
    ) -> AttemptOpened | None:
        """End an open attempt; `again` takes over its parent, and the pin on it. Raises AttemptEndedError, FencedError."""
        opened: AttemptOpened | None = self.transactor.run(
            lambda state: checkpoints.end_attempt(state, self.job_id, token, Status.ABORTED, reason, files, again)
        )
        return opened

    # ---- commits --------------------------------------------------------------------------------------------------------

    def commit(self, attempt: OpenAttempt, content: AcknowledgedContent, manifest: Manifest) -> CheckpointCommitted:
        """Commit the attempt in one transaction of the ledger, which also opens the next one. The line continues from there."""
        next_attempt = AttemptToken(self.environment.new_id())
        request = attempt.commit_request(content, self.retention, next_attempt)
        attempt.require_there(manifest, lambda: self.transactor.look(lambda state: _commit(state, self.job_id, request)))
        self._doubt = attempt, next_attempt
        fact: CheckpointCommitted
        fact, self.opened = self.transactor.run(lambda state: _commit(state, self.job_id, request))
        self.parent, self.manifest = Ref(self.job_id, fact.checkpoint_id), manifest
        self._doubt, self.not_carried = None, ()
        return fact

    def _open_attempt(self) -> AttemptOpened:
        token, parent = AttemptToken(self.environment.new_id()), self.parent
        opened: AttemptOpened = self.transactor.run(
            lambda state: checkpoints.open_checkpoint(state, self.job_id, self.epoch, token, parent)
        )
        return opened

    def _settle(self, attempt: OpenAttempt, next_attempt: AttemptToken) -> None:
        """Continue from a commit as if it had been answered, if it landed; else its attempt is ended, if nobody has.

        Whichever it is, the job's head is what to continue from. Durable first: nothing is written into an attempt whose opening a loss of
        power may take back.
        """
        self.transactor.settle()
        job = self.transactor.recall(self._own)
        if attempt.checkpoint_id in job.checkpoints:
            following = job.open_attempts.get(next_attempt)
            self.opened, self.not_carried = None if following is None else following.opened, ()
        elif attempt.token in job.open_attempts:
            with suppress(AttemptEndedError):
                self._abandon(attempt, "its commit was not answered, and had not landed")
        self.parent, self.manifest, self._doubt = job.begin, None, None

    def _abort(self, attempt: OpenAttempt, error: BaseException) -> None:
        attempt.close()
        try:
            self._abandon(attempt, reason_of(error))
        except (AttemptEndedError, FencedError) as ended:  # by somebody else; scrub finds its files, or took them while they were written
            if type(ended) is not type(error):
                error.add_note(f"the attempt had been ended before: {ended}")
        except Exception as failure:  # noqa: BLE001 - the caller's own error matters more
            error.add_note(f"the attempt could not be aborted ({failure}); scrub finds what it left once the attempt is ended")

    def _abandon(self, attempt: OpenAttempt, reason: str) -> None:
        """End an attempt, with what it has acknowledged so far. Called from the thread of an alarm as well."""
        self.storage.require_root()  # what lies at the catalog's path may be another's ledger by now
        # What another job's checkpoint is pinned by is this attempt alone: the next one takes the pin over.
        again = AttemptToken(self.environment.new_id()) if self.is_forked else None
        self.opened = self.end_attempt(attempt.token, reason, attempt.written_files, again)


def _commit(state: CatalogState, job_id: JobId, request: CommitRequest) -> Decision:
    committed = checkpoints.commit_checkpoint(state, job_id, request)
    return Decision(committed.facts, committed.keys, (committed.result, opened_by(committed)))


def opened_by(decided: Decision) -> AttemptOpened | None:
    """The attempt that a decision opens, if it does."""
    return next((fact for fact in decided.facts if isinstance(fact, AttemptOpened)), None)
