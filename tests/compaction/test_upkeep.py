"""Upkeep: when it is due and for whom, what it leaves as it was, and that a job does not fail of it."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import cli
from holdfast.catalog.errors import DamagedLedgerError
from holdfast.compaction import upkeep
from holdfast.compaction.fold import run_fold
from holdfast.compaction.upkeep import BackgroundUpkeep, UpkeepWarning, is_due
from holdfast.compaction.vacuum import run_vacuum
from tests.support.invariants import assert_catalog_sound, evidence_of
from tests.support.scenes import BIG

LIVE = ("jobs", "holds", "readers", "owners", "unreferenced_files", "checkpoint_files")
ALL_TIME = ("checkpoints", "attempts", "states", "files", "ack_metrics")


# ---- who folds ------------------------------------------------------------------------------------------------------------


def test_the_hundredth_commit_since_the_last_fold_makes_it_due() -> None:
    assert [since for since in range(1, 210) if is_due(1000 + since, 1000)] == [100, 150, 175, 176, 200, 201, 202, 203]
    assert is_due(100, -1), "of a ledger that was never folded"


def test_it_becomes_due_however_many_versions_lie_between_ones_commits() -> None:
    """Seen: readers took four of five versions, and a lone coordinator never landed on a hundredth or a 25th."""
    for period in range(1, 51):
        for first in range(period):
            landed = next(version for version in range(first, 1000, period) if is_due(version, 0))
            assert landed < 275 + period


def test_each_count_is_one_committers_alone() -> None:
    """64 that fold at once would read everything for nothing."""
    landed = range(1, 101)  # each version is landed on by one
    assert sum(is_due(version, 0) for version in landed) == 1


# ---- what it does -----------------------------------------------------------------------------------------------------------


def lived(catalog: holdfast.Catalog, checkpoints: int, first: int = 0, name: str = "flights") -> None:
    with catalog.coordinate(name, max_parallelism=8) as job:
        for n in range(first, first + checkpoints):
            with job.checkpoint(progress={"n": n}) as checkpoint:
                checkpoint.write_bytes("big", BIG + bytes([n]))
                checkpoint.write_bytes("small", b"%d" % n)
                if n == first:
                    checkpoint.write_bytes("carried", b"never written again")


def rows_of(catalog: holdfast.Catalog, *views: str) -> dict[str, list[tuple[object, ...]]]:
    with catalog.duckdb() as connection:
        return {view: sorted(connection.execute(f"SELECT * FROM {view}").fetchall(), key=repr) for view in views}


def test_a_fold_changes_no_answer_and_the_ledger_becomes_small(catalog: holdfast.Catalog) -> None:
    lived(catalog, 8)
    catalog.hold("flights", 6, "audit")
    catalog.vacuum()
    before, ledger = rows_of(catalog, *LIVE, *ALL_TIME), catalog._open_ledger()
    done = catalog.upkeep()
    assert done.fold.is_folded
    assert done.fold.rows_after < done.fold.rows_before / 2
    assert rows_of(catalog, *LIVE, *ALL_TIME) == before
    assert len(catalog._open_ledger().rows()) == done.fold.rows_after + 1, "and the fact of the run"
    assert ledger.version < catalog._open_ledger().version
    lived(catalog, 3, first=8)
    assert catalog.checkpoint("flights").read_bytes("carried") == b"never written again"
    catalog.upkeep()
    assert_catalog_sound(evidence_of(catalog))
    assert catalog.verify().damages == ()
    assert catalog.scrub().deleted_files == 0


@pytest.mark.slow
def test_upkeep_with_nothing_new_folds_nothing(catalog: holdfast.Catalog) -> None:
    lived(catalog, 2)
    assert catalog.upkeep().fold.is_folded
    catalog.upkeep()  # of the fact that the first one wrote
    version = catalog._open_ledger().version
    lived(catalog, 0)
    assert catalog._open_ledger().version > version


def test_the_runs_are_facts(catalog: holdfast.Catalog) -> None:
    lived(catalog, 4)
    catalog.upkeep()
    with catalog.duckdb() as connection:
        ((outcome, figures),) = connection.execute("SELECT outcome, figures FROM maintenance_runs WHERE what = 'upkeep'").fetchall()
    assert outcome == "done"
    assert json.loads(figures).keys() == {"rows_before", "rows_after", "told_rows", "deleted_entries", "deleted_data_files"}


def test_the_command_line_says_what_was_done(catalog: holdfast.Catalog) -> None:
    lived(catalog, 4)
    result = CliRunner().invoke(cli.main, ["upkeep", catalog.address])
    assert result.exit_code == 0, result.output
    assert "folded" in result.output
    lived(catalog, 1, first=4)
    result = CliRunner().invoke(cli.main, ["upkeep", catalog.address, "--json"])
    said = json.loads(result.output)
    assert (said["fold"]["is_folded"], said["vacuum"]["failed"]) == (True, [])


# ---- by itself --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, commits in {"FOLD_EVERY": 10, "LATE": 15, "AGAIN_EVERY": 5}.items():
        monkeypatch.setattr(upkeep, name, commits)


def test_a_coordinator_does_it_by_itself(catalog: holdfast.Catalog, often: None) -> None:
    lived(catalog, 14)
    ledger = catalog._open_ledger()
    assert ledger.folded_to > 0
    assert_catalog_sound(evidence_of(catalog))


@pytest.mark.slow
def test_a_coordinators_memory_has_what_a_fold_leaves(catalog: holdfast.Catalog, often: None) -> None:
    with catalog.coordinate("flights", max_parallelism=8) as job:
        for n in range(40):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("small", b"%d" % n)
            if job._upkeep._thread is not None:
                job._upkeep._thread.join()
        held = job._transactor.known().job(job.job_id)
        assert len(held.checkpoints) < 20
        assert len(held.attempts) < 20
        assert job.latest().read_bytes("small") == b"39"


def test_a_failure_is_a_warning_and_a_fact_and_no_error_of_the_job(catalog: holdfast.Catalog, often: None) -> None:
    shutil.rmtree(Path(catalog.address) / "history")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lived(catalog, 14)
    told = [str(each.message) for each in caught if issubclass(each.category, UpkeepWarning)]
    assert told
    assert "the history of catalog" in told[0]
    assert "holdfast upkeep" in told[0]
    outcomes = [fact.outcome for fact in catalog._open_ledger().scan(["run"]) if fact.what == "upkeep"]  # type: ignore[union-attr]
    assert outcomes[0] == "failed: DamagedLedgerError"
    assert catalog.checkpoint("flights").read_bytes("small") == b"13"


def test_closing_ends_the_vacuum_and_waits_for_the_fold(catalog: holdfast.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    lived(catalog, 6)
    background = BackgroundUpkeep(catalog._upkeep())
    batches: list[int] = []

    def slow(plan, transactor, storage, environment, progress):
        def told(done: int, total: int) -> None:
            batches.append(done)
            background._stop.set()
            progress(done, total)

        return run_vacuum(plan, transactor, storage, environment, told)

    monkeypatch.setattr(upkeep, "run_vacuum", slow)
    monkeypatch.setattr("holdfast.compaction.runs.BATCH", 1)
    background.after_commit(100, 0)
    background.close()
    assert batches == [1]
    background.after_commit(200, 0)
    assert not background._thread.is_alive()
    assert catalog._open_ledger().folded_to > 0
    assert catalog.vacuum().deleted_files > 0, "a later one goes on"


# ---- what is not folded -----------------------------------------------------------------------------------------------------


@pytest.fixture
def backup(catalog: holdfast.Catalog, tmp_path: Path) -> Path:
    lived(catalog, 4)
    shutil.copytree(Path(catalog.address), tmp_path / "backup")
    return tmp_path / "backup"


def test_beside_an_older_history_a_ledger_folded_since_is_not_folded(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    """Seen in a review: what lay between the two was never told, and the next telling covered the gap for good."""
    lived(catalog, 2)
    catalog.upkeep()
    shutil.copytree(Path(catalog.address) / "history", tmp_path / "older")
    lived(catalog, 2, first=2)
    catalog.upkeep()
    shutil.rmtree(Path(catalog.address) / "history")
    (tmp_path / "older").rename(Path(catalog.address) / "history")
    with holdfast.open(catalog.address) as other:
        lived(other, 1, first=4)
        before = other._open_ledger().folded_to
        with pytest.raises(DamagedLedgerError, match="the history knows another past of this ledger"):
            run_fold(other._open_ledger(), other._open_history(), other._environment)
        assert other._open_ledger().folded_to == before


@pytest.mark.slow
@pytest.mark.parametrize("restored", ["ledger", "history"])
def test_a_ledger_and_a_history_of_two_pasts_are_not_folded(catalog: holdfast.Catalog, backup: Path, restored: str) -> None:
    catalog.upkeep()
    lived(catalog, 3, first=4)
    catalog.upkeep()
    if restored == "history":  # the newer one, beside the ledger of the backup
        shutil.rmtree(backup / "history")
        shutil.copytree(Path(catalog.address) / "history", backup / "history")
        root = backup
    else:
        shutil.rmtree(Path(catalog.address) / "ledger")
        shutil.copytree(backup / "ledger", Path(catalog.address) / "ledger")
        root = Path(catalog.address)
    with holdfast.open(root) as other:
        lived(other, 5, name="another")
        with pytest.raises(DamagedLedgerError, match="the history knows another past of this ledger"):
            run_fold(other._open_ledger(), other._open_history(), other._environment)
        assert other._open_ledger().folded_to == -1
