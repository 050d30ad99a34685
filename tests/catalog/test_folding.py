"""What a fold keeps, as a table and as stories; `tests/protocol/test_folding.py` has the random histories."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from holdfast.catalog import facts as f
from holdfast.catalog import folding, lineage, paths
from holdfast.catalog.errors import AttemptEndedError, DamagedLedgerError, FormatError, RefusedError
from holdfast.catalog.folding import fold, require_equal
from holdfast.catalog.ledger import Row
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog, _Commit
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.lineage import forget
from holdfast.catalog.references import References
from holdfast.catalog.rules import checkpoints, decision, savepoints
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.rules.retention import retired_by_claim
from holdfast.catalog.schema import Operation, to_table
from holdfast.catalog.state import CatalogState, Ref, in_order
from holdfast.catalog.types import Chunk, KeepAll, KeepLast, Purpose, Role, Scope, Status, StoredFile
from holdfast.catalog.views import duckdb_engine
from holdfast.compaction.orphans import OrphanRule, Verdict, past_of
from tests.protocol.model import history as model_history
from tests.support.fold_mutants import OF_FACTS
from tests.support.history import J, K, committed, end, ended, file, handle, history, minute, opened
from tests.support.mutants import replaced

FOLDING = Operation(operation_id="fold", at=minute(99), by="folder@host")
L = "planes-9c9c9c9c"


def rows_of(versions: Iterable[tuple[int, Sequence[f.Fact]]]) -> list[Row]:
    return [Row(fact, Operation(operation_id=f"op{n}", at=minute(n), by="ann@host")) for n, facts in versions for fact in facts]


def said(*facts: f.Fact) -> list[Row]:
    return rows_of([(1, facts)])


def folded(rows: Sequence[Row]) -> list[f.Fact]:
    """As a folder does it: believed once it was compared."""
    kept = fold(rows, FOLDING)
    require_equal(rows, kept)
    return [row.fact for row in kept]


def state_of(facts: Iterable[f.Fact]) -> CatalogState:
    state = CatalogState(handles_of="*")
    state.apply(in_order(facts))
    return state


def job(job_id: str = J, name: str = "flights") -> f.JobRegistered:
    return f.JobRegistered(job_id=job_id, seq=1, job=name, max_parallelism=2)


def start(seq: int, begin: Ref | None = None, *, of: str = J, epoch: int = 1, claimed_by: str | None = None) -> f.Started:
    return f.Started(
        job_id=of, seq=seq, epoch=epoch, parent_job_id=begin and begin.job_id, parent_checkpoint_id=begin and begin.checkpoint_id,
        claimed_by=claimed_by,
    )  # fmt: skip


def drop(seq: int, number: int, *, of: str = J) -> f.Dropped:
    return f.Dropped(job_id=of, seq=seq, checkpoint_id=number, reason="x")


# ---- a rule for everything -------------------------------------------------------------------------------------------


def test_every_kind_and_every_purpose_has_a_rule() -> None:
    """A new one without a rule would be lost at the first fold, or kept for ever."""
    assert folding.RULES.keys() == f.KINDS.keys()
    assert lineage.KEPT_WHEN_ENDED.keys() == set(Purpose)


def test_a_kind_without_a_rule_is_not_folded() -> None:
    @dataclass(frozen=True)
    class Trashed:
        kind = "trashed"
        job_id = J

    with pytest.raises(FormatError, match="facts of kind trashed have no rule"):
        fold([*said(job()), Row(Trashed(), FOLDING)], FOLDING)


def test_a_purpose_without_a_rule_is_not_folded() -> None:
    known = {purpose: keeps for purpose, keeps in lineage.KEPT_WHEN_ENDED.items() if purpose is not Purpose.READ}
    with replaced(lineage, "KEPT_WHEN_ENDED", known), pytest.raises(FormatError, match="has the purpose"):
        fold(said(job(), opened(2, "r1", None, None, purpose=Purpose.READ)), FOLDING)


def test_facts_of_a_job_that_was_never_registered_are_damage() -> None:
    """Nothing that decides looks at them: a fold would lose them in silence."""
    with pytest.raises(DamagedLedgerError, match="never registered"):
        fold(said(job(), drop(2, 1, of=K)), FOLDING)


def test_a_fold_keeps_of_each_kind_what_the_table_says() -> None:
    """Of the two jobs of `tests/support/history.py`. Checkpoint 1 of J is dropped and nothing refers to it; 2 is held and pinned by both
    jobs; 3 was left by a rollback; `s4` is a savepoint and `o6` an open owner."""
    kept: dict[str, list[Any]] = {}
    for fact in folded(rows_of(history())):
        kept.setdefault(fact.kind, []).append(fact)
    assert kept.keys() == {
        "job", "folded", "attempt_opened", "attempt_ended", "checkpoint", "handle", "file", "release", "hold", "condemned",
    }  # fmt: skip
    assert [(x.job_id, x.seq, x.epoch, x.checkpoint_id, x.last_committed_id) for x in kept["folded"]] == [(J, 11, 2, 5, 3), (K, 4, 2, 1, 1)]
    assert [(x.parent_job_id, x.parent_checkpoint_id) for x in kept["folded"]] == [(J, 2), (J, 2)]
    assert [x.attempt for x in kept["attempt_opened"]] == ["s4", "o6"]
    assert [x.attempt for x in kept["attempt_ended"]] == ["s4"]
    assert [(x.job_id, x.checkpoint_id) for x in kept["checkpoint"]] == [(J, 2), (J, 4), (J, 3), (K, 1)]
    assert [(x.parent_checkpoint_id, x.ancestor_checkpoint_id) for x in kept["checkpoint"]] == [(1, 0), (2, None), (2, None), (None, None)]
    assert [(x.file_id, x.from_seq, x.to_seq) for x in kept["handle"]] == [
        ("a1-0", 3, 10), ("a2-m", 4, 5), ("a2-0", 4, 10), ("s4-m", 9, 10), ("s4-0", 9, 10), ("a3-m", 10, 11), ("a3-0", 10, None),
        ("o6-1", 10, None), ("o6-2", 10, None), ("b1-m", 3, 4), ("a1-0", 3, None),
    ]  # fmt: skip
    assert "a1-m" not in {x.file_id for x in kept["file"]}
    assert [x.hold for x in kept["hold"]] == ["legal", "audit"]
    assert [x.file_id for x in kept["condemned"]] == ["a5-0"]
    assert [x.file_id for x in kept["release"]] == ["o6-2", "o6-3"]


def test_kept_rows_keep_their_operation_and_new_ones_have_the_folds() -> None:
    rows = rows_of(history())
    kept = fold(rows, FOLDING)
    by = {row.operation for row in kept if row.fact.kind == "folded"}
    assert by == {FOLDING}
    assert {(str(unchanged(row.fact)), row.operation) for row in kept if row.fact.kind != "folded"} <= {
        (str(unchanged(row.fact)), row.operation) for row in rows
    }


def unchanged(fact: f.Fact) -> f.Fact:
    """Without what a fold says beside."""
    if isinstance(fact, f.CheckpointCommitted):
        return replace(fact, ancestor_job_id=None, ancestor_checkpoint_id=None)
    return replace(fact, to_seq=None) if isinstance(fact, f.HandleAdded) else fact


def test_a_fold_of_a_fold_is_the_same() -> None:
    kept = fold(rows_of(history()), FOLDING)
    assert fold(kept, FOLDING) == kept


def test_the_order_in_which_compaction_left_the_rows_changes_no_fold() -> None:
    rows = rows_of(history())
    assert {str(fact) for fact in folded(rows[::-1])} == {str(fact) for fact in folded(rows)}


# ---- rows that stay where they are -----------------------------------------------------------------------------------


def test_what_ends_a_row_that_stays_is_kept_beside_it() -> None:
    """A handle and a file row are in a file that is not written again; then the handle ends, and the file is gone."""
    facts = [job(), start(2), committed(3, "a1", 1, None), file(3, "a1-0"), handle(3, "a1-0"), end(4, "a1-0", 3)]
    rows = said(*facts, f.Gone(job_id=J, file_id="a1-0", run_id="r"), f.Gone(job_id=J, file_id="a1-0", run_id="r2"))
    assert not {"handle_end", "gone"} & {row.fact.kind for row in fold(rows, FOLDING)}
    kept = fold(rows, FOLDING, staying={3, 4})
    assert [row.fact.kind for row in kept] == ["job", "checkpoint", "handle_end", "gone", "folded"]
    together = [rows[3], rows[4], *kept]
    require_equal(rows, together)
    assert {str(row.fact) for row in fold(together, FOLDING)} == {str(row.fact) for row in fold(rows, FOLDING)}


def test_only_rows_of_big_kinds_stay() -> None:
    with pytest.raises(AssertionError, match="of kind job is written at every fold"):
        fold(said(job()), FOLDING, staying={0})


# ---- before a fold is believed ---------------------------------------------------------------------------------------

# What it cannot see is said by nothing that it compares: rows of what is dropped.
UNSEEN = {
    "disposed_savepoints", "begin_rows", "ancestors", "newest_of_each_query", "where_a_line_leaves_its_job", "releases_of_gone_files",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(OF_FACTS.keys() - UNSEEN))
def test_a_fold_that_has_lost_something_is_not_believed(name: str) -> None:
    """Some history of the model shows it."""
    with OF_FACTS[name].without():
        with pytest.raises(DamagedLedgerError):
            for seed in range(200):
                require_equal(rows_of_model(seed), folding.fold(rows_of_model(seed), FOLDING))


@cache
def rows_of_model(seed: int) -> list[Row]:
    return said(*(fact for commit in model_history(seed, rest=False, folds=False).log.commits for fact in commit.facts))


# ---- stories ---------------------------------------------------------------------------------------------------------


def test_after_a_rollback_a_fold_remembers_the_last_committed_id() -> None:
    """5 has a chunk, 6 another in its place. A rollback to 5; 6 is dropped and forgotten. A commit on 5 that took 5 for the last committed
    would say nothing of the chunk that it carries, and not have it."""
    token = "e" * 16
    facts = [
        job(), start(2), committed(3, "a" * 16, 5, None), handle(3, "a-0"), file(3, "a-0"), committed(4, "b" * 16, 6, 5), handle(4, "b-0"),
        end(4, "a-0", 3), file(4, "b-0"), start(5, Ref(J, 5), epoch=2), drop(6, 6), opened(7, token, 7, 5, epoch=2),
    ]  # fmt: skip
    chunk = Chunk(
        operator="main", state="per_route", file_id="a-0", scope=Scope.SHARED, role=Role.BASE, layer=0, offset_bytes=0, length_bytes=10,
        sha256="5a",
    )  # fmt: skip
    request = CommitRequest(
        attempt=token, content=(chunk,), states=(), inherited=frozenset([chunk.identity]), files=(), acks=(), progress=None,
        manifest=StoredFile(file_id="m", path="p", size_bytes=1, sha256="", scope=Scope.EXCLUSIVE), retention=KeepAll(),
    )  # fmt: skip

    def handles_of(facts: Iterable[f.Fact]) -> list[str]:
        decided = checkpoints.commit_checkpoint(state_of(facts), J, request)
        return [fact.file_id for fact in decided.facts if isinstance(fact, f.HandleAdded | f.HandleEnded)]

    assert handles_of(folded(said(*facts))) == handles_of(facts) == ["b-0", "a-0", "m"]
    with OF_FACTS["folded_last_committed"].without():
        assert handles_of(row.fact for row in folding.fold(said(*facts), FOLDING)) == ["m"]


def three_jobs() -> list[f.Fact]:
    """L: 1 and 2, live; K forked from 2 of L, and its one checkpoint is dropped; J forked from that. J has claimed L."""

    def on(fact: f.CheckpointCommitted, parent: Ref | None) -> f.CheckpointCommitted:
        return replace(fact, parent_job_id=parent and parent.job_id, parent_checkpoint_id=parent and parent.checkpoint_id)

    return [
        job(L, "l"), job(K, "k"), job(J, "j"), on(committed(2, "a" * 16, 1, None, job=L), None),
        on(committed(3, "b" * 16, 2, 1, job=L), Ref(L, 1)), on(committed(2, "c" * 16, 1, 2, job=K), Ref(L, 2)),
        f.Started(job_id=K, seq=3, epoch=1, parent_job_id=None, parent_checkpoint_id=None), drop(4, 1, of=K),
        on(committed(2, "d" * 16, 1, 1), Ref(K, 1)), start(4, Ref(L, 2), of=L, epoch=2, claimed_by=J),
    ]  # fmt: skip


def test_where_a_line_leaves_its_job_is_kept_for_who_claimed_another() -> None:
    """J's line goes on in K, not in L, which it has claimed: so its commits drop nothing of L."""

    def dropped(facts: Iterable[f.Fact]) -> list[tuple[str, list[int]]]:
        state = state_of(facts)
        return [(other.job_id, numbers) for other, numbers in retired_by_claim(state, state.job(J), Ref(J, 1), KeepLast(3))]

    facts = three_jobs()
    assert dropped(folded(said(*facts))) == dropped(facts)
    with OF_FACTS["where_a_line_leaves_its_job"].without():
        assert dropped(folded(said(*facts))) != dropped(facts)


def test_a_ledger_from_before_the_newer_history_calls_its_files_unknown() -> None:
    """The ledger is a copy of last night's, beside today's history. Read whole, that has the tokens of today's checkpoints: their files
    would be orphans of attempts that have ended, and scrub would delete the newer state."""
    first, second = "a" * 16, "b" * 16
    commits = [[job(), start(2), opened(2, first, 1, None)], [committed(3, first, 1, None), ended(3, first), opened(3, second, 2, 1)]]
    backup, log, told = ledger_of(commits), ledger_of(commits), MemoryTold()
    append(log, [committed(4, second, 2, 1), ended(4, second)])
    theirs = paths.streamed_file(J, 2, second, 0, 0)
    assert verdict(backup, told, theirs) is Verdict.IN_FLIGHT
    fold_and_tell(log, told)
    del backup.commits[-1]
    assert verdict(backup, told, theirs) is Verdict.UNKNOWN_TOKEN
    assert verdict(log, told, theirs) is Verdict.ORPHAN
    believes_all = OrphanRule.over(state_of(MemoryLedger(backup).scan()), set(), past_of(MemoryLedger(log), MemoryHistory(told)))
    assert believes_all.judge(theirs) is Verdict.ORPHAN, "as it would be without the bound"


def test_a_history_read_before_the_ledger_makes_known_tokens_unknown() -> None:
    """Between the two an attempt ended and was folded away. One that is read after has been told of what the ledger has forgotten."""
    first = "a" * 16
    log, told = ledger_of([[job(), start(2), opened(2, first, 1, None)], [ended(3, first, Status.KILLED)]]), MemoryTold()
    early = MemoryHistory(told)
    fold_and_tell(log, told)
    theirs = paths.streamed_file(J, 1, first, 0, 0)
    assert verdict(log, told, theirs) is Verdict.ORPHAN
    ledger = MemoryLedger(log)
    assert OrphanRule.over(state_of(ledger.scan()), set(), past_of(ledger, early)).judge(theirs) is Verdict.UNKNOWN_TOKEN


def test_a_manifest_of_a_forgotten_attempt_is_judged_by_its_token() -> None:
    """`chk-<n>` has none: which of the ids given so far had which attempt, the history says."""
    first, second = "a" * 16, "b" * 16
    log, told = (
        ledger_of([[job(), start(2), opened(2, first, 1, None)], [ended(3, first, Status.KILLED), opened(3, second, 2, None)]]),
        MemoryTold(),
    )
    fold_and_tell(log, told)
    rule = OrphanRule.over(state_of(MemoryLedger(log).scan()), set(), past_of(MemoryLedger(log), MemoryHistory(told)))
    place = paths.parse(paths.manifest_path(J, 1))
    assert isinstance(place, paths.ChkPath)
    assert [rule.judge(paths.manifest_path(J, n)) for n in (1, 2, 3)] == [Verdict.ORPHAN, Verdict.IN_FLIGHT, Verdict.UNKNOWN_TOKEN]
    tokens = (first, second, "c" * 16)
    assert [rule.judge_manifest(place, token) for token in tokens] == [Verdict.ORPHAN, Verdict.FOREIGN, Verdict.UNKNOWN_TOKEN]


def test_a_process_that_forgot_more_than_the_ledger_asks_the_ledger() -> None:
    """An attempt has ended since the fold: the history was not told of it, and the memory has forgotten it."""
    first = "a" * 16
    log, told = ledger_of([[job(), start(2)]]), MemoryTold()
    fold_and_tell(log, told)
    append(log, [opened(3, first, 1, None)])
    append(log, [ended(4, first, Status.KILLED)])
    state = state_of(MemoryLedger(log).scan())
    forget(state)
    rule = OrphanRule.over(state, set(), past_of(MemoryLedger(log), MemoryHistory(told)))
    assert rule.judge(paths.streamed_file(J, 1, first, 0, 0)) is Verdict.ORPHAN


def test_late_facts_about_a_file_that_was_folded_away_do_no_harm() -> None:
    """Two vacuums had one plan. One has deleted the file, and it was folded away; then the other condemns it, and calls it gone."""
    gone, condemned = f.Gone(job_id=J, file_id="a1-0", run_id="r"), f.Condemned(job_id=J, file_id="a1-0", run_id="r")
    before = said(job(), start(2), opened(2, "a1", 1, None), ended(3, "a1", Status.KILLED), file(3, "a1-0"), condemned, gone)
    kept = fold(before, FOLDING)
    for late in ([condemned], [condemned, gone], [gone]):
        rows = [*kept, *said(*late)]
        references = References.of(row.fact for row in rows)
        assert not [*references.unreferenced(), *references.condemned()]
        assert fold(rows, FOLDING) == kept


def test_a_savepoint_is_disposed_of_a_second_time_after_a_fold() -> None:
    """Outside the catalog that is how a deletion that was interrupted is finished."""
    facts = [
        job(), opened(2, "s1", 1, None, purpose=Purpose.SAVEPOINT, epoch=None, name="mine"),
        committed(3, "s1", 1, None, is_savepoint=True, name="mine"), ended(3, "s1"), drop(4, 1),
    ]  # fmt: skip
    assert savepoints.dispose(state_of(folded(said(*facts))), Ref(J, 1), deletes_now=True).facts == []


def test_what_was_forgotten_is_refused_in_words() -> None:
    facts = folded(said(job(), start(2), opened(2, "a1", 1, None), committed(3, "a1", 1, None), ended(3, "a1"), opened(4, "a2", 2, 1),
                        committed(5, "a2", 2, 1), ended(5, "a2"), drop(5, 1)))  # fmt: skip
    state = state_of(facts)
    with pytest.raises(RefusedError, match="checkpoint 1 of job 'flights' was dropped long ago, or never committed; live ones: 2"):
        checkpoints.hold(state, Ref(J, 1), "audit", None)
    with pytest.raises(AttemptEndedError, match="attempt a1 of job 'flights': it has ended long ago, or was never opened"):
        decision.require_open(state.job(J), "a1", "commit")
    assert state.is_live(Ref(J, 2))
    assert not state.is_live(Ref(J, 1))


def test_many_savepoints_over_a_long_line_are_folded_in_one_walk() -> None:
    """Each of a checkpoint of its own, all of which are dropped: nobody's walk up the line begins again where another's was."""
    length, taken = 400, 100
    facts: list[f.Fact] = [job(), *(committed(n + 1, f"{n:016x}", n, n - 1 or None) for n in range(1, length + 1))]
    facts += [drop(length + 2, n) for n in range(1, length)]
    facts += [committed(length + 2 + n, f"{length + n:016x}", length + n, n * 4, is_savepoint=True) for n in range(1, taken)]
    state, asked = state_of(facts), []
    checkpoint = CatalogState.checkpoint

    def counted(state: CatalogState, ref: Ref) -> Any:
        asked.append(ref)
        return checkpoint(state, ref)

    with replaced(CatalogState, "checkpoint", counted):
        forget(state)
    assert len(asked) < 6 * length
    assert len(state.job(J).checkpoints) <= 3 * taken
    assert state == state_of(folded(said(*facts)))


# ---- inline bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", [Scope.EXCLUSIVE, Scope.SHARED])
def test_inline_bytes_are_kept_for_as_long_as_a_checkpoint_has_them(scope: Scope) -> None:
    """Of one checkpoint, or carried by an interval that is open."""
    facts = [
        job(), start(2), committed(3, "a1", 1, None), handle(3, "a1-i", scope=scope, inline=b"1"), committed(4, "a2", 2, 1),
        handle(4, "a2-i", scope=scope, inline=b"2"), *([end(4, "a1-i", 3)] if scope is Scope.SHARED else ()),
    ]  # fmt: skip
    assert [x.inline for x in folded(said(*facts)) if isinstance(x, f.HandleAdded)] == [b"1", b"2"]
    assert [x.inline for x in folded(said(*facts, drop(5, 1))) if isinstance(x, f.HandleAdded)] == [b"2"]


# ---- views over what is live -----------------------------------------------------------------------------------------

OF_WHAT_IS_LIVE = {
    "jobs": "SELECT * FROM jobs",
    "attempts": "SELECT * FROM attempts WHERE status = 'open'",
    "checkpoints": "SELECT * FROM checkpoints WHERE status = 'live'",
    "states": "SELECT s.* FROM states s SEMI JOIN checkpoints c ON c.status = 'live' AND (c.job_id, c.checkpoint_id) = (s.job_id, s.checkpoint_id)",
    "acks": "SELECT a.* FROM ack_metrics a SEMI JOIN checkpoints c ON c.status = 'live' AND (c.job_id, c.checkpoint_id) = (a.job_id, a.checkpoint_id)",
    "handles": "SELECT * FROM handles WHERE to_seq IS NULL",
    "files": "SELECT * FROM files WHERE status <> 'gone'",
    "checkpoint_files": "SELECT * FROM checkpoint_files",
    "holds": "SELECT * FROM holds",
    "readers": "SELECT * FROM readers",
    "owners": "SELECT * FROM owners",
    "unreferenced_files": "SELECT * FROM unreferenced_files",
}


def table_of(rows: Sequence[Row]) -> pa.Table:
    operations = {row.operation for row in rows}
    return pa.concat_tables(to_table([row.fact for row in rows if row.operation == each], each) for each in operations)


def answers(connection: duckdb.DuckDBPyConnection, rows: Sequence[Row]) -> dict[str, list[str]]:
    duckdb_engine.views_over(connection, table_of(rows))
    return {name: sorted(map(str, connection.execute(query).fetchall())) for name, query in OF_WHAT_IS_LIVE.items()}


VERSIONS = [*history(), (30, [f.JobEnded(job_id=J, seq=12, outcome="finished", reason=None), drop(12, 3)])]


def require_same_views(all_rows: Iterable[Sequence[Row]]) -> None:
    with duckdb_engine.offline_connection() as connection:
        for rows in all_rows:
            assert answers(connection, fold(rows, FOLDING)) == answers(connection, rows)


def test_views_over_what_is_live_are_the_same_over_a_fold() -> None:
    """Of the small history, in which a job has ended, and of one of the model."""
    require_same_views([rows_of(VERSIONS), rows_of_model(1)])


@pytest.mark.slow
def test_views_over_what_is_live_are_the_same_at_every_version() -> None:
    require_same_views(rows_of(VERSIONS[:n]) for n in range(1, len(VERSIONS)))
    require_same_views(rows_of_model(seed) for seed in range(30))


# ---- parts -----------------------------------------------------------------------------------------------------------


def ledger_of(commits: Iterable[Sequence[f.Fact]]) -> MemoryLog:
    log = MemoryLog()
    for facts in commits:
        append(log, facts)
    return log


def append(log: MemoryLog, facts: Sequence[f.Fact]) -> None:
    operation = Operation(operation_id=f"op {log.version}", at=minute(1), by="ann@host")
    log.commit(log.version, _Commit(operation, frozenset(), tuple(facts)))


def fold_and_tell(log: MemoryLog, told: MemoryTold) -> None:
    ledger = MemoryLedger(log)
    MemoryHistory(told).tell(ledger.commits(-1), ledger.version)
    assert ledger.fold(fold(ledger.rows(), FOLDING), FOLDING)


def verdict(log: MemoryLog, told: MemoryTold, path: str) -> Verdict:
    ledger = MemoryLedger(log)
    return OrphanRule.over(state_of(ledger.scan()), set(), past_of(ledger, MemoryHistory(told))).judge(path)
