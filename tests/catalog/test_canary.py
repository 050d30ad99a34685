"""Canaries: faults of libraries that a pin keeps out, so that an upgrade cannot bring them in unseen."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from packaging.requirements import Requirement

from tests.support.places import ROOT


def test_of_two_compactions_of_one_version_exactly_one_fails(tmp_path: Path) -> None:
    """deltalake 1.6.4 to 1.6.6 lost a conflict check: both compactions succeed, each adds the rows again, and every row is there twice.
    80 rows became 228,926,720 in a race of six seconds. deltalake stays at 1.6.3 until a version passes this.
    """
    table = tmp_path / "table"
    for n in range(4):
        write_deltalake(table, pa.table({"n": pa.array([n, n], pa.int64())}), mode="append")
    first, second = DeltaTable(table), DeltaTable(table)
    assert first.version() == second.version()

    first.optimize.compact()
    with pytest.raises(CommitFailedError):
        second.optimize.compact()

    assert sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_requirements_let_in_no_deltalake_or_duckdb_that_lacks_its_part() -> None:
    """No deltalake without the check, and no duckdb without its extension. What a user installs is decided by the project's own metadata:
    constraints.txt is not part of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {requirement.name: requirement.specifier for requirement in map(Requirement, project["dependencies"])}
    assert allowed["deltalake"].contains(version("deltalake"))
    assert list(allowed["deltalake"].filter(["1.6.2", "1.6.4", "1.6.5", "1.6.6", "1.7.0"])) == []
    assert str(allowed["duckdb"]) == str(allowed["duckdb-extension-delta"]) == f"=={version('duckdb')}"
