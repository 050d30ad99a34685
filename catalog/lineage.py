"""Which checkpoints and attempts a fold keeps of each job, and what a process that forgets keeps of them in memory. Pure.

What is neither live nor pinned now never is again (I2). So of all that is dropped no later decision asks for more than what stands here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.errors import FormatError
from holdfast.catalog.state import Attempt, CatalogState, CheckpointRow, JobState, Ref
from holdfast.catalog.types import QUERY_ID, CheckpointId, Purpose

# Whether an attempt that has ended is kept. A name is never given again; and an owner's end says that all its files are released.
KEPT_WHEN_ENDED: Mapping[Purpose, bool] = {
    Purpose.CHECKPOINT: False,
    Purpose.SAVEPOINT: True,
    Purpose.READ: False,
    Purpose.MERGE: False,
    Purpose.OWNER: True,
}


def is_attempt_kept(attempt: Attempt, job: JobState) -> bool:
    """Whether an attempt's opening and end are kept. Raises FormatError for a purpose that has no rule here."""
    purpose = attempt.opened.purpose
    if purpose not in KEPT_WHEN_ENDED:
        msg = f"attempt {attempt.opened.attempt} has the purpose {purpose!r}, which has no rule of what a fold keeps: nothing was folded"
        raise FormatError(msg)
    return KEPT_WHEN_ENDED[purpose] or attempt.opened.attempt in job.open_attempts


@dataclass(frozen=True, slots=True)
class Lineage:
    """The checkpoints of a catalog whose rows are kept, and among them those whose content is still asked for."""

    state: CatalogState
    content: frozenset[Ref]  # live or pinned
    rows: frozenset[Ref]
    ancestors: dict[Ref, Ref | None]  # of rows that are not kept, so far: the nearest kept one above

    @classmethod
    def of(cls, state: CatalogState) -> "Lineage":
        pinned = {ref for ref in state.pinned() if ref.job_id in state.jobs}
        content = pinned.union(Ref(job.job_id, n) for job in state.jobs.values() for n in job.live)
        return cls(state, frozenset(content), frozenset(_kept_rows(state, content)), {})

    def kept(self, fact: f.CheckpointCommitted) -> f.CheckpointCommitted | None:
        """The row of a checkpoint, if it is kept. Its true parent stays in it; the nearest kept ancestor stands beside."""
        if Ref(fact.job_id, fact.checkpoint_id) not in self.rows:
            return None
        parent = CheckpointRow(fact).parent
        if parent is None or parent in self.rows or parent.job_id not in self.state.jobs:
            return fact
        ancestor = self._nearest(parent)
        if ancestor is None:
            return replace(fact, ancestor_job_id=None, ancestor_checkpoint_id=CheckpointId(0))
        return replace(fact, ancestor_job_id=ancestor.job_id, ancestor_checkpoint_id=ancestor.checkpoint_id)

    def _nearest(self, ref: Ref) -> Ref | None:
        """The nearest kept row, from this one up. What is passed on the way is remembered: a line is walked once, however many ask."""
        found: Ref | None = ref
        way = []
        while found is not None and found not in self.rows and found not in self.ancestors and found.job_id in self.state.jobs:
            way.append(found)
            found = self.state.checkpoint(found).parent
        if found in self.ancestors:
            found = self.ancestors[found]
        self.ancestors.update(dict.fromkeys(way, found))
        return found


def _kept_rows(state: CatalogState, content: set[Ref]) -> set[Ref]:
    """Live and pinned checkpoints, what a job begins with, and savepoints, of which a second disposal still says that it was done.

    Of the dropped ancestors of what is live, pinned or begun with: where a line leaves its job (a claim asks which job that was), where two
    lines meet, and of each streaming query the newest, which says how far it had come.
    """
    begun = (job.begin for job in state.jobs.values() if job.begin is not None)
    anchors = content.union(ref for ref in begun if ref.job_id in state.jobs)
    anchors |= _meetings(state, anchors)
    rows = set(anchors)
    rows |= {Ref(job.job_id, n) for job in state.jobs.values() for n, row in job.checkpoints.items() if row.fact.is_savepoint}
    for ref in anchors:
        row = state.checkpoint(ref)
        told = {None, query_of(row)}
        while (parent := row.parent) is not None and parent not in anchors and parent.job_id in state.jobs:
            below, row = row, state.checkpoint(parent)
            query = query_of(row)
            if _leaves_its_job(below, parent) or query not in told:
                rows.add(parent)
                told.add(query)
    return rows


def _leaves_its_job(row: CheckpointRow, parent: Ref) -> bool:
    return parent.job_id != row.fact.job_id


def _meetings(state: CatalogState, anchors: set[Ref]) -> set[Ref]:
    """The rows at which lines meet on their way up from the anchors: between all these, each row is passed once."""
    passed: set[Ref] = set()
    meetings: set[Ref] = set()
    for ref in anchors:
        parent = state.checkpoint(ref).parent
        while parent is not None and parent not in anchors and parent.job_id in state.jobs:
            if parent in passed:
                meetings.add(parent)
                break
            passed.add(parent)
            parent = state.checkpoint(parent).parent
    return meetings


def query_of(row: CheckpointRow) -> Any:
    """The streaming query of whose batches the checkpoint's progress tells, if it does."""
    if row.fact.progress is None:
        return None
    progress = json.loads(row.fact.progress)
    return progress.get(QUERY_ID) if isinstance(progress, dict) else None


def forget(state: CatalogState) -> None:
    """Prune a process's memory to what it would hold if the ledger had been folded at its version and read anew.

    So a long-lived process is bounded by what is live, and reads nothing for it. Of a state that has some jobs only, a line is followed
    to where it comes to another, and what only others pin is forgotten: they read it when they need it.
    """
    lineage = Lineage.of(state)
    kept = {job_id: _remembered(job, lineage) for job_id, job in state.jobs.items()}
    for job_id, job in state.jobs.items():  # last: every line is looked at whole
        job.attempts = {token: attempt for token, attempt in job.attempts.items() if is_attempt_kept(attempt, job)}
        job.checkpoints = kept[job_id]
        job.live = {n: row for n, row in job.checkpoints.items() if row.live}
        job.begun_from = {each for each in job.begun_from if each not in state.jobs or state.jobs[each].claimed_by == job_id}
        job.folded_id = job.last_checkpoint_id


def _remembered(job: JobState, lineage: Lineage) -> dict[CheckpointId, CheckpointRow]:
    facts = ((n, row.live, lineage.kept(row.fact)) for n, row in job.checkpoints.items())
    return {n: CheckpointRow(fact, live) for n, live, fact in facts if fact is not None}
