"""The fold with one kind of what it keeps left out, and folding with one of its steps left out: what shows that each is needed.

Wherever something is left out, only that is: the rest of the fold is the project's own.
"""

import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.catalog import big_files, folding, lineage
from holdfast.catalog import facts as f
from holdfast.catalog.ledger import LedgerConflictError, Row
from holdfast.catalog.ledger.memory import MemoryLog
from holdfast.catalog.ledger.memory_history import MemoryHistory
from holdfast.catalog.references import FileStatus, References, contains
from holdfast.catalog.schema import FactColumns, Operation
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.types import CheckpointId, Purpose, Role, Scope
from tests.support.model_ports import ModelLedger
from tests.support.model_upkeep import Folder, Scrub
from tests.support.mutants import Mutant, replaced

# ---- what a fold keeps -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Folding:
    """What was folded, and what was kept of it."""

    past: References
    kept: Sequence[Row]
    state: CatalogState = field(init=False)
    live: set[Ref] = field(init=False)
    begins: set[Ref] = field(init=False)
    unreferenced: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.state = self.past.state
        self.live = {Ref(job.job_id, n) for job in self.state.jobs.values() for n in job.live}
        self.begins = {job.begin for job in self.state.jobs.values() if job.begin is not None}
        self.unreferenced = {row.file_id for row in self.past.unreferenced()}

    def is_open(self, fact: Any) -> bool:
        return fact.attempt in self.state.jobs[fact.job_id].open_attempts

    def is_of(self, fact: Any, purpose: Purpose) -> bool:
        is_attempt = isinstance(fact, f.AttemptOpened | f.AttemptEnded)
        return is_attempt and self.state.jobs[fact.job_id].attempts[fact.attempt].opened.purpose is purpose

    def is_dropped(self, fact: Any) -> bool:
        """Whether it is the row, or the drop, of a checkpoint that is dropped and not pinned."""
        return isinstance(fact, f.CheckpointCommitted | f.Dropped) and _ref(fact) not in self.live | self.state.pinned()

    def has_kept(self, handle: f.HandleAdded) -> bool:
        return contains(handle.from_seq, handle.to_seq, self.past.kept_seqs().get((handle.job_id, handle.savepoint), []))

    def status(self, file_id: str) -> FileStatus | None:
        return self.past.status.get(file_id)

    def others(self, fact: f.Folded, *kinds: type) -> list[Any]:
        """The kept facts of the same job of these kinds."""
        return [row.fact for row in self.kept if isinstance(row.fact, kinds) and row.fact.job_id == fact.job_id]


Test = Callable[[Folding, Any], bool]
Change = Callable[[Folding, Any], f.Fact | None]


def _ref(fact: Any) -> Ref:
    return Ref(fact.job_id, fact.checkpoint_id)


def _replaced_fold(change: Change) -> AbstractContextManager[None]:
    fold = folding.fold

    def mutant(rows: Sequence[Row], operation: Operation, *, staying: Collection[int] = ()) -> list[Row]:
        context = Folding(References.of(row.fact for row in rows), fold(rows, operation, staying=staying))
        changed = ((change(context, row.fact), row.operation) for row in context.kept)
        return [Row(fact, by) for fact, by in changed if fact is not None]

    return replaced(folding, "fold", mutant)


def _without(kept: str, test: Test) -> Mutant:
    return Mutant(kept, lambda: _replaced_fold(lambda context, fact: None if test(context, fact) else fact))


def _other(kept: str, kind: type, change: Change) -> Mutant:
    return Mutant(kept, lambda: _replaced_fold(lambda context, fact: change(context, fact) if isinstance(fact, kind) else fact))


def _is(kind: type, also: Test = lambda _, __: True) -> Test:
    return lambda context, fact: isinstance(fact, kind) and also(context, fact)


def _opened(purpose: Purpose, is_open: bool) -> Test:
    return lambda context, fact: context.is_of(fact, purpose) and context.is_open(fact) == is_open


def _is_used(context: Folding, file: f.FileWritten) -> bool:
    is_there = context.status(file.file_id) is FileStatus.PRESENT
    return is_there and file.scope is not Scope.TASKOWNED and file.file_id not in context.unreferenced


def _is_of_other_job(context: Folding, handle: f.HandleAdded) -> bool:
    file = context.past.files.get(handle.file_id)
    return file is not None and file.job_id != handle.job_id


def _greatest(context: Folding, fact: f.Folded) -> int:
    rows = context.others(fact, f.CheckpointCommitted, f.AttemptOpened)
    return max((int(row.checkpoint_id or 0) for row in rows), default=0)


def _last_committed(context: Folding, fact: f.Folded) -> int:
    return max((int(row.checkpoint_id) for row in context.others(fact, f.CheckpointCommitted) if not row.is_savepoint), default=0)


def _newest_live(context: Folding, fact: f.Folded) -> f.Folded:
    live = [n for n, row in context.state.jobs[fact.job_id].live.items() if not row.fact.is_savepoint]
    return replace(fact, parent_job_id=fact.job_id if live else None, parent_checkpoint_id=max(live, default=None))


def _newest_seq(context: Folding, fact: f.Folded) -> int:
    kept = [row.fact for row in context.kept if getattr(row.fact, "job_id", None) == fact.job_id and row.fact != fact]
    return max(getattr(each, "seq", 0) for each in kept)


def _no_ancestor(_: Folding, fact: f.CheckpointCommitted) -> f.Fact:
    return replace(fact, ancestor_job_id=None, ancestor_checkpoint_id=CheckpointId(0)) if fact.ancestor_checkpoint_id else fact


OF_FACTS: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "job": _without("registrations", _is(f.JobRegistered)),
        "folded": _without("what starts and commits said together", _is(f.Folded)),
        "folded_seq": _other("a job's seq", f.Folded, lambda c, x: replace(x, seq=_newest_seq(c, x))),
        "folded_epoch": _other("a job's epoch", f.Folded, lambda _, x: replace(x, epoch=max(0, x.epoch - 1))),
        "folded_begin": _other("what a job begins with", f.Folded, lambda _, x: replace(x, parent_job_id=None, parent_checkpoint_id=None)),
        "folded_begin_by_its_rows": _other("that a job begins with nothing, though some are live", f.Folded, _newest_live),
        "folded_claim": _other("who has claimed a job", f.Folded, lambda _, x: replace(x, claimed_by=None)),
        "folded_greatest_id": _other("the greatest id ever given", f.Folded, lambda c, x: replace(x, checkpoint_id=_greatest(c, x))),
        "folded_last_committed": _other(
            "the greatest id ever committed", f.Folded, lambda c, x: replace(x, last_committed_id=_last_committed(c, x))
        ),
        "names_of_savepoints": _without("names of savepoints that have ended", _opened(Purpose.SAVEPOINT, is_open=False)),
        "names_of_owners": _without("names of owners that have ended", _opened(Purpose.OWNER, is_open=False)),
        "open_checkpoints": _without("open attempts for checkpoints", _opened(Purpose.CHECKPOINT, is_open=True)),
        "open_savepoints": _without("open attempts for savepoints", _opened(Purpose.SAVEPOINT, is_open=True)),
        "open_readers": _without("open readers", _opened(Purpose.READ, is_open=True)),
        "open_owners": _without("open owners", _opened(Purpose.OWNER, is_open=True)),
        "live_rows": _without("rows of live checkpoints", _is(f.CheckpointCommitted, lambda c, x: _ref(x) in c.live)),
        "pinned_rows": _without(
            "rows of dropped checkpoints that are pinned",
            _is(f.CheckpointCommitted | f.Dropped, lambda c, x: _ref(x) in c.state.pinned() - c.live),  # type: ignore[arg-type]
        ),
        "begin_rows": _without("rows of dropped checkpoints that a job begins with", lambda c, x: c.is_dropped(x) and _ref(x) in c.begins),
        "disposed_savepoints": _without(
            "rows of savepoints that were disposed of",
            lambda c, x: c.is_dropped(x) and _ref(x) not in c.begins and c.state.checkpoint(_ref(x)).fact.is_savepoint,
        ),
        "drops": _without("drops of what is kept", _is(f.Dropped)),
        "ancestors": _other("the nearest kept ancestor of a checkpoint", f.CheckpointCommitted, _no_ancestor),
        "newest_of_each_query": Mutant("the newest batch of each streaming query", lambda: replaced(lineage, "query_of", lambda row: None)),
        "where_a_line_leaves_its_job": Mutant(
            "the row of another job at which a line begins", lambda: replaced(lineage, "_leaves_its_job", lambda row, parent: False)
        ),
        "holds": _without("holds in force", _is(f.Held)),
        "open_handles": _without(
            "open handles in which a kept checkpoint lies", _is(f.HandleAdded, lambda c, x: x.to_seq is None and c.has_kept(x))
        ),
        "open_handles_of_nothing": _without(
            "open handles in which none lies", _is(f.HandleAdded, lambda c, x: x.to_seq is None and not c.has_kept(x))
        ),
        "closed_handles": _without(
            "closed handles of the line",
            _is(f.HandleAdded, lambda _, x: x.to_seq is not None and x.savepoint is None and x.role is not Role.MANIFEST),
        ),
        "handles_of_manifests": _without("handles of manifests", _is(f.HandleAdded, lambda _, x: x.role is Role.MANIFEST)),
        "handles_of_savepoints": _without("handles of savepoints", _is(f.HandleAdded, lambda _, x: x.savepoint is not None)),
        "inline_handles": _without("inline handles", _is(f.HandleAdded, lambda _, x: x.inline is not None)),
        "handles_of_forks": _without("handles to files of other jobs", _is(f.HandleAdded, _is_of_other_job)),
        "ends_of_handles": _other(
            "where closed handles end",
            f.HandleAdded,
            lambda _, x: replace(x, to_seq=None) if x.scope is not Scope.EXCLUSIVE else x,
        ),
        "files_in_use": _without("rows of files in use", _is(f.FileWritten, _is_used)),
        "unreferenced_files": _without("rows of unreferenced files", _is(f.FileWritten, lambda c, x: x.file_id in c.unreferenced)),
        "condemned_files": _without(
            "rows of condemned files", _is(f.FileWritten, lambda c, x: c.status(x.file_id) is FileStatus.CONDEMNED)
        ),
        "owned_files": _without("rows of task-owned files", _is(f.FileWritten, lambda _, x: x.scope is Scope.TASKOWNED)),
        "condemned": _without("that files are condemned", _is(f.Condemned)),
        "releases": _without("releases by open owners", _is(f.Released, lambda c, x: c.status(x.file_id) is not FileStatus.GONE)),
        "releases_of_gone_files": _without(
            "releases by open owners of what is gone", _is(f.Released, lambda c, x: c.status(x.file_id) is FileStatus.GONE)
        ),
    }
)

# Of what partial folds keep beside the rows that stay where they are.
OF_PARTIAL: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "ends_of_staying_handles": _without("ends of handles whose rows stay", _is(f.HandleEnded)),
        "gone_of_staying_files": _without("that files whose rows stay are gone", _is(f.Gone)),
    }
)


def _not_named(*kinds: type) -> AbstractContextManager[None]:
    named = big_files.named
    return replaced(big_files, "named", lambda rows: named(row for row in rows if not isinstance(row.fact, kinds)))


# Of what a fold reads of the files that it may leave as they are.
OF_FILES: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "what_ended": Mutant("rows about what has ended", lambda: _not_named(f.HandleEnded)),
        "what_is_condemned": Mutant("rows about what is condemned", lambda: _not_named(f.Condemned)),
        "what_is_gone": Mutant("rows about what is gone", lambda: _not_named(f.Gone)),
    }
)


# ---- the steps of folding --------------------------------------------------------------------------------------------


def _history_read_first() -> AbstractContextManager[None]:
    read = Scrub.list_storage

    def mutant(scrub: Scrub) -> None:
        read(scrub)
        scrub.past_history = MemoryHistory(scrub.w.told_facts)

    return replaced(Scrub, "list_storage", mutant)


def _history_told_of_lost() -> AbstractContextManager[None]:
    return replaced(Folder, "settle", lambda folder: True)


def _history_without_compare_and_swap() -> AbstractContextManager[None]:
    tell = MemoryHistory.tell

    def mutant(history: MemoryHistory, commits: Any, upto: int) -> None:
        try:
            tell(history, commits, upto)
        except LedgerConflictError:
            history._told.tellings.append((tuple(commits), upto))

    return replaced(MemoryHistory, "tell", mutant)


def _fold_before_history() -> AbstractContextManager[None]:
    steps = Folder.STEPS
    return replaced(Folder, "STEPS", (steps[0], steps[1], steps[3], steps[2], *steps[4:]))


@contextmanager
def _two_folds() -> Iterator[None]:
    fold = MemoryLog.fold

    def mutant(log: MemoryLog, snapshot: int, kept: Sequence[Row], *rest: Any) -> bool:
        """It takes out what its snapshot had. A fold that came between has taken the same, so that its rows stay beside these."""
        came, before = log.newest_fold(log.version), log.newest_fold(snapshot)
        new = [row for name, rows in came.big.items() if name not in before.big for row in rows]
        return fold(log, snapshot, (*kept, *came.kept, *new) if came is not before else kept, *rest)

    with replaced(MemoryLog, "_is_overtaken", lambda log, snapshot: False), replaced(MemoryLog, "fold", mutant):
        yield


def _fold_takes_newer() -> AbstractContextManager[None]:
    fold = MemoryLog.fold
    return replaced(MemoryLog, "fold", lambda log, _, *kept: fold(log, log.version, *kept))


def _fold_is_replayed() -> AbstractContextManager[None]:
    fold = MemoryLog.fold

    def mutant(log: MemoryLog, snapshot: int, kept: Sequence[Row], *rest: Any) -> bool:
        done = fold(log, snapshot, kept, *rest)
        if done:
            facts = tuple(row.fact for row in kept)
            log.commits[-1] = replace(log.commits[-1], has_data_change=True, keys=frozenset({"fold"}), facts=facts, kept=())
        return done

    return replaced(MemoryLog, "fold", mutant)


def _cleaned_above_history() -> AbstractContextManager[None]:
    return replaced(Folder, "clean_below", lambda folder: folder.w.log.durable_version)


def _scrub_without_history() -> AbstractContextManager[None]:
    return replaced(MemoryHistory, "ended_attempts", lambda history, upto: FactColumns.of([]))


OF_STEPS: types.MappingProxyType[str, Mutant] = types.MappingProxyType(
    {
        "ledger_then_history": Mutant("scrub reads the ledger first, then the history", _history_read_first),
        "scrub_asks_the_history": Mutant("scrub asks the history for tokens that the ledger forgot", _scrub_without_history),
        "settle_then_tell": Mutant("the history is told of durable versions only", _history_told_of_lost),
        "history_compare_and_swap": Mutant("a telling fails if another has told since", _history_without_compare_and_swap),
        "tell_then_fold": Mutant("the history is told before the ledger forgets", _fold_before_history),
        "one_fold_of_a_snapshot": Mutant("a fold fails if another came since its snapshot", _two_folds),
        "appends_survive": Mutant("a fold takes the rows of its own snapshot out and no newer", _fold_takes_newer),
        "fold_changes_no_data": Mutant("a fold is passed over by processes that remember", _fold_is_replayed),
        "boundary_is_read_after_a_commit": Mutant(
            "a writer that stood still believes nothing below the log's boundary", lambda: replaced(ModelLedger, "READS_BOUNDARY", False)
        ),
        "log_is_cleaned_below_history": Mutant("the log is cleaned only of what the history has", _cleaned_above_history),
    }
)
