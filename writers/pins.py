"""Readers' pins: a checkpoint that is being read stays, files and all, until its reader lets go (design, section 5, step 10)."""

import atexit
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import AttemptEndedError, HoldfastError, ReadOnlyError, RefusedError, StorageFullError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.forks import is_forked, require_own_process
from holdfast.catalog.process_identity import has_died, this_process
from holdfast.catalog.rules import checkpoints
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, JobId, Purpose, Status

Find = Callable[[CatalogState], Ref]


class Pins:
    """The reading attempts of one catalog object, one for each checkpoint. Safe in threads.

    They end when they are released, or with the process: never when an object is collected, for a lazy DataFrame may outlive it. A forked
    child leaves its parent's alone.
    """

    def __init__(self, transactor: Transactor, environment: Environment) -> None:
        self._transactor, self._environment = transactor, environment
        self._open: dict[Ref, AttemptToken] = {}
        self._readers: Counter[Ref] = Counter()  # of a pin that was killed too: they share the next one of the checkpoint
        self._lock = threading.Lock()
        self._is_closed = False

    def pin(self, find: Find) -> tuple[CheckpointCommitted, bool]:
        """The live checkpoint that `find` names, and whether it is pinned: not by a process that cannot write to the ledger, because it may
        not or because the disk is full.

        Raises:
            RefusedError: the checkpoint was dropped, or this was closed.
        """
        require_own_process()
        with self._lock:
            if self._is_closed:
                msg = "this catalog object is closed, and would not let go of what it pins: open the catalog again"
                raise RefusedError(msg)
            ref, fact, is_open = self._transactor.look(lambda state: self._known(state, find))
            if is_open:
                self._readers[ref] += 1
                return fact, True
            token = AttemptToken(self._environment.new_id())
            self._keep(ref, token)  # before the opening: it may land without our hearing of it
            try:
                self._transactor.run(lambda state: checkpoints.open_reading(state, ref, token, this_process()))
            except (ReadOnlyError, StorageFullError):
                self._forget(ref)
                return fact, False
            self._readers[ref] += 1
            return fact, True

    def release(self, ref: Ref) -> None:
        """One `pin` of the checkpoint has ended; the last one lets go of it."""
        if is_forked():
            return
        with self._lock:
            self._readers[ref] -= 1
            if self._readers[ref] <= 0:
                del self._readers[ref]
                self._release(ref)

    def close(self) -> None:
        """Let go of everything, and pin no more. What could not be released is tried by the next call; the first failure is raised at the
        end."""
        if is_forked():
            return
        failures: list[HoldfastError] = []
        with self._lock:
            self._is_closed = True
            self._readers.clear()
            for ref in list(self._open):
                try:
                    self._release(ref)
                except HoldfastError as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    def end_dead(self) -> list[AttemptToken]:
        """End what processes of this host that have died read or took savepoints of, of every job; returns their attempts."""
        dead = self._transactor.look(_of_dead_processes)
        for job_id, token in dead:
            with suppress(AttemptEndedError):
                self._transactor.run(
                    lambda state, j=job_id, t=token: checkpoints.end_attempt(state, j, t, Status.KILLED, "its process has died")  # type: ignore[misc]
                )
        return [token for _, token in dead]

    def _known(self, state: CatalogState, find: Find) -> tuple[Ref, CheckpointCommitted, bool]:
        ref = find(state)
        row = state.checkpoint(ref)
        return ref, row.fact, self._open.get(ref) in state.job(ref.job_id).open_attempts

    def _keep(self, ref: Ref, token: AttemptToken) -> None:
        self._open[ref] = token
        _HOLDING.add(self)

    def _forget(self, ref: Ref) -> None:
        del self._open[ref]
        if not self._open:
            _HOLDING.discard(self)

    def _release(self, ref: Ref) -> None:
        token = self._open.get(ref)
        if token is None:
            return
        with suppress(AttemptEndedError, RefusedError):  # an operator ended it first, or it was never opened: nothing is pinned, as wanted
            self._transactor.run(lambda state: checkpoints.end_attempt(state, ref.job_id, token, Status.RELEASED, "closed"))
        self._forget(ref)


_HOLDING: set[Pins] = set()  # those that pin something; what pins nothing is held by its catalog object alone


def _close_at_exit() -> None:
    failures: list[Exception] = []
    for pins in list(_HOLDING):
        try:
            pins.close()
        except Exception as error:  # noqa: BLE001 - the others are released all the same; the interpreter shows it
            failures.append(error)
    if failures:
        raise failures[0]


atexit.register(_close_at_exit)


def _of_dead_processes(state: CatalogState) -> list[tuple[JobId, AttemptToken]]:
    return [
        (job.job_id, token)
        for job in state.jobs.values()
        for token, attempt in job.open_attempts.items()
        if attempt.opened.purpose in {Purpose.READ, Purpose.SAVEPOINT} and attempt.opened.note is not None and has_died(attempt.opened.note)
    ]
