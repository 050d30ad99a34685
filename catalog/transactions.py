"""One transaction: decide against a snapshot, append through the handle of that snapshot, find it again, make it durable, then return.

A process validates from memory: the compare-and-swap says when memory is stale, and then only the newer commits are replayed, of the
jobs that it holds (`held_jobs`). Of another job's commit it reads the entry of the log, which names the job, and no data file.
After any exception, conflicts included, the own operation id is looked for before anything is said (a lost response or a failing
hook looks like a failure although the commit landed). Nothing is ever deleted here.
"""

import errno
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import (
    AddressError,
    ConflictError,
    FencedError,
    FormatError,
    HoldfastError,
    ReadOnlyError,
    RetryError,
    StorageFullError,
    UnknownOutcomeError,
)
from holdfast.catalog.facts import Fact, RunEnded
from holdfast.catalog.forks import ProcessLock
from holdfast.catalog.held_jobs import HeldJobs
from holdfast.catalog.ledger import History, Ledger, LedgerConflictError, LoggedCommit, SnapshotLostError
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import CatalogState
from holdfast.catalog.types import JobId

MAX_RACES = 20
READ_TRIES = 3
LONGEST_PAUSE = 5
WITHIN_S = 180.0  # no race is begun after it
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

T = TypeVar("T")


class Transactor:
    """A process's memory of the catalog, and its way to change it. One lock spans refresh, validate and commit.

    With `works_for` it remembers that job, open handles included, and those that the job has claimed; without, the jobs that it was asked
    for last. What else a reading or a decision asks for is read for it, and then forgotten.
    """

    def __init__(
        self,
        ledger: Ledger,
        environment: Environment,
        *,
        works_for: JobId | None = None,
        history: Callable[[], History] | None = None,
    ) -> None:
        self._ledger = ledger
        self._history = history  # opened where the ledger may have forgotten an operation
        self._environment = environment
        self._works_for = works_for
        self._lock = ProcessLock()
        self._loaded: HeldJobs | None = None
        self._remembering = 0  # blocks within each other
        self._undurable: Exception | None = None
        self._landed: int | None = None

    @property
    def landed(self) -> int | None:
        """The version of the newest commit of one's own, if it was found in the log."""
        return self._landed

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def known(self) -> CatalogState:
        """The state as this process remembers it. The caller does not change it, and shares it with no thread."""
        with self._lock:
            return self._state

    def fresh(self) -> CatalogState:
        """As `known`, at the newest version."""
        with self._lock:
            self._catch_up()
            return self._state

    def look(self, reading: Callable[[CatalogState], T]) -> T:
        """What `reading` takes from the state at the newest version, while no other thread moves it."""
        with self.remembering():
            self._catch_up()
            return self._ask(reading)

    def recall(self, reading: Callable[[CatalogState], T]) -> T:
        """As `look`, from the state as this process remembers it."""
        with self.remembering():
            return self._ask(reading)

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """What is read of other jobs is remembered until the block ends; other threads wait for that."""
        with self._lock:
            self._remembering += 1
            try:
                yield
            finally:
                self._remembering -= 1
                if self._loaded is not None and not self._remembering:
                    self._loaded.forget()

    def settle(self) -> None:
        """Make everything durable that this process can have read so far, other writers' commits included.

        Before a file is deleted because of what the ledger says (I7): its writer may have died between its commit and the sync, and
        a power loss would then bring back a reference to a file that is gone.
        """
        with self._lock:
            self._mend()
            self._catch_up()
            self._make_durable()

    def work_for(self, job_id: JobId) -> None:
        """From here this job is remembered, its open handles as well, which its commits need; of others those alone that it has claimed."""
        with self._lock:
            self._works_for, self._loaded = job_id, None

    def run(self, decide: Callable[[CatalogState], Decision]) -> Any:
        """Commit what `decide` says, at most once, and return its result when the commit is durable.

        `decide` is pure and may be called several times. What it raises from memory alone is checked once more against the newest
        version before it is believed.
        Raises:
            ConflictError: every one of the bounded retries lost its race; nothing was committed.
            UnknownOutcomeError: the commit was sent, and it could not be seen whether it landed, or not be made durable.
            ReadOnlyError: this process may not write to the ledger.
            StorageFullError: there is no room for the commit; nothing was committed.
        """
        with self.remembering():
            self._mend()
            fresh, began = self._loaded is None, self._environment.monotonic_s()
            for race in range(MAX_RACES):
                if self._environment.monotonic_s() - began > WITHIN_S:
                    break
                with self._ledger.turn():
                    if race:  # in its own turn: no other process of this host comes between the reading and the commit
                        self._catch_up()
                    try:
                        transaction = self._ask(decide)
                    except HoldfastError:
                        if fresh or race:
                            raise
                        self._catch_up()
                        transaction = self._ask(decide)
                    # Nothing to commit: an earlier commit already says so. Sync it, because its writer may have died before doing so.
                    if not transaction.facts:
                        self._make_durable()
                        return transaction.result
                    sent = self._send(transaction)
                if self._has_landed(sent, transaction):
                    return transaction.result
                self._environment.pause(min(race, LONGEST_PAUSE))
            msg = f"the transaction on {', '.join(transaction.keys)} lost {race + 1} races; nothing was committed: call again"
            raise ConflictError(msg)

    def append(self, facts: Sequence[Fact]) -> None:
        """Commit facts that belong to no lifecycle transaction: they conflict with nothing."""
        self.run(lambda _: Decision(facts, {}))

    def _ask(self, reading: Callable[[CatalogState], T]) -> T:
        """`reading` of the state; of the newest one, where what it asks for cannot be read at the held snapshot any more."""
        try:
            return reading(self._state)
        except SnapshotLostError:
            self._catch_up()
            return reading(self._state)

    def _mend(self) -> None:
        """Before anything is committed on a log that a loss of power has torn; a fact says what was done and why."""
        started_at = self._environment.now()
        try:
            reasons = self._ledger.mend()
        except OSError as error:
            _require_writable(error)
            msg = f"the tail of the ledger is torn and cannot be mended ({error}): nothing was committed; examine the disk, then call again"
            raise RetryError(msg) from error
        if reasons:
            self._loaded = None
            repaired = RunEnded(
                run_id=self._environment.new_id(),
                what="repair",
                started_at=started_at,
                ended_at=self._environment.now(),
                outcome="done",
                figures=json.dumps({"void_commits": len(reasons), "reasons": reasons}),
            )
            self.append([repaired])

    def _send(self, transaction: Decision) -> tuple[str, Exception | None]:
        """Append once; the operation's id, and what was raised, which does not say whether it landed."""
        operation = Operation.new(self._environment)
        self._require_durable()
        try:
            self._ledger.append(transaction.facts, keys=transaction.keys, operation=operation)
        except Exception as error:  # noqa: BLE001 - the outcome is unknown, whatever it says: read back
            return operation.operation_id, error
        return operation.operation_id, None

    def _has_landed(self, sent: tuple[str, Exception | None], transaction: Decision) -> bool:
        """Whether the transaction is committed (and now durable), or lost its race."""
        operation_id, failure = sent
        subject = ", ".join(transaction.keys) or "no job"
        try:
            landed = self._catch_up(operation_id, transaction)
        except FencedError:
            raise  # another ledger stands there, and holds nothing of this process
        except AddressError as error:
            if isinstance(failure, AddressError):
                raise failure from error  # it was not there before either: nothing was sent
            raise UnknownOutcomeError(_in_doubt(subject, operation_id, error)) from error
        except Exception as error:
            raise UnknownOutcomeError(_in_doubt(subject, operation_id, error)) from error
        if landed:
            self._make_durable()
            return True
        _require_writable(failure)
        if isinstance(failure, FencedError | FormatError):
            raise failure
        if failure is not None and not isinstance(failure, LedgerConflictError | SnapshotLostError):
            msg = f"the ledger refused a commit on {subject} ({failure}); it did not land: call again once that is mended"
            raise RetryError(msg) from failure
        return False

    def _catch_up(self, operation_id: str | None = None, own: Decision | None = None) -> bool:
        """Move to the newest version; whether the operation is among what is new. Raises RetryError."""
        return self._patiently(lambda: self._move(operation_id, own))

    def _patiently(self, reading: Callable[[], T]) -> T:
        """A reading of the ledger that fails is tried again a few times. Raises RetryError when every try failed."""
        for attempt in range(READ_TRIES):
            try:
                return reading()
            except (HoldfastError, SnapshotLostError):
                raise
            except Exception as error:
                if attempt == READ_TRIES - 1:
                    msg = f"the ledger cannot be read ({error}): call again once that is mended"
                    raise RetryError(msg) from error
                self._environment.pause(attempt)
        raise AssertionError

    def _make_durable(self) -> None:
        """Never tried twice: after a failed fsync Linux calls the pages clean, and the next fsync succeeds over lost data."""
        self._require_durable()
        try:
            self._ledger.make_durable()
        except Exception as error:  # noqa: BLE001 - whatever it is, it stays
            self._undurable = error
            self._require_durable()

    def _require_durable(self) -> None:
        if self._undurable is not None:
            msg = (
                f"the ledger could not be made durable ({self._undurable}): what was sent last is visible, and a power loss may take it "
                "back. Nothing more is committed or deleted here: examine the disk, then open the catalog again and look"
            )
            raise UnknownOutcomeError(msg) from self._undurable

    @property
    def _state(self) -> HeldJobs:
        if self._loaded is None:
            self._catch_up()
        assert self._loaded is not None
        return self._loaded

    def _move(self, operation_id: str | None, own: Decision | None) -> bool:
        """By replaying what is newer, or by beginning again where there is no memory or no log."""
        try:
            folded_to = self._ledger.folded_to
            commits = self._ledger.refresh()
            if self._loaded is not None:
                found = self._replay(commits, operation_id, own)
                if self._ledger.folded_to != folded_to:
                    self._loaded.prune()
                return found
        except SnapshotLostError:
            self._loaded = None  # the log no longer has what is newer, the snapshot does
        except BaseException:
            self._loaded = None  # the handle may stand above what was replayed
            raise
        self._loaded = HeldJobs(handles_of=self._works_for, ledger=self._ledger, ask=self._patiently)
        return operation_id is not None and self._is_known(operation_id)

    def _is_known(self, operation_id: str) -> bool:
        """Whether an operation landed, as far as ledger and history tell: a fold leaves little of it in the ledger, or nothing."""
        if self._ledger.has_operation(operation_id):
            return True
        return self._history is not None and self._history().has_operation(operation_id)

    def _replay(self, commits: Sequence[LoggedCommit], operation_id: str | None, own: Decision | None) -> bool:
        """Facts without keys are of maintenance, which no lifecycle decision reads: they stay columns, where they are."""
        assert self._loaded is not None
        found = False
        for commit in commits:
            if own is not None and commit.operation_id == operation_id:
                self._landed, found = commit.version, True
                if own.keys:
                    self._loaded.apply(own.facts)
            elif self._loaded.concerns(commit.keys):
                self._loaded.apply(commit.facts())
        return found


def _in_doubt(subject: str, operation_id: str, error: Exception) -> str:
    return (
        f"a commit on {subject} (operation {operation_id}) was sent and could not be read back ({error}): it may have landed; open the "
        "catalog again and look before you repeat it"
    )


def _require_writable(failure: Exception | None) -> None:
    """Raises StorageFullError or ReadOnlyError for what a full or read-only disk raised."""
    if _is_of(failure, FULL):
        msg = f"the disk of the ledger is full ({failure}): nothing was committed; make room, then call again"
        raise StorageFullError(msg) from failure
    if _is_of(failure, READ_ONLY):
        msg = f"this process may not write to the ledger ({failure}): nothing was committed; use an account that may"
        raise ReadOnlyError(msg) from failure


def _is_of(failure: Exception | None, codes: frozenset[int]) -> bool:
    """Whether the operating system failed with one of these; delta-rs gives its number in the text alone."""
    if isinstance(failure, OSError) and failure.errno is not None:
        return failure.errno in codes
    return failure is not None and any(f"(os error {code})" in str(failure) for code in codes)
