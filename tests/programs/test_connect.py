"""The main path over Spark Connect: a client without a JVM, and a server that has one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT


def expected(n: int) -> list[list[object]]:
    """The state after changes 0 to n."""
    gone, new = {50 + i for i in range(n + 1)}, range(n + 1)
    whole = [[i, "new" if i in new else f"name {i}"] for i in range(100) if i not in gone]
    return whole + [[200 + i, "more"] for i in new]


@pytest.mark.slow
def test_a_job_writes_reads_and_restores_over_connect_as_beside_a_jvm(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.programs.connect_program", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=600,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["session"] == "pyspark.sql.connect.session"
    for upload in ("native", "streamed"):
        of = found[upload]
        assert [of[f"full {n}"] for n in range(3)] == [expected(n) for n in range(3)]
        assert [of[f"reused {n}"] for n in range(3)] == [True] * 3
        assert of["groups"] == [[6, "name 6"], [7, "changed 2"]]
        assert (of["group rows"], of["parts"], of["subtasks"], of["no rows"]) == (2000, 2000, 2000, [0, 0])
        assert of["keyless"]
        assert of["savepoint"]
        assert of["restored"]
        assert "these appear more than once: id=1" in of["double key"]
    assert found["views"] == 2
    errors = found["errors"]
    assert errors["stream"].startswith("UsageError: foreach_batch is not available on Spark Connect")
    assert "there is no key column 'other'" in errors["unknown column"]
    assert errors["outlives"].startswith("RefusedError: the DataFrame of state 'ids' of checkpoint 1")
    assert errors["damaged"].startswith("DamagedFileError: ")
