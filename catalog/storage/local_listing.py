"""What lies below a directory of a file system, in the order in which the system gives it."""

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.catalog.storage.port import StoredDirectory, StoredObject


def walk(directory: Path | str, prefix: str) -> Iterator[StoredObject | StoredDirectory]:
    """Every file and directory below, each directory after what is in it; nothing if it is gone. Links are files, and not followed.

    In memory is one entry of each directory on the way down, however many there are.
    """
    try:
        entries = os.scandir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from walk(entry.path, f"{path}/")
                yield StoredDirectory(path=path)
                continue
            try:
                size_bytes = entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:  # gone since the directory was read
                continue
            yield StoredObject(path=path, size_bytes=size_bytes)
