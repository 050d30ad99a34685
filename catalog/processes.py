"""Which process an attempt is of: told with the pin of a reader or of a savepoint, so that one whose process has died is found and ended.

A host is its name and its namespace of process ids: containers that share a host's name do not see each other's processes, and would
take all of them for dead. Hosts that share a catalog need names of their own.
"""

import os
import socket
from pathlib import Path

_UNKNOWN_START = "0"


def this_process() -> str:
    """`host:pid:start`: the host, the process id, and when that process began (in the kernel's ticks), for ids come again."""
    pid = os.getpid()
    return f"{_this_host()}:{pid}:{_start_of(pid) or _UNKNOWN_START}"


def has_died(process: str) -> bool:
    """Whether a process has certainly ended: only one of this host can be known to. An unreadable name has not."""
    host, _, rest = process.rpartition(":")[0].rpartition(":")
    start = process.rpartition(":")[2]
    if host != _this_host() or not rest.isdigit():
        return False
    now = _start_of(int(rest))
    if now is None:
        return not _exists(int(rest))
    return start not in (_UNKNOWN_START, now)


def _this_host() -> str:
    """`name/namespace`, or the name alone where the system has no such namespaces."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _start_of(pid: int) -> str | None:
    """When a process began, where the system tells (Linux); None if there is none, or it does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
