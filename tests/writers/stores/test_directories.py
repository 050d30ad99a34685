"""Directories of embedded stores over a real catalog: written, referred to, restored, carried, copied; and what is refused with which words."""

import errno
import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.storage import PassingStorage
from tests.support.front_door import LARGE, ask
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.world import World

JOB, STATE = "flights", "rocks"
GROUPS = 8
MUTABLE = {"CURRENT": b"MANIFEST-5\n", "MANIFEST-5": b"manifest", "000007.log": b""}

Files = dict[str, bytes]


@pytest.fixture
def job(catalog: holdfast.Catalog):
    with catalog.coordinate(JOB, max_parallelism=GROUPS, retention=holdfast.KeepLast(1)) as coordinator:
        yield coordinator


def snapshot(place: Path, **ssts: bytes) -> Path:
    """What a store's own snapshot is: its sorted runs, by number, and the small files beside them."""
    place.mkdir(parents=True)
    for name, data in (MUTABLE | {f"{name.strip('_')}.sst": data for name, data in ssts.items()}).items():
        (place / name).write_bytes(data)
    return place


def files_in(place: Path) -> Files:
    return {path.relative_to(place).as_posix(): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def write(job: holdfast.Coordinator, *places: Path) -> holdfast.CheckpointResult:
    with job.checkpoint() as checkpoint:
        for subtask, place in enumerate(places):
            checkpoint.write_directory(STATE, place, subtask=subtask)
    assert checkpoint.result is not None
    return checkpoint.result


def restored(checkpoint: holdfast.Checkpoint | None, to: Path, subtask: int = 0) -> Files:
    assert checkpoint is not None
    found = checkpoint.restore_directory(STATE, to, subtask=subtask)
    assert found.files == len(files_in(to))
    return files_in(to)


# ---- writing and reading ----------------------------------------------------------------------------------------------


def test_a_directory_comes_back_byte_for_byte_with_its_subdirectories(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE, _2=b"small and shared")
    (place / "deep" / "er").mkdir(parents=True)
    (place / "deep" / "er" / "9.sst").write_bytes(b"deep")
    (place / "LOG.big").write_bytes(LARGE)
    write(job, place)
    assert restored(job.latest(), tmp_path / "back") == files_in(place)
    assert_catalog_sound(catalog)


def test_what_the_parent_has_is_referred_to_and_the_rest_is_uploaded(catalog, job, tmp_path: Path) -> None:
    write(job, snapshot(tmp_path / "one", _1=LARGE, _2=b"b" * 300))
    second = snapshot(tmp_path / "two", _1=LARGE, _2=b"c" * 300, _3=b"d" * 70)
    result = write(job, second)
    mutable = sum(map(len, MUTABLE.values()))
    assert (result.new_bytes, result.reused_bytes) == (300 + 70 + mutable, len(LARGE))
    assert restored(job.latest(), tmp_path / "back") == files_in(second)
    assert ask(catalog, "SELECT bytes_written, bytes_reused FROM ack_metrics ORDER BY checkpoint_id DESC LIMIT 1") == [
        (result.new_bytes, result.reused_bytes)
    ]
    catalog.vacuum()
    assert restored(job.latest(), tmp_path / "after") == files_in(second)
    job.close()
    assert_clean(catalog)


def test_a_name_whose_bytes_changed_is_uploaded_though_its_size_did_not(job, tmp_path: Path) -> None:
    write(job, snapshot(tmp_path / "one", _1=b"a" * 1000))
    second = snapshot(tmp_path / "two", _1=b"b" * 1000)
    write(job, second)
    assert restored(job.latest(), tmp_path / "back") == files_in(second)


def test_immutable_files_are_shared_and_the_others_are_of_one_checkpoint(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=b"run")
    (place / "LOG").write_bytes(LARGE)
    write(job, place)
    found = ask(catalog, "SELECT name, scope, inline IS NOT NULL, role, subtask FROM handles WHERE role = 'file' ORDER BY name")
    assert found == [
        ("000007.log", "SHARED", True, "file", 0),
        ("1.sst", "SHARED", False, "file", 0),
        ("CURRENT", "SHARED", True, "file", 0),
        ("LOG", "EXCLUSIVE", False, "file", 0),
        ("MANIFEST-5", "SHARED", True, "file", 0),
    ]
    [(path,), (other,)] = ask(catalog, "SELECT path FROM files WHERE path NOT LIKE '%_metadata' ORDER BY path")
    assert ("/exclusive/" in path, "/shared/" in other) == (True, True)


def test_a_store_that_is_carried_has_its_small_files_in_one_row_each(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=b"run")
    write(job, place)
    for n in range(2):
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("other", b"%d" % n)
    assert ask(catalog, "SELECT to_seq FROM handles WHERE name = 'CURRENT'") == [(None,)]
    assert restored(job.latest(), tmp_path / "back") == files_in(place)
    write(job, snapshot(tmp_path / "two", _1=b"run"))
    assert len(ask(catalog, "SELECT name FROM handles WHERE name = 'CURRENT' AND to_seq IS NOT NULL")) == 1


def test_the_user_says_which_files_the_store_never_changes(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=b"run")
    (place / "run.tab").write_bytes(b"of another store")
    with job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, place, immutable=["*.tab"])
    assert ask(catalog, "SELECT name FROM handles WHERE role = 'file' AND scope = 'SHARED' AND inline IS NULL") == [("run.tab",)]


def test_each_subtask_has_its_own_directory_and_its_own_references(catalog, job, tmp_path: Path) -> None:
    one, two = snapshot(tmp_path / "one", _1=LARGE), snapshot(tmp_path / "two", _1=LARGE, _2=b"more")
    write(job, one, two)
    result = write(job, two, one)  # they have changed places: 2.sst is of another subtask now
    assert result.reused_bytes == 2 * len(LARGE)
    assert [restored(job.latest(), tmp_path / f"back{i}", i) for i in (0, 1)] == [files_in(two), files_in(one)]
    assert ask(catalog, "SELECT subtask FROM ack_metrics ORDER BY checkpoint_id, subtask") == [(0,), (1,), (0,), (1,)]
    assert_catalog_sound(catalog)


def test_a_state_that_is_not_written_is_carried(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    write(job, place)
    with job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"7")
    catalog.vacuum()
    assert restored(job.latest(), tmp_path / "back") == files_in(place)
    assert_catalog_sound(catalog)


def test_a_snapshot_is_taken_by_a_function_timed_and_removed(catalog, job, tmp_path: Path) -> None:
    taken: list[Path] = []

    def take(to: str) -> None:
        taken.append(snapshot(Path(to), _1=LARGE))

    with job.checkpoint() as checkpoint:
        upload = checkpoint.write_directory(STATE, take)
    assert not taken[0].parent.exists()
    assert upload.wait().metrics.sync_ms is not None
    assert ask(catalog, "SELECT sync_ms IS NOT NULL FROM ack_metrics") == [(True,)]
    assert restored(job.latest(), tmp_path / "back")["1.sst"] == LARGE


def test_a_snapshot_that_fails_leaves_nothing_and_the_state_as_unfinished(job, tmp_path: Path) -> None:
    taken: list[Path] = []

    def take(to: str) -> None:
        taken.append(snapshot(Path(to), _1=b"half"))
        raise OSError("the store says no")

    write(job, snapshot(tmp_path / "one", _1=b"before"))
    with pytest.raises(holdfast.RefusedError, match=r"subtask 0 was not acknowledged"), job.checkpoint() as checkpoint:
        with pytest.raises(OSError, match="the store says no"):
            checkpoint.write_directory(STATE, take)
    assert not taken[0].parent.exists()
    assert restored(job.latest(), tmp_path / "back")["1.sst"] == b"before"


# ---- from tasks -------------------------------------------------------------------------------------------------------


def acks_of(writer: holdfast.DirectoryWriter, *places: Path, first: int = 0) -> list[bytes]:
    """As tasks on executors do it."""
    away = pickle.loads(pickle.dumps(writer))
    return [away.write(place, subtask=first + i).ack() for i, place in enumerate(places)]


def test_tasks_upload_and_the_driver_takes_their_acknowledgements(catalog, job, tmp_path: Path) -> None:
    places = [snapshot(tmp_path / f"in{i}", _1=LARGE, _2=bytes([i])) for i in range(3)]
    for _ in range(2):
        with job.checkpoint() as checkpoint:
            checkpoint.acknowledge(STATE, acks_of(checkpoint.directories(STATE, subtasks=3), *places))
    assert checkpoint.result is not None
    assert checkpoint.result.reused_bytes == 3 * (len(LARGE) + 1)
    reader = pickle.loads(pickle.dumps(job.latest().directories(STATE)))
    assert reader.subtasks == 3
    for i, place in enumerate(places):
        assert reader.restore(tmp_path / f"out{i}", subtask=i).remote_bytes == len(LARGE) + 1
        assert files_in(tmp_path / f"out{i}") == files_in(place)
    assert_catalog_sound(catalog)


def test_of_two_tries_of_a_task_one_counts_and_the_other_is_garbage(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    with job.checkpoint() as checkpoint:
        writer = checkpoint.directories(STATE, subtasks=1)
        checkpoint.acknowledge(STATE, [*acks_of(writer, place), *acks_of(writer, place)])
        acks_of(writer, place)  # a try whose answer was lost
    assert ask(catalog, "SELECT count(*) FROM unreferenced_files") == [(1,)]
    assert catalog.vacuum().deleted_files == 1
    assert catalog.scrub().deleted_files == 1
    assert restored(job.latest(), tmp_path / "back") == files_in(place)
    job.close()
    assert_clean(catalog)


def test_a_checkpoint_without_one_of_the_shares_is_not_committed(catalog, job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    write(job, place)
    with pytest.raises(holdfast.RefusedError, match=r"state 'rocks' of checkpoint 2 has 3 subtasks, and subtask 1 was not acknowledged"):
        with job.checkpoint() as checkpoint:
            writer = checkpoint.directories(STATE, subtasks=3)
            checkpoint.acknowledge(STATE, [*acks_of(writer, place), *acks_of(writer, place, first=2)])
    catalog.vacuum()
    assert restored(job.latest(), tmp_path / "back") == files_in(place)
    job.close()
    assert_clean(catalog)


def test_fewer_subtasks_than_the_parent_has_must_be_said(job, tmp_path: Path) -> None:
    one, two = snapshot(tmp_path / "one", _1=b"1"), snapshot(tmp_path / "two", _1=b"2")
    write(job, one, two)
    with pytest.raises(holdfast.RefusedError, match=r"has 2 subtasks, and subtask 1 was not acknowledged.*subtasks=\.\.\."):
        write(job, one)
    with job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, one, subtasks=1)
    assert job.latest().directories(STATE).subtasks == 1


def test_acks_of_another_checkpoint_or_of_nothing_are_refused(job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    with job.checkpoint() as checkpoint:
        old = acks_of(checkpoint.directories(STATE, subtasks=1), place)
        checkpoint.acknowledge(STATE, old)
    with job.checkpoint() as checkpoint:
        with pytest.raises(holdfast.UsageError, match="is not waiting for directories of state 'rocks'"):
            checkpoint.acknowledge(STATE, old)
        writer = checkpoint.directories(STATE, subtasks=1)
        with pytest.raises(holdfast.UsageError, match="acknowledgement of state 'rocks' of checkpoint 1 .* given for state 'rocks' of ch"):
            checkpoint.acknowledge(STATE, old)
        with pytest.raises(holdfast.UsageError, match="is not an acknowledgement"):
            checkpoint.acknowledge(STATE, [b"{}"])
        with pytest.raises(holdfast.UsageError, match="has 1 subtasks, counted from 0, and subtask 1 was written"):
            checkpoint.acknowledge(STATE, acks_of(writer, place, first=1))
        checkpoint.acknowledge(STATE, acks_of(writer, place))
    with pytest.raises(holdfast.UsageError, match="within the same block"):
        checkpoint.acknowledge(STATE, old)


# ---- key groups -------------------------------------------------------------------------------------------------------


def test_a_store_of_key_groups_is_one_handle_and_not_key_group_aware(catalog, job, tmp_path: Path) -> None:
    places = [snapshot(tmp_path / f"in{i}", _1=LARGE) for i in range(2)]
    with job.checkpoint() as checkpoint:
        for i, place in enumerate(places):
            checkpoint.write_directory(STATE, place, subtask=i, key_groups=holdfast.groups_of(i, 2, GROUPS))
    latest = job.latest()
    assert not latest.properties.is_key_group_aware
    assert ask(catalog, "SELECT is_key_group_aware FROM checkpoints") == [(False,)]
    assert ask(catalog, "SELECT DISTINCT subtask, key_group_from, key_group_to FROM handles WHERE role = 'file' ORDER BY 1") == [
        (0, 0, 3),
        (1, 4, 7),
    ]
    latest.restore_directory(STATE, tmp_path / "back", subtask=1, key_groups=range(4, 8))
    for subtask, groups in ((1, range(4, 6)), (0, range(8))):
        with pytest.raises(holdfast.RefusedError, match=r"not key-group aware \(is_key_group_aware is false\).*savepoint"):
            latest.restore_directory(STATE, tmp_path / "no", subtask=subtask, key_groups=groups)
    with pytest.raises(holdfast.NotFoundError, match=r"has no subtask 2: it was written by 2.*is_key_group_aware is false"):
        latest.restore_directory(STATE, tmp_path / "no", subtask=2)
    assert not (tmp_path / "no").exists()


def test_another_range_of_a_subtask_refers_to_nothing(catalog, job, tmp_path: Path) -> None:
    """A handle's range never changes."""
    place = snapshot(tmp_path / "one", _1=LARGE)
    for split in (4, 5, 5):
        with job.checkpoint() as checkpoint:
            checkpoint.write_directory(STATE, place, subtask=0, key_groups=range(split))
            checkpoint.write_directory(STATE, place, subtask=1, key_groups=range(split, GROUPS))
        assert [job.latest().directories(STATE).key_groups(i) for i in (0, 1)] == [range(split), range(split, GROUPS)]
        assert_catalog_sound(catalog)
    assert ask(catalog, "SELECT sum(bytes_reused)::INT FROM ack_metrics GROUP BY checkpoint_id ORDER BY checkpoint_id") == [
        (0,), (0,), (2 * len(LARGE),),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([range(5), range(4, 8)], "subtasks 0 and 1 both have key group 4"),
        ([range(2), range(6, 8)], "no subtask has key group 2, and the job has 8"),
        ([range(1, 8)], "no subtask has key group 0"),
        ([range(4), range(4, 7)], "no subtask has key group 7"),
        ([range(8), None], "subtask 1 was written without key groups, and others with"),
    ],
)
def test_key_groups_are_each_in_one_directory_or_nothing_is_committed(job, tmp_path: Path, shares, told: str) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    with pytest.raises(holdfast.RefusedError, match=told), job.checkpoint() as checkpoint:
        for subtask, groups in enumerate(shares):
            checkpoint.write_directory(STATE, place, subtask=subtask, key_groups=groups)
    assert job.latest() is None


# ---- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"subtask": -1}, "subtask=-1 is not the number of a subtask"),
        ({"subtask": "0"}, "subtask='0' is not the number of a subtask"),
        ({"subtask": 3, "subtasks": 3}, "has 3 subtasks, counted from 0, and subtask 3"),
        ({"subtasks": 0}, "subtasks=0 is not a number of subtasks"),
        ({"key_groups": (0, 4)}, r"key_groups=\(0, 4\) is not a range"),
        ({"key_groups": range(9)}, "is not a range within 0 to 7"),
        ({"immutable": "*.sst"}, "is not a list of patterns"),
        ({"immutable": ["sub/*.sst"]}, "has no '/'"),
        ({"working_directory": "/tmp"}, "working_directory='/tmp' is not a working directory"),
    ],
)
def test_arguments_that_make_no_sense_are_told_and_nothing_is_committed(job, tmp_path: Path, arguments, told: str) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    with pytest.raises(holdfast.UsageError, match=told), job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, place, **arguments)
    assert job.latest() is None


@pytest.mark.parametrize("given", [None, 5, b"bytes", ""])
def test_what_is_no_path_is_no_snapshot(job, given) -> None:
    with pytest.raises(holdfast.UsageError, match="is not a snapshot: pass the path"), job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, given)


def test_the_upload_is_timed_to_its_end_and_not_until_somebody_asks(tmp_path: Path) -> None:
    process = World().process()
    with process.coordinate().checkpoint() as checkpoint:
        upload = checkpoint.write_directory(STATE, snapshot(tmp_path / "one", _1=LARGE))
        for _ in range(10_000):  # ten seconds of the world's clock
            process.environment.monotonic_s()
    assert upload.wait().metrics.upload_ms < 1000


@dataclass(frozen=True, slots=True)
class FullStorage(PassingStorage):
    """Takes no new file."""

    def create_stream(self, path: str):  # type: ignore[no-untyped-def]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def test_a_full_disk_is_told_in_the_task_with_the_remedy(job, tmp_path: Path) -> None:
    with job.checkpoint() as checkpoint:
        writer = checkpoint.directories(STATE, subtasks=1)
        full = replace(writer, context=replace(writer.context, storage=FullStorage(writer.context.storage)))
        with pytest.raises(holdfast.StorageFullError, match="uploading subtask 0 of state 'rocks'.* Make room"):
            full.write(snapshot(tmp_path / "one", _1=LARGE), subtask=0).ack()
        checkpoint.acknowledge(STATE, acks_of(writer, tmp_path / "one"))


def test_what_is_no_snapshot_is_refused(job, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    linked = snapshot(tmp_path / "linked", _1=LARGE)
    (linked / "2.sst").symlink_to(linked / "1.sst")
    for place, told in (
        ("empty", "is empty"),
        ("file", "is not a directory"),
        ("missing", "is not a directory"),
        ("linked", "is neither a file nor a"),
    ):
        with pytest.raises(holdfast.UsageError, match=told), job.checkpoint() as checkpoint:
            checkpoint.write_directory(STATE, tmp_path / place)
    assert job.latest() is None


def test_a_subtask_is_written_once_and_a_state_in_one_way(job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    with job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, place)
        with pytest.raises(holdfast.UsageError, match="subtask 0 of state 'rocks' of checkpoint 1 is written twice"):
            checkpoint.write_directory(STATE, place)
        with pytest.raises(holdfast.UsageError, match="say the same for each subtask"):
            checkpoint.directories(STATE, subtasks=2)
        with pytest.raises(holdfast.RefusedError, match="already written"):
            checkpoint.write_bytes(STATE, b"")
        with pytest.raises(holdfast.RefusedError, match="already written"):
            checkpoint.remove(STATE)
    with pytest.raises(holdfast.RefusedError, match="has ended"):
        checkpoint.write_directory(STATE, place)
    with pytest.raises(holdfast.RefusedError, match="has format 'directory': use restore_directory"):
        job.latest().read_bytes(STATE)


def test_a_restore_never_writes_over_anything(job, tmp_path: Path) -> None:
    place = snapshot(tmp_path / "one", _1=LARGE)
    write(job, place)
    with pytest.raises(holdfast.AlreadyExistsError, match="is not empty"):
        job.latest().restore_directory(STATE, place)
    with pytest.raises(holdfast.AlreadyExistsError):
        job.latest().restore_directory(STATE, place / "1.sst")
    (tmp_path / "empty").mkdir()
    assert restored(job.latest(), tmp_path / "empty") == files_in(place)


# ---- damage -----------------------------------------------------------------------------------------------------------


def test_every_damaged_byte_is_found_and_nothing_is_left_of_the_restore(catalog, job, tmp_path: Path) -> None:
    write(job, snapshot(tmp_path / "one", _1=b"twenty bytes of data"))
    latest = job.latest()
    [file] = [Path(catalog.address) / file.path for file in latest.manifest.files.values()]
    data = file.read_bytes()
    before = sorted(tmp_path.iterdir())
    for at in range(len(data)):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(holdfast.DamagedFileError, match=r"file '1.sst' of subtask 0 of state 'rocks' of checkpoint 1"):
            latest.restore_directory(STATE, tmp_path / "back")
    for damage in (data[:-1], data + b"x", None):
        file.unlink() if damage is None else file.write_bytes(damage)
        with pytest.raises(holdfast.DamagedFileError, match=file.name):
            latest.restore_directory(STATE, tmp_path / "back")
    assert sorted(tmp_path.iterdir()) == before


# ---- copies -----------------------------------------------------------------------------------------------------------


def test_savepoints_exports_forks_and_copies_have_the_directories(catalog, job, tmp_path: Path) -> None:
    places = [snapshot(tmp_path / f"in{i}", _1=LARGE, _2=bytes([i])) for i in range(2)]
    write(job, *places)
    native = job.savepoint("as it is", target=tmp_path / "outside")
    assert native.properties.format == "native"
    exported = holdfast.open_manifest(catalog.export(job.latest(), tmp_path / "exported"))
    copies = [native, exported]
    for name, mode in (("fork", "fork"), ("copy", "no-claim")):
        with catalog.coordinate(name, start=job.latest().path, mode=mode) as other:
            with other.checkpoint():
                pass
            copies.append(other.latest())
            for copy, each in enumerate(copies):
                for i, place in enumerate(places):
                    assert restored(each, tmp_path / f"{name}{copy}{i}", i) == files_in(place)
    assert_catalog_sound(catalog)


# ---- what travels to tasks ---------------------------------------------------------------------------------------------


def test_a_task_unpacks_what_its_own_subtask_has_and_no_more(catalog, job, tmp_path: Path) -> None:
    """Seen: each task made objects of the chunks of all subtasks, to write and to restore: 1,000 tasks of 100,000 files."""
    subtasks, places = 6, [snapshot(tmp_path / str(n), _1=LARGE, _2=b"%d" % n) for n in range(6)]
    write(job, *places)
    latest = job.latest()
    assert latest is not None
    reader = latest.directories(STATE)
    with job.checkpoint() as checkpoint:
        writer = checkpoint.directories(STATE, subtasks=subtasks)
        assert len(writer.parent) == len(reader.shares) == subtasks
        acks = []
        for n, place in enumerate(places):
            there, back = pickle.loads(pickle.dumps(writer)), pickle.loads(pickle.dumps(reader))
            assert (*there.parent.unpacked, *back.shares.unpacked) == ()
            acks.append(there.write(place, subtask=n).ack())
            back.restore(tmp_path / f"back-{n}", subtask=n)
            assert (there.parent.unpacked, back.shares.unpacked) == ([n], [n])
            assert (len(there.parent[n]), len(back.shares[n])) == (2, 2 + len(MUTABLE)), "the chunks that one task makes objects of"
            assert files_in(tmp_path / f"back-{n}") == files_in(place)
            again = pickle.loads(pickle.dumps(there))
            assert (again.parent.unpacked, len(again.parent[n])) == ([], 2), "of one that was packed twice too"
        checkpoint.acknowledge(STATE, acks)
    assert checkpoint.result is not None
    assert checkpoint.result.reused_bytes == sum(len(LARGE) + 1 for _ in places)
