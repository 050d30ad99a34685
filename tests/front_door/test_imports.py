"""What is not imported until it is needed: help and version wait for no engine, and no command without Spark imports it."""

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

HEAVY = ("deltalake", "duckdb", "numpy", "pandas", "pyarrow", "pyspark", "rich")


def imported(program: str) -> set[str]:
    """Those of the heavy packages that a fresh interpreter has imported after a program."""
    text = f"{program}\nimport sys\nprint('imported', *[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def command(*arguments: object) -> str:
    return f"from holdfast.cli import main\nmain({[str(argument) for argument in arguments]!r}, standalone_mode=False)"


@pytest.mark.parametrize(
    "program",
    ["import holdfast", "import holdfast\nholdfast.KeepLast(3), holdfast.FencedError", command("--version"), command("vacuum", "--help")],
)
def test_no_engine_is_imported_by(program: str) -> None:
    assert imported(program) == set()


def test_a_command_without_a_frame_imports_no_spark(tmp_path: Path) -> None:
    holdfast.open(tmp_path / "catalog", create=True).close()
    assert imported(command("vacuum", tmp_path / "catalog")).isdisjoint({"pyspark"})


def test_every_public_name_is_there_and_is_listed() -> None:
    assert {*holdfast.__all__, "HoldfastDataSource"} <= {*dir(holdfast)}
    for name in {*holdfast.__all__, *holdfast._HOMES}:
        assert getattr(holdfast, name) is getattr(holdfast, name), name
    assert {*holdfast._HOMES} - {*holdfast.__all__} == {"HoldfastDataSource"}
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        getattr(holdfast, "opne")  # noqa: B009 - a wrong name, as one is typed
