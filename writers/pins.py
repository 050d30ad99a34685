"""Readers' pins: a checkpoint that is being read stays, files and all, until its reader lets go (design, section 5, step 10).

DataFrames are lazy, and one that is run when nothing keeps its files any longer must say so: files that nobody pins may be deleted at any
time, and then Spark reports a missing file and not why. A DataFrame that was derived from a lent one, or a temporary view of it, is Spark's
own and unknown here: of it Spark's error, which names the file, is all there is. A relation of DuckDB is an object of C++, whatever is
derived from it: there DuckDB reports the missing file.
"""

import atexit
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import AttemptEndedError, HoldfastError, ReadOnlyError, RefusedError, StorageFullError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.forks import is_forked, require_own_process
from holdfast.catalog.process_identity import has_died, this_process
from holdfast.catalog.rules import checkpoints
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, JobId, Purpose, Status

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Find = Callable[[CatalogState], Ref]


class Pins:
    """The reading attempts of one catalog object, one for each checkpoint. Safe in threads.

    They end when they are released, or with the process: never when an object is collected, for a lazy DataFrame may outlive it. A forked
    child leaves its parent's alone.
    """

    def __init__(self, transactor: Transactor, environment: Environment) -> None:
        self._transactor, self._environment = transactor, environment
        self._open: dict[Ref, AttemptToken] = {}
        self._readers: Counter[Ref] = Counter()  # counts readers of a killed pin too: they share the next one of the checkpoint
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
                msg = "this catalog object is closed, and could not release what it pins: open the catalog again"
                raise RefusedError(msg)
            while (pinned := self._try_to_pin(find)) is None:
                pass  # the head has moved on since it was found, and was dropped
            return pinned

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

    def _try_to_pin(self, find: Find) -> tuple[CheckpointCommitted, bool] | None:
        """As `pin`; None where `find` names another checkpoint by now, and the one that it named was dropped."""
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
        except RefusedError:
            self._forget(ref)
            if self._transactor.recall(find) == ref:
                raise
            return None
        self._readers[ref] += 1
        return fact, True

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
        for job in state.whole().jobs.values()
        for token, attempt in job.open_attempts.items()
        if attempt.opened.purpose in {Purpose.READ, Purpose.SAVEPOINT} and attempt.opened.note is not None and has_died(attempt.opened.note)
    ]


_INSIDES = ("_jdf", "_plan")  # what a DataFrame does anything with: with a JVM, and over Spark Connect


CLOSED = (
    "outlives its pin: the checkpoint was closed, and its files may be deleted at any time. Use it within the `with` block of the "
    "checkpoint or catalog, or cache or write it there"
)


DROPPED = (
    "outlives its checkpoint: the job has committed since, and its retention has dropped it, so that its files may be deleted at any time. "
    "Read from job.latest() again after each commit, or cache or write it before"
)


class Loans:
    """DataFrames that run while the files of one checkpoint are there."""

    def __init__(self) -> None:
        self._lent: list[tuple[weakref.ref[DataFrame], str]] = []

    def __bool__(self) -> bool:
        """Whether any of them is left."""
        self._lent = [(reference, what) for reference, what in self._lent if reference() is not None]
        return bool(self._lent)

    def lend(self, frame: "DataFrame", what: str) -> None:
        """Remember a DataFrame that is to be run while the files are there."""
        self._lent.append((weakref.ref(frame), what))

    def recall(self, why: str) -> None:
        """The files may go: what was lent and is still there refuses to run, unless it was cached. `why`, of the DataFrame."""
        for reference, what in self._lent:
            frame = reference()
            if frame is not None and not frame.is_cached:
                _expire(frame, f"the DataFrame of {what} {why}")
        self._lent.clear()


class ReaderPin(Loans):
    """One reader's share in a pin. It ends once: by `end`, or with its catalog object."""

    def __init__(self, release: Callable[[], None]) -> None:
        super().__init__()
        self._release = release
        self.is_open = True

    def __bool__(self) -> bool:
        return True

    def end(self) -> None:
        """Let go of the pin; no harm if repeated."""
        if self.is_open:
            self.expire()
            self._release()

    def expire(self) -> None:
        """The pin is gone."""
        self.is_open = False
        self.recall(CLOSED)


def _expire(frame: "DataFrame", msg: str) -> None:
    for name in _INSIDES:
        if name in vars(frame):
            setattr(frame, name, _Expired(msg))


class _Expired:
    """Stands where a DataFrame keeps its plan."""

    def __init__(self, msg: str) -> None:
        self._msg = msg

    def __getattr__(self, name: str) -> NoReturn:
        raise RefusedError(self._msg)
