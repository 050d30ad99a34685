"""The judge of the streaming demo: takes a savepoint of the stores, as rows, and compares these with one batch run over all flights."""

import argparse
from pathlib import Path

from holdfast.demo.places import Places, tell
from holdfast.demo.sessions import start_session
from holdfast.demo.states import JOB, STATES, aggregate, count_differences, read_year
from holdfast.demo.stream.store import STORE, comparable, rows_of
from holdfast.opening import open_catalog
from holdfast.writers.stores.rocksdb import RocksDBAdapter

SAVEPOINT = "end-of-year"


def main() -> None:
    """Run as `python -m holdfast.demo.stream.checker`, by the parent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    places = Places(parser.parse_args().directory)
    spark = start_session(places.scratch, master="local[2]")
    with open_catalog(places.catalog) as catalog:
        savepoint = catalog.savepoint(JOB, SAVEPOINT, spark=spark, stores={STORE: RocksDBAdapter()})
        entries = savepoint.read(spark, STORE).cache()
        flights = read_year(spark, places.input).cache()
        for state in STATES:
            plain = comparable(aggregate(flights, state), state)
            tell("compared", state=state.name, **count_differences(rows_of(entries, state), plain))
        counted = rows_of(entries, STATES[1]).agg({"flights": "sum"}).collect()[0][0]
        tell("counted", flights=counted, plain_flights=flights.count(), entries=entries.count())
    spark.stop()


if __name__ == "__main__":
    main()
