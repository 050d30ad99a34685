"""A small catalog in memory in which several jobs pin, fork and claim each other's checkpoints, told by the project's own decisions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog import paths
from holdfast.catalog.held_jobs import HeldJobs
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointId, Chunk, JobId, KeepAll, Retention, Role, Scope, StoredFile
from tests.support.model_ports import ModelEnvironment

Decide = Callable[[CatalogState], Decision]


def ref(job: JobId, number: int) -> Ref:
    return Ref(job, CheckpointId(number))


@dataclass(slots=True)
class Jobs:
    """One log; each transaction is of a process of its own."""

    log: MemoryLog = field(default_factory=MemoryLog)
    environment: ModelEnvironment = field(default_factory=ModelEnvironment)

    def say(self, decide: Decide) -> Any:
        return Transactor(MemoryLedger(self.log), self.environment).run(decide)

    def whole(self) -> CatalogState:
        """Everything, as one process would fold it that reads all facts."""
        state = CatalogState(handles_of="*")
        state.apply(fact for commit in self.log.commits for fact in commit.facts)
        return state

    def held(self, works_for: JobId | None = None) -> HeldJobs:
        """What a process holds that has not been asked for anything yet."""
        return HeldJobs(handles_of=works_for, ledger=MemoryLedger(self.log), ask=lambda reading: reading())

    def token(self) -> AttemptToken:
        return AttemptToken(self.environment.new_id())

    def job(self, job: JobId, checkpoints_: int = 0) -> JobId:
        """A registered job with so many checkpoints, all live."""
        self.say(lambda state: jobs.register(state, job, job.rpartition("-")[0], 128))
        self.start(job, None)
        for number in range(1, checkpoints_ + 1):
            self.commit(job, ref(job, number - 1) if number > 1 else None)
        return job

    def start(self, job: JobId, begin: Ref | None, *, claim: bool = False) -> int:
        epoch: int = self.say(lambda state: jobs.start(state, job, begin, claim=claim))
        return epoch

    def open(self, job: JobId, parent: Ref | None) -> f.AttemptOpened:
        epoch, token = self.held().job(job).epoch, self.token()
        opened: f.AttemptOpened = self.say(lambda state: checkpoints.open_checkpoint(state, job, epoch, token, parent))
        return opened

    def commit(self, job: JobId, parent: Ref | None, retention: Retention = KeepAll()) -> Ref:
        request = request_of(self.open(job, parent), retention)
        fact = self.say(lambda state: checkpoints.commit_checkpoint(state, job, request))
        return ref(job, fact.checkpoint_id)


def request_of(
    opened: f.AttemptOpened, retention: Retention = KeepAll(), scope: Scope = Scope.SHARED, next_attempt: AttemptToken | None = None
) -> CommitRequest:
    """A commit of one state in one new file."""
    file_id, manifest_id = paths.file_id(opened.attempt, 0, 0), paths.manifest_file_id(opened.attempt)
    chunk = Chunk(
        operator="main", state="a", file_id=file_id, scope=scope, role=Role.BASE, layer=0, offset_bytes=0, length_bytes=10, sha256="5a"
    )  # fmt: skip
    file, manifest = (
        StoredFile(file_id=i, path=f"path/{i}", size_bytes=10, sha256="5a", scope=s)
        for i, s in ((file_id, scope), (manifest_id, Scope.EXCLUSIVE))
    )
    return CommitRequest(
        attempt=opened.attempt, content=(chunk,), states=(), inherited=frozenset(), files=(file,), acks=(), manifest=manifest, progress=None,
        retention=retention, next_attempt=next_attempt,
    )  # fmt: skip
