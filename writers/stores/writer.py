"""Directories of embedded stores: what a task does to bring a snapshot into the catalog, and what the driver makes of the answers.

Files that the store never changes are uploaded once and then referred to: same name, size and digest in the parent's handles of this
state and subtask (incremental checkpoints of RocksDB, as FLINK-5053 has them). The others are this checkpoint's own. While the store
continues, threads digest and upload: the store stands still only for its snapshot, which is a matter of hard links.
"""

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from holdfast.catalog import paths
from holdfast.catalog.arguments import is_whole
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import HoldfastError, RefusedError, UsageError
from holdfast.catalog.key_groups import require_groups
from holdfast.catalog.storage import copy_stream
from holdfast.catalog.types import (
    INLINE_LIMIT_BYTES,
    MAX_PARALLELISM_LIMIT,
    Ack,
    CheckpointId,
    CheckpointMetrics,
    Chunk,
    FileId,
    Role,
    Scope,
    StoredFile,
)
from holdfast.writers.engine_errors import explaining, is_failed_sync
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.stores.ack_codec import encode_ack, encode_failure
from holdfast.writers.stores.by_subtask import BySubtask
from holdfast.writers.stores.snapshot import SnapshotFile, files_of
from holdfast.writers.stores.sources import keep_copies
from holdfast.writers.upload import UploadContext

FILE_LAYER = 0  # every file has it: a handle is the file's for ever, whichever checkpoint refers to it again

Snapshot = str | os.PathLike[str] | Callable[[str], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one subtask has of a state: the number of the subtask, and its key groups where the store has just these."""

    subtask: int
    key_groups: range | None = None

    @classmethod
    def of(cls, subtask: object, key_groups: object, max_parallelism: int) -> "Share":
        """Raises UsageError for what is no number of a subtask, or no range of the job's key groups."""
        if not is_whole(subtask, 0, MAX_PARALLELISM_LIMIT - 1):
            msg = f"subtask={subtask!r} is not the number of a subtask: pass 0 to {MAX_PARALLELISM_LIMIT - 1}"
            raise UsageError(msg)
        if key_groups is not None and not isinstance(key_groups, range):
            msg = f"key_groups={key_groups!r} is not a range: pass holdfast.groups_of(subtask, parallelism, max_parallelism)"
            raise UsageError(msg)
        return cls(subtask=int(subtask), key_groups=None if key_groups is None else require_groups(key_groups, max_parallelism))


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryWriter:
    """What `checkpoint.directories(...)` gives. Picklable, so that a task on an executor can take it along."""

    context: UploadContext
    environment: Environment
    parent: BySubtask  # what of it may be referred to
    parent_id: CheckpointId | None
    immutable: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<directories of state {self.context.state!r} for checkpoint {self.context.metadata.checkpoint_id}>"

    def write(
        self,
        snapshot: Snapshot,
        *,
        subtask: int,
        key_groups: range | None = None,
        working_directory: WorkingDirectory | None = None,
    ) -> "DirectoryUpload":
        """Begin to upload one subtask's snapshot, alongside the caller; `upload.ack()` waits for it and gives what the driver needs.

        `snapshot` is the directory of one, which stays as it is until then; or a function that takes one into the path that it is called
        with (`Checkpoint(db).create_checkpoint`), whose time is `sync_ms`, and whose directory is removed afterwards. That path is
        in `tmp` of the working directory, else in the system's temporary directory: on another volume than the store's, it is a copy.
        Of `key_groups`, the store has just these: its directory is one handle for them, which can be restored only for them.
        The `working_directory` of this process keeps local copies of what was uploaded, by hard links, where a restart finds them.
        Raises UsageError: this is not a snapshot, or there is no such subtask or range of key groups in the job.
        """
        share = Share.of(subtask, key_groups, self.context.max_parallelism)
        _require_places(snapshot, working_directory)
        taken = self._taken(snapshot, working_directory)
        try:
            return self._begin(taken, share)
        except BaseException:
            taken.remove()
            raise

    def _taken(self, snapshot: Snapshot, working: WorkingDirectory | None) -> "_Taken":
        if not callable(snapshot):
            return _Taken(Path(snapshot), working)
        # On the volume of the store, if it lives where it should: then a snapshot is hard links.
        place = Path(tempfile.mkdtemp(prefix="holdfast-snapshot-", dir=None if working is None else working.tmp))
        began = self.environment.monotonic_s()
        taken = _Taken(place / "snapshot", working, own=place)
        try:
            snapshot(str(taken.directory))
        except BaseException:
            taken.remove()
            raise
        return replace(taken, sync_ms=round((self.environment.monotonic_s() - began) * 1000))

    def _begin(self, taken: "_Taken", share: Share) -> "DirectoryUpload":
        fresh = f"{self.context.call}_{share.subtask}_{self.environment.new_id()}"  # unique for each task, and for each retry of a task
        known = _known(self.parent, share)
        began = self.environment.monotonic_s()
        files = files_of(taken.directory, self.immutable)
        if not files:
            msg = f"{taken.directory} is empty: give the snapshot of the store of subtask {share.subtask}, which has some file"
            raise UsageError(msg)
        uploads = [
            self.environment.start(partial(self._upload, file, known.get(file.name), share, f"{fresh}_{number}"))
            for number, file in enumerate(files)
        ]
        return DirectoryUpload(self, share, taken, uploads, began)

    def _upload(self, file: SnapshotFile, known: "tuple[Chunk, StoredFile] | None", share: Share, label: str) -> "_Uploaded":
        """A file as a chunk: the parent's, if it has the very bytes."""
        began = self.environment.monotonic_s()
        try:
            if file.is_immutable and known is not None and known[1].size_bytes == file.size_bytes:
                with open(file.path, "rb") as source:
                    sha256 = hashlib.file_digest(source, "sha256").hexdigest()
                if sha256 == known[1].sha256:
                    ended = self.environment.monotonic_s()
                    return _Uploaded(known[0], None, digest_s=ended - began, ended_s=ended)
            return replace(self._uploaded(file, share, label), ended_s=self.environment.monotonic_s())
        except FileNotFoundError as error:
            if file.path.exists():
                raise
            raise _changed(file, "is gone") from error

    def _uploaded(self, file: SnapshotFile, share: Share, label: str) -> "_Uploaded":
        context = self.context
        inline = None
        file_id = paths.file_id(context.attempt, label, 0)
        scope = Scope.SHARED if file.is_immutable else Scope.EXCLUSIVE
        if not file.is_immutable and file.size_bytes <= INLINE_LIMIT_BYTES:
            scope = context.inline_scope
            inline = file.path.read_bytes()
            stored = _digested(inline, file_id, scope)
        else:
            path = context.place(label, "bin", scope)
            with open(file.path, "rb") as source, context.storage.create_stream(path) as target:
                written = copy_stream(source, target)
            stored = StoredFile(file_id=file_id, path=path, size_bytes=written.size_bytes, sha256=written.sha256, scope=scope)
        if stored.size_bytes != file.size_bytes:
            raise _changed(file, f"had {file.size_bytes} bytes and has {stored.size_bytes}")
        chunk = context.chunk(
            file_id=file_id,
            scope=scope,
            role=Role.FILE,
            layer=FILE_LAYER,
            offset_bytes=0,
            length_bytes=stored.size_bytes,
            sha256=stored.sha256,
            name=file.name,
            inline=inline,
        )
        return _Uploaded(_chunk(chunk, share), stored if inline is None else None)


class DirectoryUpload:
    """The upload of one snapshot, alongside its task. The snapshot must stay as it is until `ack` or `wait` has returned."""

    def __init__(
        self, writer: DirectoryWriter, share: Share, taken: "_Taken", uploads: "Sequence[Future[_Uploaded]]", began_s: float
    ) -> None:
        self._writer, self._share, self._taken, self._uploads, self._began_s = writer, share, taken, uploads, began_s
        self._ack: Ack | None = None
        weakref.finalize(self, taken.remove)  # for a task that failed before it waited

    def ack(self) -> bytes:
        """Wait until every file is digested and durable; what the driver gives to `checkpoint.acknowledge`.

        A failed sync is reported to the driver, which ends the attempt. Raised here, it would be a failed task, which the engine tries
        again; and the next sync would succeed, whatever became of the bytes.
        Raises UsageError (the snapshot was changed meanwhile), RefusedError (it was cancelled), AddressError (this host does not see the
        catalog), OSError.
        """
        try:
            return encode_ack(self.wait())
        except (HoldfastError, OSError) as error:
            if not is_failed_sync(error):
                raise
            context = self._writer.context
            return encode_failure(context.attempt, context.operator, context.state, context.metadata.checkpoint_id, str(error))

    def wait(self) -> Ack:
        """As `ack`, in this process: with the metrics of the upload."""
        if self._ack is None:
            try:
                what = f"uploading subtask {self._share.subtask} of state {self._writer.context.state!r}"
                with explaining(what, self._writer.context.storage.address):
                    self._ack = self._acked([upload.result() for upload in self._uploads])
                if self._taken.working is not None:
                    keep_copies(self._taken.working, self._writer.context, self._ack, self._taken.directory, self._writer.parent_id)
            except CancelledError as error:
                what = f"subtask {self._share.subtask} of {self._writer.context.label}"
                msg = f"the upload of {what} was cancelled before it had ended: write it in the next one"
                raise RefusedError(msg) from error
            finally:
                self.cancel()
        return self._ack

    def cancel(self) -> None:
        """Begin no further file, wait for those that were begun, and remove the snapshot, if it was taken here."""
        for upload in self._uploads:
            if not upload.cancel():
                upload.exception()
        self._taken.remove()

    def _acked(self, uploaded: "Sequence[_Uploaded]") -> Ack:
        context = self._writer.context
        files = tuple(each.file for each in uploaded if each.file is not None)
        chunks = tuple(each.chunk for each in uploaded)
        reused = sum(each.chunk.length_bytes for each in uploaded if not paths.is_of(context.attempt, each.chunk.file_id))
        return context.ack(
            chunks,
            files,
            subtask=self._share.subtask,
            metrics=CheckpointMetrics(
                bytes_written=sum(chunk.length_bytes for chunk in chunks) - reused,
                bytes_reused=reused,
                upload_ms=round((max(each.ended_s for each in uploaded) - self._began_s) * 1000),
                digest_ms=round(sum(each.digest_s for each in uploaded) * 1000),
                sync_ms=self._taken.sync_ms,
            ),
        )


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot, and the directory to remove after it, if it was taken here."""

    directory: Path
    working: WorkingDirectory | None
    own: Path | None = None
    sync_ms: int | None = None

    def remove(self) -> None:
        if self.own is not None:
            shutil.rmtree(self.own, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Uploaded:
    chunk: Chunk
    file: StoredFile | None  # None: it is inline, or the parent's
    digest_s: float = field(default=0.0, kw_only=True)
    ended_s: float = field(default=0.0, kw_only=True)


def _require_places(snapshot: object, working: object) -> None:
    """Raises UsageError for what is neither a directory's path nor a function, or no working directory."""
    if not callable(snapshot) and not (isinstance(snapshot, str | os.PathLike) and os.fspath(snapshot)):
        msg = f"{snapshot!r} is not a snapshot: pass the path of its directory, or the function that takes one"
        raise UsageError(msg)
    if working is not None and not isinstance(working, WorkingDirectory):
        msg = (
            f"working_directory={working!r} is not a working directory: pass what holdfast.working_directory(...) returned in this process"
        )
        raise UsageError(msg)


def _digested(data: bytes, file_id: FileId, scope: Scope) -> StoredFile:
    return StoredFile(file_id=file_id, path="", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), scope=scope)


def _chunk(chunk: Chunk, share: Share) -> Chunk:
    """The chunk as one of this share."""
    groups = share.key_groups
    return replace(
        chunk,
        subtask=share.subtask,
        key_group_from=None if groups is None else groups.start,
        key_group_to=None if groups is None else groups.stop - 1,
    )


def _known(parent: BySubtask, share: Share) -> dict[str, tuple[Chunk, StoredFile]]:
    """By name, the files that the parent has of this subtask and that checkpoints may share."""
    return {
        chunk.name: (chunk, file)
        for chunk, file in parent[share.subtask]
        if chunk.name is not None and file is not None and chunk == _chunk(chunk, share)  # a handle's range never changes
    }


def _changed(file: SnapshotFile, how: str) -> HoldfastError:
    msg = (
        f"{file.path} {how}: the directory was changed while it was uploaded. Give a snapshot that the store leaves alone, or the "
        "function that takes one"
    )
    return UsageError(msg)
