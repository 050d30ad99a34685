"""Which rows a fold leaves where they are; `tests/protocol/test_folding.py` has the random histories, `fold_contract.py` the ledgers."""

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.big_files import named, parted, written_again
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.ledger import Alike, BigFile, Row, delta_clean, delta_data, delta_entry
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog, _Commit
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.references import References
from holdfast.catalog.schema import Operation, from_table
from holdfast.catalog.types import Scope
from holdfast.catalog.views import duckdb_engine
from holdfast.compaction.fold import FoldReport, run_fold
from holdfast.compaction.garbage import find_garbage
from holdfast.compaction.queries import SqlQueries
from tests.catalog.test_ledger_fold import Stopped, calls_of_the_disk
from tests.support.history import J, K, committed, end, file, handle, history, minute
from tests.support.model_ports import ModelEnvironment

BY = Operation(operation_id="op", at=minute(1), by="ann@host")


def said(*facts: f.Fact) -> list[Row]:
    return [Row(fact, BY) for fact in facts]


def job(job_id: str = J) -> f.JobRegistered:
    return f.JobRegistered(job_id=job_id, seq=1, job=job_id, max_parallelism=2)


def drop(seq: int, number: int) -> f.Dropped:
    return f.Dropped(job_id=J, seq=seq, checkpoint_id=number, reason="x")


def gone(file_id: str) -> f.Gone:
    return f.Gone(job_id=J, file_id=file_id, run_id="r")


def ack(number: int) -> f.Acknowledged:
    return f.Acknowledged(
        job_id=J, seq=1, checkpoint_id=number, operator="o", state="s", subtask=0, bytes_written=1, bytes_reused=0, rows=None, upload_ms=1,
        digest_ms=1, sort_ms=None, sync_ms=None,
    )  # fmt: skip


# ---- which files are written again -----------------------------------------------------------------------------------


def big_file(name: str, facts: Sequence[f.Fact], small: Sequence[Row]) -> BigFile:
    about = named(small)
    rows = tuple(row for row in said(*facts) if getattr(row.fact, "file_id", None) in about)
    return BigFile(name=name, counts=Counter(map(Alike.of, facts)), about=rows)


LIVE = [job(), committed(3, "a", 1, None), committed(9, "b", 2, 1)]
CLOSED = replace(handle(3, "a-0"), to_seq=9)  # in which checkpoint 1 lies, and not 2


@pytest.mark.parametrize(
    ("stale", "beside"),
    [
        (CLOSED, [drop(10, 1)]),
        (handle(3, "a-0", scope=Scope.EXCLUSIVE), [drop(10, 1)]),
        (handle(3, "a-0"), [end(9, "a-0", 3), drop(10, 1)]),
        (handle(3, "a-0"), [end(9, "a-0", 3)]),  # it lives, and its end is read at each fold
        (handle(3, "a-0", savepoint="nobody", scope=Scope.EXCLUSIVE), []),
        (file(3, "a-0"), [gone("a-0")]),
        (ack(1), [drop(10, 1)]),
        (ack(7), []),
    ],
)
def test_a_file_of_which_half_is_stale_is_written_again(stale: f.Fact, beside: Sequence[f.Fact]) -> None:
    small = said(*LIVE, *beside)
    living = [handle(3, "x-0"), handle(3, "x-1")]
    for facts, again in (([stale, stale, *living], ["big"]), ([stale, *living], []), ([stale], ["big"])):
        # what is counted twice is one row in truth, so that an end is about both
        assert written_again(small, [big_file("big", facts, small)]) == again


def test_what_lives_is_not_written_again() -> None:
    small = said(*LIVE, f.Condemned(job_id=J, file_id="a-0", run_id="r"), file(9, "b-0"), end(9, "c-0", 3))
    living = [CLOSED, handle(3, "a-1"), file(3, "a-0"), ack(1), ack(2), handle(9, "b-0")]
    assert written_again(small, [big_file("big", living, small)]) == []
    assert written_again(small, []) == []


def test_as_many_rows_are_written_again_as_lie_beside_stalest_first() -> None:
    """Rows that end others are read at every fold: without this, of a million live handles they could become half a million."""
    ended = [handle(3, f"e-{n}") for n in range(12)]
    small = said(*LIVE, *(end(9, each.file_id, 3) for each in ended))
    living = [handle(3, f"x-{n}") for n in range(20)]
    files = [
        big_file("a", [*living[:9], *ended[:1]], small),
        big_file("b", [*living[:6], *ended[1:5]], small),
        big_file("c", [*living[:8], *ended[5:7]], small),
        big_file("d", ended[7:12], small),
    ]
    assert written_again(small, files) == ["d", "b"]
    assert written_again(small, files[:3]) == [], "seven lie beside, and each file has ten"


def test_what_folds_read_settles_far_below_what_lives() -> None:
    """Of 3,000 handles some end at each fold, anywhere, and as many are new. By half stale files alone the ends beside would grow to 1,400."""
    log, told, source, read = MemoryLog(), MemoryTold(), random.Random(1), []
    begins = {f"a-{n}": 2 for n in range(3000)}

    def say(*facts: f.Fact) -> None:
        log.commit(log.version, _Commit(replace(BY, operation_id=f"op {log.version}"), frozenset(), tuple(facts)))

    say(job(), *(handle(2, each) for each in begins))
    for seq in range(3, 63):
        read.append(run_fold(MemoryLedger(log), MemoryHistory(told), ModelEnvironment(), file_rows=100).read_rows)
        log.clean(told.told_to)
        ended = source.sample(sorted(begins), 15)
        say(*(end(seq, each, begins.pop(each)) for each in ended), *(handle(seq, f"b-{seq}-{n}") for n in range(15)))
        begins.update({f"b-{seq}-{n}": seq for n in range(15)})
    assert read[:2] == [3001, 2 + 3 * 15]
    assert max(read[1:]) < 1000


# ---- which rows become big files -------------------------------------------------------------------------------------


def handles(**jobs: int) -> list[Row]:
    return said(*(handle(2, f"{name}-{n}", job=name) for name, count in jobs.items() for n in range(count)))


def sizes(files: Sequence[Sequence[Row]]) -> list[dict[str, int]]:
    return [dict(Counter(row.fact.job_id for row in rows)) for rows in files]


@pytest.mark.parametrize(
    ("rows", "files", "left"),
    [
        (handles(), [], {}),
        (handles(a=10), [], {"a": 10}),
        (handles(a=11), [{"a": 10}], {"a": 1}),
        (handles(a=14), [{"a": 10}], {"a": 4}),
        (handles(a=15), [{"a": 10}, {"a": 5}], {}),
        (handles(a=30), [{"a": 10}] * 3, {}),
        (handles(c=6, a=6, b=6), [{"a": 6}, {"b": 6}, {"c": 6}], {}),
        (handles(a=6, b=4, c=4), [{"a": 6, "b": 4}], {"c": 4}),
        (handles(a=4, b=8), [{"a": 4, "b": 6}], {"b": 2}),
        (handles(b=23, a=1), [{"a": 1, "b": 9}, {"b": 10}], {"b": 4}),
    ],
)
def test_many_rows_become_files_in_the_order_of_jobs(rows: list[Row], files: list[dict[str, int]], left: dict[str, int]) -> None:
    others = said(job(), committed(3, "a", 1, None))
    small, big = parted([*others, *rows], file_rows=10)
    assert sizes(big) == files
    assert [row for row in small if row.fact.kind != "handle"] == others
    assert sizes([[row for row in small if row.fact.kind == "handle"]]) == [left]
    assert sorted(map(str, (row for each in (small, *big) for row in each))) == sorted(map(str, [*others, *rows]))


def test_what_ends_rows_is_never_in_a_big_file() -> None:
    rows = [Row(fact, BY) for _, facts in history() for fact in facts]
    _, big = parted(rows, file_rows=1)
    assert {row.fact.kind for each in big for row in each} == f.BIG_KINDS


# ---- on a disk -------------------------------------------------------------------------------------------------------


class Place:
    def __init__(self, root: Path) -> None:
        """What is there, or two jobs."""
        self.root, self.environment = root, SystemEnvironment()
        is_new = not DeltaLedger.exists(root / "ledger")
        if is_new:
            DeltaLedger.create(root / "ledger", catalog_id="c0ffee")
            DeltaHistory.make(root / "history", HISTORY_SCHEMA, catalog_id="c0ffee")
        self.ledger, self.history = DeltaLedger.open(root / "ledger"), DeltaHistory.of(root / "history", "ledger")
        if is_new:
            self.say(job(), job(K))

    def say(self, *facts: f.Fact) -> None:
        self.ledger.append(facts, keys={}, operation=Operation.new(self.environment))
        self.ledger.refresh()

    def fold(self, file_rows: int = 10) -> FoldReport:
        report = run_fold(DeltaLedger.open(self.root / "ledger"), self.history, self.environment, file_rows=file_rows)
        assert report.is_folded
        self.ledger.refresh()
        return report

    def big(self) -> list[str]:
        return [each.name for each in self.ledger.big_files(())]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A job of 25 live handles in three big files, and another of 10 in one."""
    place = Place(tmp_path)
    place.say(*(handle(2, f"a-{n}") for n in range(25)), *(handle(2, f"b-{n}", job=K) for n in range(10)))
    place.fold()
    return place


def test_the_names_of_big_files_say_what_all_names_say(place: Place) -> None:
    for name in place.big():
        assert delta_data.seen_by_writer(name) == 2
        assert delta_entry.digest_in_name(name)
        assert delta_data.is_big(name)
    small = {file.path for file in place.ledger.files()} - {*place.big()}
    assert small
    assert not any(delta_data.is_big(name) for name in small)


def test_no_operation_makes_a_small_file_a_big_one(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.ledger.append([drop(2, 1)], keys={}, operation=replace(BY, operation_id="00000000000000000001-big.x"))
    place.ledger.refresh()
    place.ledger.fold(place.ledger.rows(), replace(BY, operation_id="big.y"))
    place.ledger.refresh()
    assert place.big() == []
    assert len(place.ledger.small_rows()) == 3


def test_files_stay_while_most_of_their_rows_live(place: Place) -> None:
    before = place.big()
    assert len(before) == 4
    place.say(*(end(5, f"a-{n}", 2) for n in range(4)))
    assert place.fold().read_rows == 2 + 2 + 4 + 4, "jobs and what each said together, ends, and what these end"
    assert place.big() == before
    place.say(*(end(6, f"a-{n}", 2) for n in range(4, 6)))
    place.fold()
    assert place.big() == before[1:]
    assert {n for n, _ in place.ledger.open_handles(J)} == {f"a-{n}" for n in range(6, 25)}
    assert not [fact for fact in place.ledger.scan() if fact.kind == "handle_end"]


def test_what_is_asked_of_a_line_opens_no_big_file(place: Place) -> None:
    for name in place.big():
        (place.root / "ledger" / name).unlink()
    place.ledger.scan(["job", "start", "folded", "checkpoint", "drop"], J)
    assert place.ledger.registered(K) == job(K)
    assert place.ledger.registered("nobody") is None


def test_a_jobs_open_handles_are_in_its_own_big_files(place: Place) -> None:
    (of_k,) = [each.name for each in place.ledger.big_files(()) if {alike.job_id for alike in each.counts} == {K}]
    (place.root / "ledger" / of_k).unlink()
    assert len(place.ledger.open_handles(J)) == 25
    with pytest.raises(DamagedLedgerError, match=of_k):
        DeltaLedger.open(place.root / "ledger")


def test_a_damaged_big_file_is_never_folded(place: Place) -> None:
    path = place.root / "ledger" / place.big()[0]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    place.say(handle(5, "new"))
    with pytest.raises(DamagedLedgerError, match="do not have the digest in its name"):
        place.fold()


def test_engines_read_big_files_as_all_others(place: Place) -> None:
    place.say(end(5, "a-0", 2))
    place.fold()
    with duckdb_engine.connect(str(place.root / "ledger")) as connection:
        found = connection.execute("SELECT job_id, count(*), count(to_seq) FROM handles GROUP BY ALL ORDER BY ALL").fetchall()
    assert found == [(J, 25, 1), (K, 10, 0)]


def test_garbage_is_found_in_big_files_as_in_all_others(place: Place) -> None:
    """Of a file row in one, by the end that lies beside; and not of one that has been called gone beside."""
    lost, deleted, used = (f"a-{n}" for n in (30, 31, 0))
    place.say(committed(3, "a", 1, None), *(file(3, each) for each in (lost, deleted, used)), *(file(3, f"x-{n}", job=K) for n in range(9)))
    place.say(handle(3, lost), *(handle(3, f"x-{n}", job=K) for n in range(9)))
    place.fold()
    place.say(committed(9, "b", 2, 1), end(9, lost, 3), drop(9, 1), gone(deleted))
    place.fold()
    assert any(row.fact == file(3, lost) for each in place.ledger.big_files([lost]) for row in each.about)
    assert {row.fact.kind for row in place.ledger.small_rows()} >= {"handle_end", "gone"}
    references = References.of(place.ledger.scan())
    found = SqlQueries.at(str(place.root / "ledger")).garbage()
    assert {each.file_id for each in find_garbage(references).unreferenced} == {each.file_id for each in found.unreferenced}
    assert lost in {each.file_id for each in found.unreferenced}


def test_cleaning_keeps_what_a_fold_left_where_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old: it is in the newest snapshot. And it deletes those that were written again."""
    monkeypatch.setattr(delta_clean, "KEEP_ENTRIES", 2)
    monkeypatch.setattr(delta_clean, "KEEP_REPLACED", timedelta(days=-1))
    before = place.big()
    for seq in range(5, 13):
        place.say(end(seq, f"a-{seq - 5}", 2))
        place.fold()
        place.ledger.tidy(place.ledger.folded_to)
    left = {path.name for path in (place.root / "ledger").iterdir() if delta_data.is_big(path.name)}
    assert {*place.big()} <= left
    assert left & {*before} == {*place.big()} & {*before}
    assert len(DeltaLedger.open(place.root / "ledger").open_handles(J)) == 17
    assert before[-1] in left
    assert before[0] not in left


@pytest.mark.slow
def test_a_crash_at_any_call_of_a_fold_that_leaves_files_loses_nothing(
    place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.say(*(end(5, f"a-{n}", 2) for n in range(2)), *(handle(5, f"c-{n}") for n in range(11)))
    place.say(*(end(6, f"a-{n}", 2) for n in range(10, 16)))
    operations = {row.operation.operation_id for commit in place.ledger.commits(place.history.told_to) for row in commit.rows}
    is_open, is_in_k = place.ledger.open_handles(J), place.ledger.open_handles(K)
    copies, stop_at, died = tmp_path_factory.mktemp("copies"), 0, True
    while died:
        stop_at += 1
        root = Path(shutil.copytree(place.root, copies / str(stop_at)))
        with monkeypatch.context() as patched:
            stopped = Place(root)
            list(calls_of_the_disk(patched, stop_at))
            try:
                stopped.fold()
                died = False
            except Stopped:
                pass
        for folds in (False, True):
            survivor = Place(root)
            if folds:
                survivor.say(gone("x"))
                survivor.fold()
            assert (survivor.ledger.open_handles(J), survivor.ledger.open_handles(K)) == (is_open, is_in_k)
        survivor.history.refresh()
        assert all(survivor.history.has_operation(each) for each in operations)
        assert {*place.big()} & {*survivor.big()}
        shutil.rmtree(root)
    assert stop_at > 15


@pytest.mark.slow
def test_a_fold_makes_facts_of_what_has_changed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300,000 handles are live, of two jobs; a hundred commits end one and add one. The second fold makes facts of these, and of
    what they end."""
    place, made = Place(tmp_path), [0]
    for name in (J, K):
        place.say(*(handle(2, f"{name}-{n}", job=name) for n in range(150_000)))

    def counted(table):
        made[0] += table.num_rows
        return from_table(table)

    monkeypatch.setattr("holdfast.catalog.ledger.delta_data.from_table", counted)
    first = place.fold(20_000)
    assert made[0] >= first.read_rows >= 300_000
    before = place.big()
    for n in range(100):
        place.say(end(3 + n, f"{J}-{n * 997}", 2), handle(3 + n, f"new-{n}"))
    made[0] = 0
    second = place.fold(20_000)
    assert second.rows_before == first.rows_after + 200
    assert second.read_rows == made[0] == 2 + 2 + 200 + 100
    assert place.big() == before
    assert len(place.ledger.open_handles(J)) == 150_000
