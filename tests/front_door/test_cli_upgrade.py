"""`holdfast upgrade`: what it prints, and the code that it exits with."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.cli import CORRUPTION, USAGE, main
from tests.support.upgrades import make_small


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_small(tmp_path / "catalog")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_every_other_command_says_what_to_type(root: Path) -> None:
    for command in ("vacuum", "scrub", "verify", "checkpoints", "jobs", "readers", "owners"):
        refused = run(command, root)
        assert (refused.exit_code, refused.stdout) == (USAGE, "")
        assert f"run `holdfast upgrade {root}`" in refused.stderr


def test_it_says_where_everything_is_and_may_be_run_again(root: Path) -> None:
    first = run("upgrade", root)
    assert first.exit_code == 0
    assert "has format 2 now: ledger-1/ is its ledger, history/ its history" in first.stdout
    assert "ledger/ is closed; delete it once no program of the older version runs" in first.stdout
    again = run("upgrade", root)
    assert (again.exit_code, "has format 2 already, in ledger-1/" in again.stdout) == (0, True)
    assert run("checkpoints", root).exit_code == 0


def test_with_json_it_prints_one_value(root: Path) -> None:
    done = json.loads(run("upgrade", root, "--json").stdout)
    assert (done["was"], done["is_now"], done["ledger"], done["old_ledger"]) == (1, 2, "ledger-1", "ledger")
    assert done["facts"] > done["kept_facts"] > 0


def test_what_is_no_catalog_or_is_damaged_is_told_apart(root: Path, tmp_path: Path) -> None:
    assert run("upgrade", tmp_path / "nothing").exit_code == USAGE
    min((root / "ledger").glob("*.parquet")).unlink()
    failed = run("upgrade", root, "--json")
    assert failed.exit_code == CORRUPTION
    assert json.loads(failed.stderr)["kind"] == "damaged-ledger"


def test_help_has_an_example() -> None:
    shown = run("upgrade", "--help").stdout
    assert "holdfast upgrade /data/checkpoints" in shown
    assert "Programs of the older version are refused from then on." in " ".join(shown.split())
