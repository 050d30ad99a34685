"""The judge: restores the savepoint elsewhere; compares the last checkpoint, read as anybody may, with one plain aggregation over all the
flights; asks Spark SQL; and forks."""

import argparse
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.demo.flights import WEEKS
from holdfast.demo.movers import SAVEPOINT_WEEK, fork, restore_elsewhere
from holdfast.demo.places import Places, tell, wait_for
from holdfast.demo.sessions import start_session
from holdfast.demo.states import JOB, OFFSETS, STATES, count_differences, plain_aggregation, read_year, with_mean_delay
from holdfast.demo.views import COSTS, PLAIN_COLUMNS
from holdfast.facade import Catalog
from holdfast.opening import open_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLEANED = "cleaned"  # a file of the demo's directory: the parent says that the catalog is as it stays


def main() -> None:
    """Run as `python -m holdfast.demo.checker`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--weeks", type=int, default=WEEKS)
    arguments = parser.parse_args()
    places, parent = Places(arguments.directory), os.getppid()
    spark = start_session(places.scratch, master="local[2]", delta=True)
    flights = read_year(spark, places.input).cache()
    counted = flights.count()
    with open_catalog(places.catalog) as catalog:
        restored = restore_savepoints(spark, places, catalog)  # what comes before the cleanup's end takes no time of its own
        if not wait_for(places.root / CLEANED, parent):
            return
        last = catalog.checkpoint(JOB)
        for state in STATES:
            ours = with_mean_delay(last.read(spark, state.name))
            tell("compared", state=state.name, **count_differences(ours, plain_aggregation(flights, state)))
        told = json.loads(last.read_bytes(OFFSETS))
        tell("counted", flights=told["flights"], plain_flights=counted, week=told["week"])
        catalog.register(spark)
        tell("spark_sql", rows=[[row[name] for name in PLAIN_COLUMNS] for row in spark.sql(COSTS).collect()])
        restore_savepoints(spark, places, catalog, restored)
        fork(spark, catalog, last)
    spark.stop()


def restore_savepoints(spark: "SparkSession", places: Places, catalog: Catalog, done: Collection[int] = ()) -> set[int]:
    """Every savepoint that there is by now, but for those that were restored before; all of them."""
    with catalog.duckdb() as connection:
        taken = {number for (number,) in connection.execute("SELECT checkpoint_id FROM checkpoints WHERE is_savepoint").fetchall()}
    for number in taken.difference(done):
        with catalog.checkpoint(JOB, number) as savepoint:
            restore_elsewhere(spark, places, savepoint, SAVEPOINT_WEEK)
    return taken


if __name__ == "__main__":
    main()
