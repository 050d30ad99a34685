"""What a process holds of a catalog: the jobs that it works for. What else it is asked for is read when it is asked, and soon forgotten.

Everything is read at the ledger's held snapshot, the version that the held jobs are folded to: whatever a decision looks at is of one
version. A decision that rests on another job carries that job's key, so that it does not matter that nobody follows that job here.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from holdfast.catalog import lineage
from holdfast.catalog.facts import Fact, JobRegistered
from holdfast.catalog.ledger import Ledger
from holdfast.catalog.rules.decision import job_key
from holdfast.catalog.state import LIFECYCLE_KINDS, ROW_KINDS, CatalogState, JobState, Ref, in_order
from holdfast.catalog.types import JobId, Scope

KEPT_JOBS = 16  # that a process which works for no job keeps, those that were asked for last

T = TypeVar("T")


class Ask(Protocol):
    """Tries a reading of the ledger again where that may help."""

    def __call__(self, reading: Callable[[], T]) -> T: ...


@dataclass(slots=True, kw_only=True)
class HeldJobs(CatalogState):
    """The jobs that were asked for, each whole, at the version of the ledger's snapshot. `handles_of` is the job that it works for."""

    ledger: Ledger
    ask: Ask
    _asked: dict[JobId, None] = field(default_factory=dict)  # the last one at the end

    def concerns(self, keys: Collection[str]) -> bool:
        """Whether a commit with these keys can have a fact of a held job."""
        return any(job_key(job_id) in keys for job_id in self.jobs)

    def apply(self, facts: Iterable[Fact]) -> None:
        """Fold in what is newer, of the jobs that are held: the others are read when they are asked for."""
        CatalogState.apply(self, (fact for fact in facts if getattr(fact, "job_id", None) in self.jobs))

    def find(self, job_id: JobId) -> JobState | None:
        job = self.jobs.get(job_id)
        if job is None and (job := self._read(job_id)) is not None:
            self.jobs[job_id], self.names[job.name] = job, job_id  # once it is whole: half of it would pass every compare-and-swap
        self._asked.pop(job_id, None)
        self._asked[job_id] = None
        return job

    def find_named(self, name: str) -> JobState | None:
        if name in self.names:
            return self.find(self.names[name])
        registered = self.ask(lambda: self.ledger.registered(name))
        return None if registered is None else self.find(registered.job_id)

    def every_name(self) -> Iterable[str]:
        return [fact.job for fact in self.ask(lambda: self.ledger.scan(["job"])) if isinstance(fact, JobRegistered)]

    def whole(self) -> CatalogState:
        """Read anew at each call, and held by nobody here."""
        state = CatalogState()
        state.apply(in_order(self.ask(lambda: self.ledger.scan(LIFECYCLE_KINDS))))
        if any(job.owners for job in state.jobs.values()):
            state.apply(self.ask(lambda: self.ledger.scan(ROW_KINDS, None, Scope.TASKOWNED)))
        return state

    def pinned(self) -> set[Ref]:
        return self.whole().pinned()

    def prune(self) -> None:
        """After a fold: of the job that this works for, what a reading of the folded ledger would not give. Other jobs are read anew when
        they are asked for: what a fold keeps of one depends on the lines of others that lead into it.
        """
        self._keep([job_id for job_id in self.jobs if job_id == self.handles_of])
        lineage.forget(CatalogState(jobs=self.jobs))

    def forget(self) -> None:
        """After a transaction: keep the job that this works for and those that it has claimed; without one, the last few."""
        keep = [job_id for job_id in self._asked if job_id in self.jobs][-KEPT_JOBS:]
        if self.handles_of is not None:
            keep = [job_id for job_id, job in self.jobs.items() if self.handles_of in {job_id, job.claimed_by}]
        self._keep(keep)

    def _keep(self, keep: Collection[JobId]) -> None:
        self._asked = dict.fromkeys(keep)
        if len(keep) < len(self.jobs):
            self.jobs = {job_id: self.jobs[job_id] for job_id in keep}
            self.names = {job.name: job_id for job_id, job in self.jobs.items()}

    def _read(self, job_id: JobId) -> JobState | None:
        read = CatalogState()
        read.apply(in_order(self.ask(lambda: self.ledger.scan(LIFECYCLE_KINDS, job_id))))
        job = read.jobs.get(job_id)
        if job is None:
            return None
        if job.owners:
            read.apply(self.ask(lambda: self.ledger.scan(ROW_KINDS, job_id, Scope.TASKOWNED)))
        if job_id == self.handles_of:
            job.open_handles = dict(self.ask(lambda: self.ledger.open_handles(job_id)))
        return job
