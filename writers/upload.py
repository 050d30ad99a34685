"""The words of every upload: what a write call takes along, what it gives back, and the two ports, `(DataFrame, context) -> acks`.

Every file is digested and durable before the ack that names it exists; completeness is judged by rows, never by the number of acks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from holdfast.catalog import paths
from holdfast.catalog.layers import seen_chunks
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import (
    Ack,
    AttemptToken,
    ChainLimit,
    CheckpointMetaData,
    CheckpointMetrics,
    Chunk,
    FileId,
    JobId,
    Role,
    Scope,
    StateInfo,
    StoredFile,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAVEPOINT_ROW_GROUP_BYTES = 4 * 1024 * 1024  # in memory: a savepoint is read by key group, and a row group is the least that is read


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadContext:
    """What one write call of one attempt takes with it to the tasks. Picklable.

    `call` numbers the write calls of the attempt from 0: together with the attempt's token it names what the call writes,
    and `file_id` of the i-th file (in the order of paths) is `<attempt>-<call>-<i>`.
    `directory`, relative to `storage`, is where all files of the call go; None: the job's own place for them.
    """

    storage: Storage
    job_id: JobId
    attempt: AttemptToken
    metadata: CheckpointMetaData
    call: int
    operator: str
    state: str
    layer: int
    key_columns: tuple[str, ...]
    max_parallelism: int
    role: Role = Role.BASE
    directory: str | None = None

    @property
    def label(self) -> str:
        """For messages."""
        return f"state {self.state!r} of checkpoint {self.metadata.checkpoint_id}"

    def place(self, name: str, extension: str, scope: Scope) -> str:
        """The path of a file of this call, by a name that is unique for each task, and for each retry of a task."""
        if self.directory is not None:
            return f"{self.directory}/{name}.{extension}"
        place = paths.exclusive_file if scope is Scope.EXCLUSIVE else paths.shared_file
        return place(self.job_id, self.metadata.checkpoint_id, self.attempt, name, extension)

    @property
    def inline_scope(self) -> Scope:
        """Of what is inline: its row says the bytes once, for all checkpoints that carry them. A savepoint shares nothing."""
        return Scope.EXCLUSIVE if self.metadata.is_savepoint else Scope.SHARED

    def chunk(
        self,
        *,
        file_id: FileId,
        scope: Scope,
        role: Role,
        layer: int,
        length_bytes: int,
        sha256: str,
        offset_bytes: int = 0,
        rows: int | None = None,
        subtask: int | None = None,
        key_group_from: int | None = None,
        key_group_to: int | None = None,
        name: str | None = None,
        inline: bytes | None = None,
    ) -> Chunk:
        """A chunk of this call's state."""
        return Chunk(
            operator=self.operator,
            state=self.state,
            file_id=file_id,
            scope=scope,
            role=role,
            layer=layer,
            offset_bytes=offset_bytes,
            length_bytes=length_bytes,
            sha256=sha256,
            rows=rows,
            subtask=subtask,
            key_group_from=key_group_from,
            key_group_to=key_group_to,
            name=name,
            inline=inline,
        )

    def ack(self, chunks: Iterable[Chunk], files: Iterable[StoredFile], metrics: CheckpointMetrics, *, subtask: int | None = None) -> Ack:
        """That these chunks, and the files that were written for them, are durable."""
        return Ack(
            checkpoint_id=self.metadata.checkpoint_id,
            attempt=self.attempt,
            operator=self.operator,
            state=self.state,
            subtask=subtask,
            files=tuple(files),
            chunks=tuple(chunks),
            metrics=metrics,
        )


class Uploader(Protocol):
    """A way to bring a DataFrame's rows into the catalog, as the full state of one operator and name or as a part of a change set."""

    def write(self, df: "DataFrame", context: UploadContext) -> list[Ack]:
        """Upload every row once, with its key group in `_key_group`; returns the acks of exactly the winning files.

        Each row group is a chunk; what follows the last one of several is a chunk too, of role FOOTER.
        Of a savepoint with key columns the rows lie by key group, in small row groups, so that few are read for few groups.
        Runs the DataFrame's plan once. Nothing is returned unless the rows in the files equal an independent count of the same action.
        """


CALLS = 3  # that one write may make of an attempt's write calls, from its context's on


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentState:
    """What the pinned parent has of a state, whose job has so many key groups."""

    max_parallelism: int
    info: StateInfo
    chunks: tuple[Chunk, ...]
    files: Mapping[FileId, StoredFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenState:
    """What a write made of a state: its description and all of its chunks, carried ones included. Acks name what was uploaded for it.

    An ack may name files of which no chunk is left: they become file rows without handles.
    """

    acks: tuple[Ack, ...]
    info: StateInfo
    content: tuple[Chunk, ...]


def in_full(acks: Iterable[Ack], info: StateInfo) -> WrittenState:
    """A state that is all of its acks and nothing else."""
    acks = tuple(acks)
    return WrittenState(acks=acks, info=info, content=chunks_of(acks))


def on_parent(parent: ParentState, acks: Iterable[Ack], info: StateInfo) -> WrittenState:
    """A state that is its acks in layers above what they leave to be seen of the parent's."""
    acks = tuple(acks)
    new = chunks_of(acks)
    content = (*parent.chunks, *new)
    if any(chunk.role is Role.BASE for chunk in new):  # nothing else hides anything
        content = tuple(seen_chunks(content, parent.max_parallelism))
    layers = len({chunk.layer for chunk in content})
    return WrittenState(acks=acks, info=replace(info, layers=layers, total_bytes=bytes_of(content)), content=content)


def chunks_of(acks: Iterable[Ack]) -> tuple[Chunk, ...]:
    """The chunks that the acks name, in their order."""
    return tuple(chunk for ack in acks for chunk in ack.chunks)


def bytes_of(chunks: Iterable[Chunk]) -> int:
    """The bytes of the chunks together."""
    return sum(chunk.length_bytes for chunk in chunks)


def without_chunks(ack: Ack) -> Ack:
    """The ack of an upload of which nothing is used: its files are known, so that cleanup finds them by query."""
    return replace(ack, chunks=())


def with_reused(acks: Sequence[Ack], reused_bytes: int) -> tuple[Ack, ...]:
    """The acks of one state, which say how many bytes the state did not have to write: the first does, where tasks did not report it."""
    if sum(ack.metrics.bytes_reused for ack in acks) == reused_bytes:
        return tuple(acks)
    return tuple(replace(ack, metrics=replace(ack.metrics, bytes_reused=0 if i else reused_bytes)) for i, ack in enumerate(acks))


UploadBy = Literal["native", "streamed"]


class StateWriter(Protocol):
    """Brings the state of a DataFrame into the catalog and says what it wrote.

    A call may use up to `CALLS` consecutive call numbers, starting at `context.call`. `parent` is what the pinned parent has of
    the state; None: nothing.
    """

    def write(self, df: "DataFrame", context: UploadContext) -> tuple[list[Ack], StateInfo]:
        """Every row once, digested and durable; the acks of exactly the files that hold them, and the state's description."""

    def write_changed_groups(self, df: "DataFrame", context: UploadContext, parent: ParentState | None, limit: ChainLimit) -> WrittenState:
        """As `write`, but of the key groups whose rows are the parent's, refer to the parent's chunks."""

    def write_changes(
        self,
        upserts: "DataFrame | None",
        deletes: "DataFrame | None",
        context: UploadContext,
        parent: ParentState | None,
        limit: ChainLimit,
    ) -> WrittenState | None:
        """The parent's state with these changes, as a change set above it, or as a new base. None: there is no state, and none becomes."""
