"""Paths with characters that engines read in ways of their own: everything works there, or it is refused before anything is made.

Delta's kernel, which deltalake and DuckDB have in common, decodes `%41`, takes a backslash for a slash, and refuses control characters. So no
ledger can be at such a path; a savepoint or a copy, which has none, can.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.support.front_door import LARGE

NO_LEDGER = {
    "an escape": "a%20b", "an escape of a letter": "a%41b", "a percent sign": "100%", "a backslash": "a\\b", "a line": "a\nb", "a tab": "a\tb",
    "a return": "a\rb", "a control": "a\x01b", "delete": "a\x7fb", "a C1 control": "a\x85b",
}  # fmt: skip
ALLOWED = {
    "a question mark": "a?b", "a number sign": "a#b", "a space": "a b", "an umlaut": "ü", "decomposed": "u\u0308", "a quote": "a'b",
    "quotes": 'a"b', "a star": "a*b", "brackets": "a[1]b", "braces": "a{x,y}b", "a colon": "a:b", "a semicolon": "a;b", "a backtick": "a`b",
    "a dollar": "$a", "an ampersand": "a&b=c+d", "spaces at its ends": " a ", "a hidden name": ".a", "an emoji": "😀",
}  # fmt: skip
EVERYTHING = "a?#*[1]{x,y}:;&=+$'\"` ü😀"
FOR_SPARK = EVERYTHING.replace(":", "")  # whose patterns of paths take a colon, or a star, and not both


def fill(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        for n in (1, 2):
            with job.checkpoint() as checkpoint:
                checkpoint.write_bytes("large", LARGE + bytes([n]))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog that others are copies of."""
    root = tmp_path_factory.mktemp("good") / "catalog"
    with holdfast.open(root, create=True) as catalog:
        fill(catalog)
    return root


@pytest.mark.parametrize(
    "name", [EVERYTHING, *(pytest.param(name, marks=pytest.mark.slow) for name in ALLOWED.values())], ids=["all", *ALLOWED]
)
def test_a_catalog_at_a_path_with(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its whole path, by a relative one in such a directory, and by its URL."""
    root = tmp_path / name / "catalog"
    root.parent.mkdir()
    monkeypatch.chdir(root.parent)
    with holdfast.open("catalog", create=True) as catalog:
        fill(catalog)
    with holdfast.open(root) as catalog, catalog.checkpoint("flights", 1) as first:
        assert first.read_bytes("large") == LARGE + b"\1"
        catalog.drop("flights", 1)
    with holdfast.open(root.as_uri()) as catalog:
        assert catalog.vacuum().deleted_files == 2
        assert not catalog.verify().damages
        assert not catalog.scrub(dry_run=True).plan.orphans
        with catalog.duckdb() as connection:
            assert connection.execute("SELECT checkpoint_id FROM checkpoints WHERE status = 'live'").fetchall() == [(2,)]
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", NO_LEDGER.values(), ids=NO_LEDGER)
def test_no_catalog_is_made_or_opened_at_a_path_with(name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is to be made, was brought there by a copy, or is reached by a link; nothing is made, changed, or called damaged."""
    refused = pytest.raises(holdfast.AddressError, match="no catalog can be at")
    with refused:
        holdfast.open(tmp_path / name / "new", create=True)
    assert os.listdir(tmp_path) == []
    shutil.copytree(good, tmp_path / name / "copied")
    (tmp_path / "link").symlink_to(tmp_path / name / "copied")
    monkeypatch.chdir(tmp_path / name)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    for address in (tmp_path / name / "copied", "copied", (tmp_path / name / "copied").as_uri(), tmp_path / "link"):
        for create in (False, True):
            with refused:
                holdfast.open(address, create=create)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["".join(NO_LEDGER.values()), EVERYTHING], ids=["what no ledger takes", "all else"])
def test_savepoints_and_copies_are_at_any_path_with(name: str, good: Path, tmp_path: Path) -> None:
    with holdfast.open(good) as catalog:
        checkpoint = catalog.checkpoint("flights")
        savepoint = catalog.savepoint("flights", f"of {tmp_path.name}", target=tmp_path / name / "savepoints")
        exported = catalog.export(checkpoint, tmp_path / name / "exported")
        assert not catalog.verify().damages
        with holdfast.open(tmp_path / "other", create=True) as other:
            for n, start in enumerate((savepoint.path, exported)):
                with other.coordinate(f"job {n}", start=start) as job:
                    latest = job.latest()
                    assert latest is not None
                    assert latest.read_bytes("large") == LARGE + b"\2"
        assert holdfast.open_manifest(exported).read_bytes("large") == LARGE + b"\2"
        assert holdfast.open_savepoint(savepoint.path).read_bytes("large") == LARGE + b"\2"
        assert catalog.dispose("flights", f"of {tmp_path.name}").deleted_files == 2
    base = tmp_path / name.replace(":", "").replace(",", "")  # by which a list of bases is told
    with holdfast.working_directory("taskmanager", base=base) as working:
        assert base in working.path.parents
    shutil.copytree(good, tmp_path / name / "copied")
    with holdfast.open_manifest(next((tmp_path / name / "copied").glob("jobs/*/chk-2"))) as copied:  # without its ledger
        assert copied.read_bytes("large") == LARGE + b"\2"


@pytest.mark.parametrize("name", ["a\udc80b", "x" * 300], ids=["not UTF-8", "too long"])
def test_what_no_engine_or_file_system_takes_is_no_address(name: str, good: Path, tmp_path: Path) -> None:
    with holdfast.open(good) as catalog, catalog.checkpoint("flights") as checkpoint:
        for use in (
            holdfast.open,
            lambda path: holdfast.open(path, create=True),
            holdfast.upgrade,
            lambda path: holdfast.open_manifest(path / "jobs" / "flights-12345678" / "chk-1"),
            holdfast.open_savepoint,
            lambda path: catalog.savepoint("flights", "never", target=path),
            lambda path: catalog.export(checkpoint, path),
            lambda path: catalog.coordinate("flights", start=path),
            lambda path: holdfast.working_directory("taskmanager", base=path),
        ):
            with pytest.raises(holdfast.AddressError):
                use(tmp_path / name)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [FOR_SPARK, "".join(NO_LEDGER.values())], ids=["a catalog", "a savepoint"])
def test_spark_and_duckdb_find_rows_at_any_path_that_may_be(spark: Any, name: str, tmp_path: Path) -> None:
    root, outside = (tmp_path / name, tmp_path / "s") if name == FOR_SPARK else (tmp_path / "catalog", tmp_path / name)
    rows = spark.range(20)
    with holdfast.open(root, create=True) as catalog:
        for upload in ("native", "streamed") if name == FOR_SPARK else ("native",):
            with catalog.coordinate(upload, upload=upload) as job, job.checkpoint() as checkpoint:
                checkpoint.write("planes", rows, key=["id"])
            savepoint = catalog.savepoint(upload, "mine", spark=spark, target=outside, upload=upload)
            copied = holdfast.open_manifest(catalog.export(catalog.checkpoint(upload), outside / upload))
            for found in (catalog.checkpoint(upload), holdfast.open_savepoint(savepoint.path), copied):
                assert found.read(spark, "planes").count() == len(found.duckdb("planes").fetchall()) == 20
        catalog.register(spark)
        assert spark.sql("SELECT * FROM checkpoints").count() >= 2
        spark.dataSource.register(holdfast.HoldfastDataSource)
        assert spark.read.format("holdfast").options(job="native", state="planes").load(str(root)).count() == 20
        assert not catalog.verify().damages
