"""The boundary of a table's log: below it entries and data files may be deleted (design, section 4b).

It is durable before anything is deleted. Whoever has committed reads it before saying so: a writer that stood still while the log was
cleaned may have made its entry where there is a hole now, and no fresh snapshot has that.

Boundaries only rise. Each is a name in a directory of its own, and the greatest counts: two that clean at once need not agree.
"""

import os
from contextlib import suppress
from pathlib import Path

from holdfast.catalog.ledger import delta_log

_DIRECTORY = "_boundary"  # engines pass over names with an underscore


def newest(table: Path) -> int:
    """The version below which the log may have been cleaned; 0 where it never was."""
    try:
        names = os.listdir(table / _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)


def raise_to(table: Path, version: int) -> None:
    """Make the boundary durable at this version, or leave it where it is higher."""
    directory = table / _DIRECTORY
    if newest(table) < version:
        directory.mkdir(exist_ok=True)
        delta_log.sync(table)
        with suppress(FileExistsError):
            os.close(os.open(directory / f"{version:020d}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    delta_log.sync(directory)  # also where another process made it, which may have died before the sync
    for name in os.listdir(directory):
        if name.isdecimal() and int(name) < version:
            with suppress(FileNotFoundError):
                os.unlink(directory / name)
