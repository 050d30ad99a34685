"""One transaction: decide against a snapshot, append through the handle of that snapshot, find it again, make it durable, then tell.

The coordinator validates from memory: the compare-and-swap says when memory is stale, and then only the newer commits are replayed.
After any exception, conflicts included, the own operation id is looked for before anything is said (a lost response or a failing
hook looks like a failure although the commit landed). Nothing is ever deleted here.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.catalog.clock import Environment
from holdfast.catalog.errors import ConflictError, HoldfastError, RetryError, UnknownOutcomeError
from holdfast.catalog.facts import Fact
from holdfast.catalog.ledger import Ledger, LedgerConflictError, LoggedCommit, SnapshotLostError
from holdfast.catalog.lifecycle import Transaction
from holdfast.catalog.schema import Operation
from holdfast.catalog.state import HANDLE_KINDS, LIFECYCLE_KINDS, CatalogState, in_order

MAX_RACES = 20
READ_BACKS = 3


class Transactor:
    """A process's memory of the catalog, and its way to change it. One lock spans refresh, validate and commit."""

    def __init__(self, ledger: Ledger, environment: Environment, *, handles_of: str | None = None) -> None:
        self._ledger = ledger
        self._environment = environment
        self._handles_of = handles_of
        self._lock = threading.RLock()
        self._loaded: CatalogState | None = None

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def known(self) -> CatalogState:
        """The state as this process remembers it, read if it has none. The caller does not change it."""
        with self._lock:
            return self._state

    def fresh(self) -> CatalogState:
        """The state at the newest version. The caller does not change it."""
        with self._lock:
            self._catch_up(None)
            return self._state

    def settle(self) -> None:
        """Make everything durable that this process can have read so far, other writers' commits included.

        Before a file is deleted because of what the ledger says (I7): its writer may have died between its commit and the sync, and
        a power loss would then bring back a reference to a file that is gone.
        """
        with self._lock:
            self._catch_up(None)
            self._ledger.make_durable()

    def keep_handles_of(self, job_id: str) -> None:
        """From here the open handles of this job are kept as well: its coordinator's commits need them."""
        with self._lock:
            self._handles_of, self._loaded = job_id, None

    def run(self, decide: Callable[[CatalogState], Transaction]) -> Any:
        """Commit what `decide` says, at most once, and return its result when the commit is durable.

        `decide` is pure and may be called several times. What it raises from memory alone is checked once more against the newest
        version before it is believed.
        Raises:
            ConflictError: every one of the bounded retries lost its race; nothing was committed.
            UnknownOutcomeError: the commit was sent, and the ledger could not be read to see whether it landed.
        """
        with self._lock:
            fresh = self._loaded is None
            for race in range(MAX_RACES):
                try:
                    transaction = decide(self._state)
                except HoldfastError:
                    if fresh:
                        raise
                    self._catch_up(None)
                    transaction = decide(self._state)
                if not transaction.facts or self._commit(transaction):  # nothing to say: it already is so
                    return transaction.result
                fresh = True
                self._environment.pause(race)
            msg = f"the transaction on {', '.join(transaction.keys)} lost {MAX_RACES} races; nothing was committed: call again"
            raise ConflictError(msg)

    def append(self, facts: Sequence[Fact]) -> None:
        """Commit facts that belong to no lifecycle transaction: they conflict with nothing."""
        self.run(lambda _: Transaction(facts, {}))

    def _commit(self, transaction: Transaction) -> bool:
        """Whether the transaction is committed (and now durable), or lost its race."""
        operation = Operation(operation_id=self._environment.new_id(), at=self._environment.now(), by=self._environment.actor)
        subject = ", ".join(transaction.keys) or "no job"
        failure: Exception | None = None
        try:
            self._ledger.append(transaction.facts, keys=transaction.keys, operation=operation)
        except Exception as error:  # noqa: BLE001 - the outcome is unknown, whatever it says: read back
            failure = error
        try:
            landed = self._read_back(operation.operation_id, transaction)
        except Exception as error:
            msg = (
                f"a commit on {subject} (operation {operation.operation_id}) was sent and could not be read back "
                f"({error}): it may have landed; open the catalog again and look before you repeat it"
            )
            raise UnknownOutcomeError(msg) from error
        if landed:
            return True
        if failure is not None and not isinstance(failure, LedgerConflictError | SnapshotLostError):
            msg = f"the ledger refused a commit on {subject} ({failure}); it did not land: call again once that is mended"
            raise RetryError(msg) from failure
        return False

    def _read_back(self, operation_id: str, transaction: Transaction) -> bool:
        """Whether the operation is in the log, made durable if so. A reading that fails is tried again a few times."""
        for attempt in range(READ_BACKS):
            try:
                landed = self._catch_up(operation_id, transaction)
                if landed:
                    self._ledger.make_durable()
            except Exception:
                self._loaded = None
                if attempt == READ_BACKS - 1:
                    raise
                self._environment.pause(attempt)
            else:
                return landed
        raise AssertionError

    @property
    def _state(self) -> CatalogState:
        if self._loaded is None:
            self._catch_up(None)
        assert self._loaded is not None
        return self._loaded

    def _catch_up(self, operation_id: str | None, own: Transaction | None = None) -> bool:
        """Move to the newest version by replaying what is newer; whether the operation is among it."""
        try:
            commits = self._ledger.refresh()
            if self._loaded is not None:
                return self._replay(commits, operation_id, own)
        except SnapshotLostError:
            self._loaded = None  # the log no longer has what is newer, the snapshot does
        except BaseException:
            self._loaded = None  # the handle may stand above what was replayed
            raise
        self._reload()
        return operation_id is not None and self._ledger.has_operation(operation_id)

    def _replay(self, commits: Sequence[LoggedCommit], operation_id: str | None, own: Transaction | None) -> bool:
        assert self._loaded is not None
        found = False
        for commit in commits:
            if own is not None and commit.operation_id == operation_id:
                self._loaded.apply(own.facts)
                found = True
            elif commit.keys:  # facts without keys are of maintenance, which no lifecycle decision reads
                self._loaded.apply(commit.facts())
        return found

    def _reload(self) -> None:
        facts = list(self._ledger.scan(LIFECYCLE_KINDS))
        if self._handles_of is not None:
            facts += self._ledger.scan(HANDLE_KINDS, None if self._handles_of == "*" else self._handles_of)
        self._loaded = CatalogState(handles_of=self._handles_of)
        self._loaded.apply(in_order(facts))
