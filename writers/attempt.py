"""An open attempt at a checkpoint: what it has so far, whether it is still open, and in the end what to commit."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.catalog import arguments
from holdfast.catalog import facts as f
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import RefusedError, UnsafeSettingsError, UsageError
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.manifest_store import left_manifest, store_manifest
from holdfast.catalog.rules.commit_facts import CommitRequest
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
    Identity,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AcknowledgedContent:
    """What a checkpoint consists of, once every upload for it was acknowledged: its states, and their chunks, carried ones included."""

    states: tuple[StateInfo, ...]
    chunks: tuple[Chunk, ...]


class OpenAttempt:
    """One attempt at a checkpoint while it is open: its states, each written in it or carried from the parent, and its acknowledgements.

    How states are written is the writer's business; what becomes of the attempt is that of its line.
    """

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
        self.storage, self.environment, self.parent = storage, environment, parent
        self._job_id, self._job_name, self._max_parallelism = job.job_id, job.name, job.registered.max_parallelism
        self.token = opened.attempt
        self.parent_ref = (
            Ref(opened.parent_job_id, opened.parent_checkpoint_id) if opened.parent_job_id and opened.parent_checkpoint_id else None
        )
        self._metadata = CheckpointMetaData(checkpoint_id=opened.checkpoint_id, timestamp=environment.now())
        self._progress = arguments.checked_progress(progress)
        self.inherited: frozenset[Identity] = frozenset(chunk.identity for chunk in parent.chunks) if parent else frozenset()
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
        self._own_error: Exception | None = None  # what a write, or the commit, last raised

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self._metadata.checkpoint_id

    @property
    def label(self) -> str:
        """For messages."""
        return f"checkpoint {self.checkpoint_id} of job {self._job_name!r}"

    @property
    def acked_files(self) -> tuple[StoredFile, ...]:
        """Every file that an ack has named so far."""
        of_tasks = [ack for shares in [*self._directories.values()] for ack in shares.acks]  # an alarm asks while states begin
        return tuple({file.file_id: file for ack in (*self._acks, *of_tasks) for file in ack.files}.values())

    @property
    def written_files(self) -> tuple[StoredFile, ...]:
        """As `acked_files`, with the manifest, if that was written: what an abort leaves to vacuum."""
        return self.acked_files if self._manifest_file is None else (*self.acked_files, self._manifest_file)

    @property
    def inline_bytes(self) -> int:
        """How many bytes the states have inline that were written so far, and those of the parent that were not written or removed."""
        written = (chunk for state in self._written.values() if state is not None for chunk in state.content)
        replaced = self._written.keys() | self._removed | self._unfinished
        carried = sum(size for key, size in self._inline_of_parent.items() if key not in replaced)
        return carried + sum(len(chunk.inline or b"") for chunk in written)

    @cached_property
    def _inline_of_parent(self) -> Mapping[tuple[str, str], int]:
        sizes = Counter[tuple[str, str]]()
        for chunk in self.parent.chunks if self.parent else ():
            if chunk.inline:
                sizes[chunk.operator, chunk.state] += len(chunk.inline)
        return sizes

    def watched_by(self, watch: AttemptWatch) -> None:
        """From here each step asks it first whether the attempt is still open."""
        self._watch = watch

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """A step of the attempt: if that has ended meanwhile, it fails with AttemptEndedError, whatever it raised itself (its cause).

        An error of storage or of the engine whose remedy is known is raised with it. `what` is done, in words. After a step that could
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
            self._own_error = explained(ended, f"{what} of {self.label}", self.storage.address)
            if self._own_error is error:
                raise
            raise self._own_error from error

    def is_own(self, error: BaseException) -> bool:
        """Whether a step of this checkpoint raised it, and not the user's code between them."""
        return error is self._own_error

    def close(self) -> None:
        """After this nothing can be written: it would be silently lost."""
        self._sealed = True
        for shares in self._directories.values():
            shares.cancel()

    def acknowledged(self) -> AcknowledgedContent:
        """Wait for what is still being uploaded, and fix the content: after this nothing can be written.

        Raises RefusedError: a write failed and was neither repeated nor removed; the parent's state would be carried instead.
        """
        for shares in self._directories.values():
            self.take(shares.finish(), shares.writer.context)
        self.close()
        self._require_finished()
        written = [state for state in self._written.values() if state is not None]
        if self.parent is None:
            carried, reused = [], []
        else:
            carried = [info for info in self.parent.states if info.key not in self._written.keys() | self._removed]
            keys = {info.key for info in carried}
            reused = [chunk for chunk in self.parent.chunks if (chunk.operator, chunk.state) in keys]
        return AcknowledgedContent(
            states=(*carried, *(state.info for state in written)),
            chunks=(*reused, *(chunk for state in written for chunk in state.content)),
        )

    def write_manifest(self, content: AcknowledgedContent) -> Manifest:
        """Write the content as `_metadata`, durably. Raises AttemptEndedError, ForeignTokensError: the manifest's place is taken."""
        manifest = self._manifest(content)
        try:
            self._manifest_file = store_manifest(self.storage, manifest, self.inherited)
        except BaseException:
            self._manifest_file = left_manifest(self.storage, manifest)
            raise
        return manifest

    def commit_request(self, content: AcknowledgedContent, retention: Retention, next_attempt: AttemptToken | None) -> CommitRequest:
        """What the ledger is asked to commit, once the manifest is written."""
        assert self._manifest_file is not None, "the manifest is written first"
        return CommitRequest(
            attempt=self.token,
            content=content.chunks,
            states=content.states,
            inherited=self.inherited,
            files=self.acked_files,
            acks=tuple(self._acks),
            manifest=self._manifest_file,
            progress=self._progress,
            retention=retention,
            next_attempt=next_attempt,
            owned=self._owned,
        )

    def require_there(self, manifest: Manifest, may_commit: Callable[[], object]) -> None:
        """Look at every file that the manifest refers to and the parent has not: it is where this process sees the catalog.

        `may_commit` raises where the ledger's rules forbid the commit: that is why cleanup may have taken a file, and is raised instead.
        Raises UnsafeSettingsError: a host has written to another file system.
        """
        before = self.parent.files if self.parent else {}
        try:
            require_there(self.storage, [file for file_id, file in manifest.files.items() if file_id not in before])
        except UnsafeSettingsError:
            may_commit()
            raise

    def _require_finished(self) -> None:
        if self._unfinished:
            names = ", ".join(repr(state) for _, state in sorted(self._unfinished))
            msg = (
                f"{self.label} cannot be committed: the write of {names} failed, and the "
                "older state would be carried instead; write it again within the block, or remove it"
            )
            raise RefusedError(msg)

    def _manifest(self, content: AcknowledgedContent) -> Manifest:
        files: dict[FileId, StoredFile] = {
            **(self.parent.files if self.parent else {}),
            **{file.file_id: file for file in (*self.acked_files, *self._owned)},
        }
        used = {chunk.file_id for chunk in content.chunks}
        return Manifest(
            job_id=self._job_id,
            job=self._job_name,
            max_parallelism=self._max_parallelism,
            checkpoint_id=self.checkpoint_id,
            attempt=self.token,
            parent=self.parent_ref,
            created_at=self._metadata.timestamp,
            progress=self._progress,
            states=content.states,
            chunks=content.chunks,
            files={file_id: file for file_id, file in files.items() if file_id in used},
        )

    @contextmanager
    def writing(self, state: str, key: Sequence[str]) -> Iterator[UploadContext]:
        """One call that writes a state."""
        context = self.context(state, key)
        with self.step(f"writing state {state!r}"):
            yield context

    def context(self, state: str, key: Sequence[str]) -> UploadContext:
        operator, state = self.free_key(state)
        self._unfinished.add((operator, state))
        call, self._calls = self._calls, self._calls + CALLS
        return UploadContext(
            storage=self.storage,
            job_id=JobId(self._job_id),
            attempt=self.token,
            metadata=self._metadata,
            call=call,
            operator=operator,
            state=state,
            layer=self._next_layer(operator, state),
            key_columns=_names(key),
            max_parallelism=self._max_parallelism,
        )

    def shares(self, state: str, subtasks: int | None, immutable: Sequence[str]) -> DirectoryShares:
        """Those of this state, from the first call on."""
        require_state_name(state)
        shares = self._directories.get((DEFAULT_OPERATOR, state))
        if shares is not None and not self._sealed:
            shares.require_same(subtasks, immutable)
            return shares
        context = self.context(state, ())
        parent = self.parent_state(context)
        parent_id = self.parent.checkpoint_id if self.parent else None
        shares = shares_of(context, self.environment, parent, parent_id, subtasks, immutable)
        self._directories[context.operator, context.state] = shares
        return shares

    def _next_layer(self, operator: str, state: str) -> int:
        """The parent's highest layer of the state plus 1: a base hides what lies below it."""
        layers = [c.layer for c in self.parent.chunks if (c.operator, c.state) == (operator, state)] if self.parent else []
        return max(layers, default=-1) + 1

    def parent_state(self, context: UploadContext) -> ParentState | None:
        info = self.parent.state(context.operator, context.state) if self.parent else None
        if self.parent is None or info is None:
            return None
        chunks = tuple(self.parent.chunks_of(info))
        return ParentState(max_parallelism=self.parent.max_parallelism, info=info, chunks=chunks, files=self.parent.files)

    def free_key(self, state: str) -> tuple[str, str]:
        if self._sealed:
            msg = f"{self.label} has ended: write state {state!r} in the next one"
            raise RefusedError(msg)
        require_state_name(state)
        key = (DEFAULT_OPERATOR, state)
        if key in self._written or key in self._removed or key in self._directories:
            what = "removed" if key in self._removed else "written"
            msg = f"state {state!r} is already {what} in {self.label}: name each state once"
            raise RefusedError(msg)
        return key

    def refer_to(self, owned: Sequence[StoredFile]) -> None:
        """The states of the attempt refer to these files of owners."""
        self._owned += tuple(owned)

    def shares_of(self, state: str) -> DirectoryShares | None:
        """The directories that this attempt waits for of the state; None: none, or it has ended."""
        require_state_name(state)
        return None if self._sealed else self._directories.get((DEFAULT_OPERATOR, state))

    def remove(self, state: str) -> None:
        """Do not carry this state of the parent."""
        self._removed.add((DEFAULT_OPERATOR, state))
        self._unfinished.discard((DEFAULT_OPERATOR, state))

    def take(self, written: WrittenState | None, context: UploadContext) -> None:
        key = (context.operator, context.state)
        if written is not None:
            self._acks += with_reused(written.acks, bytes_of(chunk for chunk in written.content if chunk.identity in self.inherited))
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
    if not isinstance(key, Sequence) or not all(isinstance(name, str) for name in key):  # a set has no order that stays
        msg = f"key={key!r} is not a list of key columns: pass their names, as key=['id']"
        raise UsageError(msg)
    return tuple(key)
