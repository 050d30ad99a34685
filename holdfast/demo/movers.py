"""What is done with the job's state outside the job: a savepoint is carried away and restored, and a what-if job forks a checkpoint."""

import shutil
from typing import TYPE_CHECKING

from holdfast.demo.flights import week_file
from holdfast.demo.places import Places, tell
from holdfast.demo.states import JOB, PARTITIONS, PER_AIRCRAFT, STATES, count_differences, plain_aggregation, with_mean_delay
from holdfast.facade import Catalog
from holdfast.opening import open_catalog, open_savepoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.writers.checkpoint import Checkpoint

SAVEPOINT = "mid-year"
SAVEPOINT_WEEK = 30
WHAT_IF = "what-if"
GROUNDED = 100  # aircraft that the what-if job takes out of service


def restore_elsewhere(spark: "SparkSession", places: Places, savepoint: "Checkpoint", week: int) -> None:
    """Copy the savepoint, start a job of another catalog from the copy, and compare its state with the flights up to that week."""
    moved = places.root / "moved-savepoint"
    shutil.copytree(savepoint.path, moved)
    flights = spark.read.parquet(*(str(week_file(places.input, n)) for n in range(1, week + 1)))
    with open_catalog(places.root / "other-catalog", create=True) as other, other.coordinate(JOB, start=open_savepoint(moved)) as job:
        restored = job.latest()
        assert restored is not None
        for state in STATES:
            ours = with_mean_delay(restored.read(spark, state.name))
            tell("restored", state=state.name, week=week, **count_differences(ours, plain_aggregation(flights, state)))


def fork(spark: "SparkSession", catalog: Catalog, origin: "Checkpoint") -> None:
    """A job of its own that starts from a checkpoint of the first one, with twice its parallelism, and changes a part of the state."""
    parallelism = 2 * PARTITIONS
    with catalog.coordinate(WHAT_IF, start=origin, mode="fork") as job:
        latest = job.latest()
        assert latest is not None
        aircraft = latest.read(spark, PER_AIRCRAFT.name, parallelism=parallelism)
        partitions = aircraft.rdd.getNumPartitions()
        grounded = aircraft.select(*PER_AIRCRAFT.key).orderBy(*PER_AIRCRAFT.key).limit(GROUNDED)
        with job.checkpoint() as checkpoint:
            checkpoint.write_changes(PER_AIRCRAFT.name, deletes=grounded, key=PER_AIRCRAFT.key)
        left = job.latest()
        assert left is not None
        assert checkpoint.result is not None
        tell(
            "forked",
            partitions=partitions,
            wanted_partitions=parallelism,
            removed_rows=aircraft.count() - left.read(spark, PER_AIRCRAFT.name).count(),
            new_bytes=checkpoint.result.new_bytes,
            shared_bytes=checkpoint.result.reused_bytes,
        )
