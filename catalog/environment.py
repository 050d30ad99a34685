"""Time, ids, randomness and threads: the only module that asks the machine for them. All are passed in everywhere else."""

import getpass
import os
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from holdfast.catalog import VERSION

THREADS = 4  # how many a process has, to copy files alongside its own work

T = TypeVar("T")


class Environment(Protocol):
    """What a process takes from the machine it runs on."""

    def now(self) -> datetime:
        """The time, in UTC. Decides only when to be impatient, never what is safe."""

    def monotonic_s(self) -> float:
        """Seconds from an arbitrary start, for durations."""

    def new_id(self) -> str:
        """A fresh random id: 16 lower-case hex digits, never given twice."""

    def pause(self, attempt: int) -> None:
        """Wait with jitter before retry number `attempt` (from 0); longer with each."""

    def start(self, work: Callable[[], T]) -> "Future[T]":
        """Do this alongside the caller, which asks for its result. Work never waits for other work that was started."""

    def alarm(self, after_s: float, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring` once, from a thread of its own, `after_s` seconds from now. Returns a function that cancels it."""

    @property
    def actor(self) -> str:
        """Who acts: `user@host holdfast/<version>`."""


@dataclass(frozen=True, slots=True)
class SystemEnvironment:
    """The machine's own clock, entropy and user."""

    actor: str = field(default_factory=lambda: f"{_user()}@{socket.gethostname()} holdfast/{VERSION}")

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def new_id(self) -> str:
        return os.urandom(8).hex()

    def pause(self, attempt: int) -> None:
        time.sleep(random.uniform(0.2, 1.0) * min(0.01 * 2**attempt, 1.0))

    def start(self, work: Callable[[], T]) -> "Future[T]":
        return _threads().submit(work)

    def alarm(self, after_s: float, ring: Callable[[], None]) -> Callable[[], None]:
        timer = threading.Timer(min(after_s, threading.TIMEOUT_MAX), ring)
        timer.daemon = True  # it keeps no process alive: a process that ends has its attempts ended by the next start
        timer.start()
        return timer.cancel


def host_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory_bytes() -> int:
    """The memory of this host."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_pool: list[ThreadPoolExecutor] = []


def _threads() -> ThreadPoolExecutor:
    """The process's own: a fork has none of its parent's threads."""
    if not _pool:
        _pool.append(ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast"))
    return _pool[0]


os.register_at_fork(after_in_child=_pool.clear)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in passwd
        return f"uid-{os.getuid()}"
