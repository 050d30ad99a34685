"""Retention: which checkpoints a commit drops (design, section 5). Pure."""

from collections.abc import Iterator
from itertools import islice

from holdfast.catalog.state import CatalogState, JobState, Ref
from holdfast.catalog.types import CheckpointId, KeepLast, Retention


def retired(job: JobState, committed: CheckpointId, parent: CheckpointId | None, seq: int, retention: Retention) -> list[CheckpointId]:
    """The live checkpoints that retention drops in the commit of `committed` (not yet in `job`) at `seq`.

    Keep-last counts the checkpoints of the head's ancestry, not ids, and no savepoint that the job started from. A checkpoint that a
    rollback abandoned is dropped when `count` live ones of the head's ancestry have a higher seq. Held checkpoints and savepoints stay.
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

    The head's ancestry continues into the claimed job. Of that, what keep-last still counts stays with everything newer; once the job
    has enough checkpoints of its own, nothing of the claimed one is kept. Held checkpoints and savepoints stay.
    """
    if not isinstance(retention, KeepLast):
        return
    others = [(claimed, droppable) for claimed in state.claimed_by(job.job_id) if (droppable := claimed.droppable())]
    if not others:
        return  # before the ancestry is walked
    missing, origin = _missing(job, parent, retention.count - 1)
    for claimed, droppable in others:
        line = claimed.ancestry(origin.checkpoint_id) if origin and origin.job_id == claimed.job_id else iter(())
        kept = [row.fact.seq for row in islice((row for row in line if row.counts), missing)]
        if missing > len(kept):
            continue
        oldest = min(kept, default=claimed.seq + 1)
        numbers = [n for n, row in droppable if row.fact.seq < oldest]
        if numbers:
            yield claimed, numbers


def _missing(job: JobState, parent: Ref | None, count: int) -> tuple[int, Ref | None]:
    """How many of `count` checkpoints the line from `parent` on lacks within the job, and where it goes on in another job (None if it
    lacks none). Walked no further than needed: once the job has enough of its own, a commit costs the same however long its line is.
    """
    while count > 0 and parent is not None and parent.job_id == job.job_id:
        row = job.checkpoints[parent.checkpoint_id]
        count, parent = count - row.counts, row.parent
    return count, parent
