"""The demo: its pure parts one by one, and (slow) the whole of it once."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import functions as sf

from holdfast.catalog.errors import UsageError
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.demo.audit import Kill, Result, find_problems
from holdfast.demo.command import lines, require_installed
from holdfast.demo.flights import FLIGHTS, WEEKS, count_week, prepare, week_file, write_weeks
from holdfast.demo.processes import Child, ChildFailedError, parse_event, session_members
from holdfast.demo.sessions import link_spark_home
from holdfast.demo.states import PER_AIRCRAFT, add, aggregate, count_differences, plain_aggregation, with_mean_delay
from holdfast.demo.stops import COMMIT, DELETION, UPLOAD, StoppingStorage, Stops
from holdfast.demo.story import MARK, prepare_directory, wait_until_reached
from tests.catalog.storage_contract import StorageContract

GOOD_KILLS = (
    Kill(place=UPLOAD, week=9, processes=8, resumed_week=9),
    Kill(place=COMMIT, week=22, processes=7, resumed_week=22),
    Kill(place=DELETION, week=38, processes=8, resumed_week=39),
)


def kills_but(place: str, **changes: int) -> list[Kill]:
    return [replace(kill, **changes) if kill.place == place else kill for kill in GOOD_KILLS]


def good_result() -> Result:
    costs = [[n, 1000, 200, 800, 4, 1] for n in (51, 52, 53)]
    state = {"state": "per_route", "rows": 224, "plain_rows": 224, "differences": 0}
    return Result(
        flights=FLIGHTS,
        weeks=WEEKS,
        checkpoints=WEEKS,
        kills=list(GOOD_KILLS),
        taken_over_files=10,
        orphans=9,
        verified_files=12,
        chk_directories=["chk-54", "chk-55", "chk-56"],
        compared=[state, state],
        restored=[state, state],
        forked={"partitions": 4, "wanted_partitions": 4, "removed_rows": 100, "new_bytes": 1000, "shared_bytes": 200},
        counted_flights=FLIGHTS,
        plain_flights=FLIGHTS,
        last_week=WEEKS,
        costs=costs,
        spark_costs=costs,
    )


def test_a_good_run_has_no_problems_and_fits_on_a_screen() -> None:
    result = good_result()
    assert find_problems(result) == []
    text = list(lines(result, []))
    assert len(text) <= 40
    assert text[-1] == "All is as promised."
    json.dumps(result.as_json())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("checkpoints", WEEKS - 1),
        ("counted_flights", FLIGHTS + 1),
        ("orphans", 0),
        ("left_orphans", 1),
        ("foreign_files", 1),
        ("verified_files", 0),
        ("damages", ["jobs/x: missing"]),
        ("chk_directories", ["chk-53"]),
        ("compared", []),
        ("compared", [{"state": "a", "rows": 1, "plain_rows": 1, "differences": 2}] * 2),
        ("compared", [{"state": "a", "rows": 0, "plain_rows": 0, "differences": 0}] * 2),
        ("spark_costs", []),
        ("restored", []),
        ("restored", [{"state": "a", "rows": 1, "plain_rows": 1, "differences": 2}] * 2),
        ("forked", {}),
        ("forked", {"partitions": 2, "wanted_partitions": 4, "removed_rows": 100, "shared_bytes": 1}),
        ("forked", {"partitions": 4, "wanted_partitions": 4, "removed_rows": 99, "shared_bytes": 1}),
        ("forked", {"partitions": 4, "wanted_partitions": 4, "removed_rows": 100, "shared_bytes": 0}),
        ("plain_flights", FLIGHTS - 1),
        ("flights", FLIGHTS - 1),
        ("last_week", WEEKS - 1),
        ("taken_over_files", 0),
        ("kills", []),
        ("kills", list(GOOD_KILLS[:2])),
        ("kills", kills_but(UPLOAD, resumed_week=10)),
        ("kills", kills_but(COMMIT, resumed_week=23)),
        ("kills", kills_but(COMMIT, resumed_week=0)),
        ("kills", kills_but(COMMIT, week=23, resumed_week=23)),
        ("kills", kills_but(DELETION, week=35, resumed_week=35)),
        ("kills", kills_but(DELETION, resumed_week=40)),
    ],
)
def test_whatever_differs_from_the_promise_is_a_problem(field: str, value: object) -> None:
    result = good_result()
    setattr(result, field, value)
    assert find_problems(result)
    assert list(lines(result, find_problems(result)))[-1] != "All is as promised."


def test_a_whole_year_has_all_flights_even_where_everybody_counts_the_same() -> None:
    few = {"flights": 100, "counted_flights": 100, "plain_flights": 100}
    result = good_result()
    for name, value in few.items():
        setattr(result, name, value)
    assert find_problems(result) == [f"flights of the input: 100, not {FLIGHTS}"]


@pytest.mark.parametrize("resumed_week", [38, 39])
def test_only_a_kill_beside_a_deletion_may_come_after_the_commit(resumed_week: int) -> None:
    result = good_result()
    result.kills = kills_but(DELETION, resumed_week=resumed_week)
    assert find_problems(result) == []


def test_without_its_packages_the_demo_says_what_to_install() -> None:
    require_installed()
    with pytest.raises(UsageError, match=r"no_such_package: pip install 'holdfast\[demo\]'"):
        require_installed(("click", "no_such_package"))


def test_the_mean_of_the_kept_sums_is_the_mean_that_spark_computes(spark) -> None:
    """A wrong one is seen."""
    day = datetime(2013, 1, 1, tzinfo=UTC)
    columns = "hour_utc timestamp, minute int, carrier string, flight int, tailnum string, origin string, dest string, distance int, arr_delay long"
    delays = {"N1": [10, -3, 1], "N2": [7], "N3": [None]}  # N3 never arrived
    rows = [(day, n, "UA", n, tailnum, "JFK", "LAX", 100, delay) for tailnum, of_it in delays.items() for n, delay in enumerate(of_it)]
    flights = spark.createDataFrame(rows, columns)
    kept = add(aggregate(flights.where("minute = 0"), PER_AIRCRAFT), aggregate(flights.where("minute > 0"), PER_AIRCRAFT), PER_AIRCRAFT)
    plain = plain_aggregation(flights, PER_AIRCRAFT)
    assert {row.tailnum: row.mean_delay for row in plain.collect()} == {"N1": 8 / 3, "N2": 7.0, "N3": None}
    assert count_differences(with_mean_delay(kept), plain) == {"rows": 3, "plain_rows": 3, "differences": 0}
    wrong = with_mean_delay(kept).withColumn("mean_delay", sf.expr("if(tailnum = 'N1', mean_delay + 0.1, mean_delay)"))
    assert count_differences(wrong, plain)["differences"] == 2


def test_every_flight_is_in_the_file_of_its_week(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert write_weeks(tmp_path) == FLIGHTS
    assert sum(count_week(tmp_path, week) for week in range(1, WEEKS + 1)) == FLIGHTS
    assert pq.read_table(week_file(tmp_path, 53)).column("week").unique().to_pylist() == [53]


def test_weeks_count_from_new_year_and_no_arrival_means_no_delay() -> None:
    import pandas as pd

    rows = {"year": 2013, "month": [1, 1, 12], "day": [7, 8, 31], "time_hour": "2013-01-07T10:00:00Z", "arr_delay": [11.0, None, -3.0]}
    prepared = prepare(pd.DataFrame(rows))
    assert prepared["week"].tolist() == [1, 2, 53]
    assert prepared["arr_delay"].isna().tolist() == [False, True, False]


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    """That of an earlier run is emptied."""
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not a demo's"):
        prepare_directory(tmp_path)
    assert (tmp_path / "mine.txt").exists()
    earlier = prepare_directory(tmp_path / "demo")
    (earlier / "old").mkdir()
    assert [path.name for path in prepare_directory(earlier).iterdir()] == [MARK]


def test_a_line_that_a_kill_cut_short_tells_nothing() -> None:
    assert parse_event('{"event": "committed", "week": 3}\n') == {"event": "committed", "week": 3}
    for line in ('{"event": "comm', "Setting default log level\n", "[1]\n", "{}\n", ""):
        assert parse_event(line) is None


SLEEPER = """
import subprocess, time
subprocess.Popen(["sleep", "600"], process_group=0)
print('{"event": "up"}', flush=True)
time.sleep(600)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a module that a child can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def make(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return make


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="sessions are read from /proc")
def test_a_killed_child_takes_everything_of_its_session_along(tmp_path: Path, module) -> None:
    """Even other process groups."""
    import threading

    up = threading.Event()
    child = Child(module("sleeper", SLEEPER), [], tmp_path / "log", lambda _: up.set())
    assert up.wait(60)
    assert len(session_members(child._process.pid)) == 2
    assert child.kill() == 2
    assert session_members(child._process.pid) == set()


def test_a_child_that_fails_by_itself_is_told_with_the_end_of_its_log(tmp_path: Path, module) -> None:
    child = Child(module("failing", "raise SystemExit('no such thing')"), [], tmp_path / "log", lambda _: None)
    with pytest.raises(ChildFailedError, match="no such thing"):
        child.wait(60)


def test_a_child_that_does_not_end_in_time_is_told_as_failed(tmp_path: Path, module) -> None:
    child = Child(module("sleeper", SLEEPER), [], tmp_path / "log", lambda _: None)
    try:
        with pytest.raises(ChildFailedError, match="did not end within 0 s"):
            child.wait(0)
    finally:
        child.kill()


def test_a_place_that_nobody_reaches_is_not_waited_for_without_end(tmp_path: Path, module) -> None:
    driver, cleaner = (Child(module("sleeper", SLEEPER), [], tmp_path / "log", lambda _: None) for _ in range(2))
    try:
        with pytest.raises(ChildFailedError, match="nothing stopped at commit within 0 s"):
            wait_until_reached(Stops(tmp_path), COMMIT, driver, cleaner, timeout_s=0)
    finally:
        driver.kill()
        cleaner.kill()


def test_only_an_armed_place_stops(tmp_path: Path) -> None:
    stops = Stops(tmp_path)
    stops.here(COMMIT)
    assert not stops.is_reached(COMMIT)
    stops.arm(COMMIT)
    stops.disarm(COMMIT)
    stops.here(COMMIT)
    assert not stops.is_reached(COMMIT)


def test_spark_home_is_a_directory_of_links_without_the_installed_works(tmp_path: Path) -> None:
    home = link_spark_home(tmp_path)
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "work").exists()
    assert link_spark_home(tmp_path) == home


class TestStoppingStorage(StorageContract):
    """With nothing armed it is the storage that it wraps."""

    @pytest.fixture
    def storage(self, tmp_path: Path) -> StoppingStorage:
        return StoppingStorage(MemoryStorage(), Stops(tmp_path))

    def write_as_engine(self, storage: StoppingStorage, path: str, data: bytes) -> None:  # type: ignore[override]
        assert isinstance(storage.inner, MemoryStorage)
        storage.inner.write_as_engine(path, data)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_demo_ends_well(tmp_path: Path) -> None:
    """Killed in an upload, in a commit and while a vacuum deletes; every difference would be told in `problems`."""
    command = [sys.executable, "-m", "holdfast", "demo", "--directory", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    assert told["problems"] == []
    assert [kill["place"] for kill in told["kills"]] == ["upload", "commit", "deletion"]
    assert told["taken_over_files"] > 0, "the killed vacuum left condemned files to the next"
    assert told["flights"] == FLIGHTS
    assert sorted(path.name for path in (tmp_path / "demo").iterdir() if path.is_dir()) == [
        "catalog",
        "logs",
        "moved-savepoint",
        "other-catalog",
        "stops",
    ]
