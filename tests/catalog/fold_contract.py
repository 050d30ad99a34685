"""What every ledger adapter promises of folding, and what every history does (`ledger_contract.py` has the rest). Subclass both and give
them a `harness`: for a history, one that opens handles on it."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.ledger import Alike, History, Ledger, LedgerConflictError, Row, SnapshotLostError, ToldCommit
from holdfast.catalog.schema import Operation
from holdfast.catalog.types import Purpose, Scope, Status
from tests.catalog.ledger_contract import AT, EXAMPLES, Harness, dropped, gone, operation, put, run_ended
from tests.support.history import J, K, committed, end, file, handle

FOLDED = Operation(operation_id="fold", at=AT + timedelta(hours=1), by="folder@host holdfast/test")


def folded(seq: int = 1) -> f.Folded:
    return f.Folded(
        job_id="a-00000001", seq=seq, epoch=1, parent_job_id=None, parent_checkpoint_id=None, claimed_by=None, checkpoint_id=seq,
        last_committed_id=seq,
    )  # fmt: skip


def written(ledger: Ledger, *seqs: int) -> Ledger:
    """Drops of a job, a commit each, by operations that are named by their number."""
    for seq in seqs:
        put(ledger, dropped(seq), gone(f"file {seq}"), key="job/a", operation_id=f"op {seq}")
        ledger.refresh()
    return ledger


def facts_of(rows: Sequence[Row]) -> list[f.Fact]:
    return [row.fact for row in rows]


class FoldContract:
    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError

    def test_rows_have_the_operation_that_wrote_them(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1, 2)
        assert list(ledger.rows()) == [Row(fact, operation(f"op {n}")) for n in (1, 2) for fact in (dropped(n), gone(f"file {n}"))]
        assert facts_of(ledger.rows()) == list(ledger.scan())

    def test_a_fold_puts_its_rows_in_the_place_of_all_others(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1, 2, 3)
        kept = [ledger.rows()[4], Row(folded(3), FOLDED)]
        assert ledger.fold(kept, FOLDED)
        for reader in (harness.open(), ledger):
            reader.refresh()
            assert reader.version == 4
            assert list(reader.rows()) == kept
            assert list(reader.scan()) == [dropped(3), folded(3)]
            assert list(reader.scan(["folded"], "a-00000001")) == [folded(3)]

    def test_a_fold_moves_no_snapshot_and_refresh_does_not_report_it(self, harness: Harness) -> None:
        ledger, reader = written(harness.open(), 1, 2), harness.open()
        before = list(reader.rows())
        ledger.fold([], FOLDED)
        assert (ledger.version, reader.version) == (2, 2)
        assert list(reader.rows()) == before
        written(ledger, 3)
        assert [commit.version for commit in reader.refresh()] == [4]
        assert list(reader.scan()) == [dropped(3), gone("file 3")]

    def test_what_is_appended_since_the_snapshot_stays(self, harness: Harness) -> None:
        folder, writer = written(harness.open(), 1, 2), harness.open()
        put(writer, dropped(3), key="job/a")
        put(writer, gone("late"))
        assert folder.fold([Row(folded(2), FOLDED)], FOLDED)
        folder.refresh()
        assert list(folder.scan()) == [folded(2), dropped(3), gone("late")]
        assert folder.folded_to == 2

    def test_of_two_folds_of_one_snapshot_the_second_changes_nothing(self, harness: Harness) -> None:
        first, second = written(harness.open(), 1, 2), harness.open()
        assert first.fold([Row(folded(2), FOLDED)], FOLDED)
        assert not second.fold([Row(folded(99), FOLDED)], FOLDED)
        second.refresh()
        assert (second.version, list(second.scan())) == (3, [folded(2)])

    def test_a_fold_from_before_a_compaction_changes_nothing(self, harness: Harness) -> None:
        folder = written(harness.open(), 1, 2)
        harness.compact()
        assert not folder.fold([], FOLDED)
        folder.refresh()
        assert sorted(facts_of(folder.rows()), key=repr) == sorted([dropped(1), gone("file 1"), dropped(2), gone("file 2")], key=repr)

    def test_a_fold_of_a_fold_stands_for_both(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1, 2)
        ledger.fold([Row(folded(2), FOLDED)], FOLDED)
        ledger.refresh()
        written(ledger, 3)
        assert ledger.fold([Row(folded(3), FOLDED)], FOLDED)
        ledger.refresh()
        assert (list(ledger.scan()), ledger.folded_to) == ([folded(3)], 4)

    def test_folded_to_is_what_the_newest_fold_of_the_snapshot_read(self, harness: Harness) -> None:
        """Not the version that the fold made; and a handle that stands below it knows of none."""
        ledger = harness.open()
        assert ledger.folded_to == -1
        written(ledger, 1, 2)
        stale = harness.open()
        put(harness.open(), dropped(3), key="job/a")
        ledger.fold([], FOLDED)
        ledger.refresh()
        assert (ledger.version, ledger.folded_to, stale.folded_to) == (4, 2, -1)

    def test_an_append_from_before_a_fold_lands_beside_it(self, harness: Harness) -> None:
        stale, folder = harness.open(), written(harness.open(), 1, 2)
        folder.fold([Row(folded(2), FOLDED)], FOLDED)
        put(stale, dropped(1, "b"), key="job/b")
        stale.refresh()
        assert list(stale.scan()) == [folded(2), dropped(1, "b")]

    def test_a_key_from_before_a_fold_still_conflicts(self, harness: Harness) -> None:
        stale, folder = harness.open(), written(harness.open(), 1, 2)
        folder.fold([Row(folded(2), FOLDED)], FOLDED)
        with pytest.raises(LedgerConflictError):
            put(stale, dropped(1), key="job/a")

    def test_an_operation_is_known_by_the_rows_that_a_fold_kept(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1, 2)
        ledger.fold([ledger.rows()[2]], FOLDED)
        ledger.refresh()
        assert (ledger.has_operation("op 1"), ledger.has_operation("op 2")) == (False, True)

    def test_commits_are_told_with_their_rows_and_without_folds(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1, 2)
        ledger.fold([Row(folded(2), FOLDED)], FOLDED)
        ledger.refresh()
        written(ledger, 3)
        told = [
            ToldCommit(v, (Row(dropped(n), operation(f"op {n}")), Row(gone(f"file {n}"), operation(f"op {n}"))))
            for v, n in ((1, 1), (2, 2), (4, 3))
        ]
        assert list(ledger.commits(-1)) == list(ledger.commits(0)) == told
        assert list(ledger.commits(2)) == list(ledger.commits(3)) == told[2:]
        assert list(ledger.commits(4)) == []

    def test_commits_end_at_the_held_snapshot(self, harness: Harness) -> None:
        written(harness.open(), 1)
        stale = harness.open()
        written(harness.open(), 2)
        assert [commit.version for commit in stale.commits(-1)] == [1]

    def test_commits_that_the_log_no_longer_has_are_not_told(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1, 2, 3)
        harness.clean()
        with pytest.raises(SnapshotLostError):
            ledger.commits(0)
        assert list(ledger.commits(3)) == []

    def test_a_handle_from_below_a_cleaned_log_reads_the_fold(self, harness: Harness) -> None:
        stale, folder = harness.open(), written(harness.open(), 1, 2)
        folder.fold([Row(folded(2), FOLDED)], FOLDED)
        harness.clean()
        with pytest.raises(SnapshotLostError):
            stale.refresh()
        assert list(stale.scan()) == [folded(2)]
        assert stale.folded_to == 2

    def test_every_kind_of_fact_comes_back_from_a_fold_as_it_was(self, harness: Harness) -> None:
        ledger = harness.open()
        ledger.append(EXAMPLES, keys={}, operation=operation())
        ledger.refresh()
        rows = list(ledger.rows())
        assert ledger.fold(rows, FOLDED)
        ledger.refresh()
        assert list(ledger.rows()) == rows

    # ---- big files ------------------------------------------------------------------------------------------------------

    def test_big_files_are_read_with_all_others_and_also_apart(self, harness: Harness) -> None:
        ledger = with_big_files(harness)
        assert facts_of(ledger.rows()) == list(ledger.scan()) == [*ONE, *TWO, LIVE]
        assert facts_of(ledger.small_rows()) == [LIVE]
        assert list(ledger.scan(["checkpoint"])) == [LIVE]
        assert list(ledger.scan(["file"], J)) == [file(2, "a-0")]
        one, two = ledger.big_files(())
        assert facts_of(ledger.big_rows([one.name])) == ONE
        assert facts_of(ledger.big_rows([two.name, one.name])) == [*ONE, *TWO]
        assert not ledger.big_rows([])

    def test_a_ledger_that_was_never_folded_has_no_big_files(self, harness: Harness) -> None:
        ledger = written(harness.open(), 1)
        assert not ledger.big_files(["file 1"])
        assert list(ledger.small_rows()) == list(ledger.rows())

    def test_a_big_file_says_how_many_rows_are_alike(self, harness: Harness) -> None:
        one, two = with_big_files(harness).big_files(())
        assert one.counts == {
            Alike("handle", J, None, 2, None, None): 2, Alike("handle", J, "s", 3, 4, None): 1, Alike("file", J, None, None, None, None): 1,
        }  # fmt: skip
        assert two.counts == {Alike("handle", K, None, 2, None, None): 1, Alike("state", K, None, None, None, 7): 1}
        assert (one.rows, two.rows, one.about, two.about) == (4, 2, (), ())

    def test_a_big_file_gives_its_rows_about_the_files_asked_for(self, harness: Harness) -> None:
        """With the operations that wrote them, and of any job."""
        one, two = with_big_files(harness).big_files(["a-0", "b-0"])
        assert list(one.about) == [Row(fact, operation("big")) for fact in (ONE[0], ONE[1], ONE[3])]
        assert list(two.about) == [Row(TWO[0], operation("big"))]

    def test_big_files_that_stay_are_as_they_were(self, harness: Harness) -> None:
        ledger = with_big_files(harness)
        one, two = ledger.big_files(["a-0"])
        put(ledger, end(9, "a-0", 2))
        ledger.refresh()
        kept = [Row(end(9, "a-0", 2), operation()), Row(LIVE, operation("big"))]
        assert ledger.fold(kept, FOLDED, big=[[row for row in one.about if row.fact.kind == "file"]], staying=[two.name])
        ledger.refresh()
        stays, new = sorted(ledger.big_files(["a-0"]), key=lambda each: each.name != two.name)
        assert (stays.name, stays.counts) == (two.name, two.counts)
        assert facts_of(new.about) == [file(2, "a-0")]
        assert facts_of(ledger.small_rows()) == [end(9, "a-0", 2), LIVE]
        assert sorted(map(str, ledger.scan())) == sorted(map(str, [*TWO, file(2, "a-0"), end(9, "a-0", 2), LIVE]))

    def test_a_fold_that_names_no_big_file_replaces_them_too(self, harness: Harness) -> None:
        ledger = with_big_files(harness)
        assert ledger.fold([Row(LIVE, FOLDED)], FOLDED)
        ledger.refresh()
        assert not ledger.big_files(())
        assert list(ledger.scan()) == [LIVE]

    def test_handles_in_a_big_file_are_open_until_a_row_beside_it_ends_them(self, harness: Harness) -> None:
        ledger = with_big_files(harness)
        assert ledger.open_handles(J) == {("a-0", 0): 2, ("a-1", 0): 2}
        put(ledger, end(9, "a-0", 2))
        ledger.refresh()
        names = [each.name for each in ledger.big_files(())]
        ledger.fold(ledger.small_rows(), FOLDED, staying=names)
        ledger.refresh()
        assert ledger.open_handles(J) == {("a-1", 0): 2}
        assert ledger.open_handles(K) == {("b-0", 0): 2}

    def test_of_two_folds_the_second_leaves_nothing_of_its_big_files(self, harness: Harness) -> None:
        first, second = with_big_files(harness), harness.open()
        one, two = first.big_files(())
        assert first.fold([], FOLDED, staying=[one.name])
        assert not second.fold([], FOLDED, big=[second.small_rows()], staying=[two.name])
        second.refresh()
        assert [each.name for each in second.big_files(())] == [one.name]
        assert facts_of(second.rows()) == ONE

    def test_a_handle_from_before_a_fold_has_the_big_files_of_its_snapshot(self, harness: Harness) -> None:
        reader = with_big_files(harness)
        folder = harness.open()
        folder.fold([], FOLDED, big=[folder.big_rows([reader.big_files(())[1].name])])
        assert [each.rows for each in reader.big_files(())] == [4, 2]
        reader.refresh()
        assert [each.rows for each in reader.big_files(())] == [2]


LIVE = committed(9, "t", 7, None, job=K)
ONE = [handle(2, "a-0"), file(2, "a-0"), handle(2, "a-1"), handle(3, "a-0", savepoint="s", scope=Scope.EXCLUSIVE)]
TWO = [
    handle(2, "b-0", job=K),
    f.StateCommitted(job_id=K, seq=9, checkpoint_id=7, operator="o", state="s", format="parquet", key_columns=None, schema=None, layers=1,
                     rows=None, total_bytes=1),
]  # fmt: skip


def with_big_files(harness: Harness) -> Ledger:
    """A ledger that was folded into a small row and two big files."""
    ledger = harness.open()
    put(ledger, *ONE, *TWO, LIVE, operation_id="big")
    ledger.refresh()
    rows = ledger.rows()
    assert ledger.fold(rows[6:], FOLDED, big=[rows[:4], rows[4:6]])
    ledger.refresh()
    return ledger


# ---- the history -----------------------------------------------------------------------------------------------------


class HistoryHarness(Protocol):
    def open(self) -> History:
        """A new handle at the newest version of one history, which is empty at first."""


def opened(attempt: str) -> f.AttemptOpened:
    return f.AttemptOpened(
        job_id="a-00000001", seq=1, attempt=attempt, checkpoint_id=1, purpose=Purpose.CHECKPOINT, epoch=1, parent_job_id=None,
        parent_checkpoint_id=None,
    )  # fmt: skip


def ended(attempt: str, status: Status = Status.KILLED) -> f.AttemptEnded:
    return f.AttemptEnded(job_id="a-00000001", seq=2, attempt=attempt, status=status, reason=None)


def told(version: int, *facts: f.Fact) -> ToldCommit:
    return ToldCommit(version, tuple(Row(fact, operation(f"op {version}")) for fact in facts))


class HistoryContract:
    @pytest.fixture
    def harness(self) -> HistoryHarness:
        raise NotImplementedError

    def test_a_new_history_was_told_nothing(self, harness: HistoryHarness) -> None:
        history = harness.open()
        assert history.told_to == -1
        assert not history.has_operation("op 1")
        assert list(history.ended_attempts(99)) == []

    def test_what_is_told_is_seen_by_whoever_opens_or_refreshes(self, harness: HistoryHarness) -> None:
        teller, other = harness.open(), harness.open()
        teller.tell([told(1, dropped(1))], upto=3)
        assert (other.told_to, harness.open().told_to) == (-1, 3)
        for history in (teller, other):
            history.refresh()
            assert (history.told_to, history.has_operation("op 1"), history.has_operation("op 3")) == (3, True, False)

    def test_of_two_tellings_from_one_version_the_second_conflicts(self, harness: HistoryHarness) -> None:
        first, second = harness.open(), harness.open()
        first.tell([told(1, opened("a")), told(2, ended("a"))], upto=2)
        with pytest.raises(LedgerConflictError):
            second.tell([told(1, opened("a")), told(2, ended("a")), told(3, run_ended())], upto=3)
        second.refresh()
        assert (second.told_to, second.has_operation("op 3")) == (2, False)
        assert list(second.ended_attempts(9)) == [opened("a")]
        second.tell([told(3, run_ended())], upto=3)

    def test_a_telling_without_commits_moves_on(self, harness: HistoryHarness) -> None:
        """Of versions that changed no data."""
        history = harness.open()
        history.tell([], upto=5)
        history.refresh()
        assert history.told_to == 5

    def test_attempts_that_ended_are_those_told_up_to_a_version(self, harness: HistoryHarness) -> None:
        """Whatever was told later: an attempt that ended above is not among them, nor one that is open."""
        history = harness.open()
        history.tell([told(1, opened("a"), opened("b")), told(2, ended("a"))], upto=2)
        history.refresh()
        history.tell([told(4, ended("b", Status.RELEASED), opened("c"))], upto=4)
        history.refresh()
        found = {upto: list(history.ended_attempts(upto)) for upto in (-1, 1, 2, 3, 4, 9)}
        first, both = [opened("a")], [opened("a"), opened("b")]
        assert found == {-1: [], 1: [], 2: first, 3: first, 4: both, 9: both}
