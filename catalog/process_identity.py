"""Which process an attempt is of: kept with the pin of a reader or of a savepoint, so that one whose process has died is found and ended.

A process id means something only within one namespace of ids of one kernel. So a host is its name (for people), that namespace and
the id of the boot: the namespace's number alone is the same on every host, and machines that were cloned share name and machine id as well.
Of another boot nobody can tell, of the host that was started again neither: what it had open is ended by hand.
"""

import os
import re
import socket
from pathlib import Path

_UNKNOWN_START = "0"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROCESS = re.compile(r"(.+):([1-9][0-9]{0,8}):([0-9]+)", re.DOTALL)


def this_process() -> str:
    """`host:pid:start`: the host (and boot), the process id, and when that process began (in the kernel's ticks), for ids come again."""
    pid = os.getpid()
    return f"{_this_host()}:{pid}:{_start_of(pid) or _UNKNOWN_START}"


def has_died(process: str) -> bool:
    """Whether a process has certainly ended: only one of this host, since it was started, can be known to.

    What cannot be read has not, nor what an older version noted, without the boot: it may be of another host of this name.
    """
    known, host = _PROCESS.fullmatch(process), _this_host()
    if known is None or known[1] != host or host.count("/") < 2:
        return False
    pid, start = int(known[2]), known[3]
    now = _start_of(pid)
    if now is None:
        return not _exists(pid)
    return start not in (_UNKNOWN_START, now)


def _this_host() -> str:
    """`name/namespace/boot`, or the name alone where the system gives neither: there no process is ever known to have died."""
    name = socket.gethostname()
    try:
        boot = _BOOT_ID.read_text().strip()
        return f"{name}/{os.stat('/proc/self/ns/pid').st_ino}/{boot}" if boot else name
    except OSError:
        return name


def _start_of(pid: int) -> str | None:
    """When a process began, where the system says so (Linux); else, or if there is none, None."""
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
