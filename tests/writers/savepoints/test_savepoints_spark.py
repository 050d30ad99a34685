"""Savepoints of DataFrames: canonical files, other numbers of key groups, forks and moved checkpoints that are read."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.catalog.key_groups import groups_of
from holdfast.writers import registration
from holdfast.writers.spark.session import session_parallelism
from tests.support.invariants import assert_catalog_sound


def rows(df) -> list[tuple]:
    return sorted(tuple(row) for row in df.collect())


def write(catalog, spark, *, upload="native", max_parallelism=16):
    """A base and a change set; returns the expected rows."""
    with catalog.coordinate("flights", max_parallelism=max_parallelism, upload=upload, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", spark.range(200).selectExpr("concat('N', id) AS tailnum", "id AS flights"), key=["tailnum"])
            checkpoint.write_bytes("offsets", b"1")
        with job.checkpoint() as checkpoint:
            changed = spark.sql("SELECT 'N3' AS tailnum, 1000L AS flights UNION ALL SELECT 'new', 7L")
            checkpoint.write_changes("planes", upserts=changed, deletes=spark.sql("SELECT 'N5' AS tailnum"), key=["tailnum"])
    return sorted([*((f"N{n}", 1000 if n == 3 else n) for n in range(200) if n != 5), ("new", 7)])


@pytest.mark.parametrize("upload", ["native", "streamed"])
def test_a_savepoint_is_in_full_sorted_by_key_group_and_restores_elsewhere(spark, catalog, tmp_path: Path, upload: str) -> None:
    expected = write(catalog, spark, upload=upload)
    savepoint = catalog.savepoint("flights", "mine", spark=spark, upload=upload)
    info = savepoint.manifest.state("main", "planes")
    assert (info.layers, info.rows) == (1, len(expected))
    for file in savepoint.manifest.files.values():
        groups = pq.read_table(f"{savepoint.path}/{file.path}", columns=["_key_group"])["_key_group"].to_pylist()
        assert groups == sorted(groups)
    assert_catalog_sound(catalog)
    shutil.move(savepoint.path, tmp_path / "moved")
    copy = holdfast.open_savepoint(tmp_path / "moved")
    assert rows(copy.read(spark, "planes")) == expected
    with holdfast.open(tmp_path / "other", create=True) as other:
        with other.coordinate("flights", start=tmp_path / "moved") as job:
            latest = job.latest()
            assert rows(latest.read(spark, "planes")) == expected
            parts = latest.read(spark, "planes", parallelism=5)
            assert parts.rdd.getNumPartitions() == 5
            assert rows(parts) == expected
        assert_catalog_sound(other)


def test_rekeying_changes_the_number_of_key_groups_and_nothing_else(spark, catalog, tmp_path: Path) -> None:
    expected = write(catalog, spark)
    savepoint = catalog.savepoint("flights", "mine", spark=spark)
    rekeyed = holdfast.rekey(savepoint, max_parallelism=64, target=tmp_path / "rekeyed", spark=spark)
    assert (savepoint.manifest.max_parallelism, rekeyed.manifest.max_parallelism) == (16, 64)
    assert rows(rekeyed.read(spark, "planes")) == expected
    assert rekeyed.read_bytes("offsets") == b"1"
    for subtask in range(3):
        groups = groups_of(subtask, 3, 64)
        part = rekeyed.read(spark, "planes", key_groups=groups)
        wanted = spark.createDataFrame(expected, "tailnum string, flights long").where(
            f"pmod(hash(tailnum), 64) BETWEEN {groups.start} AND {groups.stop - 1}"
        )
        assert rows(part) == rows(wanted)
    with catalog.coordinate("wider", start=rekeyed) as job:
        assert rows(job.latest().read(spark, "planes")) == expected
    with pytest.raises(holdfast.UsageError, match="is not 1 to 32768"):
        holdfast.rekey(savepoint, max_parallelism=0, target=tmp_path, spark=spark)


def test_a_fork_reads_its_origin_changes_its_own_and_the_origin_may_go(spark, catalog) -> None:
    expected = write(catalog, spark)
    with catalog.coordinate("what-if", start=catalog.checkpoint("flights"), mode="fork", retention=holdfast.KeepLast(1)) as fork:
        catalog.close()
        with fork.checkpoint() as checkpoint:
            gone = spark.sql("SELECT 'new' AS tailnum")
            checkpoint.write_changes("planes", deletes=gone, key=["tailnum"])
        with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job, job.checkpoint() as checkpoint:
            checkpoint.write("planes", spark.sql("SELECT 'only' AS tailnum, 1L AS flights"), key=["tailnum"])
        catalog.vacuum()
        catalog.scrub()
        assert rows(fork.latest().read(spark, "planes", parallelism=2)) == [row for row in expected if row[0] != "new"]
    assert_catalog_sound(catalog)


def test_an_exported_checkpoint_is_read_without_its_catalog(spark, catalog, tmp_path: Path) -> None:
    expected = write(catalog, spark)
    path = catalog.export(catalog.checkpoint("flights"), tmp_path / "copy")
    catalog.close()
    shutil.rmtree(catalog.address)
    assert rows(holdfast.open_manifest(path).read(spark, "planes")) == expected


def test_a_job_has_key_groups_for_the_parallelism_of_its_session(spark, catalog, monkeypatch) -> None:
    assert session_parallelism() == spark.sparkContext.defaultParallelism
    monkeypatch.setattr(registration, "session_parallelism", lambda: 100)
    assert catalog.coordinate("wide").latest() is None
    with catalog.duckdb() as connection:
        assert connection.execute("select job, max_parallelism from jobs").fetchall() == [("wide", 256)]


# ---- pins ----------------------------------------------------------------------------------------------------------------


def test_a_dataframe_that_outlives_its_pin_says_so(spark, catalog) -> None:
    expected = write(catalog, spark)
    with catalog.checkpoint("flights") as checkpoint:
        lost = checkpoint.read(spark, "planes")
        cached = checkpoint.read(spark, "planes").cache()
        assert rows(lost) == rows(cached) == expected
    with pytest.raises(holdfast.RefusedError, match="the DataFrame of state 'planes' of checkpoint 2 of job 'flights' outlives its pin"):
        lost.count()
    assert rows(cached) == expected
    cached.unpersist()


def test_the_end_of_the_catalog_object_ends_what_was_read_under_it(spark, catalog) -> None:
    write(catalog, spark)
    with holdfast.open(catalog.address) as reader:
        frame = reader.checkpoint("flights").read(spark, "planes")
        assert frame.count() == 200
    with pytest.raises(holdfast.RefusedError, match="outlives its pin"):
        frame.where("flights > 3")
