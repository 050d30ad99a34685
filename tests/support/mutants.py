"""Each rule of the protocol, and the real code with that rule left out: what shows that the rule is needed.

A mutant takes the place of one function of the project for the length of a `with` block. It leaves out the rule and nothing else.
"""

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from holdfast.catalog import facts as f
from holdfast.catalog.ledger.memory import MemoryLog
from holdfast.catalog.references import References
from holdfast.catalog.rules import checkpoints, decision, handles, jobs, owned_files, owners
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.state import CatalogState, CheckpointRow, JobState, Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import JobId, Scope, Status
from holdfast.compaction import vacuum
from holdfast.compaction.orphans import OrphanRule, Verdict
from holdfast.writers import epoch
from holdfast.writers.checkpoint import Checkpoint
from holdfast.writers.line import Line
from holdfast.writers.start import StateMapping


@dataclass(frozen=True, slots=True)
class Mutant:
    """A rule in words, and the code without it."""

    meaning: str
    without: Callable[[], AbstractContextManager[None]]


@contextmanager
def replaced(where: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for an attribute of a module, class or object, until the block ends."""
    before = getattr(where, name)
    setattr(where, name, value)
    try:
        yield
    finally:
        setattr(where, name, before)


def _commit_by_parent() -> AbstractContextManager[None]:
    commit = checkpoints.commit_checkpoint

    def mutant(state: CatalogState, job_id: JobId, request: CommitRequest) -> Decision:
        job = state.job(job_id)
        shared = {chunk.identity for chunk in request.content if chunk.scope is Scope.SHARED}
        of_parent = {i: job.open_handles.get(i, 0) for i in request.inherited if i in shared or i in job.open_handles}
        with replaced(job, "open_handles", of_parent):
            return commit(state, job_id, request)

    return replaced(checkpoints, "commit_checkpoint", mutant)


def _commit_by_the_change() -> AbstractContextManager[None]:
    """As if whatever parent a commit has had left its content open."""
    commit, changes = checkpoints.commit_checkpoint, handles.handle_changes

    def mutant(state: CatalogState, job_id: JobId, request: CommitRequest) -> Decision:
        def among_touched(job: JobId, seq: int, content: Any, open_handles: Any, among: Any = None) -> Any:
            of_content, of_open = ({i: have[i] for i in request.touched if i in have} for have in (content, open_handles))
            return changes(job, seq, of_content, of_open)

        with replaced(checkpoints, "handle_changes", among_touched):
            return commit(state, job_id, request)

    return replaced(checkpoints, "commit_checkpoint", mutant)


def _layers_by_from_seq() -> AbstractContextManager[None]:
    handle = handles.handle
    return replaced(handles, "handle", lambda job_id, seq, chunk: replace(handle(job_id, seq, chunk), layer=seq))


def _fork_without_handles() -> AbstractContextManager[None]:
    commit = checkpoints.commit_checkpoint

    def mutant(state: CatalogState, job_id: JobId, request: CommitRequest) -> Decision:
        transaction = commit(state, job_id, request)
        if state.job(job_id).attempts[request.attempt].opened.parent_job_id == job_id:
            return transaction
        kept = [x for x in transaction.facts if not (isinstance(x, f.HandleAdded) and (x.file_id, x.offset_bytes) in request.inherited)]
        return replace(transaction, facts=kept)

    return replaced(checkpoints, "commit_checkpoint", mutant)


def _claim_without_epoch() -> AbstractContextManager[None]:
    begin_epoch = jobs._epoch

    def mutant(job: JobState, begin: Ref | None, claimed_by: JobId | None) -> list[f.Fact]:
        started, *ended = begin_epoch(job, begin, claimed_by)
        assert isinstance(started, f.Started)
        return [started, *ended] if claimed_by is None else [replace(started, epoch=job.epoch)]

    return replaced(jobs, "_epoch", mutant)


def _copy_refers_to_its_source() -> AbstractContextManager[None]:
    copy = epoch.copy_source

    def mutant(line: Line, source: Checkpoint, mapping: StateMapping) -> None:
        if source.is_savepoint:  # of which the ledger itself refuses it
            copy(line, source, mapping)
            return
        assert line.opened is not None
        attempt = line.attempt_of(line.opened, source.manifest, None)
        content = attempt.acknowledged()
        line.commit(attempt, content, attempt.write_manifest(content))

    return replaced(epoch, "copy_source", mutant)


def _no_pins() -> AbstractContextManager[None]:
    def held(state: CatalogState) -> set[Ref]:
        return {Ref(job.job_id, n) for job in state.jobs.values() for n, _ in job.holds}

    return replaced(CatalogState, "pinned", held)


def _commit_of_ended_attempt() -> AbstractContextManager[None]:
    require = decision.require_open

    def mutant(job: JobState, token: Any, what: str) -> Any:
        return job.attempts[token] if what == "commit" else require(job, token, what)

    return replaced(decision, "require_open", mutant)


def _no_epochs() -> AbstractContextManager[None]:
    return replaced(decision, "require_newest_epoch", lambda job, epoch, what: None)


def _savepoints_on_the_line() -> AbstractContextManager[None]:
    """As if the line's intervals kept a savepoint's files."""
    return replaced(CheckpointRow, "line", None)


def _start_ends_all() -> AbstractContextManager[None]:
    start = jobs.start

    def mutant(state: CatalogState, job_id: JobId, begin: Ref | None, **options: Any) -> Decision:
        transaction = start(state, job_id, begin, **options)
        job = state.job(job_id)
        others = [token for token, attempt in job.open_attempts.items() if attempt.opened.epoch is None]
        ends = [f.AttemptEnded(job_id=job_id, seq=job.seq + 1, attempt=t, status=Status.KILLED, reason="start") for t in others]
        return replace(transaction, facts=[*transaction.facts, *ends])

    return replaced(jobs, "start", mutant)


def _open_on_dropped() -> AbstractContextManager[None]:
    require = decision.require_live

    def mutant(state: CatalogState, ref: Ref, what: str) -> None:
        if what != "build on":
            require(state, ref, what)

    return replaced(decision, "require_live", mutant)


def _no_compare_and_swap() -> AbstractContextManager[None]:
    commit = MemoryLog.commit
    return replaced(MemoryLog, "commit", lambda log, snapshot, entry: commit(log, log.version, entry))


def _scrub_takes_open() -> AbstractContextManager[None]:
    judge = OrphanRule.judge

    def mutant(rule: OrphanRule, path: str) -> Verdict:
        verdict = judge(rule, path)
        return Verdict.ORPHAN if verdict is Verdict.IN_FLIGHT else verdict

    return replaced(OrphanRule, "judge", mutant)


def _scrub_spares_gone() -> AbstractContextManager[None]:
    return replaced(References, "present_paths", lambda references: {row.path for row in references.files.values()})


def _reuse_of_anything() -> AbstractContextManager[None]:
    return replaced(checkpoints, "_require_own_or_inherited", lambda job, request: None)


def _owners_with_an_epoch() -> AbstractContextManager[None]:
    """As if an owner were an attempt of the newest coordinator."""
    open_owner = owners.open_owner

    def mutant(state: CatalogState, job_id: JobId, name: str, token: Any, process: str | None = None) -> Decision:
        transaction = open_owner(state, job_id, name, token, process)
        facts = [replace(fact, epoch=state.job(job_id).epoch) for fact in transaction.facts if isinstance(fact, f.AttemptOpened)]
        return replace(transaction, facts=facts)

    return replaced(owners, "open_owner", mutant)


def _owned_by_nobody() -> AbstractContextManager[None]:
    """As if a task-owned file were a shared one."""
    return replaced(References, "is_owned", lambda references, row: False)


def _refer_to_released() -> AbstractContextManager[None]:
    return replaced(owned_files, "require_unreleased", lambda job, request, chunk: None)


def _ids_come_back() -> AbstractContextManager[None]:
    apply = CatalogState.apply

    def mutant(state: CatalogState, facts: Iterable[f.Fact]) -> None:
        apply(state, facts)
        for job in state.jobs.values():
            taken = [attempt.opened.checkpoint_id or 0 for attempt in job.open_attempts.values()]
            job.last_checkpoint_id = max([job.last_committed_id, *taken])

    return replaced(CatalogState, "apply", mutant)


def _delete_first() -> AbstractContextManager[None]:
    run = vacuum.run_vacuum

    def mutant(plan: vacuum.VacuumPlan, transactor: Transactor, storage: Any, environment: Any, progress: Any = None) -> Any:
        storage.delete_many([file.path for file in (*plan.condemned, *plan.unreferenced)])
        return run(plan, transactor, storage, environment, progress)

    return replaced(vacuum, "run_vacuum", mutant)


def _no_sync() -> AbstractContextManager[None]:
    return _around_commit(before=lambda ledger: None)


def _sync_too_early() -> AbstractContextManager[None]:
    return _around_commit(before=lambda ledger: ledger.make_durable())


class _WithoutSync:
    """A ledger whose `make_durable` does nothing."""

    def __init__(self, ledger: Any) -> None:
        self._inner = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def make_durable(self) -> None:
        pass


@contextmanager
def _around_commit(before: Callable[[Any], None]) -> Iterator[None]:
    send, has_landed = Transactor._send, Transactor._has_landed

    def mutant_send(transactor: Transactor, transaction: Decision) -> Any:
        before(transactor._ledger)
        return send(transactor, transaction)

    def mutant_has_landed(transactor: Transactor, sent: Any, transaction: Decision) -> bool:
        with replaced(transactor, "_ledger", _WithoutSync(transactor._ledger)):
            return has_landed(transactor, sent, transaction)

    with replaced(Transactor, "_send", mutant_send), replaced(Transactor, "_has_landed", mutant_has_landed):
        yield


def _delete_unsettled() -> AbstractContextManager[None]:
    return replaced(Transactor, "settle", lambda transactor: None)


MUTANTS: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "commit_rule_from_open_handles": Mutant(
            "a commit compares T with the handles open at its snapshot, not with its parent's content", _commit_by_parent
        ),
        "commit_narrowed_after_the_last_only": Mutant(
            "a commit looks at nothing but what it changed only if its parent is the last committed one", _commit_by_the_change
        ),
        "layers": Mutant("chunks are ordered by layer, not by from_seq: what is added again keeps its layer", _layers_by_from_seq),
        "fork_writes_its_own_handles": Mutant(
            "a fork's first commit writes handles of its own to the other job's files", _fork_without_handles
        ),
        "claim_fences": Mutant("a claim fences the other job's coordinator", _claim_without_epoch),
        "pins": Mutant("the parent of an open attempt keeps its files", _no_pins),
        "commit_needs_open_attempt": Mutant("a killed attempt cannot commit", _commit_of_ended_attempt),
        "epochs": Mutant("only the newest epoch opens, commits and retains", _no_epochs),
        "start_spares_others": Mutant("a coordinator's start ends only attempts of older epochs, not readers", _start_ends_all),
        "open_needs_live_parent": Mutant("an attempt opens only on a live parent", _open_on_dropped),
        "compare_and_swap": Mutant("a lifecycle transaction fails if its job moved since its snapshot", _no_compare_and_swap),
        "scrub_spares_open": Mutant("files of open attempts are not orphans", _scrub_takes_open),
        "scrub_takes_gone": Mutant("a file that came back after 'gone' is an orphan", _scrub_spares_gone),
        "reuse_from_pinned_parent": Mutant("a commit reuses chunks of its pinned parent only", _reuse_of_anything),
        "savepoints_own_their_handles": Mutant("a savepoint's content is its own handles only", _savepoints_on_the_line),
        "owners_outlive_attempts": Mutant("an owner's files outlive coordinators, attempts and checkpoints", _owners_with_an_epoch),
        "owned_until_released": Mutant("a task-owned file is garbage only once it was released", _owned_by_nobody),
        "release_checked_at_commit": Mutant("a commit refers anew to unreleased files of owners only", _refer_to_released),
        "ids_not_reused": Mutant("the ids of attempts never come back", _ids_come_back),
        "condemn_before_delete": Mutant("a file is deleted only after its condemnation is committed", _delete_first),
        "durable_before_delete": Mutant("what others committed is durable before a file is deleted because of it", _delete_unsettled),
        "durable_before_told": Mutant("success is told only after the log directory is synced", _no_sync),
        "sync_after_append": Mutant("the log is synced after the commit, not before it", _sync_too_early),
    }
)

OF_COORDINATORS: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {"no_claim_refers_to_nothing": Mutant("no-claim's first checkpoint uses nothing of its source", _copy_refers_to_its_source)}
)  # rules of code that the model has not: the state machine runs it
