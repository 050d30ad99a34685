"""Turns among the committers of one host: a file lock that decides nothing (design, section 4c).

A commit is a compare-and-swap on the whole log, and 64 writers that only race need 5,057 tries for 192 commits; by turns they need 192.
Nothing is safe because of a turn. Without one (another host, no lock to be had, a holder that stands still) a committer races.
"""

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.catalog.environment import Environment

PATIENCE_S = 3.0  # without a new commit: then the holder of the turn stands still, and is not waited for
AT_MOST_S = 30.0  # with new commits: chance has given the turn to others all the time
NO_WAIT_S = 60.0  # once a turn was given up, for how long this process takes one only if it is free

_LONGEST_PAUSE = 3
_gave_up: dict[str, float] = {}  # until when, by ledger


@contextmanager
def turn(of: str, environment: Environment, newest: Callable[[], object]) -> Iterator[bool]:
    """Wait for one's turn among this host's committers to a ledger (`of` is any name of it), for the block; whether it was had.

    `newest` changes with every commit: while it does, turns are being taken, and waiting is worth it.
    """
    descriptor = _open(of)
    if descriptor is None:
        yield False
        return
    had = False
    try:
        had = _wait(of, descriptor, environment, newest)
        yield had
    finally:
        if had:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the open file as well, and would keep the lock
        os.close(descriptor)


def _wait(of: str, descriptor: int, environment: Environment, newest: Callable[[], object]) -> bool:
    began = since = environment.monotonic_s()
    seen, tries = None, 0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass  # somebody has the turn
        except OSError:
            return False  # no locks here
        else:
            _gave_up.pop(of, None)
            return True
        now = environment.monotonic_s()
        if now < _gave_up.get(of, now):
            return False
        if (found := newest()) != seen:
            seen, since = found, now
        if now - since > PATIENCE_S or now - began > AT_MOST_S:
            _gave_up[of] = now + NO_WAIT_S
            return False
        environment.pause(min(tries, _LONGEST_PAUSE))
        tries += 1


def _open(of: str) -> int | None:
    """The lock's file, in the temporary directory: each user has one of their own, and a planted link or pipe is not followed."""
    name = f"holdfast-{os.getuid()}-{hashlib.sha256(of.encode(errors='surrogateescape')).hexdigest()[:16]}.turn"
    try:
        path = os.path.join(tempfile.gettempdir(), name)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode) and os.fstat(descriptor).st_uid == os.getuid():
        return descriptor
    os.close(descriptor)
    return None
