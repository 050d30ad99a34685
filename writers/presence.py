"""The driver's look at what tasks acknowledged, before the commit: each new file is where this process sees the catalog, with its size.

An acknowledgement is the word of a host that may have written to another disk. What every process reads later is what this one sees. No
bytes are read: their writers took the digests.
"""

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.catalog.errors import UnsafeSettingsError
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import StoredFile

_FEW, _LOOKERS = 32, 8  # a look costs microseconds on a disk of one's own, and a round trip elsewhere


def require_there(storage: Storage, files: Sequence[StoredFile]) -> None:
    """Raises UnsafeSettingsError, which names one, unless each of these files is there with its size."""
    if len(files) <= _FEW:
        problems = _problems(storage, files)
    else:
        with ThreadPoolExecutor(_LOOKERS) as lookers:
            shares = lookers.map(lambda first: _problems(storage, files[first::_LOOKERS]), range(_LOOKERS))
            problems = [problem for share in shares for problem in share]
    if problems:
        more = f" (and {len(problems) - 1} more files)" if problems[1:] else ""
        msg = (
            f"{problems[0]}{more}: a host of this session does not see the file system that {storage.address} is on, and wrote to "
            "another. Nothing was committed: mount it on every host at the same path, then write again in a new attempt"
        )
        raise UnsafeSettingsError(msg)


def _problems(storage: Storage, files: Sequence[StoredFile]) -> list[str]:
    return [problem for file in files if (problem := _problem(storage, file)) is not None]


def _problem(storage: Storage, file: StoredFile) -> str | None:
    try:
        size_bytes = storage.size(file.path)
    except FileNotFoundError:
        found = "is not there"
    else:
        if size_bytes == file.size_bytes:
            return None
        found = f"has {size_bytes} bytes"
    return f"{file.path} was acknowledged with {file.size_bytes} bytes, and {found} on the driver ({socket.gethostname()})"
