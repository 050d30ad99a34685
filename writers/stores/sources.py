"""What the working directory of a process does for embedded stores: copies of what was written, and files that need not come from afar."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.catalog.errors import DamagedFileError, WorkingDirectoryError
from holdfast.catalog.storage import Digest, Storage, copy_stream
from holdfast.catalog.types import Ack, Chunk, Scope
from holdfast.writers.local.local_state import LocalShare, LocalSlot
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.upload import UploadContext

TRIES = 3  # with files that somebody deletes meanwhile


class NotThereError(Exception):
    """Storage has no file of this path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Where the bytes of a file, or of all files of a directory, came from."""

    local_bytes: int = 0
    cached_bytes: int = 0
    remote_bytes: int = 0


def keep_copies(working: WorkingDirectory, context: UploadContext, ack: Ack, snapshot: Path, parent_id: int | None) -> None:
    """Keep the files of a snapshot that was just uploaded, and of older ones only its parent's, which is committed."""
    assert ack.subtask is not None
    slot = LocalSlot(
        catalog_id=context.storage.address,
        job_id=context.job_id,
        operator=context.operator,
        state=context.state,
        subtask=ack.subtask,
        checkpoint_id=context.metadata.checkpoint_id,
        attempt=context.attempt,
    )
    files = {str(chunk.name): (chunk.length_bytes, chunk.sha256) for chunk in ack.chunks if chunk.inline is None}
    working.local_state.keep(slot, snapshot, files)
    working.local_state.retain(slot, {slot.checkpoint_id} if parent_id is None else {slot.checkpoint_id, parent_id})


@contextmanager
def present(directory: Path) -> Iterator[None]:
    """Whatever is missing in the block is missing because somebody deleted this directory, or from it. Raises WorkingDirectoryError."""
    try:
        yield
    except FileNotFoundError as error:
        msg = f"{directory} was deleted, in part or whole, while it was filled: restore again, to a place where nobody deletes"
        raise WorkingDirectoryError(msg) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the files of one subtask's directory come from: a local copy whose digest holds, else the cache, else the catalog's storage."""

    storage: Storage
    working: WorkingDirectory | None
    share: LocalShare

    def bring(self, chunk: Chunk, path: str, place: Path) -> Brought:
        """Make the file at `place`, every byte verified.

        Raises NotThereError if storage has no such file, DamagedFileError if it has other bytes, WorkingDirectoryError if the directory
        that is filled is gone.
        """
        expected = Digest(size_bytes=chunk.length_bytes, sha256=chunk.sha256)
        if self.working is not None:
            copy = self.working.local_state.find(self.share, str(chunk.name), expected.size_bytes, expected.sha256)
            if copy is not None and self._take(copy, place, chunk, expected):
                return Brought(local_bytes=expected.size_bytes)
            if (cached := self._bring_cached(chunk, path, place, expected)) is not None:
                return cached
        with present(place), open(place, "xb") as target:
            found = self._fetched(path, target, expected.size_bytes)
        if found != expected:
            msg = f"{path} does not have the digest that was committed"
            raise DamagedFileError(msg)
        return Brought(remote_bytes=found.size_bytes)

    def _fetched(self, path: str, target: BinaryIO, size_bytes: int) -> Digest:
        """Raises NotThereError: FileNotFoundError is of this machine's own disk here."""
        try:
            with self.storage.open_stream(path) as source:
                return copy_stream(source, target, size_bytes)
        except FileNotFoundError as error:
            raise NotThereError(path) from error

    def _bring_cached(self, chunk: Chunk, path: str, place: Path, expected: Digest) -> Brought | None:
        """By the cache, which keeps what stores never change; None if this disk does not take it."""
        if self.working is None or chunk.scope is not Scope.SHARED:
            return None
        fetched = 0

        def fetch(target: BinaryIO) -> None:
            nonlocal fetched
            fetched += self._fetched(path, target, expected.size_bytes).size_bytes

        try:
            for _ in range(TRIES):
                file = self.working.blob_cache.get(expected.sha256, expected.size_bytes, fetch)
                if self._take(file, place, chunk, expected):
                    return Brought(remote_bytes=fetched) if fetched else Brought(cached_bytes=expected.size_bytes)
        except WorkingDirectoryError:
            pass
        return None

    def _take(self, copy: Path, place: Path, chunk: Chunk, expected: Digest) -> bool:
        """Whether the copy, which was verified, is at `place` now: by a link only where no store writes to it."""
        assert self.working is not None
        files = self.working.files
        try:
            if chunk.scope is Scope.SHARED and files.link_or_copy(copy, place):
                return True
            if chunk.scope is not Scope.SHARED:
                place.write_bytes(copy.read_bytes())
            if files.digest(place) == expected:
                return True
        except OSError:  # gone meanwhile, or not readable
            pass
        files.discard(place)
        return False
