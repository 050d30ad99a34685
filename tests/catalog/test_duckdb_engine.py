"""What each connection to DuckDB has of its own."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import pytest

from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.duckdb_engine import lock, offline_connection

SPILLS = """
import sys
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.duckdb_engine import lock, offline_connection
connection = offline_connection(threads=1, memory_bytes=256 * 1024 * 1024)
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


def test_standard_output_is_left_to_a_program_without_a_file() -> None:
    """Seen: how far a vacuum's query was, in the middle of what a program told another."""
    program = "from holdfast.catalog.views.duckdb_engine import offline_connection as made; "
    program += "print(made().execute(\"SELECT current_setting('enable_progress_bar')\").fetchall())"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[(False,)]\n"


@pytest.mark.slow
def test_processes_in_one_directory_spill_beside_each_other(tmp_path: Path) -> None:
    """DuckDB's default is `.tmp` of the current directory, with the same names in each process: 14 of 16 died of a segmentation fault."""
    command = [sys.executable, "-c", SPILLS]
    both = [subprocess.Popen([*command, k], cwd=tmp_path, stdout=subprocess.PIPE, text=True) for k in "12"]
    assert [process.communicate(timeout=600)[0].split() for process in both] == [["2500000", "0"]] * 2
    assert list(tmp_path.iterdir()) == []


def test_the_signature_of_the_extension_is_looked_at_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB hashes all 80 MB at each LOAD. A file that was changed since, or put in its place, is looked at again, and refused."""
    ledger = DeltaLedger.create(tmp_path / "ledger", catalog_id="c0ffee").address
    here = tmp_path / "delta.duckdb_extension"
    for name in (here.name, "other.duckdb_extension"):
        shutil.copy(duckdb_engine.extension_path(), tmp_path / name)
    monkeypatch.setattr(duckdb_engine, "extension_path", lambda: here)
    trusted = "SELECT current_setting('allow_unsigned_extensions')"
    for expected in (False, True):
        with duckdb_engine.connect(ledger) as connection:
            assert connection.execute(trusted).fetchone() == (expected,)
            with pytest.raises(duckdb.Error, match="disabled"):  # whatever it is, not by who holds the connection
                connection.execute(f"LOAD '{tmp_path}/other.duckdb_extension'")
    with open(here, "r+b") as extension:
        extension.seek(1_000_000)
        extension.write(b"harm")
    os.utime(here, ns=(1, 1))
    with pytest.raises(duckdb.Error, match="signature"):
        duckdb_engine.connect(ledger)
