"""What each connection to DuckDB has of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast.catalog.views.duckdb_engine import lock, offline_connection

SPILLS = """
import sys
from holdfast.catalog.views.duckdb_engine import lock, offline_connection
connection = offline_connection(threads=1, memory_bytes=256 * 1024 * 1024)
connection.execute("SET enable_progress_bar = false")
lock(connection, "/")
k = sys.argv[1]
rows = connection.sql(
    f"SELECT b, max(p) p FROM (SELECT md5((range * {k})::varchar) b, md5((range * {k} + 1)::varchar) || repeat('{k}', 40) p FROM range(2500000)) GROUP BY b"
)
found = wrong = 0
for batch in rows.to_arrow_reader(50_000):
    found += len(batch)
    wrong += sum(not text.endswith(k * 40) for text in batch.column("p").to_pylist())
print(found, wrong)
"""


def test_no_two_connections_spill_to_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    places = []
    for local in (None, None, f"{tmp_path}/spark,/elsewhere"):
        if local:
            monkeypatch.setenv("SPARK_LOCAL_DIRS", local)
        with offline_connection() as connection:
            lock(connection, str(tmp_path))
            ((place,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
            places.append(Path(place))
    assert len(set(places)) == 3
    assert [place.parent for place in places] == [tmp_path, tmp_path, tmp_path / "spark"]
    assert not any(place.exists() for place in places)


@pytest.mark.slow
def test_processes_in_one_directory_spill_beside_each_other(tmp_path: Path) -> None:
    """DuckDB's default is `.tmp` of the current directory, with the same names in each process: 14 of 16 died of a segmentation fault."""
    command = [sys.executable, "-c", SPILLS]
    both = [subprocess.Popen([*command, k], cwd=tmp_path, stdout=subprocess.PIPE, text=True) for k in "12"]
    assert [process.communicate(timeout=600)[0].split() for process in both] == [["2500000", "0"]] * 2
    assert list(tmp_path.iterdir()) == []
