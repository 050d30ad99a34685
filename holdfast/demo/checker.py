"""The judge: reads the last checkpoint as anybody may, and compares it with one plain aggregation over all flights; asks Spark SQL; then
restores the savepoint elsewhere and forks."""

import argparse
import json
import os
import time
from pathlib import Path

from holdfast.demo.flights import WEEKS
from holdfast.demo.movers import SAVEPOINT_WEEK, fork, restore_elsewhere
from holdfast.demo.places import Places, tell
from holdfast.demo.sessions import start_session
from holdfast.demo.states import JOB, OFFSETS, STATES, count_differences, plain_aggregation, read_year, with_mean_delay
from holdfast.demo.views import COSTS, PLAIN_COLUMNS
from holdfast.opening import open_catalog

CLEANED = "cleaned"  # a file of the demo's directory: the parent says that the catalog is as it stays
LOOK_EVERY_S = 0.05


def main() -> None:
    """Run as `python -m holdfast.demo.checker`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--weeks", type=int, default=WEEKS)
    arguments = parser.parse_args()
    places = Places(arguments.directory)
    parent = os.getppid()
    spark = start_session(places.scratch, master="local[2]", delta=True)
    flights = read_year(spark, places.input).cache()
    counted = flights.count()
    while not (places.root / CLEANED).exists():  # what comes before needs nothing of the catalog, and takes as long as the cleanup
        if os.getppid() != parent:
            return
        time.sleep(LOOK_EVERY_S)
    with open_catalog(places.catalog) as catalog:
        last = catalog.checkpoint(JOB)
        for state in STATES:
            ours = with_mean_delay(last.read(spark, state.name))
            tell("compared", state=state.name, **count_differences(ours, plain_aggregation(flights, state)))
        told = json.loads(last.read_bytes(OFFSETS))
        tell("counted", flights=told["flights"], plain_flights=counted, week=told["week"])
        catalog.register(spark)
        tell("spark_sql", rows=[[row[name] for name in PLAIN_COLUMNS] for row in spark.sql(COSTS).collect()])
        with catalog.duckdb() as connection:
            taken = connection.execute("SELECT checkpoint_id FROM checkpoints WHERE is_savepoint").fetchall()
        for (number,) in taken:
            restore_elsewhere(spark, places, catalog.checkpoint(JOB, number), SAVEPOINT_WEEK)
        fork(spark, catalog, last)
    spark.stop()


if __name__ == "__main__":
    main()
