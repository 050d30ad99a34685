"""The streaming demo: its pure parts one by one, and (slow) the whole of it, over fewer weeks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as sf

from holdfast.catalog.key_groups import groups_of
from holdfast.demo.flights import FLIGHTS
from holdfast.demo.states import PER_AIRCRAFT, PER_ROUTE, STATES, aggregate, count_differences
from holdfast.demo.stream.command import lines
from holdfast.demo.stream.store import GROUPS, SUBTASKS, VALUE, add_all, added, comparable, key_of, news_of, rows_of, value_of
from holdfast.demo.stream.story import DRIVER, EXECUTOR, VICTIMS, Death, StreamResult, find_problems, plan_deaths, run_stream_demo

WEEK = "week int, tailnum string, origin string, dest string, carrier string, flight int, minute int, distance int, arr_delay int, hour_utc timestamp"


def good_result() -> StreamResult:
    state = {"state": "per_route", "rows": 224, "plain_rows": 224, "differences": 0}
    deaths = [Death(victim=victim, batch=i, processes=5, next_batch=i, local_bytes=100) for i, victim in enumerate(VICTIMS, start=3)]
    return StreamResult(
        seed=1,
        batches=53,
        flights=FLIGHTS,
        deaths=deaths,
        committed_batches=[*range(53)],
        local_bytes=1000,
        compared=[state, state],
        counted_flights=FLIGHTS,
        plain_flights=FLIGHTS,
    )


def test_a_good_run_has_no_problems_and_fits_on_a_screen() -> None:
    result = good_result()
    assert find_problems(result) == []
    text = list(lines(result, []))
    assert len(text) <= 25
    assert text[-1] == "All is as promised."
    json.dumps(result.as_json())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("committed_batches", [0, 1, 1, 2]),
        ("committed_batches", [*range(52)]),
        ("counted_flights", FLIGHTS + 1),
        ("plain_flights", FLIGHTS - 1),
        ("left_files", 1),
        ("damages", ["jobs/x: missing"]),
        ("compared", []),
        ("compared", [{"state": "a", "rows": 1, "plain_rows": 1, "differences": 1}] * 2),
        ("compared", [{"state": "a", "rows": 0, "plain_rows": 0, "differences": 0}] * 2),
        ("local_bytes", 0),
        ("deaths", []),
        ("deaths", [replace(death, remote_bytes=1) for death in good_result().deaths]),
    ],
)
def test_whatever_differs_from_the_promise_is_a_problem(field: str, value: object) -> None:
    result = good_result()
    setattr(result, field, value)
    assert find_problems(result)
    assert list(lines(result, find_problems(result)))[-1] != "All is as promised."


def test_deaths_are_at_random_but_the_same_for_a_seed() -> None:
    """And never in the first batch."""
    plans = [plan_deaths(seed, 53) for seed in range(50)]
    assert plans[7] == plan_deaths(7, 53)
    assert len({str(plan) for plan in plans}) == 50
    for plan in plans:
        assert [planned.victim for planned in plan] == [DRIVER, EXECUTOR, DRIVER, EXECUTOR]
        batches = [planned.batch for planned in plan]
        assert batches == sorted({*batches})
        assert 1 <= batches[0] <= batches[-1] <= 51


def test_values_are_added_and_the_later_sighting_stays_whatever_the_order() -> None:
    def value(flights: int, hour: int, flight: int) -> dict[str, Any]:
        seen = {"hour_utc": hour, "minute": 5, "carrier": "UA", "flight": flight, "airport": "SFO"}
        return {"flights": flights, "distance": 10, "arrivals": 1, "delay_minutes": -3, "last_seen": seen}

    early, late = value(1, 100, 9), value(2, 100, 10)
    assert added(early, late) == added(late, early) == {**value(3, 100, 10), "distance": 20, "arrivals": 2, "delay_minutes": -6}
    store: dict[bytes, bytes] = {}
    add_all(store, iter([(b"k", json.dumps(early)), (b"k", json.dumps(late)), (b"other", json.dumps(early))]))  # type: ignore[arg-type]
    assert {key: json.loads(text)["flights"] for key, text in store.items()} == {b"k": 3, b"other": 1}


@pytest.mark.slow
def test_news_lie_in_the_partitions_of_their_key_groups(spark) -> None:
    """The stores add up to the batch run."""
    rows = [
        (
            1 + i % 3,
            None if i % 11 == 0 else f"N{i % 7}",
            "JFK",
            f"D{i % 5}",
            "UA",
            i,
            i % 60,
            100 + i,
            None if i % 4 == 0 else i - 20,
            None,
        )
        for i in range(120)
    ]
    flights = spark.createDataFrame(rows, WEEK).withColumn("hour_utc", sf.timestamp_seconds(sf.lit(1_357_000_000) + sf.col("flight") % 9))
    stores: list[dict[bytes, bytes]] = [{} for _ in range(SUBTASKS)]
    for week in (2, 1, 3):
        group = sf.pmod(sf.hash("key"), sf.lit(GROUPS))
        news = news_of(flights.where(f"week = {week}")).select("key", "value", sf.spark_partition_id(), group).collect()
        for key, value, subtask, key_group in news:
            assert key_group in groups_of(subtask, SUBTASKS, GROUPS)
            add_all(stores[subtask], iter([(bytes(key), value)]))  # type: ignore[arg-type]
    entries = spark.createDataFrame([entry for store in stores for entry in store.items()], "key binary, value binary")
    for state in STATES:
        found = count_differences(rows_of(entries, state), comparable(aggregate(flights, state), state))
        assert (found["differences"], found["rows"]) == (0, found["plain_rows"])
        assert found["rows"] == {PER_AIRCRAFT.name: 7, PER_ROUTE.name: 5}[state.name]


def test_the_comparison_sees_a_value_that_is_off_by_one(spark) -> None:
    rows = [(1, "N1", "JFK", "D1", "UA", 1, 5, 100, 7, None)]
    flights = spark.createDataFrame(rows, WEEK).withColumn("hour_utc", sf.timestamp_seconds(sf.lit(1_357_000_000)))
    value = sf.to_json(sf.struct(*value_of(PER_AIRCRAFT)))
    right = aggregate(flights, PER_AIRCRAFT).select(key_of(PER_AIRCRAFT).alias("key"), value.cast("binary").alias("value"))
    wrong = right.withColumn("value", sf.regexp_replace(sf.col("value").cast("string"), '"distance":100', '"distance":101').cast("binary"))
    plain = comparable(aggregate(flights, PER_AIRCRAFT), PER_AIRCRAFT)
    assert count_differences(rows_of(right, PER_AIRCRAFT), plain)["differences"] == 0
    assert count_differences(rows_of(wrong, PER_AIRCRAFT), plain)["differences"] == 2
    assert "last_seen" in VALUE


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_stream_with_killed_driver_and_executors_ends_as_the_batch_run(tmp_path: Path) -> None:
    result = run_stream_demo(tmp_path / "demo", weeks=16)
    print(f"seed {result.seed}: {result.as_json()}")
    assert find_problems(result) == []
