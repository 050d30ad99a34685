"""The Makefile finds a Python that fits, whatever `python3` is on this machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

MAKEFILE = ROOT / "Makefile"


def chosen(path: Path, **pythons: bool) -> str:
    """What `$(PYTHON)` is where these are the pythons on the PATH, each fitting or not."""
    for name, fits in pythons.items():
        script = path / name.replace("_", ".")
        script.write_text(f"#!/bin/sh\nexit {0 if fits else 1}\n")
        script.chmod(0o755)
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    command = [make, "-f", str(MAKEFILE), "--eval", "chosen: ; @$(info $(PYTHON)):", "chosen"]
    return subprocess.run(command, env={"PATH": str(path)}, capture_output=True, text=True, check=True).stdout.strip()


def test_a_python3_that_fits_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path, python3=True, python3_12=True) == "python3"


def test_another_one_is_taken_where_python3_is_too_old_or_too_new(tmp_path: Path) -> None:
    assert chosen(tmp_path, python3=False, python3_13=False, python3_12=True, python3_11=True) == "python3.12"


def test_there_is_none_where_none_fits(tmp_path: Path) -> None:
    assert chosen(tmp_path, python3=False) == ""


def test_no_python_that_fits_is_told_before_anything_is_made(tmp_path: Path) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("there is no make")
    shutil.copy(MAKEFILE, tmp_path)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    done = subprocess.run([make, ".venv/stamp-installed", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13, and none of python3 python3.13" in done.stderr
    assert not (tmp_path / ".venv").exists()
