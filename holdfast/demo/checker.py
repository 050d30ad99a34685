"""The judge: reads the last checkpoint as anybody may, and compares it with one plain aggregation over all flights; asks Spark SQL; then
restores the savepoint elsewhere and forks."""

import argparse
import json
from pathlib import Path

from holdfast.demo.flights import WEEKS
from holdfast.demo.movers import SAVEPOINT_WEEK, fork, restore_elsewhere
from holdfast.demo.places import Places, tell
from holdfast.demo.sessions import start_session
from holdfast.demo.states import JOB, OFFSETS, STATES, count_differences, plain_aggregation, read_year, with_mean_delay
from holdfast.demo.views import COSTS, PLAIN_COLUMNS
from holdfast.opening import open_catalog


def main() -> None:
    """Run as `python -m holdfast.demo.checker`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--weeks", type=int, default=WEEKS)
    arguments = parser.parse_args()
    places = Places(arguments.directory)
    spark = start_session(places.scratch, master="local[2]", delta=True)
    with open_catalog(places.catalog) as catalog:
        last = catalog.checkpoint(JOB)
        flights = read_year(spark, places.input).cache()
        for state in STATES:
            ours = with_mean_delay(last.read(spark, state.name))
            tell("compared", state=state.name, **count_differences(ours, plain_aggregation(flights, state)))
        told = json.loads(last.read_bytes(OFFSETS))
        tell("counted", flights=told["flights"], plain_flights=flights.count(), week=told["week"])
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
