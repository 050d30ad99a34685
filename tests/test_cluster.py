"""The vehicles with executors that are processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def spark_home(tmp_path):
    """Spark's installation as a directory of links: the standalone workers write beside it, and site-packages stays clean."""
    import pyspark

    home = tmp_path / "spark-home"
    home.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    return home


@pytest.mark.slow
def test_separate_executors_keep_every_row_and_find_damage(tmp_path, spark_home):
    """A Python worker of each write dies in the middle: its task is tried again, elsewhere or not."""
    root = tmp_path / "catalog"
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster_program", str(root)],
        env={**os.environ, "SPARK_HOME": str(spark_home)},
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        timeout=600,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["NativeVehicle"] == found["StreamedVehicle"] == {"rows": 10_000, "equal": True}
    assert "is damaged: expected" in found["damage"]
    assert found["executors"] >= 2
    assert len([*tmp_path.glob("died-*")]) == 2
