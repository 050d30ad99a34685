"""Every way of uploading, by every sickness of the host that uploads: an error that says what to do, and nothing is acknowledged by it.

Afterwards the catalog is sound, what was committed is as it was, and the next checkpoint is written as if nothing had been.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.storage.guard import GuardedStorage
from holdfast.catalog.storage.local import LocalStorage
from holdfast.facade import Catalog
from holdfast.writers.spark import changed_groups as groups_writer
from tests.support.front_door import LARGE, ask
from tests.support.invariants import assert_catalog_sound
from tests.support.sick_hosts import ELSEWHERE, REFUSING, SICKNESSES, Sickness, TravellingStorage, open_sick, travelled

SAID = {
    "missing": (holdfast.AddressError, "is not a directory on host .*Mount it on every host"),
    "empty": (holdfast.AddressError, "on host .* is not the root of catalog .*it has no holdfast.json.* Mount the catalog's file system"),
    "another-catalog": (holdfast.AddressError, "on host .* its holdfast.json is of another catalog .* Mount the catalog's file system"),
    "read-only": (holdfast.ReadOnlyError, "a process may not write there.*Mount it for writing"),
    "full": (holdfast.StorageFullError, "a disk is full.*Make room"),
    "failed-sync": (holdfast.NotDurableError, "could not be made durable on host .*examine the disk"),
}
SAID["made-by-an-engine"] = SAID["empty"]

Upload = Callable[[Catalog, holdfast.CheckpointWriter, Path], object]


def made_snapshot(tmp_path: Path) -> Path:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir(exist_ok=True)
    (snapshot / "1.sst").write_bytes(LARGE)
    return snapshot


# ---- what a task does ---------------------------------------------------------------------------------------------------------


def directory_in_a_task(catalog: Catalog, cp: holdfast.CheckpointWriter, tmp_path: Path) -> None:
    writer = travelled(cp.directories("rocks", subtasks=1))
    cp.acknowledge("rocks", [writer.write(made_snapshot(tmp_path), subtask=0).ack()])


def owner_in_a_task(catalog: Catalog, cp: holdfast.CheckpointWriter, tmp_path: Path) -> None:
    owner = travelled(catalog.own("j", "log"))
    cp.task_owned(owner, [owner.write("wal", LARGE)])


# ---- what this process does ---------------------------------------------------------------------------------------------------


def large_bytes(catalog: Catalog, cp: holdfast.CheckpointWriter, tmp_path: Path) -> None:
    cp.write_bytes("bytes", LARGE)


def only_a_manifest(catalog: Catalog, cp: holdfast.CheckpointWriter, tmp_path: Path) -> None:
    cp.write_bytes("bytes", b"small")


def directory_here(catalog: Catalog, cp: holdfast.CheckpointWriter, tmp_path: Path) -> None:
    cp.write_directory("rocks", made_snapshot(tmp_path))


# ---- what they share ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A catalog with one good checkpoint, which the next one would drop."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write_bytes("kept", LARGE)
    return tmp_path / "catalog"


def assert_nothing_happened(root: Path, committed: int = 1) -> None:
    """What was committed is as it was, no attempt but the next one is open, the job goes on, and cleanup leaves what is referenced."""
    with holdfast.open(root) as catalog:
        assert ask(catalog, "SELECT count(*), count(*) FILTER (status = 'live') FROM checkpoints") == [(committed, committed)]
        assert catalog.checkpoint("j").read_bytes("kept") == LARGE
        with catalog.coordinate("j") as job, job.checkpoint() as cp:
            cp.write_bytes("next", LARGE)
        catalog.vacuum()
        catalog.scrub()
        assert_catalog_sound(catalog)


def statuses(catalog: Catalog, writers: Sequence[holdfast.CheckpointWriter]) -> set[str]:
    """Of the attempts of these checkpoints."""
    numbers = ", ".join(str(writer.checkpoint_id) for writer in writers)
    return {status for (status,) in ask(catalog, f"SELECT status FROM attempts WHERE checkpoint_id IN ({numbers})")}


def refused(name: str, prefix: str = "") -> AbstractContextManager[object]:
    """The error of this sickness, with what to do."""
    kind, said = SAID[name]
    return pytest.raises(kind, match=re.compile(f"{prefix}.*{said}", re.DOTALL))


@pytest.mark.parametrize("upload", [directory_in_a_task, owner_in_a_task])
def test_a_task_on_a_sick_host_acknowledges_nothing(root: Path, tmp_path: Path, upload: Upload) -> None:
    tried = []
    for name in SICKNESSES:
        sickness = Sickness.of(name, tmp_path / name)
        sickness.armed.touch()
        # Of what an owner's task writes, the task's own program hears: an owner is of no attempt.
        bare = upload is owner_in_a_task and name in REFUSING
        with open_sick(root, sickness) as catalog, catalog.coordinate("j") as job:
            with pytest.raises(OSError, match=".") if bare else refused(name), job.checkpoint() as cp:
                tried.append(cp)
                upload(catalog, cp, tmp_path)
        assert sickness.strangers() == []
    assert statuses(catalog, tried) == {"aborted"}
    assert_nothing_happened(root)


@pytest.mark.parametrize("upload", [large_bytes, only_a_manifest, directory_here])
def test_a_driver_that_falls_sick_commits_nothing(root: Path, tmp_path: Path, upload: Upload) -> None:
    """Its attempt is ended at once where the ledger is there, else by the job's next start."""
    tried = []
    for name in SICKNESSES:
        sickness = Sickness.of(name, tmp_path / name)
        with open_sick(root, sickness, here=True) as catalog:
            job = catalog.coordinate("j")
            # The driver holds the ledger as well, and sees that it is another one before it is asked for a file.
            fenced = (
                pytest.raises(holdfast.FencedError, match="by now, and this process opened") if name == "another-catalog" else refused(name)
            )
            with fenced, job.checkpoint() as cp:
                tried.append(cp)
                sickness.befall(root)
                upload(catalog, cp, tmp_path)
            sickness.heal(root)
        assert sickness.strangers() == []
    assert_nothing_happened(root)
    assert statuses(holdfast.open(root), tried) == {"aborted", "killed"}


def test_a_savepoint_on_a_sick_host_is_not_committed(root: Path, tmp_path: Path) -> None:
    """A target outside has no marker: what is at its path is the target, and what refuses to be written is refused."""
    for name in SICKNESSES:
        sickness = Sickness.of(name, tmp_path / name)
        with open_sick(root, sickness, here=True) as catalog:
            sickness.befall(root)
            with pytest.raises(holdfast.HoldfastError if name in ELSEWHERE else (holdfast.HoldfastError, OSError)):
                catalog.savepoint("j", f"inside {name}")
            sickness.heal(root)
            if name in REFUSING:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr("holdfast.facade.open_storage", lambda address, s=sickness: s.on(Path(address)))
                    sickness.befall(root)
                    with pytest.raises(holdfast.AddressError, match="nothing can be written to the target"):
                        catalog.savepoint("j", f"outside {name}", target=tmp_path / "target")
                sickness.heal(root)
        assert sickness.strangers() == []
    assert_nothing_happened(root)


def test_the_driver_looks_at_each_file_that_was_acknowledged(root: Path, tmp_path: Path) -> None:
    """A host that passed the guard, and whose file the driver does not see all the same: nothing is committed on its word."""
    with holdfast.open(root) as catalog, catalog.coordinate("j") as job:
        with pytest.raises(holdfast.UnsafeSettingsError, match="was acknowledged with 50000 bytes, and is not there on the driver"):
            with job.checkpoint() as cp:
                cp.write_bytes("bytes", LARGE)
                next(root.glob(f"jobs/*/exclusive/{cp.checkpoint_id}-*")).unlink()
        with pytest.raises(holdfast.UnsafeSettingsError, match="and has 3 bytes on the driver"), job.checkpoint() as cp:
            cp.write_directory("rocks", made_snapshot(tmp_path)).wait()
            next(root.glob(f"jobs/*/shared/{cp.checkpoint_id}-*")).write_bytes(b"cut")
    assert_nothing_happened(root)


def test_a_savepoint_whose_files_went_to_another_disk_is_not_committed(root: Path, tmp_path: Path, monkeypatch) -> None:
    """Outside the catalog, where no marker is: the look is what holds."""

    class Forgetful(LocalStorage):
        __slots__ = ()

        def create(self, path: str, data: bytes) -> None:
            LocalStorage.create(self, path, data)
            if path.endswith(".bytes"):
                (self.root / path).unlink()

    with holdfast.open(root) as catalog:
        monkeypatch.setattr("holdfast.facade.open_storage", lambda address: Forgetful(Path(address)))
        with pytest.raises(holdfast.UnsafeSettingsError, match="is not there on the driver"):
            catalog.savepoint("j", "s", target=tmp_path / "target")
        assert ask(catalog, "SELECT status FROM attempts WHERE purpose = 'savepoint'") == [("aborted",)]
    assert list((tmp_path / "target").iterdir()) == []


@pytest.mark.parametrize("name", ELSEWHERE)
def test_cleanup_on_a_sick_host_calls_nothing_gone(root: Path, tmp_path: Path, name: str) -> None:
    sickness = Sickness.of(name, tmp_path / "aside")
    storage = GuardedStorage(LocalStorage(root), holdfast.open(root).catalog_id)
    sickness.befall(root)
    path = "jobs/j-00000000/shared/1-0123456789abcdef-0-0.parquet"
    verbs = (storage.delete_many, storage.remove_empty_directories, storage.list, storage.walk, storage.read, storage.size, storage.digest)
    for verb in verbs:
        with pytest.raises(holdfast.AddressError, match=SAID[name][1]):
            verb([path] if verb in verbs[:2] else path)
    for change in (lambda: storage.replace(path, b"1", None), lambda: storage.link_or_copy(path, f"{path}.2")):
        with pytest.raises(holdfast.AddressError, match=SAID[name][1]):
            change()
    sickness.heal(root)
    with pytest.raises(FileNotFoundError):
        storage.read("jobs/none")


def test_an_attempt_cannot_go_on_after_a_failed_sync_that_was_swallowed(root: Path, tmp_path: Path) -> None:
    """The second sync of the same directory succeeds, over names that may be lost."""
    sickness = Sickness.of("failed-sync", tmp_path / "aside")
    with open_sick(root, sickness, here=True) as catalog, catalog.coordinate("j") as job:
        with pytest.raises(holdfast.NotDurableError, match="could not be made durable"), job.checkpoint() as cp:
            sickness.armed.touch()
            with pytest.raises(holdfast.NotDurableError):
                cp.write_bytes("bytes", LARGE)
            cp.write_bytes("bytes", LARGE)
        with job.checkpoint() as following:
            following.write_bytes("bytes", LARGE)
        assert (statuses(catalog, [cp]), statuses(catalog, [following])) == ({"aborted"}, {"committed"})


# ---- tasks of Spark ------------------------------------------------------------------------------------------------------------


def rows(spark, add: int = 0):
    return spark.range(0, 200, 1, 2).selectExpr("id AS k", f"id + {add} AS v")


def streamed(spark, cp) -> None:
    cp.write("x", rows(spark, 1), key=["k"])


def changed_groups(spark, cp) -> None:
    cp.write("x", rows(spark).selectExpr("k", "if(k < 20, -1, v) AS v"), key=["k"], mode="changed-groups")


def change_set(spark, cp) -> None:
    cp.write_changes("x", upserts=rows(spark, 2).limit(5), deletes=rows(spark).filter("k > 190"), key=["k"])


WAYS = {"streamed": streamed, "changed_groups": changed_groups, "change_set": change_set, "native": streamed}
QUICK = [pytest.param("native", ["failed-sync"], id="native-failed-sync")]
ALL = [pytest.param(way, SICKNESSES, id=f"{way}-all", marks=pytest.mark.slow) for way in WAYS]


@pytest.mark.parametrize(("way", "names"), QUICK + ALL)
def test_tasks_of_spark_on_a_sick_host_acknowledge_nothing(
    spark, root: Path, tmp_path: Path, monkeypatch, by_executors, way: str, names
) -> None:
    """The driver and Spark's own writer see the catalog; the Python of every task does not, or its disk refuses."""
    monkeypatch.setattr(groups_writer, "ROWS_HERE", 0)
    tried = []
    with holdfast.open(root) as catalog, catalog.coordinate("j", upload="native" if way == "native" else "streamed") as job:
        with job.checkpoint() as cp:
            cp.write("x", rows(spark), key=["k"], mode="changed-groups")
        healthy = job._line.storage
        for name in names:
            sickness = Sickness.of(name, tmp_path / name)
            sickness.armed.touch()
            job._line.storage = GuardedStorage(TravellingStorage(root, sickness), catalog.catalog_id)
            with refused(name, "writing state 'x' of checkpoint"), job.checkpoint() as cp:
                tried.append(cp)
                WAYS[way](spark, cp)
            assert sickness.strangers() == []
        job._line.storage = healthy
        assert statuses(catalog, tried) == {"aborted"}
        assert catalog.checkpoint("j").read(spark, "x").filter("k = v").count() == 200
    assert_nothing_happened(root, committed=2)
