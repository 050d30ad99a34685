"""What an attempt at a checkpoint has so far: states, acknowledgements, and whether it is still open. Sealed, it is what to commit."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import RefusedError, UnsafeSettingsError, UsageError
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import store_manifest
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.handles import Identity
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
    StateInfo,
    StoredFile,
)
from holdfast.writers.engine_errors import explained, is_failed_sync
from holdfast.writers.failure_policy import AttemptWatch
from holdfast.writers.presence import require_there
from holdfast.writers.stores.shares import DirectoryShares, shares_of
from holdfast.writers.upload import CALLS, ParentState, UploadContext, WrittenState, bytes_of, with_reused

PROGRESS_LIMIT_BYTES = 1_000_000


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


class AttemptContent:
    """The states of one attempt, each in full: written in it, or carried from the parent. How they are written is the writer's."""

    def __init__(
        self,
        *,
        storage: Storage,
        environment: Environment,
        job: JobState,
        opened: f.AttemptOpened,
        parent: Manifest | None,
        progress: Mapping[str, Any] | None,
    ) -> None:
        assert opened.checkpoint_id is not None
        self._storage, self._parent = storage, parent
        self._job_id, self._job_name, self._max_parallelism = job.job_id, job.name, job.registered.max_parallelism
        self._attempt = opened.attempt
        self._parent_ref = (
            Ref(opened.parent_job_id, opened.parent_checkpoint_id) if opened.parent_job_id and opened.parent_checkpoint_id else None
        )
        self._metadata = CheckpointMetaData(checkpoint_id=opened.checkpoint_id, timestamp=environment.now())
        self._environment = environment
        self._progress = _checked_progress(progress)
        self._inherited: frozenset[Identity] = frozenset(chunk.identity for chunk in parent.chunks) if parent else frozenset()
        self._written: dict[tuple[str, str], WrittenState | None] = {}  # None: there is no such state, before and after
        self._removed: set[tuple[str, str]] = set()
        self._unfinished: set[tuple[str, str]] = set()  # a write began and has not ended well
        self._acks: list[Ack] = []
        self._owned: tuple[StoredFile, ...] = ()
        self._directories: dict[tuple[str, str], DirectoryShares] = {}
        self._calls = 0
        self._sealed = False
        self._watch: AttemptWatch | None = None
        self._manifest_file: StoredFile | None = None
        self._not_durable: Exception | None = None  # after this nothing of the attempt is believed
        self._own_error: Exception | None = None  # what a write, or the commit, was last told as
        self.result: CheckpointResult | None = None
        self.failure: Exception | None = None  # why there is no result, where the job tolerates it

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self._metadata.checkpoint_id

    @property
    def attempt(self) -> AttemptToken:
        return self._attempt

    @property
    def acked_files(self) -> tuple[StoredFile, ...]:
        """Every file that an ack has named so far."""
        of_tasks = [ack for shares in [*self._directories.values()] for ack in shares.acks]  # an alarm asks while states begin
        return tuple({file.file_id: file for ack in (*self._acks, *of_tasks) for file in ack.files}.values())

    @property
    def written_files(self) -> tuple[StoredFile, ...]:
        """As `acked_files`, with the manifest, if that was written: what an abort leaves to vacuum."""
        return self.acked_files if self._manifest_file is None else (*self.acked_files, self._manifest_file)

    def watched_by(self, watch: AttemptWatch) -> None:
        """From here each step asks it first whether the attempt is still open."""
        self._watch = watch

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step of the attempt: if that has ended meanwhile, it fails with AttemptEndedError, whatever it raised itself (its cause).

        An error of storage or of the engine whose remedy is known is told with that. `what` is done, in words. After a step that could
        not make durable what it wrote, every other fails as it did: the next sync of the same bytes would succeed, whatever became of them.
        """
        try:
            if self._watch is not None:
                self._watch.require_open()
            if self._not_durable is not None:
                raise self._not_durable
            yield
            if self._watch is not None and not self._sealed:
                self._watch.require_open()
        except Exception as error:
            if is_failed_sync(error):
                self._not_durable = error
            ended = error if self._watch is None else self._watch.told(error)
            self._own_error = explained(
                ended, f"{what} of checkpoint {self.checkpoint_id} of job {self._job_name!r}", self._storage.address
            )
            if self._own_error is error:
                raise
            raise self._own_error from error

    def is_own(self, error: BaseException) -> bool:
        """Whether a step of this checkpoint raised it, and not the user's code between them."""
        return error is self._own_error

    def close(self) -> None:
        """After this nothing can be written: it would be lost without a word."""
        self._sealed = True
        for shares in self._directories.values():
            shares.cancel()

    def seal(self, retention: Retention, next_attempt: AttemptToken) -> tuple[CommitRequest, Manifest]:
        """Fix the content, write it as `_metadata`, and say what to commit. After this nothing can be written.

        Raises:
            RefusedError: a write failed and was neither repeated nor removed; the parent's state would be carried in its place.
            AttemptEndedError, ForeignTokensError: the manifest's place is taken.
        """
        for shares in self._directories.values():
            self._take(shares.finish(), shares.writer.context)
        self.close()
        self._require_finished()
        carried = [info for info in self._parent.states if info.key not in self._written.keys() | self._removed] if self._parent else []
        written = [state for state in self._written.values() if state is not None]
        states = (*carried, *(state.info for state in written))
        keys = {info.key for info in carried}
        reused = [chunk for chunk in self._parent.chunks if (chunk.operator, chunk.state) in keys] if self._parent else []
        content = (*reused, *(chunk for state in written for chunk in state.content))
        manifest = self._manifest(states, content)
        self._manifest_file = store_manifest(self._storage, manifest, self._inherited)
        request = CommitRequest(
            attempt=self._attempt,
            content=content,
            states=states,
            inherited=self._inherited,
            files=self.acked_files,
            acks=tuple(self._acks),
            manifest=self._manifest_file,
            progress=self._progress,
            retention=retention,
            next_attempt=next_attempt,
            owned=self._owned,
        )
        return request, manifest

    def require_there(self, manifest: Manifest, may_commit: Callable[[], object]) -> None:
        """Look at every file that the sealed content refers to and the parent has not: it is where this process sees the catalog.

        `may_commit` raises where the ledger's rules forbid the commit: that is why cleanup may have taken a file, and is told instead.
        Raises UnsafeSettingsError: a host has written to another file system.
        """
        before = self._parent.files if self._parent else {}
        try:
            require_there(self._storage, [file for file_id, file in manifest.files.items() if file_id not in before])
        except UnsafeSettingsError:
            may_commit()
            raise

    def _require_finished(self) -> None:
        if self._unfinished:
            names = ", ".join(repr(state) for _, state in sorted(self._unfinished))
            msg = (
                f"checkpoint {self.checkpoint_id} of job {self._job_name!r} cannot be committed: the write of {names} failed, and the "
                "older state would be carried in its place; write it again within the block, or remove it"
            )
            raise RefusedError(msg)

    def _manifest(self, states: tuple[StateInfo, ...], content: tuple[Chunk, ...]) -> Manifest:
        files: dict[FileId, StoredFile] = {
            **(self._parent.files if self._parent else {}),
            **{file.file_id: file for file in (*self.acked_files, *self._owned)},
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

    @contextmanager
    def _writing(self, state: str, key: Sequence[str]) -> Iterator[UploadContext]:
        """One call that writes a state."""
        context = self._context(state, key)
        with self.step(f"writing state {state!r}"):
            yield context

    def _context(self, state: str, key: Sequence[str]) -> UploadContext:
        operator, state = self._free_key(state)
        self._unfinished.add((operator, state))
        call, self._calls = self._calls, self._calls + CALLS
        return UploadContext(
            storage=self._storage,
            job_id=JobId(self._job_id),
            attempt=self._attempt,
            metadata=self._metadata,
            call=call,
            operator=operator,
            state=state,
            layer=self._next_layer(operator, state),
            key_columns=_names(key),
            max_parallelism=self._max_parallelism,
        )

    def _shares(self, state: str, subtasks: int | None, immutable: Sequence[str]) -> DirectoryShares:
        """Those of this state, from the first call on."""
        require_state_name(state)
        shares = self._directories.get((DEFAULT_OPERATOR, state))
        if shares is not None and not self._sealed:
            shares.require_same(subtasks, immutable)
            return shares
        context = self._context(state, ())
        parent = self._parent_state(context)
        parent_id = self._parent.checkpoint_id if self._parent else None
        shares = shares_of(context, self._environment, parent, parent_id, subtasks, immutable)
        self._directories[context.operator, context.state] = shares
        return shares

    def _next_layer(self, operator: str, state: str) -> int:
        """The parent's highest layer of the state plus 1: a base hides what lies below it."""
        layers = [c.layer for c in self._parent.chunks if (c.operator, c.state) == (operator, state)] if self._parent else []
        return max(layers, default=-1) + 1

    def _parent_state(self, context: UploadContext) -> ParentState | None:
        info = self._parent.state(context.operator, context.state) if self._parent else None
        if self._parent is None or info is None:
            return None
        chunks = tuple(self._parent.chunks_of(info))
        return ParentState(max_parallelism=self._parent.max_parallelism, info=info, chunks=chunks, files=self._parent.files)

    def _free_key(self, state: str) -> tuple[str, str]:
        if self._sealed:
            msg = f"checkpoint {self.checkpoint_id} of job {self._job_name!r} has ended: write state {state!r} in the next one"
            raise RefusedError(msg)
        require_state_name(state)
        key = (DEFAULT_OPERATOR, state)
        if key in self._written or key in self._removed or key in self._directories:
            what = "removed" if key in self._removed else "written"
            msg = f"state {state!r} is already {what} in checkpoint {self.checkpoint_id} of job {self._job_name!r}: name each state once"
            raise RefusedError(msg)
        return key

    def _take(self, written: WrittenState | None, context: UploadContext) -> None:
        key = (context.operator, context.state)
        if written is not None:
            self._acks += with_reused(written.acks, bytes_of(chunk for chunk in written.content if chunk.identity in self._inherited))
        self._written[key] = written
        self._unfinished.discard(key)


def require_state_name(state: object) -> None:
    """Raises UsageError for what cannot be the name of a state."""
    if not isinstance(state, str) or not state or not state.isprintable():
        msg = f"{state!r} cannot be the name of a state: give a name of printable characters"
        raise UsageError(msg)


def _names(key: object) -> tuple[str, ...]:
    if isinstance(key, str):
        return (key,)
    if not isinstance(key, Sequence) or not all(isinstance(name, str) for name in key):  # of a set, the order would change
        msg = f"key={key!r} is no list of key columns: give their names, as key=['id']"
        raise UsageError(msg)
    return tuple(key)


def _checked_progress(progress: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Raises UsageError for what the ledger cannot keep, or its readers cannot ask for."""
    given: object = progress  # a program without types gives anything
    if progress is None:
        return None
    if not isinstance(given, Mapping):
        msg = f"progress must be a mapping that JSON can hold, and is a {type(given).__name__}"
        raise UsageError(msg)
    try:
        text = json.dumps(progress, allow_nan=False)
        plain = dict(json.loads(text))
        json.dumps(plain, ensure_ascii=False).encode()  # half of a surrogate pair, at which every query of the column would stop
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"progress must be a mapping that JSON can hold, and this is not ({type(error).__name__}: {error})"
        raise UsageError(msg) from error
    if len(text) > PROGRESS_LIMIT_BYTES:
        msg = (
            f"progress has {len(text)} bytes as JSON, and may have {PROGRESS_LIMIT_BYTES}: it goes into the ledger with every checkpoint, "
            "and each start reads it; write the rest as a state, checkpoint.write_bytes"
        )
        raise UsageError(msg)
    return plain
