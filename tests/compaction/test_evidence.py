"""What a vacuum would delete is held against the manifests of what is live."""

from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.errors import DamagedFileError, DamagedLedgerError
from holdfast.compaction import evidence
from holdfast.compaction.evidence import require_unneeded
from holdfast.compaction.garbage import GarbageFile, GarbageFiles
from holdfast.compaction.vacuum import VacuumPlan
from tests.support.small_catalog import SmallCatalog, SmallCatalogs


@pytest.fixture
def small(tmp_path: Path, small_catalogs: SmallCatalogs) -> SmallCatalog:
    return small_catalogs.copy(tmp_path / "catalog", checkpoints=3)


def plan_of(*paths: str) -> VacuumPlan:
    files = GarbageFiles.of(GarbageFile(file_id=path, job_id="j", path=path, size_bytes=1) for path in paths)
    return VacuumPlan(unreferenced=files[:1], condemned=files[1:])


@pytest.mark.parametrize("held", [1, 3, evidence.HELD])
def test_a_plan_that_a_live_manifest_contradicts_is_refused(small: SmallCatalog, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """However many manifests are looked at together. A bit of a `to_seq` had flipped in the ledger: vacuum deleted the head's state, and verify then found nothing."""
    monkeypatch.setattr(evidence, "HELD", held)
    with holdfast.open(small.root) as catalog:
        catalog.savepoint("alpha", "mine")
        files = (
            catalog.duckdb()
            .execute(
                "SELECT DISTINCT path FROM files JOIN checkpoint_files USING (path) UNION SELECT path FROM files WHERE path LIKE '%/_metadata'"
                " AND file_id IN (SELECT file_id FROM checkpoint_files)"
            )
            .fetchall()
        )
        assert len({path.split("/")[2] for (path,) in files}) >= 3  # of checkpoints, of a savepoint, manifests
        for (path,) in files:
            for plan in (plan_of("jobs/other", path), plan_of(path, "jobs/other")):
                with pytest.raises(DamagedLedgerError, match=rf"{path} .*Nothing was deleted"):
                    require_unneeded(plan, catalog._transactor, catalog._storage)


def test_a_manifest_that_is_gone_or_damaged_stops_a_vacuum(small: SmallCatalog) -> None:
    """Until its checkpoint is dropped."""
    with holdfast.open(small.root) as catalog:
        assert catalog.plan_vacuum().unreferenced
        manifest = next(small.root.glob("jobs/alpha-*/chk-2/_metadata"))
        data = manifest.read_bytes()
        for change in (lambda: manifest.write_bytes(data[:-1]), manifest.unlink):
            change()
            with pytest.raises(DamagedFileError, match=r"checkpoint 2 .*Nothing was deleted"):
                catalog.vacuum()
        catalog.drop("alpha", 2)
        assert catalog.vacuum().deleted_files
        left = {place: states for place, states in small.states.items() if place != ("alpha", 2)}
        assert SmallCatalog(small.root, left).read(catalog) == left


def test_a_checkpoint_that_is_dropped_and_cleaned_meanwhile_is_passed_over(small: SmallCatalog) -> None:
    with holdfast.open(small.root) as catalog, holdfast.open(small.root) as other:
        plan = catalog.plan_vacuum()

        class DropsFirst:
            """Storage as a process sees it whose sibling drops a checkpoint, and cleans up, before the first reading."""

            def read(self, path: str) -> bytes:
                if "/chk-2/" in path and "alpha" in path:
                    other.drop("alpha", 2)
                    other.vacuum()
                return catalog._storage.read(path)

        assert require_unneeded(plan, catalog._transactor, DropsFirst()) is plan
