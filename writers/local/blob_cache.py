"""A cache of remote files by their digest (the blob storage of FLIP-198).

    <directory>/<sha256>               a file that was whole when it was put there
    <directory>/.staging/<random>      a file that is being fetched

Never a source of truth: bytes are digested before each use, so nothing is synced and anything may be deleted or damaged at any moment.
Names by content are right here and nowhere else: what is deleted and fetched again under one name has the same bytes.
"""

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import DamagedFileError, WorkingDirectoryError
from holdfast.catalog.storage import Digest
from holdfast.writers.local.disk import STAGING, Copy, LocalFiles, Tally, expect, is_digest, look_at

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TRIES = 3  # for one fetch, while somebody deletes the directory

Fetch = Callable[[BinaryIO], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobFigures:
    """What the cache was worth, since the process opened it."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0  # cached files that had other bytes, and were removed
    evicted: int = 0
    bytes_from_cache: int = 0  # those of the hits
    bytes_fetched: int = 0  # from the remote store, those of a fetch that failed included


class BlobCache:
    """The cache in one directory, which is its own: what else is in it is removed. Safe in threads.

    Above `limit_bytes` the least recently used files go, but never one that is being returned: what is larger than the limit comes as well.
    """

    def __init__(
        self, directory: Path, limit_bytes: int, *, environment: Environment | None = None, files: LocalFiles | None = None
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._environment = environment or SystemEnvironment()
        self._files = files or LocalFiles()
        self._tally = Tally(BlobFigures())
        self._lock = threading.Lock()  # guards what is busy
        self._busy: dict[str, tuple[threading.Lock, int]] = {}  # digest -> its lock, and how many want it
        self._sweep()
        self._evict()

    @property
    def figures(self) -> BlobFigures:
        return self._tally.now

    def get(self, sha256: str, size_bytes: int, fetch: Fetch) -> Path:
        """A local file with these bytes, digested now: from the cache, or from `fetch`, which writes them to the stream that it is given.

        The file may be gone by the time it is used, as everything here; then get it again. Nobody may write to it, or to a link of it.
        What `fetch` raises goes through, and leaves nothing.

        Raises:
            DamagedFileError: what was fetched has other bytes.
            WorkingDirectoryError: the disk does not take it (full, read-only): fetch to where the bytes are needed, without a cache.
            UsageError: the digest is none.
        """
        expected = expect("a remote file", size_bytes, sha256)
        path = self._directory / sha256
        with self._alone(sha256):
            found = look_at(self._files, path, expected)
            self._tally.add(damaged=int(found is Copy.DAMAGED))
            if found is Copy.HOLDS and self._touched(path):
                self._tally.add(hits=1, bytes_from_cache=size_bytes)
                return path
            self._tally.add(misses=1)
            self._fetch(path, expected, fetch)
            self._evict()
            return path

    def _fetch(self, path: Path, expected: Digest, fetch: Fetch) -> None:
        for left in reversed(range(TRIES)):
            try:
                self._fetch_once(path, expected, fetch)
            except WorkingDirectoryError as error:
                if not left or not isinstance(error.__cause__, FileNotFoundError):
                    raise
            else:
                return

    def _fetch_once(self, path: Path, expected: Digest, fetch: Fetch) -> None:
        staging = self._directory / STAGING
        staged = staging / self._environment.new_id()
        with _on_disk(self._directory):
            self._files.make_directory(staging)
            stream = self._files.create(staged)
        try:
            try:
                self._fill(stream, expected, fetch)
            finally:
                with _on_disk(self._directory):
                    stream.close()
            with _on_disk(self._directory):
                self._touched(staged)
                self._files.rename(staged, path)
        except BaseException:
            self._files.discard(staged)
            raise

    def _fill(self, stream: BinaryIO, expected: Digest, fetch: Fetch) -> None:
        """Fetch into a new file. Raises DamagedFileError if other bytes came."""
        writer = _DigestingWriter(stream, self._directory)
        try:
            fetch(cast("BinaryIO", writer))
        finally:
            self._tally.add(bytes_fetched=writer.written.size_bytes)
        if writer.written != expected:
            msg = (
                f"the remote file of digest {expected.sha256} ({expected.size_bytes} bytes) came with {writer.written.size_bytes} bytes of "
                f"digest {writer.written.sha256}: it is damaged; run verify on the catalog, and restore the file from a copy"
            )
            raise DamagedFileError(msg)

    def _touched(self, path: Path) -> bool:
        """Mark a file as just used; False if it is gone. One that cannot be marked goes earlier than it should, which does no harm."""
        try:
            self._files.touch(path, self._environment.now())
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True

    def _evict(self) -> None:
        """Remove the least recently used files above the limit, but none that somebody is about to return."""
        with self._lock:
            try:
                cached = self._files.listing(self._directory)
            except OSError:  # not readable: then nothing can be removed either
                return
            excess = sum(file.size_bytes for file in cached) - self._limit_bytes
            for file in sorted(cached, key=lambda file: (file.used, file.name)):
                if excess <= 0:
                    return
                if file.name not in self._busy:
                    self._files.discard(self._directory / file.name)
                    excess -= file.size_bytes
                    self._tally.add(evicted=1)

    def _sweep(self) -> None:
        """Remove what a process that died was fetching, and what is no cached file."""
        for name in self._names():
            if not is_digest(name):
                self._files.discard(self._directory / name)

    def _names(self) -> list[str]:
        try:
            return self._files.names(self._directory)
        except OSError:
            return []

    @contextmanager
    def _alone(self, sha256: str) -> Iterator[None]:
        """One thread at a time for each digest: the second finds what the first has fetched."""
        with self._lock:
            lock, wanted = self._busy.get(sha256, (threading.Lock(), 0))
            self._busy[sha256] = (lock, wanted + 1)
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, wanted = self._busy.pop(sha256)
                if wanted > 1:
                    self._busy[sha256] = (lock, wanted - 1)


class _DigestingWriter(io.BufferedIOBase):
    """What a fetch writes to: passes its bytes on to a file, and digests them."""

    def __init__(self, stream: BinaryIO, directory: Path) -> None:
        self._stream, self._directory = stream, directory
        self._sha256, self._size_bytes = hashlib.sha256(), 0

    @property
    def written(self) -> Digest:
        return Digest(size_bytes=self._size_bytes, sha256=self._sha256.hexdigest())

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer", /) -> int:
        with memoryview(data) as view:
            self._sha256.update(view)
            self._size_bytes += view.nbytes
            with _on_disk(self._directory):
                self._stream.write(view)
            return view.nbytes


@contextmanager
def _on_disk(directory: Path) -> Iterator[None]:
    """Tell a failure of this disk from one of the remote store."""
    try:
        yield
    except OSError as error:
        msg = f"the cache {directory} does not take a file ({error}): make room, or place it elsewhere (blob_storage=...)"
        raise WorkingDirectoryError(msg) from error
