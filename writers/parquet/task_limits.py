"""What a task of Spark may take of its host. By itself an engine that runs within one, as DuckDB does, takes all cores and most memory."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.catalog.environment import host_cores

SHARE_OF_MEMORY = 0.5  # for all tasks that fit on the host; the JVM, and what the program's own tasks hold, need the rest
LEAST_MEMORY_BYTES = 256 * 1024**2
_CGROUP = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """How many threads and how much memory an engine may use; None: what it takes by itself, for this is no task."""

    threads: int | None
    memory_bytes: int | None


def limits_of_this_task(cpus: Callable[[], int | None] | None = None) -> TaskLimits:
    """As many threads as Spark gives the task cpus (`spark.task.cpus`), and the memory that falls to these."""
    found = (cpus or _cpus_of_task)()
    if found is None:
        return TaskLimits(threads=None, memory_bytes=None)
    share = min(1.0, found / host_cores())
    return TaskLimits(threads=found, memory_bytes=max(LEAST_MEMORY_BYTES, int(host_memory_bytes() * SHARE_OF_MEMORY * share)))


def host_memory_bytes() -> int:
    """The memory of this host, or of the container that this process is in."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP.read_text().strip()
    except OSError:
        return there
    return min(there, int(limit)) if limit.isdecimal() else there


def _cpus_of_task() -> int | None:
    try:
        from pyspark import TaskContext
    except ImportError:
        return None
    context = TaskContext.get()
    return None if context is None else max(1, context.cpus())
