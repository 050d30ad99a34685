"""Reading a checkpoint: its manifest, verified, then its states, verified before a row or byte of them is returned."""

import hashlib
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from holdfast.catalog import paths
from holdfast.catalog.errors import DamagedFileError, NotFoundError, RefusedError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.manifest import Manifest, decode
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import DEFAULT_OPERATOR, CheckpointId, Chunk, StateInfo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Checkpoint:
    """The content of one checkpoint, as its manifest says it."""

    def __init__(self, manifest: Manifest, storage: Storage, *, release: Callable[[], None] | None = None, is_pinned: bool = False) -> None:
        self.manifest = manifest
        self._storage, self._release = storage, release
        self._is_pinned = is_pinned

    def __repr__(self) -> str:
        return f"<checkpoint {self.checkpoint_id} of job {self.job!r}: {', '.join(self.states) or 'no state'}>"

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.manifest.checkpoint_id

    @property
    def job(self) -> str:
        return self.manifest.job

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the job gave as its progress when it wrote the checkpoint."""
        return None if self.manifest.progress is None else dict(self.manifest.progress)

    @property
    def is_pinned(self) -> bool:
        """Whether this object's catalog keeps the files until it is closed. Without, retention may drop the checkpoint meanwhile."""
        return self._is_pinned

    def close(self) -> None:
        """Let go of the checkpoint before its catalog is closed; nothing of it is to be read after this."""
        release, self._release, self._is_pinned = self._release, None, False
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(info.state for info in self.manifest.states)

    @property
    def path(self) -> str:
        """The checkpoint's directory, by which a job can be started from it."""
        return f"{self._storage.address}/{paths.checkpoint_directory(self.manifest.job_id, self.checkpoint_id)}"

    def read(self, spark: "SparkSession", state: str, *, verify: bool = True) -> "DataFrame":
        """The rows of a state written from a DataFrame; every file is checked by its digest before this returns.

        With `verify=False` only sizes and footers are checked. The DataFrame is lazy: read it while the checkpoint is live or pinned.
        Raises:
            NotFoundError: the checkpoint has no state of this name.
            DamagedFileError: a file is missing or has other bytes than were committed; the message names it.
        """
        from holdfast.writers.spark_read import read_state

        info = self._state(state, "parquet")
        files = {file_id: (file.path, file.size_bytes, file.sha256) for file_id, file in self.manifest.files.items()}
        return read_state(spark, self._storage, info, self.manifest.chunks_of(info), files, verify=verify)

    def read_bytes(self, state: str) -> bytes:
        """The bytes of a state written by `write_bytes`, verified. Raises NotFoundError, DamagedFileError."""
        info = self._state(state, "bytes")
        return b"".join(self._chunk_bytes(chunk) for chunk in self.manifest.chunks_of(info))

    def _chunk_bytes(self, chunk: Chunk) -> bytes:
        if chunk.inline is not None:
            return chunk.inline  # verified with the manifest
        path = self.manifest.files[chunk.file_id].path
        try:
            data = self._storage.read(path)
        except FileNotFoundError as error:
            msg = (
                f"{path} of checkpoint {self.checkpoint_id} of job {self.job!r} is missing: "
                "the checkpoint was dropped meanwhile (see the view checkpoints), or the file is lost: then restore it from a copy"
            )
            raise DamagedFileError(msg) from error
        if hashlib.sha256(data).hexdigest() != chunk.sha256:
            msg = f"{path} of checkpoint {self.checkpoint_id} of job {self.job!r} does not have the digest that was committed"
            raise DamagedFileError(msg)
        return data

    def _state(self, state: str, format_: str) -> StateInfo:
        info = self.manifest.state(DEFAULT_OPERATOR, state)
        if info is None:
            msg = f"checkpoint {self.checkpoint_id} of job {self.job!r} has no state {state!r}; it has: {', '.join(self.states) or 'none'}"
            raise NotFoundError(msg)
        if info.format != format_:
            call = "read_bytes" if info.format == "bytes" else "read"
            msg = f"state {state!r} of checkpoint {self.checkpoint_id} of job {self.job!r} has format {info.format!r}: use {call}"
            raise RefusedError(msg)
        return info


def load_manifest(storage: Storage, path: str) -> Manifest:
    """The verified manifest at a path. Raises DamagedFileError if it is missing or any byte is wrong."""
    try:
        data = storage.read(path)
    except FileNotFoundError as error:
        msg = f"the manifest {path} is missing: the checkpoint was dropped and cleaned, or the file was lost; see the view checkpoints"
        raise DamagedFileError(msg) from error
    return decode(data, path)


def load_committed(storage: Storage, fact: CheckpointCommitted) -> Manifest:
    """The manifest of a committed checkpoint: it must be the very bytes that the commit confirmed."""
    try:
        data = storage.read(fact.path)
    except FileNotFoundError as error:
        msg = (
            f"the manifest {fact.path} of checkpoint {fact.checkpoint_id} is missing: the checkpoint was dropped meanwhile "
            "(see the view checkpoints), or the file is lost: then restore it from a copy"
        )
        raise DamagedFileError(msg) from error
    found = hashlib.sha256(data).hexdigest()
    if found != fact.sha256:
        msg = (
            f"the manifest {fact.path} of checkpoint {fact.checkpoint_id} is not the one that was committed "
            f"(sha256 {found}, committed {fact.sha256}): restore it from a copy, or use another checkpoint"
        )
        raise DamagedFileError(msg)
    return decode(data, fact.path)
