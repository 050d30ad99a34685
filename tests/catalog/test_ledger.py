"""The ledger adapters against their contract, and what is particular to each."""

import errno
import json
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from holdfast.catalog.errors import AddressError, AlreadyExistsError, DamagedLedgerError, FencedError
from holdfast.catalog.ledger import Ledger, LedgerConflictError, SnapshotLostError, delta_checkpoint, delta_entry, delta_handle, delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.ledger.memory import MemoryLedger, MemoryLog
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from tests.catalog.fold_contract import FoldContract, HistoryContract, HistoryHarness
from tests.catalog.ledger_contract import Harness, LedgerContract, dropped, gone, operation, put
from tests.support import format_1
from tests.support.faults import Crash, Faults, LostResponseError
from tests.support.faulty_ledger import FaultyLedger


class MemoryHarness:
    def __init__(self) -> None:
        self.log = MemoryLog()

    def open(self) -> MemoryLedger:
        return MemoryLedger(self.log)

    def compact(self) -> None:
        self.log.compact()

    def clean(self) -> None:
        self.log.clean()


class DeltaHarness:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        DeltaLedger.create(directory, catalog_id="c0ffee")

    def open(self) -> DeltaLedger:
        return DeltaLedger.open(self.directory)

    def compact(self) -> None:
        """A fold that keeps everything."""
        ledger = self.open()
        assert ledger.fold(ledger.rows(), operation("fold"))

    def clean(self) -> None:
        """A Delta checkpoint, then no commit below it."""
        log = self.directory / "_delta_log"
        self.make_checkpoint(log)
        for version in delta_log.commit_versions(log)[:-1]:
            (log / delta_log.commit_name(version)).unlink()

    def make_checkpoint(self, log: Path) -> None:
        delta_checkpoint.make(log, delta_log.commit_versions(log)[-1])


class Format1Harness(DeltaHarness):
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        format_1.make_ledger(directory)

    def compact(self) -> None:
        assert DeltaTable(self.directory).optimize.compact()["numFilesRemoved"] > 0

    def make_checkpoint(self, log: Path) -> None:
        DeltaTable(self.directory).create_checkpoint()


class FaultyHarness(MemoryHarness):
    def open(self) -> Ledger:  # type: ignore[override]  # wraps what its base opens
        return FaultyLedger(MemoryLedger(self.log), Faults())


class TestMemoryLedger(LedgerContract, FoldContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return MemoryHarness()

    def test_power_loss_takes_what_was_not_made_durable(self) -> None:
        log = MemoryLog()
        ledger = MemoryLedger(log)
        put(ledger, dropped(1), key="job/a")
        ledger.refresh()
        ledger.make_durable()
        put(ledger, dropped(2), key="job/a")
        log.lose_unsynced()
        reopened = MemoryLedger(log)
        assert list(reopened.scan()) == [dropped(1)]
        put(reopened, dropped(2), key="job/a")


class TestFaultyLedgerWithoutFaults(LedgerContract, FoldContract):
    @pytest.fixture
    def harness(self) -> Harness:
        return FaultyHarness()


class TestFaultyLedger:
    def test_dies_before_or_after_the_effect_and_stays_dead(self) -> None:
        for mode, landed in (("before", []), ("after", [dropped(1)])):
            log = MemoryLog()
            ledger = FaultyLedger(MemoryLedger(log), Faults({1: mode}))
            with pytest.raises(Crash):
                put(ledger, dropped(1))
            with pytest.raises(Crash):
                ledger.refresh()
            assert list(MemoryLedger(log).scan()) == landed

    def test_a_lost_response_of_append_leaves_the_commit(self) -> None:
        ledger = FaultyLedger(MemoryLedger(MemoryLog()), Faults({1: "lost"}))
        with pytest.raises(LostResponseError):
            put(ledger, dropped(1), operation_id="mine")
        assert [c.operation_id for c in ledger.refresh()] == ["mine"]

    def test_what_a_failed_refresh_passed_over_is_told_by_the_next(self) -> None:
        """Nothing is appended between the two."""
        log = MemoryLog()
        ledger = FaultyLedger(MemoryLedger(log), Faults({1: "lost"}))
        put(MemoryLedger(log), dropped(1), key="job/a")
        with pytest.raises(LostResponseError):
            ledger.refresh()
        with pytest.raises(LedgerConflictError):
            put(ledger, dropped(1), key="job/a")
        assert [c.version for c in ledger.refresh()] == [1]


class MemoryHistoryHarness:
    def __init__(self) -> None:
        self.told = MemoryTold()

    def open(self) -> MemoryHistory:
        return MemoryHistory(self.told)


class TestMemoryHistory(HistoryContract):
    @pytest.fixture
    def harness(self) -> HistoryHarness:
        return MemoryHistoryHarness()


class DeltaHistoryHarness:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        DeltaHistory.make(directory, HISTORY_SCHEMA, catalog_id="c0ffee")

    def open(self) -> DeltaHistory:
        return DeltaHistory.of(self.directory, "ledger")


class TestDeltaHistory(HistoryContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> HistoryHarness:
        return DeltaHistoryHarness(tmp_path / "history")


class TestLedgerOfFormat1(LedgerContract):
    """It is read by an upgrade, while programs of its own time write to it. Delta's own compaction was nothing that it minded."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return Format1Harness(tmp_path / "ledger")


class TestDeltaLedger(LedgerContract, FoldContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DeltaHarness:
        return DeltaHarness(tmp_path / "ledger")

    def test_a_handle_begins_anew_with_the_delta_checkpoints_that_it_passes(self, harness: DeltaHarness) -> None:
        """Else delta-rs goes over all entries since the one that the handle began with, at each commit."""
        writer, reader = harness.open(), harness.open()
        for seq in range(1, 50):
            put(writer, dropped(seq), key="job/a")
            for ledger in (writer, reader):
                assert [c.version for c in ledger.refresh()] == [seq]
                assert ledger.version - ledger._loaded_version <= delta_checkpoint.EVERY_COMMITS
            writer.make_durable()
        assert delta_log.checkpoint_versions(harness.directory / "_delta_log") == [20, 40]
        assert list(reader.scan()) == [dropped(seq) for seq in range(1, 50)]

    def test_a_handle_that_cannot_begin_anew_goes_on_and_forgets_no_commit(
        self, harness: DeltaHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It happens after a commit is durable, and in the middle of a refresh: neither may fail of it."""

        def fails(*_: object) -> None:
            raise DamagedLedgerError("too many open files")

        writer, reader = harness.open(), harness.open()
        monkeypatch.setattr(delta_handle, "load", fails)
        for seq in range(1, 25):
            put(writer, dropped(seq), key="job/a")
            assert [c.version for c in writer.refresh()] == [seq]
            writer.make_durable()
        assert [c.version for c in reader.refresh()] == list(range(1, 25))
        assert list(reader.scan()) == [dropped(seq) for seq in range(1, 25)]

    def test_the_address_is_the_tables_directory(self, harness: DeltaHarness) -> None:
        assert harness.open().address == str(harness.directory)

    def test_the_table_is_append_only_with_checkpoints_and_no_log_cleaning(self, harness: DeltaHarness) -> None:
        assert DeltaTable(harness.directory).metadata().configuration == {
            "delta.appendOnly": "true",
            "delta.enableExpiredLogCleanup": "false",
            "delta.checkpointInterval": "20",
            "delta.deletedFileRetentionDuration": "interval 0 seconds",
            "holdfast.catalogId": "c0ffee",
            "holdfast.format": "2",
        }

    def test_a_ledger_is_not_made_over_another(self, harness: DeltaHarness) -> None:
        with pytest.raises(AlreadyExistsError):
            DeltaLedger.create(harness.directory, catalog_id="other")

    def test_of_several_creations_at_once_exactly_one_succeeds(self, tmp_path: Path) -> None:
        """Two `DeltaTable.create` both succeeded, the second as version 1 with an id of its own: one catalog got two."""
        for round_ in range(5):
            path = tmp_path / str(round_)
            barrier = threading.Barrier(3)

            def race(catalog_id: str, path: Path = path, barrier: threading.Barrier = barrier) -> str | None:
                barrier.wait()
                try:
                    return DeltaLedger.create(path, catalog_id=catalog_id).catalog_id
                except AlreadyExistsError:
                    return None

            with ThreadPoolExecutor(3) as pool:
                winners = [won for won in pool.map(race, "abc") if won]
            assert len(winners) == 1
            assert DeltaLedger.open(path).catalog_id == winners[0]
            assert os.listdir(path / "_delta_log") == [delta_log.commit_name(0)]

    def test_exists_tells_a_ledger_from_an_empty_place(self, harness: DeltaHarness, tmp_path: Path) -> None:
        assert DeltaLedger.exists(harness.directory)
        assert not DeltaLedger.exists(tmp_path / "nothing")

    def test_a_ledger_that_is_gone_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(DamagedLedgerError, match="gone"):
            DeltaLedger.open(tmp_path / "nothing")

    def test_a_refresh_that_fails_halfway_forgets_no_commit(self, harness: DeltaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        """The table's handle had moved when reading a commit file failed; the next refresh skipped that commit, and an append on
        the state without it passed the compare-and-swap."""
        ours, theirs = harness.open(), harness.open()
        put(theirs, dropped(1), key="job/a")

        def fails(*_: object) -> delta_entry.LogCommit:
            raise OSError("too many open files")

        with monkeypatch.context() as patch:
            patch.setattr(delta_log, "read_commit", fails)
            with pytest.raises(OSError, match="too many"):
                ours.refresh()
        with pytest.raises(LedgerConflictError):
            put(ours, dropped(1), key="job/a")
        assert [c.version for c in ours.refresh()] == [1]

    def test_everything_is_made_durable_in_the_order_that_a_crash_allows(
        self, harness: DeltaHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ledger = harness.open()
        ledger.make_durable()
        put(harness.open(), gone("f"), operation_id="theirs")  # not synced by its writer; what follows stands on it
        synced = _record_syncs(monkeypatch)
        put(ledger, dropped(1), key="job/a", operation_id="ours")
        assert [_short(path, harness.directory) for path in synced] == ["data", "."]
        ledger.refresh()
        ledger.make_durable()
        theirs_and_ours = ["_delta_log/00000000000000000001.json", "_delta_log/00000000000000000002.json", "_delta_log"]
        assert [_short(path, harness.directory) for path in synced] == ["data", ".", *theirs_and_ours]
        put(harness.open(), gone("f"), operation_id="theirs again")
        ledger.refresh()
        del synced[:]
        put(ledger, dropped(2), key="job/a", operation_id="ours again")  # stands on theirs, and says so
        assert [_short(path, harness.directory) for path in synced] == [
            "_delta_log/00000000000000000003.json", "_delta_log", "data", "."
        ]  # fmt: skip

    def test_a_handles_first_make_durable_syncs_the_whole_log(self, harness: DeltaHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        put(harness.open(), dropped(1))
        ledger = harness.open()
        synced = _record_syncs(monkeypatch)
        ledger.make_durable()
        assert [path.name for path in synced] == ["00000000000000000000.json", "00000000000000000001.json", "_delta_log"]

    def test_a_new_ledger_is_durable_up_to_the_directory_that_was_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced = _record_syncs(monkeypatch)
        DeltaLedger.create(tmp_path / "new" / "ledger", catalog_id="c0ffee")
        assert re.fullmatch(rf"\.{os.getpid()}-[0-9a-f]{{16}}\.tmp", synced[0].name)
        assert synced == [
            synced[0],
            tmp_path / "new/ledger/_delta_log",
            tmp_path / "new/ledger",
            tmp_path / "new",
            tmp_path,
        ]

    def test_a_data_file_is_never_written_over(self, harness: DeltaHarness) -> None:
        """The same operation sent twice from one snapshot may have landed the first time."""
        ledger = harness.open()
        put(ledger, dropped(1), operation_id="mine")
        put(ledger, dropped(2), operation_id="mine")
        ledger.refresh()
        assert list(ledger.scan()) == [dropped(1), dropped(2)]

    def test_a_data_file_that_is_gone_is_damage_and_is_named(self, harness: DeltaHarness) -> None:
        ledger = harness.open()
        put(ledger, dropped(1))
        ledger.refresh()
        (data,) = harness.directory.glob("*.parquet")
        data.unlink()
        with pytest.raises(DamagedLedgerError, match=data.name):
            ledger.scan()

    def test_the_log_carries_statistics_of_the_columns_that_prune(self, harness: DeltaHarness) -> None:
        put(harness.open(), dropped(7, "b"), gone("f"))
        lines = (harness.directory / "_delta_log" / delta_log.commit_name(1)).read_text().splitlines()
        add = next(json.loads(line)["add"] for line in lines if '"add"' in line)
        assert json.loads(add["stats"]) == {
            "numRecords": 2,
            "minValues": {"kind": "drop", "operation_id": "op", "job_id": "a-00000001", "seq": 7},
            "maxValues": {"kind": "gone", "operation_id": "op", "job_id": "b", "seq": 7},
        }


def _record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    synced: list[Path] = []
    real = os.fsync

    def record(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", record)
    return synced


def _short(path: Path, root: Path) -> str:
    return "data" if path.suffix == ".parquet" else str(path.relative_to(root))


class TestAnotherLedgerAtItsPlace:
    """A test environment, or a restore into place, deletes a catalog and makes it again while a process has it open."""

    @pytest.mark.parametrize("commits", [0, 1, 2, 5])
    def test_a_handle_on_the_old_one_is_fenced_and_the_new_one_left_as_it_is(self, tmp_path: Path, commits: int) -> None:
        directory = tmp_path / "ledger"
        old = DeltaLedger.create(directory, catalog_id="old")
        for seq in (1, 2):
            put(old, dropped(seq), key="job/a")
            old.refresh()
        shutil.rmtree(directory)
        new = DeltaLedger.create(directory, catalog_id="new")
        for seq in range(1, commits + 1):
            put(new, dropped(seq, "b"), key="job/b")
            new.refresh()
        for call in (lambda: put(old, dropped(3), key="job/a"), old.refresh, lambda: put(old, gone("f"))):
            with pytest.raises(FencedError, match=r"catalog 'new'.*opened 'old'.*Nothing was committed"):
                call()
        assert _facts(DeltaLedger.open(directory)) == [dropped(seq, "b") for seq in range(1, commits + 1)]

    def test_a_ledger_that_is_gone_is_reported_and_not_made_again(self, tmp_path: Path) -> None:
        old = DeltaLedger.create(tmp_path / "ledger", catalog_id="old")
        shutil.rmtree(tmp_path / "ledger")
        for call in (lambda: put(old, dropped(3), key="job/a"), old.refresh):
            with pytest.raises(AddressError, match="is not there on host .*Mount it"):
                call()
        assert not (tmp_path / "ledger").exists()


class TestAnOlderCopyPutBack:
    def test_what_is_committed_after_it_is_synced_as_it_must_be(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The handle remembered that it had synced up to a version that the restored log has not: two acknowledged commits were not synced."""
        directory = tmp_path / "ledger"
        ledger = DeltaLedger.create(directory, catalog_id="c0ffee")
        for seq in range(1, 6):
            put(ledger, dropped(seq), key="job/a")
            ledger.refresh()
            ledger.make_durable()
            if seq == 1:
                shutil.copytree(directory, tmp_path / "copy")
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "copy", directory)
        with pytest.raises(SnapshotLostError):
            ledger.refresh()
        synced = _record_syncs(monkeypatch)
        put(ledger, dropped(2), key="job/a")
        ledger.refresh()
        ledger.make_durable()
        assert {"00000000000000000001.json", "00000000000000000002.json"} <= {path.name for path in synced}


class TestFailingSync:
    def test_after_one_no_handle_of_the_process_makes_that_ledger_durable(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """After a failed fsync Linux calls the pages clean: the next one succeeds over lost data, whoever calls it."""
        ledger = DeltaLedger.create(tmp_path / "ledger", catalog_id="c0ffee")
        other = DeltaLedger.create(tmp_path / "other", catalog_id="decaff")
        put(ledger, dropped(1), key="job/a")
        ledger.refresh()

        def fails(_: object) -> None:
            raise delta_log.NotSyncedError(errno.EIO, "input/output error")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="input/output"):
            patch.setattr(delta_log, "sync", fails)
            ledger.make_durable()
        (tmp_path / "link").symlink_to(tmp_path / "ledger")
        for handle in (ledger, DeltaLedger.open(tmp_path / "ledger"), DeltaLedger.open(tmp_path / "link")):
            with pytest.raises(OSError, match="an earlier sync of this ledger failed in this process"):
                handle.make_durable()
        other.make_durable()
        put(other, dropped(1), key="job/a")
        other.refresh()

        def cannot_open(_: object) -> None:
            raise OSError(errno.EMFILE, "too many open files")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="too many"):
            patch.setattr(delta_log, "sync", cannot_open)
            other.make_durable()
        other.make_durable()  # nothing was synced, and nothing failed to be

    def test_a_data_file_that_cannot_be_written_whole_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a full disk each reader left an empty file in the ledger, which nobody took."""
        ledger = DeltaLedger.create(tmp_path / "ledger", catalog_id="c0ffee")
        ledger.make_durable()

        def fails(_: int) -> None:
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patch, pytest.raises(OSError, match="no space"):
            patch.setattr(os, "fsync", fails)
            put(ledger, dropped(1), key="job/a")
        assert list((tmp_path / "ledger").glob("*.parquet")) == []
        put(ledger, dropped(1), key="job/a")
        assert [c.version for c in ledger.refresh()] == [1]


def _facts(ledger: DeltaLedger) -> list[object]:
    return list(ledger.scan())
