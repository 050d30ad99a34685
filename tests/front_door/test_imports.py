"""What is not imported until it is needed: help and version wait for no engine, and no command without Spark imports it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from tests.support.places import ROOT

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


MAY_IMPORT_SPARK = ("demo/", "writers/spark/", "data_source.py", "data_source_writer.py", "streaming.py")
ASKS_WHETHER_IT_IS_IN_A_TASK = "writers/parquet/task_limits.py"


def test_pyspark_is_imported_where_spark_lives_and_nowhere_else() -> None:
    """Types apart, which are read and never imported."""
    package, found = ROOT / "holdfast", []
    for folder in ("catalog", "compaction", "writers", "."):
        for file in (package / folder).rglob("*.py"):
            name = str(file.relative_to(package))
            if not name.startswith((*MAY_IMPORT_SPARK, ASKS_WHETHER_IT_IS_IN_A_TASK)) and {"pyspark", "py4j"} & imported_by(file):
                found.append(name)
    assert found == []


def imported_by(file: Path) -> set[str]:
    """The packages that a module imports when it runs, within functions too."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    nodes = [node for node in ast.walk(tree) if id(node) not in for_types]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return {name.partition(".")[0] for name in names}
