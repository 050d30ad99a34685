"""A listing of storage on this process's own disk: written as storage is walked, and read page by page, however long it is."""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO

import pyarrow as pa

from holdfast.catalog.errors import WorkingDirectoryError
from holdfast.catalog.storage import StoredDirectory, StoredObject

PAGE = 10_000  # entries that are in memory at a time
_LENGTH = 8  # bytes that say how long a page is

_SCHEMA = pa.schema([pa.field("path", pa.binary()), pa.field("size_bytes", pa.int64())])  # without a size: a directory

Stored = StoredObject | StoredDirectory


@dataclass(frozen=True, slots=True)
class Listing:
    """What a walk found, as it was. It may be read again once it was read to its end."""

    _file: IO[bytes]

    def __iter__(self) -> Iterator[Stored]:
        self._file.seek(0)
        while head := self._file.read(_LENGTH):
            page = pa.ipc.open_stream(self._file.read(int.from_bytes(head, "little"))).read_all()
            for path, size_bytes in zip(*(column.to_pylist() for column in page.columns), strict=True):
                name = os.fsdecode(path)
                yield StoredDirectory(path=name) if size_bytes is None else StoredObject(path=name, size_bytes=size_bytes)


@contextmanager
def kept(walked: Iterable[Stored]) -> Iterator[Listing]:
    """The listing of a walk, which is over when the block begins. Its file, in the temporary directory, ends with the block.

    Raises WorkingDirectoryError where there is no room for it.
    """
    entries = iter(walked)
    with tempfile.TemporaryFile(prefix="holdfast-listing-") as file:
        while page := list(islice(entries, PAGE)):
            data = _encoded(page)
            try:
                file.write(len(data).to_bytes(_LENGTH, "little"))
                file.write(data)
                file.flush()
            except OSError as error:
                msg = f"the listing of storage cannot be kept in {tempfile.gettempdir()} ({error}): make room there, or set TMPDIR"
                raise WorkingDirectoryError(msg) from error
        yield Listing(file)


def _encoded(page: Sequence[Stored]) -> pa.Buffer:
    paths = [os.fsencode(found.path) for found in page]
    sizes = [found.size_bytes if isinstance(found, StoredObject) else None for found in page]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as pages:
        pages.write_batch(pa.record_batch([pa.array(paths, pa.binary()), pa.array(sizes, pa.int64())], schema=_SCHEMA))
    return sink.getvalue()
