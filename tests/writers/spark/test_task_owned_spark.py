"""Task-owned files from Spark's tasks: written and released on executors, referred to by the driver."""

from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from tests.support.invariants import assert_catalog_sound

FILE = "name string, file_id string, path string, size_bytes long, sha256 string"


def written(spark, owner: holdfast.Owner, names: list[str]) -> list[holdfast.OwnedFile]:
    """A file for each name, written by a task each."""

    def write(batches):
        for batch in batches:
            for name in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist([asdict(owner.write(name, f"log of {name}".encode()))])

    frame = spark.createDataFrame([(name,) for name in names], "name string").repartition(len(names), "name")
    rows = frame.mapInArrow(write, FILE).collect()
    return sorted((holdfast.OwnedFile(**row.asDict()) for row in rows), key=lambda file: file.name)


def released(spark, owner: holdfast.Owner, files: list[holdfast.OwnedFile]) -> int:
    """Each file by a task of its own, all at once: they race for the job's key."""

    def release(batches):
        for batch in batches:
            owner.release([files[i] for i in batch.column(0).to_pylist()])
            yield batch

    return spark.range(0, len(files), 1, len(files)).mapInArrow(release, "id long").count()


def test_tasks_write_and_release_and_the_driver_refers(spark, catalog) -> None:
    with catalog.coordinate("flights", max_parallelism=8, retention=holdfast.KeepLast(1)) as job:
        owner = catalog.own("flights", "wal")
        old = written(spark, owner, ["a", "b", "c"])
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(owner, old)
        new = written(spark, owner, ["d"])
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(owner, [*old[2:], *new])
        assert released(spark, owner, old[:2]) == 2
        catalog.vacuum()
        left = {path.name for path in Path(catalog.address).glob("jobs/*/taskowned/wal/*")}
        assert left == {Path(file.path).name for file in (*old[2:], *new)}
        latest = job.latest()
        assert [latest.read_file("wal", name) for name in ("c", "d")] == [b"log of c", b"log of d"]
    assert_catalog_sound(catalog)


@pytest.mark.slow
def test_a_task_that_is_tried_again_leaves_a_file_that_only_storage_knows(spark, catalog, tmp_path: Path) -> None:
    """Its first try had written, and nobody heard of it. It is of an open owner, until that is released; then it is an orphan."""
    with catalog.coordinate("flights", max_parallelism=8, retention=holdfast.KeepLast(1)) as job:
        owner = catalog.own("flights", "wal")
        marker = tmp_path / "failed"

        def write(batches):
            for batch in batches:
                file = owner.write("log", b"once or twice")
                if not marker.exists():
                    marker.touch()
                    msg = "the task fails after its write"
                    raise RuntimeError(msg)
                yield pa.RecordBatch.from_pylist([asdict(file)] * batch.num_rows)

        (row,) = spark.range(0, 1, 1, 1).mapInArrow(write, FILE).collect()
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(owner, [holdfast.OwnedFile(**row.asDict())])
        catalog.vacuum()
        assert catalog.scrub().deleted_files == 0
        catalog.release("flights", "wal")
        assert catalog.scrub().deleted_files == 1
        assert job.latest().read_file("wal", "log") == b"once or twice"
    assert_catalog_sound(catalog)


def test_a_savepoint_of_a_dataframe_and_of_an_owner_s_files_has_both(spark, catalog, tmp_path: Path) -> None:
    with catalog.coordinate("flights", max_parallelism=8) as job:
        owner = catalog.own("flights", "wal")
        with job.checkpoint() as checkpoint:
            checkpoint.write("planes", spark.range(10), key=["id"])
            checkpoint.task_owned(owner, [owner.write("log", b"1")])
        savepoint = job.savepoint("mine", spark=spark)
    smaller = holdfast.rekey(savepoint, max_parallelism=4, target=tmp_path / "rekeyed", spark=spark)
    with catalog.coordinate("again", start=smaller.path) as job:
        assert job.latest().read(spark, "planes").count() == 10
        assert job.latest().read_file("wal", "log") == b"1"
    assert_catalog_sound(catalog)
