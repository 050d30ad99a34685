"""Where the fast tests write: a disk in memory, where there is one with room. What they ask of it (links, renames, locks) is the same, and a
tenth of their time is waiting for syncs. The slow tests write to a real disk."""

import os
import shutil
from pathlib import Path

MEMORY_DISK = Path("/dev/shm")
NEEDS_BYTES = 4 * 2**30
_NAME = f"holdfast-tests-{os.getuid()}-"


def in_memory() -> Path | None:
    """A directory of this run's own on the memory disk; None where there is none, or too little room. What dead runs left is removed."""
    try:
        for left in MEMORY_DISK.glob(f"{_NAME}*"):
            if not Path(f"/proc/{left.name.removeprefix(_NAME)}").exists():
                shutil.rmtree(left, ignore_errors=True)
        if not os.access(MEMORY_DISK, os.W_OK) or shutil.disk_usage(MEMORY_DISK).free < NEEDS_BYTES:
            return None
    except OSError:
        return None
    return MEMORY_DISK / f"{_NAME}{os.getpid()}"
