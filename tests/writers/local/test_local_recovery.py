"""Local recovery of embedded stores: what a process has on its own disk is not read from the catalog again, and is only ever a cache."""

from pathlib import Path

import pytest

import holdfast
from holdfast.writers.stores.reader import directory_reader
from tests.support.faults import Faults
from tests.support.faulty_storage import FaultyStorage
from tests.support.front_door import LARGE
from tests.support.vanishing import VanishingFiles, assert_deleting_changes_nothing, delete_all
from tests.support.world import World
from tests.writers.stores.test_directories import JOB, STATE, files_in, snapshot

SIZE = len(LARGE)


@pytest.fixture
def job(catalog: holdfast.Catalog):
    with catalog.coordinate(JOB, max_parallelism=8, retention=holdfast.KeepLast(1)) as coordinator:
        yield coordinator


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "volume"


def process(base: Path, **options) -> holdfast.WorkingDirectory:
    """A process that is started with one id, wherever its last one ended."""
    return holdfast.working_directory("taskmanager", "7", base=base, **options)


def written(job: holdfast.Coordinator, place: Path, base: Path, **options) -> holdfast.CheckpointResult:
    with process(base, **options) as working, job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, place, working_directory=working)
    assert checkpoint.result is not None
    return checkpoint.result


def come_back(job: holdfast.Coordinator, to: Path, base: Path, **options) -> holdfast.RestoredDirectory:
    latest = job.latest()
    assert latest is not None
    with process(base, **options) as working:
        return latest.restore_directory(STATE, to, working_directory=working)


def test_a_restart_on_the_same_volume_reads_nothing_of_the_catalog(catalog, job, base: Path, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE, _2=b"small")
    (place / "LOG").write_bytes(LARGE)
    written(job, place, base)
    found = come_back(job, tmp_path / "back", base)
    assert (found.remote_bytes, found.cached_bytes, found.local_bytes) == (0, 0, 2 * SIZE + 5)
    assert files_in(tmp_path / "back") == files_in(place)
    assert (tmp_path / "back" / "1.sst").samefile(place / "1.sst"), "a hard link"
    assert not (tmp_path / "back" / "LOG").samefile(place / "LOG"), "what the store writes to is its own"


def test_another_machine_reads_everything_once_and_then_from_its_cache(job, base: Path, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE, _2=b"small")
    written(job, place, base)
    elsewhere = tmp_path / "elsewhere"
    found = [come_back(job, tmp_path / f"back{i}", elsewhere) for i in range(2)]
    assert [(each.remote_bytes, each.cached_bytes, each.local_bytes) for each in found] == [(SIZE + 5, 0, 0), (0, SIZE + 5, 0)]
    assert files_in(tmp_path / "back1") == files_in(place)


def test_only_the_parents_copies_and_the_newest_are_kept(job, base: Path, tmp_path: Path) -> None:
    for i in range(4):
        written(job, snapshot(tmp_path / f"in{i}", _1=b"%d" % i * 10), base)
    kept = [path.read_bytes() for path in base.rglob("1.sst")]
    assert sorted(kept) == [b"2" * 10, b"3" * 10]


def test_local_recovery_can_be_switched_off(job, base: Path, tmp_path: Path) -> None:
    written(job, snapshot(tmp_path / "one", _1=LARGE), base, local_recovery=False)
    found = come_back(job, tmp_path / "back", base, local_recovery=False)
    assert (found.local_bytes, found.remote_bytes) == (0, SIZE)


def test_every_damaged_byte_of_a_local_copy_is_seen_and_the_catalogs_taken(job, base: Path, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=b"twelve bytes")
    for at in range(12):
        written(job, place, base)
        copy = max(base.rglob("1.sst"), key=lambda path: int(path.parts[-3].partition("-")[0]))
        data = copy.read_bytes()
        for each in base.rglob("1.sst"):
            each.unlink()
        copy.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])  # a file of its own: the snapshot stays as it is
        found = come_back(job, tmp_path / f"back{at}", tmp_path / "volume")
        assert found.local_bytes == 0
        assert files_in(tmp_path / f"back{at}") == files_in(place)


def test_deleting_the_working_directory_at_any_call_changes_no_result(base: Path, tmp_path: Path) -> None:
    places = [snapshot(tmp_path / f"in{i}", _1=LARGE, _2=b"%d" % i) for i in range(2)]
    for i, place in enumerate(places):
        (place / "LOG").write_bytes(b"%d" % i * SIZE)
    runs = iter(range(1_000_000))

    def scene(faults: Faults) -> list[dict[str, bytes]]:
        """Two checkpoints, and after each a restart that restores it, twice."""
        run, states, owner = next(runs), [], World().process()
        job = owner.coordinate()
        for i, place in enumerate(places):
            with process(base, files=VanishingFiles(faults)) as working, job.checkpoint() as checkpoint:
                checkpoint.write_directory(STATE, place, working_directory=working)
            latest = job.latest()
            assert latest is not None
            reader = directory_reader(latest.manifest, latest.manifest.states[0], owner.storage, owner.environment)
            for again in range(2):
                to = tmp_path / f"out{run}-{i}-{again}"
                with process(base, files=VanishingFiles(faults)) as working:
                    reader.restore(to, subtask=0, working_directory=working)
                states.append(files_in(to))
        return states

    assert scene(Faults()) == [files_in(place) for place in places for _ in range(2)]
    assert assert_deleting_changes_nothing(scene, base) > 60


def test_a_restore_into_tmp_deleted_at_any_call_is_whole_or_begins_again(base: Path, tmp_path: Path) -> None:
    """Whole, though files of it were there already when all was deleted: it is looked at before it is called restored."""
    place = snapshot(tmp_path / "in", **{f"_{i}": b"%d" % i * 100 for i in range(4)})
    (place / "deep").mkdir()
    (place / "deep" / "LOG").write_bytes(LARGE)
    owner = World().process()
    job = owner.coordinate()
    with job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, place)
    latest = job.latest()
    assert latest is not None
    faults = Faults()
    storage = FaultyStorage(owner.storage, faults)
    reader = directory_reader(latest.manifest, latest.manifest.states[0], storage, owner.environment)
    for call in range(1, 40):
        with process(base, local_recovery=False, files=VanishingFiles(faults)) as working:
            delete_all(working.path / "blobStorage")
            target, n = working.tmp / "store", call + faults.calls

            def vanish(at: int, *_: str, n: int = n, path: Path = working.path) -> None:
                if at == n:
                    delete_all(path)

            faults.on_call = vanish
            found = reader.restore(target, subtask=0, working_directory=working)
            faults.on_call = None
            if target.exists():  # it was not deleted after it was there
                assert files_in(target) == files_in(place)
                assert found.files == len(files_in(place))


def test_a_snapshot_by_a_function_lies_in_tmp_and_goes_after_the_upload(job, base: Path) -> None:
    taken: list[Path] = []

    def take(to: str) -> None:
        taken.append(snapshot(Path(to), _1=LARGE))

    with process(base) as working, job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, take, working_directory=working)
        assert taken[0].is_relative_to(working.path / "tmp")
    assert not taken[0].exists()


def test_a_closed_working_directory_takes_nothing_more(job, base: Path) -> None:
    with process(base) as working:
        pass
    with pytest.raises(holdfast.RefusedError, match="is closed, and may be another process's by now"), job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, lambda to: snapshot(Path(to), _1=LARGE), working_directory=working)
    assert not (base / "tm_7" / "tmp").exists()
