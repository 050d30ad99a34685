"""What the job keeps: per aircraft and per route, sums that a week's flights are added to; and the same by one plain aggregation."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.demo.flights import week_file

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

JOB = "flights"
KEEP = 3
AIRPORTS = "airports"  # written once, carried by every later checkpoint
OFFSETS = "offsets"  # a few bytes: inlined
PARTITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOf:
    """A state and its key. Sums and counts are kept, never means: only sums can be added."""

    name: str
    key: tuple[str, ...]
    has_last_seen: bool


PER_AIRCRAFT = StateOf(name="per_aircraft", key=("tailnum",), has_last_seen=True)
PER_ROUTE = StateOf(name="per_route", key=("origin", "dest"), has_last_seen=False)
STATES = (PER_AIRCRAFT, PER_ROUTE)


def read_week(spark: "SparkSession", directory: Path, week: int) -> "DataFrame":
    """The flights of a week; the columns are read from a footer once in a session, which is a job each time that Spark looks for them."""
    return spark.read.schema(_schema(spark, directory)).parquet(str(week_file(directory, week)))


def read_year(spark: "SparkSession", directory: Path) -> "DataFrame":
    return spark.read.parquet(str(directory / "week-*.parquet"))


def aggregate(flights: "DataFrame", state: StateOf, more: "Mapping[str, Column] | None" = None) -> "DataFrame":
    """The state that these flights alone would give, and `more` of them. Flights without a tail number belong to no aircraft."""
    from pyspark.sql import functions as sf

    sums: dict[str, Column] = {
        "flights": sf.count(sf.lit(1)),
        "distance": sf.sum("distance"),
        "arrivals": sf.count("arr_delay"),
        "delay_minutes": sf.coalesce(sf.sum("arr_delay"), sf.lit(0).cast("long")),
    }
    if state.has_last_seen:
        # The whole struct decides, so that of two flights of one hour the same one is the last, in whatever order they come.
        sums["last_seen"] = sf.max(sf.struct("hour_utc", "minute", "carrier", "flight", sf.col("dest").alias("airport")))
    keyed = flights.where(" and ".join(f"{name} is not null" for name in state.key))
    return _aggregated(keyed, state, {**sums, **(more or {})})


def add(kept: "DataFrame", news: "DataFrame", state: StateOf) -> "DataFrame":
    """The state after the news of a week: `aggregate(a + b) = add(aggregate(a), aggregate(b))`."""
    from pyspark.sql import functions as sf

    sums: dict[str, Column] = {name: sf.sum(name) for name in ("flights", "distance", "arrivals", "delay_minutes")}
    if state.has_last_seen:
        sums["last_seen"] = sf.max("last_seen")
    return _aggregated(kept.unionByName(news), state, sums)


def with_mean_delay(kept: "DataFrame") -> "DataFrame":
    """The state as an analyst wants it: the mean is derived where it is read, and null where nothing arrived."""
    from pyspark.sql import functions as sf

    return kept.withColumn("mean_delay", sf.try_divide("delay_minutes", "arrivals"))


def plain_aggregation(flights: "DataFrame", state: StateOf) -> "DataFrame":
    """What `with_mean_delay` of the state of these flights must be, with the mean that Spark itself computes."""
    from pyspark.sql import functions as sf

    return aggregate(flights, state, {"mean_delay": sf.avg("arr_delay")})


def count_differences(ours: "DataFrame", plain: "DataFrame") -> Mapping[str, int]:
    """Rows of each, and how many rows of one are not in the other; duplicates count."""
    ours, plain = ours.cache(), plain.cache()  # each is used three times
    return {
        "rows": ours.count(),
        "plain_rows": plain.count(),
        "differences": ours.exceptAll(plain).unionByName(plain.exceptAll(ours)).count(),
    }


@cache
def _schema(spark: "SparkSession", directory: Path) -> "StructType":
    return spark.read.parquet(str(week_file(directory, 1))).schema


def _aggregated(rows: "DataFrame", state: StateOf, sums: "Mapping[str, Column]") -> "DataFrame":
    return rows.groupBy(*state.key).agg(*(column.alias(name) for name, column in sums.items()))
