"""One checkpoint being written: states in, then manifest, then commit. The top of the upload and acknowledgement path."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.clock import Environment
from holdfast.catalog.commit_rule import Identity
from holdfast.catalog.errors import AttemptEndedError, ForeignTokensError, HoldfastError, NotFoundError, RefusedError, UsageError
from holdfast.catalog.commit_facts import CommitRequest
from holdfast.catalog.manifest import Manifest, encode
from holdfast.catalog.state import JobState, Ref
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import (
    DEFAULT_OPERATOR,
    Ack,
    AttemptToken,
    CheckpointId,
    CheckpointMetaData,
    Chunk,
    FileId,
    JobId,
    Retention,
    Scope,
    StateInfo,
    StoredFile,
)
from holdfast.writers.bytes_writer import write_bytes
from holdfast.writers.restore import load_manifest
from holdfast.writers.upload import UploadContext
from holdfast.writers.vehicles import StateWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MANIFEST_SCOPE = Scope.EXCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointResult:
    """What a committed checkpoint cost. Bytes of state; the manifest is not counted."""

    checkpoint_id: CheckpointId
    new_bytes: int
    reused_bytes: int
    total_bytes: int
    handles: int
    new_handles: int

    @classmethod
    def of(cls, fact: f.CheckpointCommitted) -> "CheckpointResult":
        return cls(
            checkpoint_id=fact.checkpoint_id,
            new_bytes=fact.new_bytes,
            reused_bytes=fact.total_bytes - fact.new_bytes,
            total_bytes=fact.total_bytes,
            handles=fact.handles,
            new_handles=fact.new_handles,
        )


class CheckpointWriter:
    """What `job.checkpoint()` gives: collects the states of one attempt. A state that is not written is carried from the parent."""

    def __init__(
        self,
        *,
        storage: Storage,
        environment: Environment,
        state_writer: StateWriter,
        job: JobState,
        opened: f.AttemptOpened,
        parent: Manifest | None,
        progress: Mapping[str, Any] | None,
    ) -> None:
        assert opened.checkpoint_id is not None
        self._storage, self._state_writer, self._parent = storage, state_writer, parent
        self._job_id, self._job_name, self._max_parallelism = job.job_id, job.name, job.registered.max_parallelism
        self._attempt = opened.attempt
        self._parent_ref = (
            Ref(opened.parent_job_id, opened.parent_checkpoint_id) if opened.parent_job_id and opened.parent_checkpoint_id else None
        )
        self._metadata = CheckpointMetaData(checkpoint_id=opened.checkpoint_id, timestamp=environment.now())
        self._environment = environment
        self._progress = _checked_progress(progress)
        self._written: dict[tuple[str, str], StateInfo] = {}
        self._removed: set[tuple[str, str]] = set()
        self._unfinished: set[tuple[str, str]] = set()  # a write began and has not ended well
        self._acks: list[Ack] = []
        self._calls = 0
        self._sealed = False
        self.result: CheckpointResult | None = None

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self._metadata.checkpoint_id

    @property
    def attempt(self) -> AttemptToken:
        return self._attempt

    @property
    def acked_files(self) -> tuple[StoredFile, ...]:
        """Every file that an ack has named so far."""
        return tuple(file for ack in self._acks for file in ack.files)

    def write(self, state: str, df: "DataFrame", key: Sequence[str] = ()) -> None:
        """Write the full state: every row of the DataFrame, digested and durable when this returns. Runs its plan once.

        Without `key` all rows are of key group 0, and the state cannot be split by key.
        Raises:
            UsageError: the state is already written or removed in this checkpoint, or a key column is unknown or of an unsupported type.
            UnsafeSettingsError: the session's commit protocol could lose or double rows.
        """
        acks, info = self._state_writer.write(df, self._context(state, (key,) if isinstance(key, str) else tuple(key)))
        self._take(acks, info)

    def write_bytes(self, state: str, data: bytes | bytearray | memoryview) -> None:
        """Write a small state as bytes: kept in the manifest and the row when at most 20 kB, else as a file of this checkpoint."""
        context = self._context(state, ())
        ack = write_bytes(data, context, self._environment)
        self._take([ack], StateInfo(operator=context.operator, state=state, format="bytes", total_bytes=ack.metrics.bytes_written))

    def remove(self, state: str) -> None:
        """End a state of the parent: this checkpoint does not carry it. Raises NotFoundError if the parent has none of this name."""
        key = self._free_key(state)
        if self._parent is None or self._parent.state(*key) is None:
            known = ", ".join(info.state for info in self._parent.states) if self._parent else "none, for there is no parent"
            msg = (
                f"checkpoint {self.checkpoint_id} of job {self._job_name!r} cannot remove state {state!r}: its parent has {known or 'none'}"
            )
            raise NotFoundError(msg)
        self._removed.add(key)
        self._unfinished.discard(key)

    # ---- for the coordinator ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """After this nothing can be written: it would be lost without a word."""
        self._sealed = True

    def seal(self, retention: Retention, next_attempt: AttemptToken) -> tuple[CommitRequest, Manifest]:
        """Fix the content, write it as `_metadata`, and say what to commit. After this nothing can be written.

        Raises:
            RefusedError: a write failed and was neither repeated nor removed; the parent's state would be carried in its place.
            AttemptEndedError, ForeignTokensError: the manifest's place is taken.
        """
        self.close()
        self._require_finished()
        carried = [info for info in self._parent.states if info.key not in self._written.keys() | self._removed] if self._parent else []
        states = (*carried, *self._written.values())
        keys = {info.key for info in carried}
        reused = [chunk for chunk in self._parent.chunks if (chunk.operator, chunk.state) in keys] if self._parent else []
        content = (*reused, *(chunk for ack in self._acks for chunk in ack.chunks))
        manifest = self._manifest(states, content)
        data = encode(manifest)
        path = paths.manifest_path(self._job_id, self.checkpoint_id)
        try:
            self._storage.create(path, data)
        except FileExistsError as error:
            raise self._taken(path) from error
        stored = StoredFile(
            file_id=paths.manifest_file_id(self._attempt),
            path=path,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            scope=MANIFEST_SCOPE,
        )
        inherited: frozenset[Identity] = frozenset(chunk.identity for chunk in self._parent.chunks) if self._parent else frozenset()
        request = CommitRequest(
            attempt=self._attempt,
            content=content,
            states=states,
            inherited=inherited,
            files=self.acked_files,
            acks=tuple(self._acks),
            manifest=stored,
            progress=self._progress,
            retention=retention,
            next_attempt=next_attempt,
        )
        return request, manifest

    def _require_finished(self) -> None:
        if self._unfinished:
            names = ", ".join(repr(state) for _, state in sorted(self._unfinished))
            msg = (
                f"checkpoint {self.checkpoint_id} of job {self._job_name!r} cannot be committed: the write of {names} failed, and the "
                "older state would be carried in its place; write it again within the block, or remove it"
            )
            raise RefusedError(msg)

    def _taken(self, path: str) -> HoldfastError:
        """Why the place of this attempt's manifest is taken."""
        if load_manifest(self._storage, path).attempt == self._attempt:
            msg = (
                f"attempt {self._attempt} of checkpoint {self.checkpoint_id} of job {self._job_name!r} has a manifest already: "
                "another process commits the same attempt; stop one of them"
            )
            return AttemptEndedError(msg)
        msg = (
            f"{path} exists, and this ledger has never given checkpoint {self.checkpoint_id} to another attempt: it was probably restored "
            "from a backup. Nothing was replaced; scrub with dry_run lists what the ledger does not know"
        )
        return ForeignTokensError(msg)

    def _manifest(self, states: tuple[StateInfo, ...], content: tuple[Chunk, ...]) -> Manifest:
        files: dict[FileId, StoredFile] = {
            **(self._parent.files if self._parent else {}),
            **{file.file_id: file for file in self.acked_files},
        }
        used = {chunk.file_id for chunk in content}
        return Manifest(
            job_id=self._job_id,
            job=self._job_name,
            max_parallelism=self._max_parallelism,
            checkpoint_id=self.checkpoint_id,
            attempt=self._attempt,
            parent=self._parent_ref,
            created_at=self._metadata.timestamp,
            progress=self._progress,
            states=states,
            chunks=content,
            files={file_id: file for file_id, file in files.items() if file_id in used},
        )

    def _context(self, state: str, key: tuple[str, ...]) -> UploadContext:
        operator, state = self._free_key(state)
        self._unfinished.add((operator, state))
        call, self._calls = self._calls, self._calls + 1
        return UploadContext(
            storage=self._storage,
            job_id=JobId(self._job_id),
            attempt=self._attempt,
            metadata=self._metadata,
            call=call,
            operator=operator,
            state=state,
            layer=self._next_layer(operator, state),
            key_columns=key,
            max_parallelism=self._max_parallelism,
        )

    def _next_layer(self, operator: str, state: str) -> int:
        """The parent's highest layer of the state plus 1: a base hides what lies below it."""
        layers = [c.layer for c in self._parent.chunks if (c.operator, c.state) == (operator, state)] if self._parent else []
        return max(layers, default=-1) + 1

    def _free_key(self, state: str) -> tuple[str, str]:
        if self._sealed:
            msg = f"checkpoint {self.checkpoint_id} of job {self._job_name!r} has ended: write state {state!r} in the next one"
            raise RefusedError(msg)
        if not state or not state.isprintable():
            msg = f"{state!r} cannot be the name of a state: give a name of printable characters"
            raise UsageError(msg)
        key = (DEFAULT_OPERATOR, state)
        if key in self._written or key in self._removed:
            what = "written" if key in self._written else "removed"
            msg = f"state {state!r} is already {what} in checkpoint {self.checkpoint_id} of job {self._job_name!r}: name each state once"
            raise RefusedError(msg)
        return key

    def _take(self, acks: Sequence[Ack], info: StateInfo) -> None:
        self._acks += acks
        self._written[info.key] = info
        self._unfinished.discard(info.key)


def _checked_progress(progress: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    try:
        return None if progress is None else dict(json.loads(json.dumps(progress, allow_nan=False)))
    except (TypeError, ValueError) as error:
        msg = f"progress must be a mapping that JSON can hold ({error}): {progress!r}"
        raise UsageError(msg) from error
