"""One live process for each working directory: a lock of the kernel's (flock) on a file beside it, which a process that dies lets go of.

The file is beside the directory, not in it, and hidden: everything in the directory may be deleted at any moment, and a lock file that
is made anew is another lock. An orderly stop removes it, while it is locked: who opens it at that moment sees that its name leads elsewhere
now, and tries again.

A forked child (Python workers fork) has a copy of the open file, which would keep the lock after its parent died. So the child closes its
copy at once, which lets go of nothing as long as the parent has its own; a program that is executed does not get it at all.
"""

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from holdfast.catalog.errors import RefusedError
from holdfast.catalog.processes import has_died, this_process

LOCK_NAME = ".{}.lock"  # of the directory's name
_HOLDER_BYTES = 1000  # more than any holder writes
_HELD: "set[DirectoryLock]" = set()
_GUARD = RLock()  # no fork while a lock is open, and not yet held or let go of


@dataclass(frozen=True, slots=True, eq=False)
class DirectoryLock:
    """A lock that this process holds, until `release` or its end. In a forked child it is nobody's."""

    path: Path
    descriptor: int = field(repr=False)

    def release(self) -> None:
        """Let go, and remove the lock file; no harm if repeated, or in a forked child."""
        with _GUARD:
            if self not in _HELD:
                return
            _HELD.remove(self)
            with suppress(OSError):  # a lock file that stays is free all the same
                if _is_at(self.path, self.descriptor):
                    self.path.unlink()
            os.close(self.descriptor)


def lock_directory(directory: Path) -> DirectoryLock:
    """Lock a directory, which need not be there, for this process; the one that it is in must be.

    Raises:
        RefusedError: a live process has it; the message says which.
        OSError: there can be no lock file, or the file system has no locks.
    """
    path = directory.with_name(LOCK_NAME.format(directory.name))
    with _GUARD:
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(path, descriptor):  # its holder has just removed it
                    os.close(descriptor)
                    continue
                _sign(descriptor)
            except BlockingIOError as error:
                msg = f"working directory {directory} is in use by {_holder(descriptor)}"
                os.close(descriptor)
                raise RefusedError(msg) from error
            except BaseException:
                os.close(descriptor)
                raise
            lock = DirectoryLock(path, descriptor)
            _HELD.add(lock)
            return lock


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write down who holds the lock, for who is refused; a full disk does not matter."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, this_process().encode(), 0)


def _holder(descriptor: int) -> str:
    """Who has signed a lock that is held, and what to do."""
    other = "give this process an id of its own (resource_id=...)"
    signed = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
    host, _, pid = signed.rpartition(":")[0].rpartition(":")
    if not pid.isdigit():  # it has not signed yet
        return f"another process: {other}"
    host = host.partition("/")[0]  # without its namespace of process ids
    if signed == this_process():
        return f"this process itself (pid {pid}): use the one that it has opened, or close that first"
    if has_died(signed):
        return f"a process that was started by pid {pid} of host {host}, which has died: stop what it left running, or {other}"
    return f"pid {pid} of host {host}: stop that process, or {other}"


def _let_go_in_child() -> None:
    for lock in _HELD:
        os.close(lock.descriptor)
    _HELD.clear()
    _GUARD.release()


os.register_at_fork(before=_GUARD.acquire, after_in_parent=_GUARD.release, after_in_child=_let_go_in_child)
