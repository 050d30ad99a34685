"""The words of the design as types: ids, chunks, acknowledgements, properties. Nouns only; nothing here acts."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, NewType

from holdfast.catalog.arguments import is_whole
from holdfast.catalog.errors import UsageError

JobId = NewType("JobId", str)  # "<name as a slug>-<8 hex digits>", the job's directory
CheckpointId = NewType("CheckpointId", int)
AttemptToken = NewType("AttemptToken", str)  # 16 lower-case hex digits
FileId = NewType("FileId", str)  # "<attempt token>-<call>-<index>"

DEFAULT_OPERATOR = "main"
QUERY_ID = "query_id"  # in the progress of a checkpoint: the streaming query of whose batches it tells
INLINE_LIMIT_BYTES = 20_000  # of one state
INLINE_OF_CHECKPOINT_BYTES = 1_000_000  # of all states together: each checkpoint's manifest has them again
DEFAULT_MAX_PARALLELISM = 128
MAX_PARALLELISM_LIMIT = 32_768


class Scope(StrEnum):
    """Who ends a handle's interval (FLINK-8531)."""

    EXCLUSIVE = "EXCLUSIVE"
    SHARED = "SHARED"
    TASKOWNED = "TASKOWNED"


class Purpose(StrEnum):
    """What an attempt was opened for."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    READ = "read"
    MERGE = "merge"
    OWNER = "owner"


class Status(StrEnum):
    """The life of an attempt: open, then ended once."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    KILLED = "killed"
    RELEASED = "released"


class Role(StrEnum):
    """What the bytes of a chunk are to its state; `manifest` is a checkpoint's own `_metadata`.

    A file of several row groups has a chunk for each, and one for its footer, which is read with any one of them.
    """

    BASE = "base"
    UPSERTS = "upserts"
    DELETES = "deletes"
    FOOTER = "footer"
    FILE = "file"
    MANIFEST = "manifest"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file that one attempt made durable: path relative to the catalog's root, size, SHA-256 (hex)."""

    file_id: FileId
    path: str
    size_bytes: int
    sha256: str
    scope: Scope
    owner: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedFile:
    """A file of a state of files, as the task knows it that wrote it: `name` is the task's own word for it.

    `path` is relative to the catalog's root, and of a savepoint to its directory.
    """

    name: str
    file_id: FileId
    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A contiguous piece of one state. Identity is (file_id, offset_bytes); an inline chunk has an id of its own and no file."""

    operator: str
    state: str
    file_id: FileId
    scope: Scope
    role: Role
    layer: int
    offset_bytes: int
    length_bytes: int
    sha256: str
    rows: int | None = None
    subtask: int | None = None
    key_group_from: int | None = None
    key_group_to: int | None = None  # inclusive
    name: str | None = None
    inline: bytes | None = None

    @property
    def identity(self) -> tuple[FileId, int]:
        return (self.file_id, self.offset_bytes)


class Format(StrEnum):
    """How a state is kept."""

    PARQUET = "parquet"  # rows, of a DataFrame
    BYTES = "bytes"
    FILES = "files"  # whole files, which a task wrote
    DIRECTORY = "directory"  # an embedded store has one for each subtask


@dataclass(frozen=True, slots=True, kw_only=True)
class StateInfo:
    """What a checkpoint says of one state.

    `schema` is Spark's JSON of the user's columns, without `_key_group`.
    """

    operator: str
    state: str
    format: Format
    key_columns: tuple[str, ...] = ()
    schema: str | None = None
    layers: int = 1
    rows: int | None = None  # None: not known, of a state with change sets
    total_bytes: int = 0
    group_digests: str | None = None  # by key group, for `changed-groups`; None: not computed

    @property
    def key(self) -> tuple[str, str]:
        return (self.operator, self.state)

    @property
    def is_key_group_aware(self) -> bool:
        """Whether it can be split by key, or has nothing to split: not the rows without keys, nor the directory of a store (FLINK-5053)."""
        return self.format in (Format.BYTES, Format.FILES) or bool(self.key_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetaData:
    """The trigger that travels to every writer (FLINK-5777): which checkpoint, when, and whether it is a savepoint."""

    checkpoint_id: CheckpointId
    timestamp: datetime
    is_savepoint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointProperties:
    """What a checkpoint is, and so what can be done with it (the name is FLINK-5777's). The columns of the view `checkpoints`."""

    is_incremental: bool  # some of its content was written by an earlier checkpoint, or is of an owner
    is_key_group_aware: bool  # every state that has rows has keys: it can be read in part, and rescaled
    is_savepoint: bool
    is_self_contained: bool  # it refers to no file outside its own directory: it can be moved
    format: Literal["native", "canonical"]  # canonical: in full, by key group


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMetrics:
    """What a share cost (FLINK-5777): bytes, rows, milliseconds."""

    bytes_written: int = 0
    bytes_reused: int = 0
    rows: int | None = None
    upload_ms: int = 0
    digest_ms: int = 0
    sort_ms: int | None = None  # None: nothing was sorted by key group, or Spark did not report it
    sync_ms: int | None = None  # while the store stood still for its snapshot. None: there was none, or it was not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """What a writer returns for one share of one state: its files and chunks, durable before this exists, and its metrics."""

    checkpoint_id: CheckpointId
    attempt: AttemptToken
    operator: str
    state: str
    subtask: int | None
    files: tuple[StoredFile, ...]
    chunks: tuple[Chunk, ...]
    metrics: CheckpointMetrics


class Outcome(StrEnum):
    """How a program was done with its job."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnEnd:
    """Which outcomes of a job drop its checkpoints (Flink's externalized checkpoints). By default none: nothing goes by accident."""

    drop: Collection[Outcome | str] = frozenset()

    def __post_init__(self) -> None:
        known = [outcome.value for outcome in Outcome]
        given: object = self.drop  # a program without types gives anything
        if isinstance(given, str) or not isinstance(given, Collection) or not all(each in known for each in given):
            msg = f"drop={self.drop!r} is not a set of outcomes: pass some of {', '.join(map(repr, known))}, as {{'finished'}}"
            raise UsageError(msg)
        object.__setattr__(self, "drop", frozenset(map(Outcome, self.drop)))


@dataclass(frozen=True, slots=True)
class ChainLimit:
    """How far a state may grow above its base; the checkpoint that would go beyond writes a new base instead.

    `change_sets` counts the layers above the base. `share_of_base` is of the base's bytes: those of the change sets, or, where a new
    base of some key groups lies above an older one, those of the older that it hides. A small state has no chain, whatever the limit
    is: a base of it takes no longer than a change set (`docs/choosing-a-mode.md`).
    """

    change_sets: int = 10
    share_of_base: float = 0.5

    def __post_init__(self) -> None:
        share: object = self.share_of_base  # a program without types gives anything
        if not is_whole(self.change_sets, 0) or not (is_whole(share, 0) or (isinstance(share, float) and share >= 0)):
            msg = f"{self} is not a limit of chains: pass change_sets (whole) and share_of_base of 0 (no chains at all) or more"
            raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class KeepLast:
    """Retention: the newest `count` checkpoints of the head's ancestry stay live."""

    count: int

    def __post_init__(self) -> None:
        if not is_whole(self.count, 1):
            msg = (
                f"KeepLast({self.count!r}) is not a retention policy: pass a whole number of checkpoints, 1 or more: the job continues "
                "from the newest; or KeepAll()"
            )
            raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class KeepAll:
    """Retention: nothing is dropped by a commit."""


Retention = KeepLast | KeepAll


Identity = tuple[FileId, int]


def by_identity(content: Iterable[Chunk]) -> dict[Identity, Chunk]:
    """The chunks of a content, in its order."""
    return {chunk.identity: chunk for chunk in content}
