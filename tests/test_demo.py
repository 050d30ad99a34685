"""The demo: its pure parts one by one, and (slow) the whole of it once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.catalog.errors import UsageError
from holdfast.catalog.storage_memory import MemoryStorage
from holdfast.demo.audit import Kill, Result, find_problems
from holdfast.demo.command import lines
from holdfast.demo.flights import FLIGHTS, WEEKS, count_week, prepare, week_file, write_weeks
from holdfast.demo.processes import Child, ChildFailedError, parse_event, session_members
from holdfast.demo.sessions import link_spark_home
from holdfast.demo.stops import COMMIT, DELETION, StoppingStorage, Stops
from holdfast.demo.story import MARK, prepare_directory
from tests.storage_contract import StorageContract


def good_result() -> Result:
    costs = [[n, 1000, 200, 800, 4, 1] for n in (51, 52, 53)]
    state = {"state": "per_route", "rows": 224, "plain_rows": 224, "differences": 0}
    return Result(
        flights=FLIGHTS,
        weeks=WEEKS,
        checkpoints=WEEKS,
        kills=[Kill(place=COMMIT, week=22, processes=7, resumed_week=22), Kill(place=DELETION, week=37, processes=8, resumed_week=38)],
        orphans=9,
        verified_files=12,
        chk_directories=["chk-54", "chk-55", "chk-56"],
        compared=[state, state],
        counted_flights=FLIGHTS,
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
        ("kills", [Kill(place=COMMIT, week=22, processes=7, resumed_week=24)]),
        ("kills", [Kill(place=COMMIT, week=22, processes=7, resumed_week=0)]),
    ],
)
def test_whatever_differs_from_the_promise_is_a_problem(field: str, value: object) -> None:
    result = good_result()
    setattr(result, field, value)
    assert find_problems(result)
    assert list(lines(result, find_problems(result)))[-1] != "All is as promised."


def test_every_flight_is_in_the_file_of_its_week(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert write_weeks(tmp_path) == FLIGHTS
    assert sum(count_week(tmp_path, week) for week in range(1, WEEKS + 1)) == FLIGHTS
    assert pq.read_table(week_file(tmp_path, 53)).column("week").unique().to_pylist() == [53]


def test_weeks_count_from_new_year_and_a_flight_that_never_arrived_has_no_delay() -> None:
    import pandas as pd

    rows = {"year": 2013, "month": [1, 1, 12], "day": [7, 8, 31], "time_hour": "2013-01-07T10:00:00Z", "arr_delay": [11.0, None, -3.0]}
    prepared = prepare(pd.DataFrame(rows))
    assert prepared["week"].tolist() == [1, 2, 53]
    assert prepared["arr_delay"].isna().tolist() == [False, True, False]


def test_a_directory_with_something_else_in_it_is_refused_and_that_of_an_earlier_run_is_emptied(tmp_path: Path) -> None:
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
def test_a_killed_child_takes_everything_of_its_session_along_even_other_process_groups(tmp_path: Path, module) -> None:
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
    assert sorted(path.name for path in (tmp_path / "demo").iterdir() if path.is_dir()) == ["catalog", "logs", "stops"]
