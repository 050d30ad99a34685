"""Scrub and vacuum on a real disk: what they delete, what they list and leave, and that one run is enough."""

import shutil
from collections.abc import Container
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog import paths
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import RetryError
from holdfast.catalog.facts import AttemptOpened
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Purpose, Status
from holdfast.catalog.views import duckdb_engine
from holdfast.compaction.orphans import OrphanRule, Verdict
from holdfast.compaction.scrub import run_scrub, survey
from holdfast.compaction.vacuum import run_vacuum
from tests.support.faults import Faults
from tests.support.faulty_storage import FaultyStorage
from tests.support.invariants import assert_catalog_sound, assert_clean


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


def test_a_dry_run_lists_directories_to_become_empty_and_touches_nothing(catalog: holdfast.Catalog) -> None:
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
    assert [stranger.path for stranger in report.plan.foreign.shown] == [f"{below}/notes.txt"]
    assert report.plan.directories == ()
    assert (Path(catalog.address) / below / "notes.txt").exists()
    assert_catalog_sound(catalog)


def test_what_a_user_keeps_beside_a_manifest_is_foreign(catalog: holdfast.Catalog) -> None:
    """Of a live checkpoint, and of a dropped one, whose own files go: notes, copies and directories stay, and nothing that they are in goes."""
    with catalog.coordinate("flights", retention=holdfast.KeepAll()) as job:
        for week in (b"1", b"2"):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", week)
    dropped, live = (f"jobs/{job.job_id}/chk-{number}" for number in (1, 2))
    mine = [f"{dropped}/NOTES.txt", f"{live}/NOTES.txt", f"{live}/_metadata.bak"]
    for path in mine:
        leave(catalog, path)
    leave(catalog, f"{live}/_metadata.1a2b3c4d.tmp")
    (Path(catalog.address) / live / "empty").mkdir()
    catalog.drop("flights", 1)
    assert [file.path for file in catalog.vacuum().plan.unreferenced] == [f"{dropped}/_metadata"]
    report = catalog.scrub()
    assert [stranger.path for stranger in report.plan.foreign.shown] == mine
    assert [orphan.path for orphan in report.plan.orphans] == [f"{live}/_metadata.1a2b3c4d.tmp"]
    assert report.plan.directories == ()
    assert all((Path(catalog.address) / path).exists() for path in (*mine, f"{live}/empty", f"{live}/_metadata"))
    assert_catalog_sound(catalog)


def test_a_directory_with_a_strangers_empty_directory_in_it_stays(catalog: holdfast.Catalog) -> None:
    """Without it, it goes."""
    die_after_the_manifest(catalog)
    (chk,) = Path(catalog.address).glob("jobs/*/chk-*")
    (chk / "mine").mkdir()
    assert not [path for path in catalog.scrub().plan.directories if "chk-" in path]
    assert [*chk.iterdir()] == [chk / "mine"]
    (chk / "mine").rmdir()
    catalog.scrub()
    assert not chk.exists()


def with_stuck_directories(catalog: holdfast.Catalog) -> FaultyStorage:
    """The catalog's storage, in which no directory can be removed."""

    def refuse(_: int, verb: str, path: str) -> None:
        if verb == "remove_empty_directory":
            raise PermissionError(13, "Permission denied", path)

    return FaultyStorage(catalog._storage, Faults(on_call=refuse))


def test_a_vacuum_calls_files_gone_whose_directory_cannot_be_removed(catalog: holdfast.Catalog) -> None:
    """Seen: the error escaped after the deletions and before the gone facts, and each later vacuum died at the same place."""
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
        for week in (b"1", b"2"):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", week)
    directory = f"jobs/{job.job_id}/chk-1"
    report = run_vacuum(catalog.plan_vacuum(), catalog._transactor, with_stuck_directories(catalog), SystemEnvironment())
    assert report.deleted_files == 1
    assert [failure.partition(": ")[0] for failure in report.failed] == [directory]
    outcome = catalog.duckdb().sql("SELECT outcome, figures FROM maintenance_runs").fetchone()
    assert outcome == ("incomplete", f'{{"deleted_bytes": {report.deleted_bytes}, "deleted_files": 1, "failed_files": 0}}')
    assert not catalog.plan_vacuum().files
    assert catalog.scrub().plan.directories == (directory,)
    assert_clean(catalog)


def test_a_scrub_goes_on_past_a_directory_that_cannot_be_removed(catalog: holdfast.Catalog) -> None:
    die_after_the_manifest(catalog)
    plan = catalog.plan_scrub()
    report = run_scrub(plan, catalog._transactor, with_stuck_directories(catalog), SystemEnvironment())
    assert report.deleted_files == 3
    assert [failure.partition(": ")[0] for failure in report.failed] == [*plan.directories]
    assert catalog.scrub().plan.directories == plan.directories
    assert_clean(catalog)


def test_a_scrub_that_saw_two_versions_of_the_ledger_deletes_nothing(catalog: holdfast.Catalog) -> None:
    """Attempts came from one engine and paths from another, whose listing was a commit behind: the live head was an orphan."""
    die_after_the_manifest(catalog)

    class LagsBehind:
        """What is asked through a file system whose directory listings lag behind its lookups."""

        def present_paths(self, at_least: int) -> Container[str]:
            queries = catalog._queries
            with duckdb_engine.connect(queries.ledger_address, version=at_least - 1) as connection:
                assert connection.execute("SELECT count(*) FROM files").fetchone()
            return queries.present_paths(at_least + 1)

    with pytest.raises(RetryError, match="lags behind"):
        survey(catalog._transactor, catalog._storage, LagsBehind())


# ---- what people copy and rename ---------------------------------------------------------------------------------------

JOB_ID = JobId("flights-12345678")
OWNERS = {
    Purpose.CHECKPOINT: (AttemptToken("c" * 16), None, CheckpointId(7)),
    Purpose.SAVEPOINT: (AttemptToken("d" * 16), "Before!", CheckpointId(8)),
    Purpose.OWNER: (AttemptToken("e" * 16), "WAL 7", None),
    Purpose.READ: (AttemptToken("f" * 16), None, None),
}
CHECKPOINT, SAVEPOINT, OWNER, READ = (token for token, _, _ in OWNERS.values())


def opened(purpose: Purpose) -> AttemptOpened:
    token, name, number = OWNERS[purpose]
    return AttemptOpened(
        job_id=JOB_ID, seq=1, attempt=token, checkpoint_id=number, purpose=purpose, epoch=1, parent_job_id=None, parent_checkpoint_id=None,
        name=name, note=None,
    )  # fmt: skip


OWN = [
    f"shared/7-{CHECKPOINT}-3-0.parquet", f"shared/7-{CHECKPOINT}-3/part-0", f"shared/7-{CHECKPOINT}-3", f"exclusive/7-{CHECKPOINT}-3-0.bytes",
    "chk-7/_metadata", "chk-7", "chk-7/_metadata.1a2b3c4d.tmp", "chk-8", f"taskowned/wal-7/0-{OWNER}-x-0.bin",
    f"savepoints/before-{SAVEPOINT}", f"savepoints/before-{SAVEPOINT}/_metadata", f"savepoints/before-{SAVEPOINT}/data/3/part-0",
]  # fmt: skip
OF_PEOPLE = [
    f"savepoints/copy-of-before-{SAVEPOINT}/_metadata", f"savepoints/renamed-before-{SAVEPOINT}/data/x", f"savepoints/old-{SAVEPOINT}",
    f"savepoints/before-{CHECKPOINT}/_metadata", f"savepoints/wal-7-{OWNER}/_metadata", f"savepoints/before-{READ}",
    f"shared/8-{CHECKPOINT}-3-0.parquet", f"shared/8-{CHECKPOINT}-3/part-0", f"exclusive/0-{CHECKPOINT}-3-0.bin",
    f"shared/8-{SAVEPOINT}-3-0.parquet", f"exclusive/0-{OWNER}-3-0.bin", f"exclusive/0-{READ}-3-0.bin",
    f"taskowned/wal-7-old/0-{OWNER}-x-0.bin", f"taskowned/copy-of-wal-7/0-{OWNER}-x-0.bin", f"taskowned/wal-7/7-{OWNER}-x-0.bin",
    f"taskowned/wal-7/7-{CHECKPOINT}-x-0.bin", f"taskowned/before/0-{SAVEPOINT}-x-0.bin",
    f"savepoints/before-{SAVEPOINT}/NOTES.txt", f"shared/7-{CHECKPOINT}-3-0.parquet.bak", "chk-7/_metadata.bak",
]  # fmt: skip


@pytest.mark.parametrize("status", Status)
def test_only_names_that_an_attempt_itself_gives_are_its_own(status: Status) -> None:
    open_ids = {(JOB_ID, 7), (JOB_ID, 8)} if status is Status.OPEN else set()
    rule = OrphanRule({OWNERS[purpose][0]: (opened(purpose), status) for purpose in OWNERS}, {JOB_ID: 8}, open_ids, set())
    own = Verdict.IN_FLIGHT if status is Status.OPEN else Verdict.ORPHAN
    for verdict, found in ((own, OWN), (Verdict.FOREIGN, OF_PEOPLE)):
        assert {path: rule.judge(f"jobs/{JOB_ID}/{path}") for path in found} == dict.fromkeys(found, verdict)
    rule.present = {f"jobs/{JOB_ID}/{path}" for path in OF_PEOPLE if isinstance(paths.parse(f"jobs/{JOB_ID}/{path}"), paths.AttemptPath)}
    assert {rule.judge(path) for path in rule.present} == {Verdict.KNOWN}, "a row of the ledger counts, whatever the name"


def test_savepoints_manifests_and_files_that_people_copied_or_renamed_stay(catalog: holdfast.Catalog) -> None:
    """Seen: a savepoint's directory that was renamed or copied beside itself was an orphan, and the user's only copy was deleted."""
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
        for data in (b"1", b"2"):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("offsets", data * 50_000)
        taken = [Path(job.savepoint(name).path) for name in ("before", "after")]
        with pytest.raises(ZeroDivisionError), job.checkpoint() as failed:
            raise ZeroDivisionError
    place = Path(catalog.address) / paths.job_directory(job.job_id)
    (file,) = (place / "exclusive").glob(f"{checkpoint.checkpoint_id}-*")
    mine = [
        taken[0].with_name(f"copy-of-{taken[0].name}"),
        taken[0].with_name(f"moved-{taken[0].name}"),
        place / f"chk-{failed.checkpoint_id}",
    ]
    shutil.copytree(taken[0], mine[0])
    taken[0].rename(mine[1])
    shutil.copytree(place / f"chk-{checkpoint.checkpoint_id}", mine[2])
    mine += [shutil.copy(file, file.with_name(f"{file.name}.bak")), taken[1] / "NOTES.txt"]
    mine[-1].write_text("the one before the upgrade")
    catalog.dispose("flights", "after")
    catalog.vacuum()
    leave(catalog, f"{taken[1].relative_to(catalog.address)}/data/0-left.bytes")
    report = catalog.scrub()
    assert [Path(orphan.path).name for orphan in report.plan.orphans] == ["0-left.bytes"]
    assert all(path.exists() for path in mine)
    assert {Path(catalog.address) / stranger.path for stranger in report.plan.foreign.shown} == {
        file for path in mine for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()
    }
    assert [holdfast.open_savepoint(path).read_bytes("offsets")[:1] for path in mine[:2]] == [b"2", b"2"]
    assert [*taken[1].iterdir()] == [mine[-1]], "what the attempt left is gone, with its directories"


def test_another_savepoint_in_the_place_of_one_outside_is_not_disposed_of(catalog: holdfast.Catalog, tmp_path: Path) -> None:
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1" * 50_000)
        one, two = (Path(job.savepoint(name, target=tmp_path / "outside").path) for name in ("one", "two"))
    one.rename(tmp_path / "moved")
    two.rename(one)
    with pytest.raises(holdfast.RefusedError, match="holds another savepoint.*nothing was deleted"):
        catalog.dispose("flights", "one")
    assert holdfast.open_savepoint(one).read_bytes("offsets") == b"1" * 50_000
    one.rename(two)
    assert (catalog.dispose("flights", "one").found, catalog.dispose("flights", "two").found) == ("absent", "whole")
