"""What every ledger adapter promises. Subclass `LedgerContract` and give it a `harness`."""

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Protocol, get_args

import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.ledger import Ledger, LedgerConflictError, SnapshotLostError
from holdfast.catalog.schema import Operation
from holdfast.catalog.types import JobId, Purpose, Role, Scope, Status
from tests.support.history import J, K, end, handle

AT = datetime(2013, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


class Harness(Protocol):
    """One log: handles on it, and what others do to it."""

    def open(self) -> Ledger:
        """A new handle at the newest version."""

    def compact(self) -> None:
        """Somebody else's commit that changes no data."""

    def clean(self) -> None:
        """Somebody else removes the single commits below the newest, having secured the snapshot."""


def operation(operation_id: str = "op") -> Operation:
    return Operation(operation_id=operation_id, at=AT, by="tester@host holdfast/test")


def dropped(seq: int, job_id: str = "a-00000001") -> f.Dropped:
    return f.Dropped(job_id=job_id, seq=seq, checkpoint_id=seq, reason="retention")


def gone(file_id: str) -> f.Gone:
    return f.Gone(job_id="a-00000001", file_id=file_id, run_id="run")


def written(job_id: str, scope: Scope) -> f.FileWritten:
    return f.FileWritten(
        job_id=job_id, seq=1, file_id=f"{job_id}-{scope}", attempt="t", path="p", size_bytes=1, sha256="5a", scope=scope, owner=None
    )  # fmt: skip


def run_ended(run_id: str = "run") -> f.RunEnded:
    return f.RunEnded(run_id=run_id, what="vacuum", started_at=AT, ended_at=AT, outcome="done", figures="{}")


def put(ledger: Ledger, *rows: Any, key: str | None = None, operation_id: str = "op") -> None:
    keys = {} if key is None else {key: rows[0].seq}
    ledger.append(rows, keys=keys, operation=operation(operation_id))


def example(kind: type, filled: bool) -> Any:
    """A fact of this kind with every field set, or with every field that may be empty left empty."""
    samples: dict[Any, Any] = {
        str: "text é",
        int: 1_000_000_007,
        bool: True,
        bytes: b"\x00\xff",
        datetime: AT,
        Purpose: Purpose.SAVEPOINT,
        Status: Status.KILLED,
        Scope: Scope.TASKOWNED,
        Role: Role.UPSERTS,
    }
    values = {}
    for name, annotation in kind.__annotations__.items():
        if name == "kind":
            continue
        options = get_args(annotation) or (annotation,)
        if type(None) in options and not filled:
            values[name] = None
            continue
        wanted = next(o for o in options if o is not type(None))
        values[name] = samples[getattr(wanted, "__supertype__", wanted)]
    return kind(**values)


EXAMPLES = [example(kind, filled) for kind in f.KINDS.values() for filled in (True, False)]


class LedgerContract:
    @pytest.fixture
    def harness(self) -> Harness:
        raise NotImplementedError

    def test_an_empty_ledger_stands_at_0_and_holds_nothing(self, harness: Harness) -> None:
        ledger = harness.open()
        assert ledger.version == 0
        assert list(ledger.scan()) == []
        assert list(ledger.refresh()) == []

    def test_append_does_not_move_the_snapshot_and_refresh_does(self, harness: Harness) -> None:
        ledger = harness.open()
        put(ledger, dropped(1))
        assert ledger.version == 0
        assert list(ledger.scan()) == []
        ledger.refresh()
        assert ledger.version == 1
        assert list(ledger.scan()) == [dropped(1)]

    def test_refresh_tells_every_commit_in_between_oldest_first(self, harness: Harness) -> None:
        """Its own commits included."""
        ours, theirs = harness.open(), harness.open()
        put(ours, dropped(1), key="x", operation_id="first")
        put(theirs, gone("f"), run_ended(), operation_id="second")
        commits = ours.refresh()
        assert [(c.version, c.operation_id, c.keys) for c in commits] == [(1, "first", {"x"}), (2, "second", set())]
        assert [list(c.facts()) for c in commits] == [[dropped(1)], [gone("f"), run_ended()]]
        assert list(ours.refresh()) == []

    def test_facts_of_a_commit_can_be_read_late_and_twice(self, harness: Harness) -> None:
        ours, theirs = harness.open(), harness.open()
        put(theirs, dropped(1))
        (commit,) = ours.refresh()
        put(theirs, dropped(2))
        ours.refresh()
        assert list(commit.facts()) == list(commit.facts()) == [dropped(1)]

    def test_a_scan_gives_the_kinds_the_job_and_the_scope_that_were_asked_for(self, harness: Harness) -> None:
        ledger = harness.open()
        rows = [written(job, scope) for job in ("a-00000001", "b-00000002") for scope in (Scope.SHARED, Scope.TASKOWNED)]
        put(ledger, dropped(1), *rows)
        ledger.refresh()
        assert list(ledger.scan(["file"])) == rows
        assert list(ledger.scan(["file"], "a-00000001")) == rows[:2]
        assert list(ledger.scan(["file", "drop"], "b-00000002", Scope.TASKOWNED)) == rows[3:]

    def test_a_key_committed_since_the_snapshot_conflicts(self, harness: Harness) -> None:
        first, second = harness.open(), harness.open()
        put(first, dropped(1), key="job/a")
        with pytest.raises(LedgerConflictError):
            put(second, dropped(1), key="job/a", operation_id="late")
        second.refresh()
        assert list(second.scan()) == [dropped(1)]
        put(second, dropped(2), key="job/a")
        assert [c.version for c in second.refresh()] == [2]

    def test_a_stale_key_conflicts_whatever_its_version_says(self, harness: Harness) -> None:
        first, second = harness.open(), harness.open()
        put(first, dropped(1), key="job/a")
        with pytest.raises(LedgerConflictError):
            put(second, dropped(99), key="job/a")

    def test_the_second_append_of_one_snapshot_conflicts_with_the_first(self, harness: Harness) -> None:
        ledger = harness.open()
        put(ledger, dropped(1), key="job/a")
        with pytest.raises(LedgerConflictError):
            put(ledger, dropped(2), key="job/a")

    def test_any_one_of_several_keys_conflicts(self, harness: Harness) -> None:
        first, second = harness.open(), harness.open()
        put(first, dropped(1), key="job/b")
        with pytest.raises(LedgerConflictError):
            second.append([dropped(1)], keys={"job/a": 1, "job/b": 1}, operation=operation())
        put(second, dropped(1), key="job/a")  # the refused one left no mark on its other key

    def test_different_keys_both_commit(self, harness: Harness) -> None:
        first, second = harness.open(), harness.open()
        put(first, dropped(1, "a"), key="job/a")
        put(second, dropped(1, "b"), key="job/b")
        first.refresh()
        assert list(first.scan()) == [dropped(1, "a"), dropped(1, "b")]

    def test_without_keys_nothing_conflicts_however_stale_the_handle(self, harness: Harness) -> None:
        writer, stale = harness.open(), harness.open()
        for seq in range(1, 30):
            put(writer, dropped(seq), key="job/a")
            writer.refresh()
        put(stale, gone("f"))
        assert [c.version for c in stale.refresh()] == list(range(1, 31))

    def test_of_racing_handles_with_one_key_exactly_one_wins_each_round(self, harness: Harness) -> None:
        ledgers = [harness.open() for _ in range(3)]
        for round_ in range(1, 6):
            outcomes: list[str] = []
            barrier = threading.Barrier(len(ledgers))

            def race(ledger: Ledger, n: int, round_: int = round_, outcomes: list[str] = outcomes, go: Any = barrier) -> None:
                go.wait()
                try:
                    put(ledger, dropped(round_), key="job/a", operation_id=f"{round_}-{n}")
                    outcomes.append("won")
                except LedgerConflictError:
                    outcomes.append("lost")

            threads = [threading.Thread(target=race, args=(ledger, n)) for n, ledger in enumerate(ledgers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(outcomes) == ["lost", "lost", "won"]
            for ledger in ledgers:
                ledger.refresh()
        assert list(ledgers[0].scan()) == [dropped(seq) for seq in range(1, 6)]

    def test_a_commit_whose_response_was_lost_is_found_by_its_operation_id(self, harness: Harness) -> None:
        """The request is sent again and meets its own first commit: only the operation id tells that from a lost race."""
        ledger = harness.open()
        put(ledger, dropped(1), key="job/a", operation_id="mine")
        with pytest.raises(LedgerConflictError):
            put(ledger, dropped(1), key="job/a", operation_id="mine")
        assert [c.operation_id for c in ledger.refresh()] == ["mine"]
        assert list(ledger.scan()) == [dropped(1)]

    def test_an_operation_sent_again_with_other_facts_tells_those_that_landed(self, harness: Harness) -> None:
        ledger = harness.open()
        put(ledger, dropped(1), key="job/a", operation_id="mine")
        with pytest.raises(LedgerConflictError):
            put(ledger, dropped(2), key="job/a", operation_id="mine")
        (commit,) = ledger.refresh()
        assert list(commit.facts()) == [dropped(1)]

    def test_refresh_leaves_compaction_out_and_no_fact_is_lost_by_it(self, harness: Harness) -> None:
        ours, theirs = harness.open(), harness.open()
        put(theirs, dropped(1), key="job/a")
        theirs.refresh()
        put(theirs, dropped(2), key="job/a")
        harness.compact()
        commits = ours.refresh()
        assert [c.version for c in commits] == [1, 2]
        assert ours.version == 3
        assert list(ours.scan()) == [dropped(1), dropped(2)]

    def test_a_stale_handle_appends_beside_a_compaction(self, harness: Harness) -> None:
        ours, theirs = harness.open(), harness.open()
        put(theirs, dropped(1), key="job/b")
        put(theirs, dropped(2), gone("f"))
        harness.compact()
        put(ours, dropped(3), key="job/a")
        ours.refresh()
        assert list(ours.scan(["drop"])) == [dropped(1), dropped(2), dropped(3)]

    def test_a_key_still_conflicts_across_a_compaction(self, harness: Harness) -> None:
        ours, theirs = harness.open(), harness.open()
        put(theirs, dropped(1), key="job/a")
        put(theirs, gone("f"))
        harness.compact()
        with pytest.raises(LedgerConflictError):
            put(ours, dropped(1), key="job/a")

    def test_a_new_handle_stands_at_the_newest_version(self, harness: Harness) -> None:
        put(harness.open(), dropped(1))
        ledger = harness.open()
        assert ledger.version == 1
        assert list(ledger.refresh()) == []
        assert list(ledger.scan()) == [dropped(1)]

    def test_scan_filters_by_kind_and_by_job(self, harness: Harness) -> None:
        ledger = harness.open()
        put(ledger, dropped(1, "a"), gone("f"))
        ledger.refresh()
        put(ledger, dropped(1, "b"), run_ended())
        ledger.refresh()
        assert list(ledger.scan(["drop"])) == [dropped(1, "a"), dropped(1, "b")]
        assert list(ledger.scan({"gone", "run"})) == [gone("f"), run_ended()]
        assert list(ledger.scan(job_id="b")) == [dropped(1, "b")]
        assert list(ledger.scan(["gone"], job_id="a-00000001")) == [gone("f")]
        assert list(ledger.scan(["hold"])) == []
        assert list(ledger.scan([])) == []
        assert list(ledger.scan(iter(["drop"]), job_id="none")) == []

    def test_scan_is_in_commit_order_and_in_a_commits_own_order(self, harness: Harness) -> None:
        ledger = harness.open()
        rows: list[Any] = []
        for seq in range(1, 13):
            facts = [dropped(seq), gone(f"z{seq}"), gone(f"a{seq}")]
            put(ledger, *facts, key="job/a", operation_id=f"{99 - seq}")
            ledger.refresh()
            rows += facts
        assert list(ledger.scan()) == rows

    def test_after_compaction_facts_still_come_in_the_order_of_seq(self, harness: Harness) -> None:
        ledger = harness.open()
        for seq in range(1, 6):
            put(ledger, dropped(seq), dropped(seq, "b"), key="job/a")
            ledger.refresh()
        harness.compact()
        ledger.refresh()
        put(ledger, dropped(6), key="job/a")
        ledger.refresh()
        assert list(ledger.scan(job_id="a-00000001")) == [dropped(seq) for seq in range(1, 7)]
        assert list(ledger.scan(["drop"], job_id="b")) == [dropped(seq, "b") for seq in range(1, 6)]

    @pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.kind)
    def test_every_kind_of_fact_comes_back_as_it_was(self, harness: Harness, fact: Any) -> None:
        ledger, reader = harness.open(), harness.open()
        ledger.append([fact], keys={}, operation=operation())
        (commit,) = reader.refresh()
        assert list(commit.facts()) == [fact]
        assert list(reader.scan()) == [fact]
        assert list(reader.scan([fact.kind])) == [fact]

    def test_facts_of_every_kind_come_back_together(self, harness: Harness) -> None:
        ledger, reader = harness.open(), harness.open()
        ledger.append(EXAMPLES, keys={}, operation=operation())
        (commit,) = reader.refresh()
        assert list(commit.facts()) == EXAMPLES
        assert list(reader.scan()) == EXAMPLES

    def test_a_commit_without_facts_still_carries_its_keys(self, harness: Harness) -> None:
        """A touch: a transaction that only read another job still meets that job's next commit."""
        first, second = harness.open(), harness.open()
        first.append([], keys={"job/a": 1}, operation=operation("touch"))
        with pytest.raises(LedgerConflictError):
            put(second, dropped(1), key="job/a")
        assert [(c.operation_id, list(c.facts())) for c in second.refresh()] == [("touch", [])]
        assert list(second.scan()) == []

    def test_a_log_cleaned_above_the_snapshot_is_told_and_the_snapshot_moves(self, harness: Harness) -> None:
        stale, writer = harness.open(), harness.open()
        _write(writer, range(1, 4))
        harness.clean()
        with pytest.raises(SnapshotLostError):
            stale.refresh()
        assert stale.version == 3
        assert list(stale.scan()) == [dropped(1), dropped(2), dropped(3)]
        assert list(stale.refresh()) == []
        put(stale, dropped(4), key="job/a")
        assert [c.version for c in stale.refresh()] == [4]

    def test_an_append_on_a_snapshot_below_the_cleaned_log_commits_nothing(self, harness: Harness) -> None:
        """Only the facts that the handle has not seen could say whether its keys conflict."""
        stale, writer = harness.open(), harness.open()
        _write(writer, range(1, 4))
        harness.clean()
        with pytest.raises(SnapshotLostError):
            put(stale, dropped(9), key="job/a")
        writer.refresh()
        assert list(writer.scan()) == [dropped(1), dropped(2), dropped(3)]

    def test_an_operation_is_known_by_its_rows_where_the_log_no_longer_tells(self, harness: Harness) -> None:
        stale, writer = harness.open(), harness.open()
        put(writer, dropped(1), operation_id="mine")
        writer.refresh()
        assert writer.has_operation("mine")
        assert not writer.has_operation("other")
        assert not stale.has_operation("mine")
        _write(writer, range(2, 4))
        harness.compact()
        harness.clean()
        with pytest.raises(SnapshotLostError):
            stale.refresh()
        assert stale.has_operation("mine")
        assert not stale.has_operation("other")

    def test_a_job_is_found_by_its_name_whatever_its_id(self, harness: Harness) -> None:
        """And not by one that begins alike, or is another's id."""
        ledger = harness.open()
        mine, alike, odd = (
            f.JobRegistered(job_id=JobId(job_id), seq=1, job=name, max_parallelism=8)
            for job_id, name in (("flights-0000000f", "flights"), ("flights-1-00000001", "flights-1"), ("z", "Flüge 2"))
        )
        for job in (mine, alike, odd):
            put(ledger, job, key=f"job/{job.job_id}")
            ledger.refresh()
        assert [ledger.registered(name) for name in ("flights", "flights-1", "Flüge 2")] == [mine, alike, odd]
        assert [ledger.registered(name) for name in ("flight", "z", "flights-0000000f", "")] == [None] * 4

    def test_open_handles_are_those_of_the_job_that_nothing_has_ended(self, harness: Harness) -> None:
        """One that was added again is open from there; an EXCLUSIVE one never is."""
        ledger = harness.open()
        put(ledger, handle(1, "a"), handle(1, "a", offset=10), handle(1, "b"), handle(1, "c", scope=Scope.EXCLUSIVE), key="job/a")
        ledger.refresh()
        put(ledger, end(2, "a", 1), end(2, "b", 1), handle(2, "other", job=K), key="job/a")
        ledger.refresh()
        old = harness.open()
        put(ledger, handle(3, "b"), key="job/a")
        ledger.refresh()
        assert ledger.open_handles(J) == {("a", 10): 1, ("b", 0): 3}
        assert old.open_handles(J) == {("a", 10): 1}
        assert ledger.open_handles(K) == {("other", 0): 2}
        assert ledger.open_handles("nobody") == {}

    def test_make_durable_may_be_called_at_any_version_and_again(self, harness: Harness) -> None:
        ledger = harness.open()
        ledger.make_durable()
        put(ledger, dropped(1))
        ledger.refresh()
        ledger.make_durable()
        ledger.make_durable()
        assert list(harness.open().scan()) == [dropped(1)]


def _write(ledger: Ledger, seqs: Iterable[int]) -> None:
    for seq in seqs:
        put(ledger, dropped(seq), key="job/a")
        ledger.refresh()
