"""Checkpoints that are triggered in a stream, one for each micro-batch."""

from pathlib import Path

import pytest

import holdfast

pytestmark = pytest.mark.xdist_group("spark")


def test_each_batch_is_a_checkpoint_and_one_that_comes_again_is_passed_over(spark, tmp_path: Path) -> None:
    source, schema = tmp_path / "in", "id bigint"
    source.mkdir()
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate("events", retention=holdfast.KeepAll()) as job:

        def write(checkpoint, batch, batch_id) -> None:
            latest = job.latest()
            rows = batch if latest is None else latest.read(spark, "events").unionByName(batch)
            checkpoint.write("events", rows, key=["id"])

        def drain() -> None:
            stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(source))
            query = stream.writeStream.foreachBatch(job.foreach_batch(write)).option("checkpointLocation", str(tmp_path / "offsets"))
            query.trigger(availableNow=True).start().awaitTermination()

        for n in (1, 2):
            (source / f"{n}.json").write_text(f'{{"id": {n}}}')
            drain()
        job.foreach_batch(write)(spark.createDataFrame([(2,)], schema), 1)  # Spark failed after our commit, and the batch comes again
        latest = job.latest()
        assert latest is not None
        assert sorted(row.id for row in latest.read(spark, "events").collect()) == [1, 2]
        assert latest.progress == {"batch_id": 1}
        with catalog.duckdb() as connection:
            assert connection.execute("select progress from checkpoints order by checkpoint_id").fetchall() == [
                ('{"batch_id": 0}',),
                ('{"batch_id": 1}',),
            ]
