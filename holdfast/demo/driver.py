"""The Spark job: adds the flights week by week to its state, one checkpoint per week, and continues from its latest checkpoint."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.catalog.creation import create_catalog
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.types import KeepLast
from holdfast.demo.flights import WEEKS, count_week
from holdfast.demo.movers import SAVEPOINT, SAVEPOINT_WEEK
from holdfast.demo.places import Places, tell, wait_for
from holdfast.demo.sessions import start_session
from holdfast.demo.states import AIRPORTS, JOB, KEEP, OFFSETS, STATES, add, aggregate, read_week
from holdfast.demo.stops import UPLOAD, StoppingStorage, Stops, stopping_midway
from holdfast.facade import Catalog
from holdfast.opening import catalog_at
from holdfast.writers.coordinator import Coordinator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main() -> None:
    """Run as `python -m holdfast.demo.driver`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--stop", help="the place to stop at")
    parser.add_argument("--in-week", type=int)
    parser.add_argument("--weeks", type=int, default=WEEKS)
    parser.add_argument("--turn", type=int, required=True)
    arguments = parser.parse_args()
    places, parent = Places(arguments.directory), os.getppid()
    spark = start_session(places.scratch)
    tell("spark")
    if not wait_for(places.turn(arguments.turn), parent):
        return
    with open_stoppable(places.catalog, places.stops) as catalog, catalog.coordinate(JOB, retention=KeepLast(KEEP)) as job:
        replay(spark, job, places, arguments.weeks, {arguments.in_week: arguments.stop} if arguments.stop else {})
    spark.stop()


def open_stoppable(address: Path, stops: Stops) -> Catalog:
    """`holdfast.open(address, create=True)`, over a storage that stops at a given place."""
    environment = SystemEnvironment()
    storage = StoppingStorage(open_storage(address), stops)
    marker = create_catalog(storage, environment)
    return catalog_at(storage, marker, environment)


def replay(spark: "SparkSession", job: Coordinator, places: Places, weeks: int, stop_in: dict[int, str]) -> None:
    """Bring the job's state up to the last week; `stop_in` says in which week to arm which place."""
    latest = job.latest()
    done = json.loads(latest.read_bytes(OFFSETS)) if latest else {"week": 0, "flights": 0}
    tell("resumed", epoch=job.epoch, week=done["week"], checkpoint=latest.checkpoint_id if latest else None)
    first = done["week"] + 1
    for week in range(first, weeks + 1):
        stop = stop_in.get(week)
        if stop is not None:
            places.stops.arm(stop)
        done = checkpoint_week(spark, job, places, week, done, is_first=week == first, stop=stop)
        if week == SAVEPOINT_WEEK:
            job.savepoint(SAVEPOINT, spark=spark)


def checkpoint_week(
    spark: "SparkSession", job: Coordinator, places: Places, week: int, done: dict[str, int], *, is_first: bool, stop: str | None
) -> dict[str, int]:
    """One checkpoint: the state with the flights of one week added. Returns how far the job is then.

    Only the first one of a process digests what it reads: the later ones read what the process wrote and digested itself.
    """
    latest = job.latest()
    flights = read_week(spark, places.input, week)
    done = {"week": week, "flights": done["flights"] + count_week(places.input, week)}
    tell("writing", week=week)
    with job.checkpoint(progress={"week": week}) as checkpoint:
        if latest is None:
            checkpoint.write(AIRPORTS, spark.read.parquet(str(places.input / "airports.parquet")).coalesce(1), key=["faa"])
        for state in STATES:
            rows = aggregate(flights, state)
            if latest is not None:
                rows = add(latest.read(spark, state.name, verify=is_first), rows, state)
            if stop == UPLOAD:
                rows = stopping_midway(rows, places.stops)
            checkpoint.write(state.name, rows, key=state.key)
        checkpoint.write_bytes(OFFSETS, json.dumps(done).encode())
    assert checkpoint.result is not None
    tell("committed", week=week, checkpoint=checkpoint.checkpoint_id, new_bytes=checkpoint.result.new_bytes)
    return done


if __name__ == "__main__":
    main()
