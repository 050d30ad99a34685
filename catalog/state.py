"""The lifecycle facts folded into memory: what a transaction is validated against. Pure; facts in, state out.

Only what lifecycle decisions read is kept: jobs, attempts, checkpoints, holds, which handles of a job are open, and what open owners have
released. Other files and closed handles belong to the cleanup (`compaction/garbage.py`); a checkpoint's content is in its manifest.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.catalog import arguments, paths
from holdfast.catalog import facts as f
from holdfast.catalog.errors import NotFoundError, RefusedError
from holdfast.catalog.types import AttemptToken, CheckpointId, FileId, JobId, Purpose, Scope, Status

LIFECYCLE_KINDS = (
    "job",
    "start",
    "folded",
    "job_ended",
    "attempt_opened",
    "attempt_ended",
    "checkpoint",
    "drop",
    "hold",
    "unhold",
    "release",
)
ROW_KINDS = ("file",)  # read only of task-owned files, and where an owner is open
_OF_MAINTENANCE = (f.RunEnded, f.Condemned, f.Gone)


@dataclass(frozen=True, slots=True)
class Ref:
    """A checkpoint of a job."""

    job_id: JobId
    checkpoint_id: CheckpointId


@dataclass(slots=True)
class Attempt:
    opened: f.AttemptOpened
    status: Status = Status.OPEN
    reason: str | None = None

    @property
    def parent(self) -> Ref | None:
        return _ref(self.opened.parent_job_id, self.opened.parent_checkpoint_id)


@dataclass(slots=True)
class OwnerState:
    """An open owner: which of its files it has released, and of which others there are rows. Of one that has ended all are released."""

    opened: f.AttemptOpened
    rows: set[FileId] = field(default_factory=set)
    released: set[FileId] = field(default_factory=set)


@dataclass(slots=True)
class CheckpointRow:
    fact: f.CheckpointCommitted
    live: bool = True

    @property
    def parent(self) -> Ref | None:
        """Its parent, or the nearest ancestor whose row a fold has kept."""
        if self.fact.ancestor_checkpoint_id is None:
            return _ref(self.fact.parent_job_id, self.fact.parent_checkpoint_id)
        return _ref(self.fact.ancestor_job_id, self.fact.ancestor_checkpoint_id or None)

    @property
    def counts(self) -> bool:
        """Whether it is one of those that a retention keeps or drops."""
        return self.live and not self.fact.is_savepoint

    @property
    def line(self) -> AttemptToken | None:
        """Whose handles are its content: the job's main line (None), or a savepoint's own."""
        return self.fact.attempt if self.fact.is_savepoint else None

    @property
    def is_outside(self) -> bool:
        """Whether it is a savepoint outside the catalog, of which the ledger has no handles and no files."""
        return self.fact.is_savepoint and paths.is_address(self.fact.path)


@dataclass(slots=True)
class JobState:
    """One job at the version that its state was folded to."""

    registered: f.JobRegistered
    seq: int = 0
    epoch: int = 0
    begin: Ref | None = None  # what the newest start began with, or the last commit after it
    last_checkpoint_id: int = 0  # the greatest id ever given to an attempt
    attempts: dict[AttemptToken, Attempt] = field(default_factory=dict)
    open_attempts: dict[AttemptToken, Attempt] = field(default_factory=dict)
    checkpoints: dict[CheckpointId, CheckpointRow] = field(default_factory=dict)
    live: dict[CheckpointId, CheckpointRow] = field(default_factory=dict)
    last_committed_id: int = 0  # on the main line
    holds: set[tuple[CheckpointId, str]] = field(default_factory=set)
    savepoints: dict[str, AttemptToken] = field(default_factory=dict)  # every name ever taken
    owner_names: dict[str, AttemptToken] = field(default_factory=dict)  # every name ever taken
    owners: dict[AttemptToken, OwnerState] = field(default_factory=dict)  # those that are open
    claimed_by: JobId | None = None  # whose retention owns this job's checkpoints, until a coordinator of its own starts
    begun_from: set[JobId] = field(default_factory=set)  # other jobs that a start began with: none but these can it have claimed
    open_handles: dict[tuple[FileId, int], int] = field(default_factory=dict)  # chunk -> from_seq
    folded_id: int = 0  # up to this id of a checkpoint, what has ended or was dropped may be forgotten

    @property
    def job_id(self) -> JobId:
        return self.registered.job_id

    @property
    def name(self) -> str:
        return self.registered.job

    @property
    def head(self) -> CheckpointId | None:
        """The checkpoint that the job continues from; None before the first, and after a start from nothing."""
        return self.begin.checkpoint_id if self.begin and self.begin.job_id == self.job_id else None

    def droppable(self) -> list[tuple[CheckpointId, CheckpointRow]]:
        """The live checkpoints that a policy may drop, ascending: held ones and savepoints are not."""
        return [(n, row) for n, row in sorted(self.live.items()) if row.counts and not self.is_held(n)]

    def keeps(self, checkpoint_id: CheckpointId) -> bool:
        """Whether the checkpoint is live, held, or pinned by an attempt of this job: then its files stay. Other jobs may pin it too."""
        ref = Ref(self.job_id, checkpoint_id)
        return checkpoint_id in self.live or self.is_held(checkpoint_id) or any(a.parent == ref for a in self.open_attempts.values())

    def is_held(self, checkpoint_id: CheckpointId) -> bool:
        return any(held == checkpoint_id for held, _ in self.holds)

    def is_open(self, checkpoint_id: CheckpointId) -> bool:
        return any(attempt.opened.checkpoint_id == checkpoint_id for attempt in self.open_attempts.values())

    def ancestry(self, checkpoint_id: CheckpointId | None) -> Iterator[CheckpointRow]:
        """A checkpoint of this job and its ancestors within the job, newest first, dropped ones included."""
        while checkpoint_id is not None:
            row = self.checkpoints[checkpoint_id]
            yield row
            parent = row.parent
            checkpoint_id = parent.checkpoint_id if parent and parent.job_id == self.job_id else None


@dataclass(slots=True)
class CatalogState:
    """The jobs of a catalog: all of them where all facts were applied. `HeldJobs` has those that a process was asked for.

    `handles_of` names the job whose open handles are kept (None: no handles; "*": of all).
    """

    handles_of: str | None = None
    jobs: dict[JobId, JobState] = field(default_factory=dict)
    names: dict[str, JobId] = field(default_factory=dict)

    def apply(self, facts: Iterable[f.Fact]) -> None:
        """Fold facts in, in the order of each job's `seq`."""
        for fact in facts:
            if isinstance(fact, f.JobRegistered):
                self.jobs[fact.job_id] = JobState(fact, seq=fact.seq)
                self.names[fact.job] = fact.job_id
            elif not isinstance(fact, _OF_MAINTENANCE) and (job := self.jobs.get(fact.job_id)):
                job.seq = max(job.seq, fact.seq)
                if (apply := _APPLY.get(type(fact))) is not None:  # a table: a fold asks it for each fact there is
                    apply(self, job, fact)

    def find(self, job_id: JobId) -> JobState | None:
        """The job of this id, if there is one."""
        return self.jobs.get(job_id)

    def find_named(self, name: str) -> JobState | None:
        """The job of this name, if there is one."""
        return self.jobs[self.names[name]] if name in self.names else None

    def every_name(self) -> Iterable[str]:
        """The names of all jobs."""
        return self.names

    def whole(self) -> "CatalogState":
        """The state of every job, at the same version: for cleanup, for reports, and for who asks what all of them pin."""
        return self

    def job(self, job_id: JobId) -> JobState:
        """The job of this id. Raises NotFoundError."""
        job = self.find(job_id)
        if job is None:
            msg = f"the ledger has no job {job_id}: look at the view jobs for the ones it has"
            raise NotFoundError(msg)
        return job

    def job_named(self, name: str) -> JobState:
        """The job of this name. Raises NotFoundError, UsageError."""
        job = self.find_named(arguments.text(name, "the name of a job"))
        if job is None:
            known = ", ".join(sorted(self.every_name())) or "none"
            msg = f"the catalog has no job named {name!r} (it has: {known}); a job is registered by its first coordinate(...)"
            raise NotFoundError(msg)
        return job

    def claimed_by(self, job_id: JobId) -> list[JobState]:
        """The jobs whose checkpoints this one's retention owns.

        A claim is a start that begins with the other job's checkpoint, so that only those of `begun_from` are asked.
        """
        asked = (self.find(other) for other in sorted(self.job(job_id).begun_from))
        return [job for job in asked if job is not None and job.claimed_by == job_id]

    def checkpoint(self, ref: Ref) -> CheckpointRow:
        """A committed checkpoint, live or dropped. Raises NotFoundError, or RefusedError for one that may have been forgotten."""
        job = self.job(ref.job_id)
        if ref.checkpoint_id not in job.checkpoints:
            live = ", ".join(str(n) for n in sorted(job.live)) or "none"
            if 0 < ref.checkpoint_id <= job.folded_id and not job.is_open(ref.checkpoint_id):
                msg = f"checkpoint {ref.checkpoint_id} of job {job.name!r} was dropped long ago, or never committed; live ones: {live}"
                raise RefusedError(msg)
            msg = f"job {job.name!r} has no committed checkpoint {ref.checkpoint_id}; live ones: {live}"
            raise NotFoundError(msg)
        return job.checkpoints[ref.checkpoint_id]

    def is_live(self, ref: Ref) -> bool:
        """Whether it is live now: it may have been forgotten since it was."""
        return ref.checkpoint_id in self.job(ref.job_id).live

    def ancestry(self, ref: Ref | None) -> Iterator[CheckpointRow]:
        """A checkpoint and its ancestors, on into other jobs of the catalog, newest first, dropped ones included."""
        while ref is not None:
            row = self.checkpoint(ref)
            yield row
            ref = row.parent

    def pinned(self) -> set[Ref]:
        """Parents of open attempts, and held checkpoints, of every job."""
        held = {Ref(job.job_id, n) for job in self.jobs.values() for n, _ in job.holds}
        parents = {a.parent for job in self.jobs.values() for a in job.open_attempts.values()}
        return held | {p for p in parents if p is not None}


def _apply_handle(state: CatalogState, job: JobState, fact: f.HandleAdded) -> None:
    if fact.to_seq is None and state.handles_of in {job.job_id, "*"}:
        job.open_handles[fact.file_id, fact.offset_bytes] = fact.from_seq


def _apply_handle_end(_: CatalogState, job: JobState, fact: f.HandleEnded) -> None:
    job.open_handles.pop((fact.file_id, fact.offset_bytes), None)


def _apply_start(_: CatalogState, job: JobState, fact: f.Started) -> None:
    job.epoch, job.claimed_by = fact.epoch, fact.claimed_by
    job.begin = _ref(fact.parent_job_id, fact.parent_checkpoint_id)
    if job.begin is not None and job.begin.job_id != job.job_id:
        job.begun_from.add(job.begin.job_id)


def _apply_fold(_: CatalogState, job: JobState, fact: f.Folded) -> None:
    job.epoch, job.claimed_by = fact.epoch, fact.claimed_by
    job.begin = _ref(fact.parent_job_id, fact.parent_checkpoint_id)
    job.begun_from = {JobId(each) for each in json.loads(fact.claims)} if fact.claims is not None else set()
    job.last_checkpoint_id = job.folded_id = fact.checkpoint_id
    job.last_committed_id = fact.last_committed_id


def _apply_opening(_: CatalogState, job: JobState, fact: f.AttemptOpened) -> None:
    job.attempts[fact.attempt] = job.open_attempts[fact.attempt] = Attempt(fact)
    job.last_checkpoint_id = max(job.last_checkpoint_id, fact.checkpoint_id or 0)
    if fact.name is not None:
        (job.owner_names if fact.purpose is Purpose.OWNER else job.savepoints)[fact.name] = fact.attempt
    if fact.purpose is Purpose.OWNER:
        job.owners[fact.attempt] = OwnerState(fact)


def _apply_end(_: CatalogState, job: JobState, fact: f.AttemptEnded) -> None:
    attempt = job.attempts[fact.attempt]
    attempt.status, attempt.reason = fact.status, fact.reason
    job.open_attempts.pop(fact.attempt, None)
    job.owners.pop(fact.attempt, None)


def _apply_file(_: CatalogState, job: JobState, fact: f.FileWritten) -> None:
    owner = job.owners.get(fact.attempt)
    if owner is not None and fact.scope is Scope.TASKOWNED and fact.file_id not in owner.released:
        owner.rows.add(fact.file_id)


def _apply_release(_: CatalogState, job: JobState, fact: f.Released) -> None:
    owner = job.owners.get(fact.attempt)
    if owner is not None:
        owner.released.add(fact.file_id)
        owner.rows.discard(fact.file_id)


def _apply_checkpoint(_: CatalogState, job: JobState, fact: f.CheckpointCommitted) -> None:
    job.checkpoints[fact.checkpoint_id] = job.live[fact.checkpoint_id] = CheckpointRow(fact)
    if not fact.is_savepoint:
        job.begin = Ref(job.job_id, fact.checkpoint_id)
        job.last_committed_id = max(job.last_committed_id, fact.checkpoint_id)


def _apply_drop(_: CatalogState, job: JobState, fact: f.Dropped) -> None:
    job.checkpoints[fact.checkpoint_id].live = False
    job.live.pop(fact.checkpoint_id, None)
    if job.head == fact.checkpoint_id:  # the job has ended, or another one owns its checkpoints
        job.begin = None


def _apply_hold(_: CatalogState, job: JobState, fact: f.Held) -> None:
    job.holds.add((fact.checkpoint_id, fact.hold))


def _apply_unhold(_: CatalogState, job: JobState, fact: f.Unheld) -> None:
    job.holds.discard((fact.checkpoint_id, fact.hold))


_APPLY: Mapping[type[f.Fact], Callable[[CatalogState, JobState, Any], None]] = {
    f.HandleAdded: _apply_handle,
    f.HandleEnded: _apply_handle_end,
    f.Started: _apply_start,
    f.Folded: _apply_fold,
    f.AttemptOpened: _apply_opening,
    f.AttemptEnded: _apply_end,
    f.FileWritten: _apply_file,
    f.Released: _apply_release,
    f.CheckpointCommitted: _apply_checkpoint,
    f.Dropped: _apply_drop,
    f.Held: _apply_hold,
    f.Unheld: _apply_unhold,
}


def in_order(facts: Iterable[f.Fact]) -> list[f.Fact]:
    """Facts of a scan in the order of their jobs' `seq`; those without one last. Compaction may have moved rows."""
    return sorted(facts, key=lambda fact: getattr(fact, "seq", sys.maxsize))


def _ref(job_id: JobId | None, checkpoint_id: CheckpointId | None) -> Ref | None:
    return None if job_id is None or checkpoint_id is None else Ref(job_id, checkpoint_id)
