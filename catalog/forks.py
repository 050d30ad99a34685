"""One process: what reads and writes the ledger has threads that a forked child lacks, so that a child is refused before it meets them.

delta-rs keeps the runtime of its first call, and panics where a child meets it (a BaseException, which no program expects); DuckDB with its
delta extension hangs there, or dies of a segmentation fault (seen). So the first use of either claims the process, and each later use asks
whether this is still that process. A child of a process that has only imported Holdfast may use it, and so may one that was spawned.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.catalog.errors import UsageError

_PANIC = "PanicException"  # any library in Rust raises it; it derives from BaseException, and no module exports it
_claimed_by: int | None = None


def is_forked() -> bool:
    """Whether this process was forked from one that had used a ledger."""
    return _claimed_by is not None and _claimed_by != os.getpid()


def require_own_process() -> None:
    """Raises UsageError in a forked child of a process that had used a ledger."""
    if is_forked():
        msg = (
            f"this process ({os.getpid()}) was forked from process {_claimed_by}, which had used a catalog: the threads that read and "
            "write the ledger do not survive a fork. Nothing was done. Start processes with the method 'spawn' or 'forkserver' "
            "(for example multiprocessing.get_context('spawn')) and open the catalog in each, or fork before the first catalog is opened"
        )
        raise UsageError(msg)


@contextmanager
def ledger_engine() -> Iterator[None]:
    """Around the opening of whatever has such threads: claims this process. Raises UsageError in a forked child."""
    global _claimed_by  # noqa: PLW0603 - the threads are the process's, and so is the claim
    require_own_process()
    before, _claimed_by = _claimed_by, os.getpid()
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC or "Forked process" not in str(error):
            raise
        # The program had used deltalake itself, before it forked.
        _claimed_by = before if before is not None else os.getppid()
        require_own_process()
        raise


class ProcessLock:
    """A lock for threads, taken again by the thread that has it. In a forked child it is refused, and not waited for: the thread that had
    it does not exist there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        """As `threading.Lock.acquire`. Raises UsageError in a forked child."""
        require_own_process()
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()
