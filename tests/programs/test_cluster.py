"""The uploaders with executors that are processes of their own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.demo.processes import session_members
from tests.support.places import ROOT


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
        [sys.executable, "-m", "tests.programs.cluster_program", str(root)],
        env={**os.environ, "SPARK_HOME": str(spark_home)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        timeout=600,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["NativeUploader"] == found["StreamedUploader"] == {"rows": 10_000, "equal": True}
    assert "is damaged: expected" in found["damage"]
    assert found["executors"] >= 2
    assert len([*tmp_path.glob("died-*")]) == 2


@pytest.mark.slow
def test_whatever_a_cluster_does_the_content_is_right(tmp_path):
    """Cleanup leaves what is referenced. Each scenario checks the catalog itself and would not get to its line; here what it saw."""
    with (tmp_path / "log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.hostile_program", str(tmp_path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    try:
        told, _ = program.communicate(timeout=800)
    finally:
        for pid in session_members(program.pid):
            os.kill(pid, signal.SIGKILL)
    assert program.returncode == 0, told + (tmp_path / "log").read_text()[-3000:]
    found = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    print(*found, sep="\n")
    assert [each for each in found if not (each["equal"] and each["happened"])] == []
    assert len(found) == 15
    late = [each["orphans"] for each in found if each["scenario"] == "a loser uploads late"]
    assert late == [1], "the late file is there after the commit, and scrub takes it"
