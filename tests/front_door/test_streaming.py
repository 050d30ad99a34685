"""Checkpoints that are triggered in a stream, one for each micro-batch."""

import json
from pathlib import Path

import pytest

import holdfast

SCHEMA = "id bigint"


def put(source: Path, *ids: int) -> None:
    source.mkdir(exist_ok=True)
    for n in ids:
        (source / f"{n}.json").write_text(json.dumps({"id": n}))


def drain(spark, job, source: Path, location: Path) -> str:
    """A query over all files, one to a batch; returns its id."""

    def write(checkpoint, batch, batch_id) -> None:
        latest = job.latest()
        rows = batch if latest is None or not latest.states else latest.read(spark, "events").unionByName(batch)
        checkpoint.write("events", rows)  # a batch that is written twice is in the state twice

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    query = stream.writeStream.foreachBatch(holdfast.foreach_batch(job, write)).option("checkpointLocation", str(location))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return running.id


def forget_commit(location: Path, batch_id: int) -> None:
    """As if Spark had failed after our commit and before its own: the batch comes again."""
    for file in (location / "commits").glob(f"*{batch_id}*"):
        file.unlink()


def events(spark, job) -> list[int]:
    return sorted(row.id for row in job.latest().read(spark, "events").collect())


def test_each_batch_is_a_checkpoint_and_a_repeated_one_is_passed_over(spark, tmp_path: Path) -> None:
    source, location = tmp_path / "in", tmp_path / "offsets"
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate("events", retention=holdfast.KeepAll()) as job:
        for n in (1, 2):
            put(source, n)
            query = drain(spark, job, source, location)
        forget_commit(location, 1)
        assert drain(spark, job, source, location) == query
        assert events(spark, job) == [1, 2]
        with catalog.duckdb() as connection:
            progress = connection.execute("select progress from checkpoints order by checkpoint_id").fetchall()
        assert [json.loads(text) for (text,) in progress] == [{"batch_id": n, "query_id": query} for n in (0, 1)]


def test_a_restored_job_loses_no_row_to_a_query_with_a_new_location(spark, tmp_path: Path) -> None:
    """Its batches begin at 0 again, and the restored progress said batch 2: batches 0 to 2 used to be passed over."""
    put(tmp_path / "in", 1, 2, 3)
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate("events") as job:
            before = drain(spark, job, tmp_path / "in", tmp_path / "offsets")
            savepoint = job.savepoint("mine", spark=spark)
        put(tmp_path / "later", 4, 5, 6, 7)
        with catalog.coordinate("restored", start=savepoint) as job:
            assert job.latest().progress == {"batch_id": 2, "query_id": before}
            after = drain(spark, job, tmp_path / "later", tmp_path / "fresh")
            assert events(spark, job) == [1, 2, 3, 4, 5, 6, 7]
            assert job.latest().progress == {"batch_id": 3, "query_id": after}
            forget_commit(tmp_path / "fresh", 3)
            drain(spark, job, tmp_path / "later", tmp_path / "fresh")
            assert events(spark, job) == [1, 2, 3, 4, 5, 6, 7], "the new query's own batches are passed over as ever"


def test_progress_of_an_older_version_without_a_query_passes_no_batch_over(spark, tmp_path: Path) -> None:
    put(tmp_path / "in", 4, 5)
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate("events") as job:
        with job.checkpoint({"batch_id": 2}) as checkpoint:
            checkpoint.write("events", spark.createDataFrame([(n,) for n in (1, 2, 3)], SCHEMA))
        drain(spark, job, tmp_path / "in", tmp_path / "offsets")
        assert events(spark, job) == [1, 2, 3, 4, 5]


def test_a_batch_of_no_query_is_refused_and_nothing_is_written(spark, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate("events") as job:
        run = holdfast.foreach_batch(job, lambda checkpoint, batch, batch_id: checkpoint.write("events", batch))
        with pytest.raises(holdfast.UsageError, match="the streaming query of batch 0 cannot be identified"):
            run(spark.range(1), 0)
        assert job.latest() is None
