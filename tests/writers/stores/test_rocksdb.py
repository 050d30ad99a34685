"""RocksDB as an embedded store: its hard-link snapshots, what an incremental checkpoint of it writes, and rescaling through a savepoint."""

from pathlib import Path

import pyarrow as pa
import pytest
from rocksdict import Options, Rdict

import holdfast
from holdfast.catalog import murmur3
from tests.support.invariants import assert_catalog_sound
from tests.support.rocks import contents, opened, put_all, snapshot_of

JOB, STATE, GROUPS = "flights", "rocks", 16
ADAPTER = holdfast.RocksDBAdapter()


def entries(first: int, last: int, value: str = "value") -> dict[bytes, bytes]:
    return {f"key {i:06}".encode(): f"{value} {i}".encode() * 20 for i in range(first, last)}


def group_of(key: bytes) -> int:
    return int(murmur3.key_group_of([pa.array([key], pa.binary())], GROUPS)[0].as_py())


def write(job: holdfast.Coordinator, database) -> holdfast.CheckpointResult:
    with job.checkpoint() as checkpoint:
        checkpoint.write_directory(STATE, snapshot_of(database))
    assert checkpoint.result is not None
    return checkpoint.result


def test_a_store_goes_on_during_the_upload_and_comes_back_as_it_was(catalog, tmp_path: Path) -> None:
    """The upload of its snapshot, as which it comes back."""
    database = opened(tmp_path / "db")
    put_all(database, entries(0, 1000).items())
    with catalog.coordinate(JOB, max_parallelism=GROUPS) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_directory(STATE, snapshot_of(database))
            put_all(database, entries(0, 500, "later").items())
            del database[b"key 000999"]
        job.latest().restore_directory(STATE, tmp_path / "back")
        assert contents(tmp_path / "back") == entries(0, 1000)
        write(job, database)
        job.latest().restore_directory(STATE, tmp_path / "later")
        assert contents(tmp_path / "later") == {**entries(0, 999), **entries(0, 500, "later")}
    database.close()


def test_an_incremental_checkpoint_writes_the_new_sorted_runs_only(catalog, tmp_path: Path) -> None:
    database = opened(tmp_path / "db")
    put_all(database, entries(0, 5000).items())
    with catalog.coordinate(JOB, max_parallelism=GROUPS, retention=holdfast.KeepLast(1)) as job:
        first = write(job, database)
        put_all(database, entries(100, 150, "new").items())
        second = write(job, database)
        assert second.reused_bytes > 0.9 * first.new_bytes
        assert second.new_bytes < 0.2 * first.new_bytes
        third = write(job, database)  # nothing changed: the small mutable files alone
        assert third.new_bytes < 30_000
        catalog.vacuum()
        job.latest().restore_directory(STATE, tmp_path / "back")
        assert contents(tmp_path / "back") == {**entries(0, 5000), **entries(100, 150, "new")}
        assert_catalog_sound(catalog)
    database.close()


def test_an_adapter_reads_and_builds_a_store_in_full(tmp_path: Path) -> None:
    ADAPTER.build(str(tmp_path / "one"), entries(0, 25_000).items())
    assert dict(ADAPTER.entries(str(tmp_path / "one"))) == entries(0, 25_000)
    database = opened(tmp_path / "two")
    database.create_column_family("more", Options(raw_mode=True))
    database.close()
    with pytest.raises(holdfast.UsageError, match="has column families more"):
        list(ADAPTER.entries(str(tmp_path / "two")))


def test_a_job_rescales_through_a_savepoint_with_an_adapter(spark, catalog, tmp_path: Path) -> None:
    everything = entries(0, 3000)
    with catalog.coordinate(JOB, max_parallelism=GROUPS) as job:
        with job.checkpoint() as checkpoint:
            for subtask in range(2):
                groups = holdfast.groups_of(subtask, 2, GROUPS)
                database = opened(tmp_path / f"db{subtask}")
                put_all(database, ((key, value) for key, value in everything.items() if group_of(key) in groups))
                checkpoint.write_directory(STATE, snapshot_of(database), subtask=subtask, key_groups=groups)
                database.close()
        with pytest.raises(holdfast.UsageError, match="the checkpoint has no directories of a state 'rock'; it has such of: 'rocks'"):
            job.savepoint("typo", stores={"rock": ADAPTER}, spark=spark)
        with pytest.raises(holdfast.UsageError, match="is not an adapter of the store of state 'rocks'"):
            job.savepoint("none", stores={STATE: object()}, spark=spark)
        native = job.savepoint("native", target=tmp_path / "out")
        with pytest.raises(holdfast.RefusedError, match=r"state 'rocks' .* not key-group aware \(is_key_group_aware is false\)"):
            holdfast.rekey(native, max_parallelism=32, target=tmp_path / "out")
        savepoint = job.savepoint("canonical", stores={STATE: ADAPTER}, target=tmp_path / "out", spark=spark)
    assert (savepoint.properties.format, savepoint.properties.is_key_group_aware) == ("canonical", True)
    assert {(row.key, row.value) for row in savepoint.read(spark, STATE).collect()} == everything.items()
    with catalog.coordinate("rescaled", start=savepoint.path) as job:
        latest = job.latest()
        found: dict[bytes, bytes] = {}
        with job.checkpoint() as checkpoint:
            for subtask in range(3):
                groups, place = holdfast.groups_of(subtask, 3, GROUPS), tmp_path / f"new{subtask}"
                latest.restore_directory(STATE, place, subtask=subtask, key_groups=groups, adapter=ADAPTER)
                part = contents(place)
                assert {group_of(key) for key in part} <= {*groups}
                found |= part
                checkpoint.write_directory(STATE, place, subtask=subtask, key_groups=groups)
        with pytest.raises(holdfast.UsageError, match=r"give key_groups=holdfast.groups_of\(subtask, parallelism, 16\), or range\(16\)"):
            latest.restore_directory(STATE, tmp_path / "no", subtask=1, adapter=ADAPTER)
        assert found == everything
        assert job.latest().directories(STATE).subtasks == 3
        with pytest.raises(holdfast.RefusedError, match="is_key_group_aware is false"):
            job.latest().restore_directory(STATE, tmp_path / "no", subtask=0, key_groups=range(GROUPS), adapter=ADAPTER)
    assert_catalog_sound(catalog)


def test_every_byte_of_a_savepoints_store_is_verified_before_it_is_built(spark, catalog, tmp_path: Path) -> None:
    ADAPTER.build(str(tmp_path / "db"), entries(0, 50).items())
    with catalog.coordinate(JOB, max_parallelism=GROUPS) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_directory(STATE, tmp_path / "db", key_groups=range(GROUPS))
        savepoint = job.savepoint("one", stores={STATE: ADAPTER}, target=tmp_path / "out", spark=spark)
    [file] = [Path(savepoint.path) / file.path for file in savepoint.manifest.files.values()]
    data = file.read_bytes()
    for at in (4, len(data) // 3, len(data) // 2):
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(holdfast.DamagedFileError, match=file.name):
            savepoint.restore_directory(STATE, tmp_path / "back", key_groups=range(GROUPS), adapter=ADAPTER)
        assert not (tmp_path / "back").exists()


def test_a_savepoint_in_rows_refuses_a_key_of_another_subtask_or_of_nobody(spark, catalog, tmp_path: Path) -> None:
    ADAPTER.build(str(tmp_path / "db"), entries(0, 50).items())
    with catalog.coordinate(JOB, max_parallelism=GROUPS) as job:
        with job.checkpoint() as checkpoint:
            for subtask in range(2):
                checkpoint.write_directory(STATE, tmp_path / "db", subtask=subtask)
        with pytest.raises(holdfast.RefusedError, match="was written by 2 subtasks without key_groups"):
            job.savepoint("no ranges", stores={STATE: ADAPTER}, spark=spark)
        with job.checkpoint() as checkpoint:
            for subtask in range(2):
                checkpoint.write_directory(STATE, tmp_path / "db", subtask=subtask, key_groups=holdfast.groups_of(subtask, 2, GROUPS))
        with pytest.raises(Exception, match="keys that are not of its key groups (0 to 7|8 to 15)"):
            job.savepoint("both have all", stores={STATE: ADAPTER}, spark=spark)
        with pytest.raises(holdfast.UsageError, match="is not an adapter"):
            job.savepoint("the class", stores={STATE: holdfast.RocksDBAdapter}, spark=spark)


def test_a_store_of_python_objects_is_refused_for_raw_it_would_be_garbage(tmp_path: Path) -> None:
    database = Rdict(str(tmp_path / "db"))
    database["x"] = 1
    database.close()
    with pytest.raises(holdfast.UsageError, match=r"has Python objects \(raw_mode=False\)"):
        list(ADAPTER.entries(str(tmp_path / "db")))


def test_a_dataframe_that_is_no_store_is_refused_by_name(spark, catalog, tmp_path: Path) -> None:
    with catalog.coordinate(JOB, max_parallelism=GROUPS) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write("rows", spark.range(3), key=["id"])
        with pytest.raises(holdfast.RefusedError, match="state 'rows' .* is a DataFrame, and not the keys and values of a store"):
            job.latest().restore_directory("rows", tmp_path / "no", adapter=ADAPTER)
        with pytest.raises(holdfast.RefusedError, match="has format 'parquet': use read"):
            job.latest().restore_directory("rows", tmp_path / "no")
