"""Readers' pins: a checkpoint that is being read stays, files and all, until its reader lets go (design, section 5, step 10)."""

import atexit
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from holdfast.catalog import lifecycle
from holdfast.catalog.clock import Environment
from holdfast.catalog.errors import AttemptEndedError, HoldfastError, ReadOnlyError, RefusedError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.processes import has_died, this_process
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, JobId, Purpose, Status

Find = Callable[[CatalogState], Ref]


class Pins:
    """The reading attempts of one catalog object, one for each checkpoint. Safe in threads.

    They end when they are released, or with the process: never when an object is collected, for a lazy DataFrame may outlive it.
    """

    def __init__(self, transactor: Transactor, environment: Environment) -> None:
        self._transactor, self._environment = transactor, environment
        self._open: dict[Ref, AttemptToken] = {}
        self._readers: Counter[Ref] = Counter()
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def pin(self, find: Find) -> tuple[CheckpointCommitted, bool]:
        """The live checkpoint that `find` names, and whether it is pinned: not by a process that may not write to the ledger.

        Raises:
            RefusedError: the checkpoint was dropped.
        """
        with self._lock:
            ref, fact, is_open = self._transactor.look(lambda state: self._known(state, find))
            if is_open:
                self._readers[ref] += 1
                return fact, True
            token = AttemptToken(self._environment.new_id())
            if not self._open:
                atexit.register(self._at_exit)
            self._open[ref] = token  # before the opening: it may land without our hearing of it
            try:
                self._transactor.run(lambda state: lifecycle.open_reading(state, ref, token, this_process()))
            except ReadOnlyError:
                del self._open[ref]
                return fact, False
            self._readers[ref] = 1
            return fact, True

    def release(self, ref: Ref) -> None:
        """One `pin` of the checkpoint has ended; the last one lets go of it."""
        with self._lock:
            self._readers[ref] -= 1
            if self._readers[ref] <= 0:
                self._release(ref)

    def release_all(self) -> None:
        """Let go of everything. What could not be released is tried by the next call; the first failure is raised at the end."""
        failures: list[HoldfastError] = []
        with self._lock:
            for ref in list(self._open):
                try:
                    self._release(ref)
                except HoldfastError as error:
                    failures.append(error)
            if not self._open:
                atexit.unregister(self._at_exit)
        if failures:
            raise failures[0]

    def end_dead(self) -> list[AttemptToken]:
        """End what processes of this host that have died read or took savepoints of, of every job; returns their attempts."""
        dead = self._transactor.look(_of_dead_processes)
        for job_id, token in dead:
            with suppress(AttemptEndedError):
                self._transactor.run(
                    lambda state, j=job_id, t=token: lifecycle.end_attempt(state, j, t, Status.KILLED, "its process has died")  # type: ignore[misc]
                )
        return [token for _, token in dead]

    def _known(self, state: CatalogState, find: Find) -> tuple[Ref, CheckpointCommitted, bool]:
        ref = find(state)
        row = state.checkpoint(ref)
        return ref, row.fact, self._open.get(ref) in state.job(ref.job_id).open_attempts

    def _release(self, ref: Ref) -> None:
        token = self._open.get(ref)
        if token is None:
            return
        with suppress(AttemptEndedError, RefusedError):  # an operator ended it first, or it was never opened: nothing is pinned, as wanted
            self._transactor.run(lambda state: lifecycle.end_attempt(state, ref.job_id, token, Status.RELEASED, "closed"))
        del self._open[ref]

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:  # a forked child leaves its parent's pins alone
            self.release_all()


def _of_dead_processes(state: CatalogState) -> list[tuple[JobId, AttemptToken]]:
    return [
        (job.job_id, token)
        for job in state.jobs.values()
        for token, attempt in job.open_attempts.items()
        if attempt.opened.purpose in {Purpose.READ, Purpose.SAVEPOINT} and attempt.opened.note is not None and has_died(attempt.opened.note)
    ]
