"""Work on files that are few and small is done by threads of this process: a job of Spark would take longer to start than to do it."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.catalog.storage import StoredObject

# Digests, syncs and footers by eight threads against one job of tasks of Python, two cores, files in the page cache (milliseconds):
#   2 files of 80 kB in all: 16 and 369      400 of 0.8 MB: 162 and 1047      8 of 39 MB: 56 and 193      2 of 132 MB: 242 and 318
# A job never paid there, so that the limit is for storage that one host reads slowly: at 100 MB a second, or at 10 ms for each file,
# what is below it takes about as long as a job takes to start.
HERE_BYTES = 32 * 1024 * 1024
HERE_FILES = 256
_THREADS = 8  # hashing and syncing hold no lock of the interpreter

T = TypeVar("T")
Item = TypeVar("Item")


def are_few(files: Sequence[StoredObject]) -> bool:
    """Whether this process is done with the files before a job of Spark is."""
    return len(files) <= HERE_FILES and sum(file.size_bytes for file in files) <= HERE_BYTES


def in_threads(work: Callable[[Item], T], items: Iterable[Item]) -> list[T]:
    """What the work gives for each item, in their order; the first error that it raises, once all are done."""
    given = [*items]
    if len(given) < 2:
        return [work(item) for item in given]
    with ThreadPoolExecutor(min(_THREADS, len(given))) as threads:
        return [*threads.map(work, given)]
