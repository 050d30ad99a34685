"""The streaming job: the flights as a stream of weeks, each micro-batch a checkpoint of the stores that its tasks keep."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.catalog.types import KeepLast
from holdfast.demo.flights import week_file
from holdfast.demo.places import Places, tell
from holdfast.demo.sessions import start_session
from holdfast.demo.states import JOB, KEEP
from holdfast.demo.stream.store import GROUPS, STEPPED, STORE, SUBTASKS, Step, news_of, store_base
from holdfast.opening import open_catalog
from holdfast.streaming import foreach_batch
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.stores.reader import DirectoryReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Run as `python -m holdfast.demo.stream.driver`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    places = Places(parser.parse_args().directory)
    spark = start_session(places.scratch)
    options = {"max_parallelism": GROUPS, "retention": KeepLast(KEEP)}
    with open_catalog(places.catalog, create=True) as catalog, catalog.coordinate(JOB, **options) as job:  # type: ignore[arg-type]
        latest = job.latest()
        tell("resumed", epoch=job.epoch, batch=(latest.progress or {}).get("batch_id") if latest else None)
        run_query(spark, job, places)
    spark.stop()


def run_query(spark: "SparkSession", job: Coordinator, places: Places) -> None:
    """The stream to its end: one file is one micro-batch."""
    base = store_base(places.root)

    def update(checkpoint: CheckpointWriter, batch: "DataFrame", batch_id: int) -> None:
        latest = job.latest()
        tell("began", batch=batch_id)
        reader = None if latest is None else latest.directories(STORE)
        assert reader is None or isinstance(reader, DirectoryReader)
        step = Step(reader, checkpoint.directories(STORE, subtasks=SUBTASKS), base)
        done = news_of(batch).mapInArrow(step, STEPPED).collect()
        checkpoint.acknowledge(STORE, [bytes(row["ack"]) for row in done])
        sources = {name: sum(row[name] for row in done) for name in ("local_bytes", "cached_bytes", "remote_bytes")}
        tell("stepped", batch=batch_id, **sources)

    schema = spark.read.parquet(str(week_file(places.input, 1))).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).option("pathGlobFilter", "week-*.parquet")
    query = files.parquet(str(places.input)).writeStream.foreachBatch(foreach_batch(job, update))
    location = places.root / "checkpointLocation"
    query.option("checkpointLocation", str(location)).trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
