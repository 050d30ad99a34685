"""What a committed checkpoint or savepoint says, as facts: the content, its states, files and acknowledgements. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.rules.handles import handle
from holdfast.catalog.state import JobState
from holdfast.catalog.types import (
    Ack,
    AttemptToken,
    CheckpointId,
    Chunk,
    Identity,
    JobId,
    Purpose,
    Retention,
    Role,
    Scope,
    StateInfo,
    StoredFile,
    by_identity,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """Everything that a checkpoint's commit says. `content` (T) is fixed when the manifest is written and never computed again.

    What costs a look at every chunk is computed here, once: a commit costs what changed, and a retry no more.
    """

    attempt: AttemptToken
    content: tuple[Chunk, ...]
    states: tuple[StateInfo, ...]
    inherited: frozenset[Identity]  # chunks of the pinned parent
    files: tuple[StoredFile, ...]  # written by this attempt, losers of duplicate acks included
    acks: tuple[Ack, ...]
    manifest: StoredFile
    progress: Mapping[str, Any] | None
    retention: Retention
    next_attempt: AttemptToken | None = None
    owned: tuple[StoredFile, ...] = ()  # files of owners that the parent has not
    chunks: Mapping[Identity, Chunk] = field(init=False, repr=False, compare=False)
    fresh: frozenset[Identity] = field(init=False, repr=False, compare=False)  # chunks that are not of the pinned parent
    touched: tuple[Identity, ...] = field(init=False, repr=False, compare=False)  # in which it differs from what the parent left open
    total_bytes: int = field(init=False)
    new_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        chunks = by_identity(self.content)
        object.__setattr__(self, "chunks", chunks)
        object.__setattr__(self, "total_bytes", sum(chunk.length_bytes for chunk in self.content))
        object.__setattr__(self, "fresh", frozenset(chunks.keys() - self.inherited))
        own = (i for i, chunk in chunks.items() if i not in self.inherited or chunk.scope is Scope.EXCLUSIVE)
        object.__setattr__(self, "touched", (*(self.inherited - chunks.keys()), *own))
        object.__setattr__(self, "new_bytes", sum(chunks[identity].length_bytes for identity in self.fresh))


def checkpoint_fact(job: JobState, opened: f.AttemptOpened, request: CommitRequest, seq: int, *, new_handles: int) -> f.CheckpointCommitted:
    """A checkpoint, or the savepoint that the attempt was opened for."""
    assert opened.checkpoint_id is not None
    is_savepoint = opened.purpose is Purpose.SAVEPOINT
    return f.CheckpointCommitted(
        job_id=job.job_id,
        seq=seq,
        checkpoint_id=opened.checkpoint_id,
        attempt=opened.attempt,
        is_savepoint=is_savepoint,
        name=opened.name,
        parent_job_id=opened.parent_job_id,
        parent_checkpoint_id=opened.parent_checkpoint_id,
        is_incremental=len(request.fresh) < len(request.chunks) or bool(request.owned),
        is_key_group_aware=all(info.is_key_group_aware for info in request.states),
        is_self_contained=is_savepoint,
        parallelism=None,
        handles=len(request.content),
        new_handles=new_handles,
        total_bytes=request.total_bytes,
        new_bytes=request.new_bytes,
        progress=None if request.progress is None else json.dumps(request.progress),
        path=request.manifest.path,
        sha256=request.manifest.sha256,
        size_bytes=request.manifest.size_bytes,
    )


def state_facts(job_id: JobId, seq: int, number: CheckpointId, states: Sequence[StateInfo]) -> list[f.StateCommitted]:
    return [
        f.StateCommitted(
            job_id=job_id,
            seq=seq,
            checkpoint_id=number,
            operator=info.operator,
            state=info.state,
            format=info.format,
            key_columns=json.dumps(info.key_columns),
            schema=info.schema,
            layers=info.layers,
            rows=info.rows,
            total_bytes=info.total_bytes,
        )
        for info in states
    ]


def manifest_handle(job_id: JobId, seq: int, request: CommitRequest, savepoint: AttemptToken | None = None) -> f.HandleAdded:
    """`_metadata` is referenced as every file is, so that one query decides when it goes."""
    manifest = request.manifest
    chunk = Chunk(
        operator="",
        state="",
        file_id=manifest.file_id,
        scope=manifest.scope,
        role=Role.MANIFEST,
        layer=0,
        offset_bytes=0,
        length_bytes=manifest.size_bytes,
        sha256=manifest.sha256,
        name=paths.MANIFEST_NAME,
    )
    return handle(job_id, seq, chunk, savepoint)


def file_facts(job_id: JobId, seq: int, token: AttemptToken, files: Sequence[StoredFile]) -> list[f.FileWritten]:
    return [
        f.FileWritten(
            job_id=job_id,
            seq=seq,
            file_id=file.file_id,
            attempt=token,
            path=file.path,
            size_bytes=file.size_bytes,
            sha256=file.sha256,
            scope=file.scope,
            owner=file.owner,
        )
        for file in files
    ]


def ack_fact(job_id: JobId, seq: int, ack: Ack) -> f.Acknowledged:
    return f.Acknowledged(
        job_id=job_id,
        seq=seq,
        checkpoint_id=ack.checkpoint_id,
        operator=ack.operator,
        state=ack.state,
        subtask=ack.subtask,
        bytes_written=ack.metrics.bytes_written,
        bytes_reused=ack.metrics.bytes_reused,
        rows=ack.metrics.rows,
        upload_ms=ack.metrics.upload_ms,
        digest_ms=ack.metrics.digest_ms,
        sort_ms=ack.metrics.sort_ms,
        sync_ms=ack.metrics.sync_ms,
    )
