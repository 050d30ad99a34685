"""The worst sicknesses of a host with a real executor, which sees another file system than the driver at the catalog's path."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.demo.processes import session_members
from tests.support.places import ROOT

WHERE_IT_LIES = {
    "empty": "it has no holdfast.json",
    "empty-target": "and is not there on the driver",
    "missing": "is not a directory on host",
    "another-catalog": "is of another catalog",
    "read-only": "Mount it for writing",
}


def may_mount() -> bool:
    """Whether this account may have a mount namespace of its own. On CI it must."""
    return bool(os.environ.get("CI")) or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="a mount namespace takes the right to mount")
def test_an_executor_that_does_not_see_the_catalog_commits_nothing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.programs.sick_host_program", str(tmp_path)],
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
    *found, last = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    assert last == {"healthy again": True, "strangers": []}
    assert len(found) == 18
    for each in found:
        assert each["error"] is not None, each
        assert each["committed"] == 1, each
        assert str(tmp_path) in each["said"], each
        # The program's own action, and Spark's own source, fail with Spark's error, in which ours stands.
        assert each["is_ours"] or each["way"] in ("directories", "owner", "format"), each
        seen = "empty" if each["way"] == "native" and each["sickness"] == "missing" else each["sickness"]  # Spark has made the root
        assert WHERE_IT_LIES[seen] in each["said"], each
