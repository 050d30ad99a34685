"""The facts of the ledger: one frozen class per kind, its fields named as the columns of `schema.py`.

Facts are appended, never changed; a fold replaces them by fewer that say the same (design, section 4b). `seq` is the job's version of
the transaction that wrote the fact; facts of the maintenance (condemned, gone, runs) belong to no lifecycle transaction and have none.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from holdfast.catalog.types import AttemptToken, CheckpointId, FileId, JobId, Purpose, Role, Scope, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRegistered:
    kind: ClassVar[str] = "job"
    job_id: JobId
    seq: int
    job: str
    max_parallelism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A coordinator's start: a new epoch and the checkpoint it begins with (None: from nothing).

    With `claimed_by`, the start is by the coordinator of another job, which owns this job's checkpoints from here.
    """

    kind: ClassVar[str] = "start"
    job_id: JobId
    seq: int
    epoch: int
    parent_job_id: JobId | None
    parent_checkpoint_id: CheckpointId | None
    claimed_by: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What a job's facts said of it together: written by a fold alone (`folding.py`), and replaced by the next one.

    The parent is what the job begins with; `checkpoint_id` the greatest id ever given to an attempt, `last_committed_id` the greatest
    that was committed on the main line (0: none); `claims` the jobs that it has claimed, as a JSON list.
    """

    kind: ClassVar[str] = "folded"
    job_id: JobId
    seq: int
    epoch: int
    parent_job_id: JobId | None
    parent_checkpoint_id: CheckpointId | None
    claimed_by: JobId | None
    checkpoint_id: int
    last_committed_id: int
    claims: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The program is done with its job: how, and (after it the drops of the same `seq`) what its policy keeps."""

    kind: ClassVar[str] = "job_ended"
    job_id: JobId
    seq: int
    outcome: str
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOpened:
    """`name` is a savepoint's or an owner's, taken from here; `note` says of a reader, an owner, and of who takes a savepoint, which
    process it is."""

    kind: ClassVar[str] = "attempt_opened"
    job_id: JobId
    seq: int
    attempt: AttemptToken
    checkpoint_id: CheckpointId | None
    purpose: Purpose
    epoch: int | None
    parent_job_id: JobId | None
    parent_checkpoint_id: CheckpointId | None
    name: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    kind: ClassVar[str] = "attempt_ended"
    job_id: JobId
    seq: int
    attempt: AttemptToken
    status: Status
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """`path`, `sha256` and `size_bytes` are of the manifest. Figures are of the whole checkpoint; `new_*` of what its attempt wrote.

    A path that is an address of its own (absolute) is of a savepoint outside the catalog. Where a fold has not kept the parent's row, the
    ancestor is the nearest one whose row it kept (id 0: none); else it is empty.
    """

    kind: ClassVar[str] = "checkpoint"
    job_id: JobId
    seq: int
    checkpoint_id: CheckpointId
    attempt: AttemptToken
    is_savepoint: bool
    name: str | None
    parent_job_id: JobId | None
    parent_checkpoint_id: CheckpointId | None
    is_incremental: bool
    is_key_group_aware: bool
    parallelism: int | None
    handles: int
    new_handles: int
    total_bytes: int
    new_bytes: int
    progress: str | None
    path: str
    sha256: str
    size_bytes: int
    is_self_contained: bool = False
    ancestor_job_id: JobId | None = None
    ancestor_checkpoint_id: CheckpointId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCommitted:
    kind: ClassVar[str] = "state"
    job_id: JobId
    seq: int
    checkpoint_id: CheckpointId
    operator: str
    state: str
    format: str
    key_columns: str | None  # JSON list
    schema: str | None
    layers: int
    rows: int | None
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleAdded:
    """A chunk belongs to the job's line (`savepoint` None) or to one savepoint (its attempt).

    From `from_seq` until `to_seq`; where that is None, until an end fact.
    """

    kind: ClassVar[str] = "handle"
    job_id: JobId
    seq: int
    savepoint: AttemptToken | None
    operator: str
    state: str
    subtask: int | None
    key_group_from: int | None
    key_group_to: int | None
    scope: Scope
    layer: int
    role: Role
    name: str | None
    file_id: FileId
    offset_bytes: int
    length_bytes: int
    sha256: str
    rows: int | None
    from_seq: int
    to_seq: int | None
    inline: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleEnded:
    """Ends the open handle of this chunk that began at `from_seq`."""

    kind: ClassVar[str] = "handle_end"
    job_id: JobId
    seq: int
    file_id: FileId
    offset_bytes: int
    from_seq: int
    to_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWritten:
    kind: ClassVar[str] = "file"
    job_id: JobId
    seq: int
    file_id: FileId
    attempt: AttemptToken
    path: str
    size_bytes: int
    sha256: str
    scope: Scope
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The owner that is `attempt` needs this file no more. The end of an owner says it of all of them."""

    kind: ClassVar[str] = "release"
    job_id: JobId
    seq: int
    attempt: AttemptToken
    file_id: FileId


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    kind: ClassVar[str] = "drop"
    job_id: JobId
    seq: int
    checkpoint_id: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    kind: ClassVar[str] = "hold"
    job_id: JobId
    seq: int
    checkpoint_id: CheckpointId
    hold: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unheld:
    kind: ClassVar[str] = "unhold"
    job_id: JobId
    seq: int
    checkpoint_id: CheckpointId
    hold: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    kind: ClassVar[str] = "ack"
    job_id: JobId
    seq: int
    checkpoint_id: CheckpointId
    operator: str
    state: str
    subtask: int | None
    bytes_written: int
    bytes_reused: int
    rows: int | None
    upload_ms: int
    digest_ms: int
    sort_ms: int | None
    sync_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Condemned:
    kind: ClassVar[str] = "condemned"
    job_id: JobId
    file_id: FileId
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    kind: ClassVar[str] = "gone"
    job_id: JobId
    file_id: FileId
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """A maintenance run; `figures` is JSON."""

    kind: ClassVar[str] = "run"
    run_id: str
    what: str
    started_at: datetime
    ended_at: datetime
    outcome: str
    figures: str


Fact = (
    JobRegistered
    | Started
    | Folded
    | JobEnded
    | AttemptOpened
    | AttemptEnded
    | CheckpointCommitted
    | StateCommitted
    | HandleAdded
    | HandleEnded
    | FileWritten
    | Released
    | Dropped
    | Held
    | Unheld
    | Acknowledged
    | Condemned
    | Gone
    | RunEnded
)

# Of these there are many: a fold may leave them in files of their own (`big_files.py`).
BIG_KINDS = frozenset({"handle", "file", "state", "ack"})

KINDS: dict[str, type[Fact]] = {
    cls.kind: cls
    for cls in (
        JobRegistered,
        Started,
        Folded,
        JobEnded,
        AttemptOpened,
        AttemptEnded,
        CheckpointCommitted,
        StateCommitted,
        HandleAdded,
        HandleEnded,
        FileWritten,
        Released,
        Dropped,
        Held,
        Unheld,
        Acknowledged,
        Condemned,
        Gone,
        RunEnded,
    )
}
