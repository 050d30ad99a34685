"""One live process for each working directory: a lock of the kernel's (flock) on a file next to it, which a process that dies lets go of.

The file is next to the directory, not in it, and hidden: everything in the directory may be deleted at any moment, and a lock file that
is made again is another lock. An orderly stop removes it, while it is locked: a process that opens it at that moment sees that its name
leads elsewhere now, and tries again. What lies at its name and is not a file of this user's own, of that one name, was put there by
somebody: it is neither followed nor written to, and the directory is refused.

A forked child (Python workers fork) has a copy of the open file, which would keep the lock after its parent died. So the child closes its
copy at once, which lets go of nothing as long as the parent has its own; a program that is executed does not get it at all.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock

from holdfast.catalog.errors import RefusedError
from holdfast.catalog.process_identity import has_died, this_process

LOCK_NAME = ".{}.lock"  # takes the directory's name
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
        RefusedError: a live process has it (the message says which), or something other than a lock file of this user's is there instead.
        OSError: there can be no lock file, or the file system has no locks.
    """
    path = directory.with_name(LOCK_NAME.format(directory.name))
    with _GUARD:
        while True:
            descriptor = _open(path)
            try:
                _require_own_file(path, descriptor)
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


def _open(path: Path) -> int:
    """Open or make a lock file, without following a link, and without waiting for the other end of a pipe."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EOPNOTSUPP):
            raise _planted(path, "is a link, or not a regular file") from error
        raise


def _require_own_file(path: Path, descriptor: int) -> None:
    """Raises RefusedError for an open file that is not a lock file of this user's."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise _planted(path, "is not a regular file")
    if found.st_uid != os.geteuid():
        raise _planted(path, f"is a file of another user ({found.st_uid})")
    if found.st_nlink > 1:
        raise _planted(path, "is a second name of another file")


def _planted(path: Path, what: str) -> RefusedError:
    return RefusedError(
        f"the lock file {path} {what}: nothing was written to it. Remove it, or give another base, which others may not write to"
    )


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether a path still is the name of an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write down who holds the lock, for the message to a refused process; a full disk does not matter. An older line stays behind it."""
    with suppress(OSError):
        os.pwrite(descriptor, f"{this_process()}\n".encode(), 0)


def _holder(descriptor: int) -> str:
    """Who has signed a lock that is held, and what to do."""
    other = "give this process an id of its own (resource_id=...)"
    signed = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").partition("\n")[0]
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
