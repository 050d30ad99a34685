"""Folding, the history and the cleaning of the log on a disk: engines, sleepers, crashes. `fold_contract.py` has what every adapter promises."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import DamagedLedgerError, FormatError
from holdfast.catalog.ledger import (
    LedgerConflictError,
    Row,
    SnapshotLostError,
    delta_boundary,
    delta_clean,
    delta_commit,
    delta_history,
    delta_log,
)
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.rules.decision import Decision
from holdfast.catalog.schema import Operation
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.views import duckdb_engine
from tests.catalog.fold_contract import ended, opened, told
from tests.catalog.ledger_contract import AT, dropped, gone, operation, put

KEY = "holdfast/job/a-00000001"


class DeltaPlace:
    def __init__(self, root: Path) -> None:
        self.root = root
        if not root.exists() or not any(root.iterdir()):
            DeltaLedger.create(root / "ledger", catalog_id="c0ffee")
            DeltaHistory.make(root / "history", HISTORY_SCHEMA, catalog_id="c0ffee")

    def ledger(self) -> DeltaLedger:
        return DeltaLedger.open(self.root / "ledger")

    def history(self) -> DeltaHistory:
        return DeltaHistory.of(self.root / "history", "ledger")


@pytest.fixture
def disk(tmp_path: Path) -> DeltaPlace:
    return DeltaPlace(tmp_path)


def committed(disk: DeltaPlace, count: int, first: int = 1) -> DeltaLedger:
    ledger = disk.ledger()
    for seq in range(first, first + count):
        put(ledger, dropped(seq), key=KEY, operation_id=f"op-{seq}")
        ledger.refresh()
    return ledger


def seqs(rows: Sequence[Any]) -> list[int]:
    return [(row.fact if isinstance(row, Row) else row).seq for row in rows]


def tell(disk: DeltaPlace, ledger: DeltaLedger) -> None:
    history = disk.history()
    commits = ledger.commits(history.told_to)
    history.tell(commits, commits[-1].version)


# ---- the history ----------------------------------------------------------------------------------------------------------


def test_the_operation_of_a_commit_is_known_by_its_version(disk: DeltaPlace) -> None:
    ledger = committed(disk, 2)
    assert [ledger.operation_at(version) for version in (1, 2)] == ["op-1", "op-2"]


def test_inline_bytes_are_not_told_to_the_history() -> None:
    assert "inline" not in HISTORY_SCHEMA.names
    assert HISTORY_SCHEMA.names[:2] == ["ledger", "version"]


@pytest.mark.parametrize(("column", "word"), [("status", "paused"), ("purpose", "mirror")])
def test_an_attempt_of_the_past_with_an_unknown_word_is_not_passed_over(disk: DeltaPlace, column: str, word: str) -> None:
    """It may not have ended: what it wrote would be called an orphan."""
    history = disk.history()
    rows = history.table_of([told(1, opened("a"), ended("a"))])
    values = pa.array([word if value is not None else None for value in rows[column].to_pylist()], pa.string())
    rows = rows.set_column(rows.schema.get_field_index(column), rows.schema.field(column), values)
    history.add(rows, keys={}, operation=operation("op"))
    history.refresh()
    with pytest.raises(FormatError, match=f"the {column} '{word}'"):
        history.ended_attempts(1)


def test_small_files_of_the_history_become_one(disk: DeltaPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_history, "MERGE_FROM_FILES", 3)
    for first in (1, 3, 5):
        tell(disk, committed(disk, 2, first=first))
    history = disk.history()
    assert len(history.files()) == 3
    history.tidy()
    assert len(disk.history().files()) == 1
    tell(disk, committed(disk, 1, first=7))
    assert [disk.history().operation_at(version) for version in (1, 4, 7)] == ["op-1", "op-4", "op-7"]


# ---- the table on the disk ------------------------------------------------------------------------------------------------


def fold_all(disk: DeltaPlace, keep: int = 1, name: str = "fold") -> DeltaLedger:
    ledger = disk.ledger()
    ledger.make_durable()
    tell(disk, ledger)
    assert ledger.fold(ledger.rows()[-keep:], operation(name))
    ledger.refresh()
    return ledger


def test_engines_read_the_table_before_during_and_after_a_fold(disk: DeltaPlace) -> None:
    committed(disk, 3)
    address = str(disk.root / "ledger")

    def counts() -> tuple[int, int]:
        with duckdb.connect() as connection:
            duckdb_engine._load_delta(connection, duckdb_engine.extension_path())
            (by_duckdb,) = connection.execute(f"SELECT count(*) FROM delta_scan('{address}')").fetchone()  # type: ignore[misc]
        return by_duckdb, DeltaTable(address).count()

    assert counts() == (3, 3)
    ledger = fold_all(disk, keep=2)
    assert counts() == (2, 2)
    ledger.tidy(3)
    assert counts() == (2, 2)


def test_a_damaged_file_of_the_ledger_is_never_folded(disk: DeltaPlace) -> None:
    ledger = committed(disk, 3)
    (name,) = [file.path for file in ledger.files() if "op-2" in file.path]  # type: ignore[attr-defined]
    path = disk.root / "ledger" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    fresh = disk.ledger()
    with pytest.raises(DamagedLedgerError, match="does not have the digest|do not have the digest"):
        fresh.rows()
    with pytest.raises(DamagedLedgerError):
        fresh.commits(-1)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a few entries is long."""
    monkeypatch.setattr(delta_clean, "KEEP_ENTRIES", 6)
    monkeypatch.setattr(delta_commit, "FLIGHT", 5)


def lived(disk: DeltaPlace, folds: int, first: int = 1) -> int:
    """Commits, folds and tidying up, as often; the next seq."""
    for _ in range(folds):
        committed(disk, 6, first=first)
        first += 6
        ledger = fold_all(disk)
        ledger.tidy(disk.history().told_to)
    return first


def test_the_log_stays_short_and_the_table_opens_as_before(disk: DeltaPlace, little: None) -> None:
    lived(disk, 4)
    log = disk.root / "ledger" / "_delta_log"
    versions = delta_log.commit_versions(log)
    assert len(versions) < 20
    assert versions == list(range(versions[0], versions[-1] + 1))
    assert versions[0] == delta_boundary.newest(disk.root / "ledger") > 0
    assert seqs(disk.ledger().rows()) == [24]
    assert disk.ledger().operation_at(disk.history().told_to) == "op-24", "what the history was told last stays"
    assert len(delta_log.checkpoint_versions(log)) <= 4


def test_a_handle_from_below_a_cleaned_log_reads_the_snapshot_again(disk: DeltaPlace, little: None) -> None:
    old = committed(disk, 1)
    lived(disk, 4, first=2)
    with pytest.raises(SnapshotLostError):
        old.refresh()
    assert seqs(old.scan()) == [25]
    put(old, dropped(26), key=KEY, operation_id="op-26")
    assert seqs(disk.ledger().scan()) == [25, 26]


def test_an_append_by_a_handle_from_below_does_not_land(disk: DeltaPlace, little: None) -> None:
    old = committed(disk, 1)
    lived(disk, 4, first=2)
    with pytest.raises((SnapshotLostError, LedgerConflictError)):
        put(old, dropped(2), key=KEY, operation_id="late")
    assert seqs(disk.ledger().scan()) == [25]


class Later:
    """Calls something once, just before the real call: what happens while a process stands still."""

    def __init__(self, real: Callable[..., Any], meanwhile: Callable[[], object]) -> None:
        self.real, self.meanwhile, self.is_done = real, meanwhile, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.is_done:
            self.is_done = True
            self.meanwhile()
        return self.real(*args, **kwargs)


def test_a_writer_that_wakes_after_the_log_was_cleaned_commits_once(
    disk: DeltaPlace, little: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is made where there is a hole. It looks as if it had landed, and no fresh snapshot has it (SlateDB's RFC-0026)."""
    committed(disk, 3)
    sleeper = Transactor(disk.ledger(), SystemEnvironment())
    sleeper.run(lambda _: Decision([], {}))
    send = Later(delta_commit.Committer._send, lambda: lived(disk, 4, first=4))
    monkeypatch.setattr(delta_commit.Committer, "_send", lambda self, *args: send(self, *args))  # noqa: PLW0108 - a method
    decided: list[int] = []

    def decide(_: object) -> Decision:
        decided.append(1)
        return Decision([gone("slept")], {})

    sleeper.run(decide)
    assert len(decided) > 1, "the first try did not count"
    rows = disk.ledger().rows()
    assert [row.fact for row in rows if row.fact.kind == "gone"] == [gone("slept")]


def test_a_folder_that_wakes_after_the_log_was_cleaned_has_folded_nothing(
    disk: DeltaPlace, little: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = committed(disk, 3)
    create = Later(delta_log.create_commit, lambda: lived(disk, 4, first=4))
    monkeypatch.setattr(delta_log, "create_commit", create)
    assert not ledger.fold(ledger.rows()[:1], operation("slept"))
    assert seqs(disk.ledger().rows()) == [27]


def test_a_file_that_waits_for_its_commit_is_not_cleaned_away(disk: DeltaPlace, little: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_clean, "KEEP_REPLACED", timedelta(0))
    lived(disk, 4)
    sleeper = disk.ledger()
    send = Later(delta_commit.Committer._send, lambda: [each.tidy(disk.history().told_to) for each in [fold_once(disk, 25)]])
    monkeypatch.setattr(delta_commit.Committer, "_send", lambda self, *args: send(self, *args))  # noqa: PLW0108 - a method
    put(sleeper, gone("late"), operation_id="late")
    rows = disk.ledger().rows()
    assert gone("late") in [row.fact for row in rows]


def fold_once(disk: DeltaPlace, seq: int) -> DeltaLedger:
    put(disk.ledger(), dropped(seq), key=KEY, operation_id=f"op-{seq}")
    return fold_all(disk)


def test_replaced_files_stay_for_a_time_and_then_go(disk: DeltaPlace, little: None, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(disk, 4)
    ledger = disk.ledger()
    needed = {file.path for file in ledger.files()}
    there = {name for name in os.listdir(disk.root / "ledger") if name.endswith(".parquet")}
    assert len(there - needed) >= 15, "a query that began before loses none under it"
    for name in there:
        os.utime(disk.root / "ledger" / name, (0, 0))
    tidied = ledger.tidy(disk.history().told_to)
    left = {name for name in os.listdir(disk.root / "ledger") if name.endswith(".parquet")}
    assert tidied.data_files == 0, "they were written long ago, and replaced lately"
    for path in (disk.root / "ledger" / "_replaced").iterdir():
        os.utime(path, (0, 0))
    assert ledger.tidy(disk.history().told_to).data_files > 10
    left = {name for name in os.listdir(disk.root / "ledger") if name.endswith(".parquet")}
    assert needed <= left
    assert seqs(disk.ledger().rows()) == [24]


def test_the_boundary_only_rises(disk: DeltaPlace) -> None:
    table = disk.root / "ledger"
    assert delta_boundary.newest(table) == 0
    delta_boundary.raise_to(table, 7)
    delta_boundary.raise_to(table, 3)
    assert delta_boundary.newest(table) == 7


class Stopped(BaseException):
    pass


def calls_of_the_disk(monkeypatch: pytest.MonkeyPatch, stop_at: int) -> Iterator[int]:
    """Counts what changes the disk, and dies at one of these calls: before it, as a process does."""
    made = 0

    def stopping(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal made
            made += 1
            if made == stop_at:
                raise Stopped
            return real(*args, **kwargs)

        return call

    for module, name in ((os, "link"), (os, "unlink"), (os, "fsync"), (os, "mkdir")):
        monkeypatch.setattr(module, name, stopping(getattr(module, name)))
    yield made


@pytest.mark.slow
def test_a_crash_at_any_call_of_fold_and_tidying_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_clean, "KEEP_ENTRIES", 3)
    scene = DeltaPlace(tmp_path / "scene")
    lived(scene, 2)
    committed(scene, 3, first=13)
    stop_at, died = 0, True
    while died:
        stop_at += 1
        disk = DeltaPlace(Path(shutil.copytree(scene.root, tmp_path / str(stop_at))))
        with monkeypatch.context() as patched:
            list(calls_of_the_disk(patched, stop_at))
            try:
                ledger = fold_all(disk)
                ledger.tidy(disk.history().told_to)
                died = False
            except Stopped:
                pass
        rows = disk.ledger().rows()
        assert seqs(rows)[-1] == 15
        ledger = disk.ledger()
        history = disk.history()
        if commits := ledger.commits(history.told_to):
            history.tell(commits, commits[-1].version)
        assert all(disk.history().has_operation(f"op-{seq}") for seq in range(1, 16))
        assert ledger.fold(ledger.rows()[-1:], operation("again"))
        ledger.refresh()
        ledger.tidy(disk.history().told_to)
        assert seqs(disk.ledger().rows()) == [15]
    assert stop_at > 20


def test_times_and_authors_of_rows_survive_a_fold(disk: DeltaPlace) -> None:
    ledger = disk.ledger()
    at = datetime(2020, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
    ledger.append([dropped(1)], keys={KEY: 1}, operation=Operation(operation_id="one", at=at, by="somebody"))
    ledger.refresh()
    fold_all(disk)
    (row,) = disk.ledger().rows()
    assert (row.operation.at, row.operation.by) == (at, "somebody")
    assert at != AT
