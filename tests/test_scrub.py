"""Scrub on a real disk: what it deletes, what it lists, and that one run is enough."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog import paths
from tests.support.invariants import assert_catalog_sound, assert_clean


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[holdfast.Catalog]:
    with holdfast.open(tmp_path / "catalog", create=True) as opened:
        yield opened


def die_after_the_manifest(catalog: holdfast.Catalog) -> str:
    """A first attempt ends with what a kill leaves of Spark's writer, and its manifest; the path of its directory of segments."""
    with pytest.raises(RuntimeError, match="killed"), catalog.coordinate("flights") as job, job.checkpoint() as checkpoint:
        below = f"jobs/{job.job_id}/shared/{checkpoint.checkpoint_id}-{checkpoint.attempt}-0"
        leave(catalog, f"{below}/part-00000-a.snappy.parquet")
        leave(catalog, f"{below}/_temporary/0/task_202611210000000000_0001_m_000000/part-00001-a.snappy.parquet")
        leave(catalog, paths.manifest_path(job.job_id, checkpoint.checkpoint_id))
        (Path(catalog.address) / below / "_temporary/0/_temporary").mkdir()
        raise RuntimeError("killed")
    return below


def leave(catalog: holdfast.Catalog, path: str) -> None:
    place = Path(catalog.address) / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"half a file")


def test_one_scrub_takes_the_files_and_the_directories_of_a_dead_attempt(catalog: holdfast.Catalog) -> None:
    below = die_after_the_manifest(catalog)
    report = catalog.scrub()
    assert (report.deleted_files, report.deleted_bytes) == (3, 33)
    assert not (Path(catalog.address) / below).exists()
    assert not [*Path(catalog.address).glob("jobs/*/chk-*")]
    assert not catalog.plan_scrub().directories
    assert_clean(catalog)


def test_a_dry_run_lists_the_directories_that_will_be_empty_and_touches_nothing(catalog: holdfast.Catalog) -> None:
    below = die_after_the_manifest(catalog)
    before = sorted(Path(catalog.address).rglob("*"))
    report = catalog.scrub(dry_run=True)
    assert len(report.plan.orphans) == 3
    assert below in report.plan.directories
    assert sorted(Path(catalog.address).rglob("*")) == before


def test_a_directory_in_which_something_stays_is_left(catalog: holdfast.Catalog) -> None:
    """A late retry's file beside those that were committed goes alone; a foreign file keeps its directory, and is reported."""
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"x" * 50_000)
        below = f"jobs/{job.job_id}/exclusive"
        late = f"{below}/{checkpoint.checkpoint_id}-{checkpoint.attempt}-9-9.bin"
    leave(catalog, late)
    leave(catalog, f"{below}/notes.txt")
    report = catalog.scrub()
    assert [orphan.path for orphan in report.plan.orphans] == [late]
    assert [stranger.path for stranger in report.plan.foreign] == [f"{below}/notes.txt"]
    assert report.plan.directories == ()
    assert (Path(catalog.address) / below / "notes.txt").exists()
    assert_catalog_sound(catalog)
