"""Owners of files: what a task writes on its own account, refers to in checkpoints, and alone releases (write-ahead logs and the like).

A file is durable before anything refers to it, and is never changed. Of what was written and never referred to the ledger knows nothing;
it is of an open attempt to every cleaner, until its owner releases it, or ends.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedFileError, RefusedError, UsageError
from holdfast.catalog.rules import owned_files, owners
from holdfast.catalog.storage import Storage, copy_stream, read_committed
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointMetrics, Chunk, Format, JobId, OwnedFile, Role, Scope, StateInfo, StoredFile
from holdfast.writers.upload import ParentState, UploadContext, WrittenState, bytes_of, in_full

FILE_LAYER = 0  # every file has it: a handle is the file's for ever, whichever checkpoint refers to it again

Source = bytes | bytearray | memoryview | os.PathLike[str] | BinaryIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """What `catalog.own(...)` gives. Picklable, so that a task on an executor can take it along; any number of copies may write."""

    storage: Storage
    environment: Environment
    job_id: JobId
    job: str
    name: str
    attempt: AttemptToken

    def __repr__(self) -> str:
        return f"<owner {self.name!r} of job {self.job!r} in {self.storage.address}>"

    def write(self, name: str, data: Source) -> OwnedFile:
        """Write one file: bytes, a local file by its path, or a binary stream to its end. Durable and digested when this returns.

        `name` is the task's own word for it.
        Raises UsageError for data of another kind, or a name that is none.
        """
        paths.require_name(name, "a file")
        fresh = self.environment.new_id()
        path = paths.owned_file(self.job_id, self.name, self.attempt, fresh)
        with _opened(name, data) as source, self.storage.create_stream(path) as target:
            written = copy_stream(source, target)
        file_id = paths.file_id(self.attempt, fresh, 0)
        return OwnedFile(name=name, file_id=file_id, path=path, size_bytes=written.size_bytes, sha256=written.sha256)

    def read(self, file: OwnedFile) -> bytes:
        """The bytes of a file of this catalog, verified. Raises DamagedFileError, also where it is gone after its release."""
        try:
            data = read_committed(self.storage, file.path, file.size_bytes)
        except FileNotFoundError as error:
            msg = f"file {file.name!r} of {self!r} is missing: {file.path} was released and cleaned, or is lost: restore it from a copy"
            raise DamagedFileError(msg) from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            msg = f"file {file.name!r} of {self!r} is damaged: {file.path} has other bytes than were written; restore it from a copy"
            raise DamagedFileError(msg)
        return data

    def release(self, files: Sequence[OwnedFile] | None = None) -> None:
        """As `catalog.release` of this owner, from wherever this is: it opens the ledger for the call."""
        from holdfast.catalog.creation import open_transactor

        release(open_transactor(self.storage, self.environment), self.job, self.name, files)


def own(transactor: Transactor, storage: Storage, environment: Environment, job: str, name: str, process: str | None) -> Owner:
    """Open an owner, or continue with the one of this name that is open. See `Catalog.own`."""
    paths.require_name(name, "an owner")
    token = AttemptToken(environment.new_id())
    transactor.fresh()  # memory may have one open that was released since
    opened: f.AttemptOpened = transactor.run(lambda state: owners.open_owner(state, state.job_named(job).job_id, name, token, process))
    return Owner(storage=storage, environment=environment, job_id=opened.job_id, job=job, name=name, attempt=opened.attempt)


def release(transactor: Transactor, job: str, name: str, files: Sequence[OwnedFile] | None) -> None:
    """Release files of an owner, or (None) the owner with all of them. See `Catalog.release`."""
    if files is None:
        transactor.run(lambda state: owners.release_owner(state, state.job_named(job).job_id, name))
        return
    listed = _listed(files)
    transactor.run(lambda state: owners.release_files(state, state.job_named(job).job_id, name, listed))


def refer_to(
    owner: Owner, files: Sequence[OwnedFile], context: UploadContext, parent: ParentState | None
) -> tuple[WrittenState, tuple[StoredFile, ...]]:
    """The state that is these files, and those of them that the parent has not: of these the commit asks the owner.

    What the parent has is taken as it is there. Raises UsageError, RefusedError.
    """
    if owner.job_id != context.job_id:
        msg = f"{owner!r} is not of job {context.job_id}, which writes the checkpoint: a job refers to files of owners of its own"
        raise RefusedError(msg)
    listed = _listed(files)
    _require_different_names(owner, listed)
    carried = {chunk.file_id: chunk for chunk in parent.chunks if chunk.role is Role.FILE} if parent else {}
    fresh = [file for file in listed if file.file_id not in carried]
    owned_files.require_written_by(owner.job_id, owner.name, owner.attempt, fresh)
    chunks = tuple(carried.get(file.file_id) or _chunk(file, context) for file in listed)
    ack = context.ack(chunks, (), CheckpointMetrics())  # without the files: an abort would make them rows of this attempt
    info = StateInfo(operator=context.operator, state=context.state, format=Format.FILES, total_bytes=bytes_of(chunks))
    return in_full([ack], info), tuple(owned_files.stored(owner.name, fresh))


def described(chunk: Chunk, file: StoredFile) -> OwnedFile:
    """A file of a state of files, as a checkpoint has it."""
    return OwnedFile(name=chunk.name or "", file_id=file.file_id, path=file.path, size_bytes=file.size_bytes, sha256=file.sha256)


def owner_name(owner: object) -> str:
    """The name of an owner. Raises UsageError for what is none."""
    if not isinstance(owner, Owner):
        msg = f"{owner!r} is not an owner of files: pass what catalog.own(job, name) returned"
        raise UsageError(msg)
    return owner.name


def _chunk(file: OwnedFile, context: UploadContext) -> Chunk:
    return context.chunk(
        file_id=file.file_id,
        scope=Scope.TASKOWNED,
        role=Role.FILE,
        layer=FILE_LAYER,
        length_bytes=file.size_bytes,
        sha256=file.sha256,
        name=file.name,
    )


def _opened(name: str, data: object) -> AbstractContextManager[BinaryIO]:
    if isinstance(data, bytes | bytearray | memoryview):
        return BytesIO(data)
    if isinstance(data, os.PathLike):
        return open(data, "rb")
    if callable(getattr(data, "read", None)) and isinstance(data.read(0), bytes):  # type: ignore[attr-defined]
        return nullcontext(data)  # type: ignore[arg-type]  # a binary stream, which the caller closes
    msg = f"file {name!r} is given as {type(data).__name__}: give bytes, a pathlib.Path, or a binary stream"
    raise UsageError(msg)


def _listed(files: object) -> tuple[OwnedFile, ...]:
    given = tuple(files) if isinstance(files, Iterable) and not isinstance(files, str | bytes) else (files,)
    for file in given:
        if not isinstance(file, OwnedFile):
            msg = f"{file!r} is not a file of an owner: pass a list of what owner.write(...) or checkpoint.owned_files(...) returned"
            raise UsageError(msg)
    return given


def _require_different_names(owner: Owner, files: Sequence[OwnedFile]) -> None:
    twice = next((name for name, times in Counter(file.name for file in files).items() if times > 1), None)
    if twice is not None:
        msg = f"two files of {owner!r} are named {twice!r}: within a checkpoint a file is found by its name, give each its own"
        raise UsageError(msg)
