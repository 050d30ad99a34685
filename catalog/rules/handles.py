"""The commit rule of the design, section 3: which handles a commit ends and adds. Pure; membership by chunk.

A commit at seq S has its full content T. C is the set of the job's chunks whose intervals are open at the validated snapshot,
never the parent's content: a dropped branch's open intervals would otherwise swallow new checkpoints.
"""

from collections.abc import Collection, Mapping

from holdfast.catalog import facts as f
from holdfast.catalog.types import AttemptToken, Chunk, Identity, JobId, Scope


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
