"""Which process a reader is: told with its pin, so that one whose process has died is found and ended."""

import os
import socket
from pathlib import Path

_UNKNOWN_START = "0"


def this_process() -> str:
    """`host:pid:start`: the host, the process id, and when that process began (in the kernel's ticks), for ids come again."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_start_of(pid) or _UNKNOWN_START}"


def has_died(process: str) -> bool:
    """Whether a process has certainly ended: only one of this host can be known to. An unreadable name has not."""
    host, _, rest = process.rpartition(":")[0].rpartition(":")
    start = process.rpartition(":")[2]
    if host != socket.gethostname() or not rest.isdigit():
        return False
    now = _start_of(int(rest))
    if now is None:
        return not _exists(int(rest))
    return start not in (_UNKNOWN_START, now)


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
