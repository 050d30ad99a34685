"""The commit rule and retention of the design, section 3 and section 5: pure, membership by chunk.

A commit at seq S has its full content T. C is the set of the job's chunks whose intervals are open at the validated snapshot,
never the parent's content: a dropped branch's open intervals would otherwise swallow new checkpoints.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from holdfast.catalog import facts as f
from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import AttemptToken, CheckpointId, Chunk, FileId, JobId, KeepLast, Retention, Scope

Identity = tuple[FileId, int]


def by_identity(content: Iterable[Chunk]) -> dict[Identity, Chunk]:
    """The chunks of a content, in its order."""
    return {chunk.identity: chunk for chunk in content}


def handle_changes(
    job_id: JobId,
    seq: int,
    content: Mapping[Identity, Chunk],
    open_handles: Mapping[Identity, int],
    among: Collection[Identity] | None = None,
) -> tuple[list[f.HandleEnded], list[f.HandleAdded]]:
    """Ends for every chunk of C \\ T at `seq`, handles from `seq` for every chunk of T \\ C.

    An EXCLUSIVE handle ends at birth (`seq + 1`), so that it is never in C, and carrying one writes another.
    `among` are the only chunks in which C and T can differ (None: any), so that a commit costs what changed.
    """
    gone = [identity for identity in (open_handles if among is None else among) if identity in open_handles and identity not in content]
    new = [identity for identity in (content if among is None else among) if identity in content and identity not in open_handles]
    if len(content) - len(open_handles) != len(new) - len(gone):  # `among` was not all
        return handle_changes(job_id, seq, content, open_handles)
    ends = [
        f.HandleEnded(job_id=job_id, seq=seq, file_id=file_id, offset_bytes=offset, from_seq=open_handles[file_id, offset], to_seq=seq)
        for file_id, offset in gone
    ]
    return ends, [handle(job_id, seq, content[identity]) for identity in new]


def handle(job_id: JobId, seq: int, chunk: Chunk, savepoint: AttemptToken | None = None) -> f.HandleAdded:
    """The handle of a chunk that begins at `seq`: of the main line, or of one savepoint."""
    return f.HandleAdded(
        job_id=job_id,
        seq=seq,
        savepoint=savepoint,
        operator=chunk.operator,
        state=chunk.state,
        subtask=chunk.subtask,
        key_group_from=chunk.key_group_from,
        key_group_to=chunk.key_group_to,
        scope=chunk.scope,
        layer=chunk.layer,
        role=chunk.role,
        name=chunk.name,
        file_id=chunk.file_id,
        offset_bytes=chunk.offset_bytes,
        length_bytes=chunk.length_bytes,
        sha256=chunk.sha256,
        rows=chunk.rows,
        from_seq=seq,
        to_seq=seq + 1 if chunk.scope is Scope.EXCLUSIVE else None,
        inline=chunk.inline,
    )


def retired(job: JobState, committed: CheckpointId, parent: CheckpointId | None, seq: int, retention: Retention) -> list[CheckpointId]:
    """The live checkpoints that retention drops in the commit of `committed` (not yet in `job`) at `seq`.

    Keep-last counts the checkpoints of the head's ancestry, not ids, and no savepoint that the job started from. A checkpoint that a
    rollback abandoned goes when `count` live ones of the head's ancestry have a higher seq. Held checkpoints and savepoints stay.
    """
    if not isinstance(retention, KeepLast):
        return []
    line = (row.fact.seq for row in job.ancestry(parent) if row.counts)
    kept = [seq, *islice(line, retention.count - 1)]
    if len(kept) < retention.count:
        return []
    oldest_kept = min(kept)
    return [n for n, row in job.droppable() if n != committed and row.fact.seq < oldest_kept]


def retired_by_claim(
    state: CatalogState, job: JobState, parent: Ref | None, retention: Retention
) -> Iterator[tuple[JobState, list[CheckpointId]]]:
    """Of each job that this one has claimed, the live checkpoints that its next commit on `parent` drops.

    The head's ancestry goes on into the claimed job. Of that, what keep-last still counts stays with everything newer; once the job
    has enough checkpoints of its own, nothing of the claimed one is kept. Held checkpoints and savepoints stay.
    """
    others = state.claimed_by(job.job_id)
    if not others or not isinstance(retention, KeepLast):
        return  # before the ancestry is walked: without a claim, a commit costs the same however long that is
    own = [*job.ancestry(parent.checkpoint_id)] if parent and parent.job_id == job.job_id else []
    origin = own[-1].parent if own else parent
    missing = retention.count - 1 - sum(row.counts for row in own)
    for claimed in others:
        line = claimed.ancestry(origin.checkpoint_id) if origin and origin.job_id == claimed.job_id else iter(())
        kept = [row.fact.seq for row in islice((row for row in line if row.counts), max(missing, 0))]
        if missing > len(kept):
            continue
        oldest = min(kept, default=claimed.seq + 1)
        numbers = [n for n, row in claimed.droppable() if row.fact.seq < oldest]
        if numbers:
            yield claimed, numbers
