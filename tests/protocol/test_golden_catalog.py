"""Whole catalogs that released versions left, in `tests/golden/catalog-<n>`: this version carries them over, and nothing is lost."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import holdfast
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import DeltaHistory
from tests.golden import make_catalog
from tests.support.invariants import assert_catalog_sound

CATALOGS = sorted(make_catalog.GOLDEN.glob("catalog-*"))
every_catalog = pytest.mark.parametrize("golden", CATALOGS, ids=lambda path: path.name)
of_format_1 = pytest.mark.parametrize("golden", [make_catalog.GOLDEN / "catalog-1"], ids=["catalog-1"])


def expected_of(golden: Path) -> dict[str, Any]:
    return json.loads((golden / "expected.json").read_text())


@pytest.fixture
def root(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "catalog", tmp_path / "catalog"))


def without_bytes_of_the_past(views: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """What is expected, but for the bytes of states that the ledger does not have any more."""
    handles = zip(views["handles"], expected["handles"], strict=True)
    return expected | {"handles": [row | {"inline": row["inline"] and found["inline"]} for found, row in handles]}


def test_golden_catalogs_are_never_written_again() -> None:
    assert [path.name for path in CATALOGS][:2] == ["catalog-1", "catalog-2"]


@every_catalog
def test_every_view_says_the_same(golden: Path, root: Path) -> None:
    holdfast.upgrade(root)
    with holdfast.open(root) as catalog:
        views, expected = make_catalog.views_of(catalog), expected_of(golden)["views"]
        assert views == without_bytes_of_the_past(views, expected)
        of_open_handles = [(found, row) for found, row in zip(views["handles"], expected["handles"], strict=True) if row["to_seq"] is None]
        assert [found["inline"] for found, _ in of_open_handles] == [row["inline"] for _, row in of_open_handles]
        assert make_catalog.states_of(catalog) == expected_of(golden)["states"]


@of_format_1
def test_the_catalog_of_before_the_upgrade_can_be_asked(golden: Path, root: Path) -> None:
    """By the last version of its ledger, and by the first of the one since, whatever was done since."""
    last = DeltaLedger.open(root / "ledger").version
    holdfast.upgrade(root)
    with holdfast.open(root) as catalog:
        catalog.upkeep()
        expected = expected_of(golden)["views"]
        for past in (catalog.at(version=last, ledger="ledger"), catalog.at(version=0)):
            views = make_catalog.views_of(past)
            assert {row["inline"] for row in views["handles"]} == {None}
            assert views == without_bytes_of_the_past(views, expected)
        assert make_catalog.views_of(catalog.at(version=0, ledger="ledger"))["jobs"] == []


@of_format_1
def test_the_history_has_all_that_ever_was(golden: Path, root: Path) -> None:
    before = DeltaLedger.open(root / "ledger").rows()
    holdfast.upgrade(root)
    table = DeltaTable(root / "history").to_pyarrow_table()
    assert sorted(table["operation_id"].to_pylist()) == sorted(row.operation.operation_id for row in before)
    views = expected_of(golden)["views"]
    ended = {opened.attempt for opened in DeltaHistory.of(root / "history", "ledger-1").ended_attempts(-1)}
    assert ended == {row["attempt"] for row in views["attempts"] if row["status"] != "open"}


@every_catalog
def test_what_is_cleaned_up_afterwards_is_what_was_garbage(golden: Path, root: Path) -> None:
    holdfast.upgrade(root)
    expected = expected_of(golden)
    with holdfast.open(root) as catalog:
        plan = catalog.plan_vacuum()
        assert {file.path for file in plan.unreferenced} == {row["path"] for row in expected["views"]["unreferenced_files"]}
        assert catalog.vacuum().deleted_files == len(plan.unreferenced)
        scrubbed = catalog.scrub()
        assert (scrubbed.deleted_files, scrubbed.failed) == (0, ())
        assert not catalog.verify().damages
        assert make_catalog.states_of(catalog) == expected["states"]
        assert_catalog_sound(catalog)


@every_catalog
def test_every_job_goes_on(golden: Path, root: Path) -> None:
    """Its coordinator ends what the old one had open, and what that uploaded becomes scrub's."""
    holdfast.upgrade(root)
    with holdfast.open(root) as catalog:
        jobs = [row["job"] for row in expected_of(golden)["views"]["jobs"]]
        assert len(jobs) == 5
        with pytest.raises(holdfast.RefusedError, match="was claimed by job 'new'"):
            catalog.coordinate("old")
        for job in set(jobs) - {"old"}:
            with catalog.coordinate(job, retention=holdfast.KeepLast(1)) as coordinator, coordinator.checkpoint() as checkpoint:
                checkpoint.write_bytes("after", job.encode())
            assert catalog.checkpoint(job).read_bytes("after") == job.encode()
        catalog.vacuum()
        assert catalog.scrub().deleted_files == 1
        assert not catalog.verify().damages
        assert_catalog_sound(catalog)


def test_a_catalog_of_format_2_is_shown_as_it_was_and_goes_on(tmp_path: Path) -> None:
    """It was folded in the middle of its life: its history has the first half, its ledger what is live of it and the second half."""
    golden = make_catalog.GOLDEN / "catalog-2"
    root = Path(shutil.copytree(golden / "catalog", tmp_path / "catalog"))
    last = DeltaLedger.open(root / "ledger")
    assert 0 < last.folded_to < last.version
    with holdfast.open(root) as catalog:
        catalog.upkeep()
        assert catalog._open_ledger().folded_to > last.version
        views = make_catalog.views_of(catalog.at(version=last.version))
        assert {row["inline"] for row in views["handles"]} == {None}
        assert views == without_bytes_of_the_past(views, expected_of(golden)["views"])
