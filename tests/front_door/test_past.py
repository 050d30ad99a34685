"""`Catalog.at` and `holdfast sql --at`: the catalog as it was."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.catalog.facts import CheckpointCommitted, JobRegistered
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.cli import USAGE, main
from tests.support.front_door import ask
from tests.support.small_catalog import SmallCatalog, SmallCatalogs

DROPPED = "SELECT job, checkpoint_id FROM checkpoints WHERE status = 'dropped' ORDER BY ALL"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, small_catalogs: SmallCatalogs) -> SmallCatalog:
    return small_catalogs.copy(tmp_path_factory.mktemp("past") / "catalog", checkpoints=4)


@pytest.fixture(scope="module")
def catalog(made: SmallCatalog) -> Iterator[holdfast.Catalog]:
    with holdfast.open(made.root) as opened:
        yield opened


def version_of(catalog: holdfast.Catalog, checkpoint: int) -> int:
    """The first version of the ledger at which this checkpoint of alpha was there."""
    commits = DeltaLedger.open(f"{catalog.address}/{catalog.at(version=0).ledger}").commits(0)
    (alpha,) = (
        row.fact.job_id for commit in commits for row in commit.rows if isinstance(row.fact, JobRegistered) and row.fact.job == "alpha"
    )
    for commit in commits:
        for fact in (row.fact for row in commit.rows):
            if isinstance(fact, CheckpointCommitted) and (fact.job_id, fact.checkpoint_id) == (alpha, checkpoint):
                return commit.version
    raise AssertionError


def told_at(catalog: holdfast.Catalog, version: int) -> list[list[tuple[object, ...]]]:
    """The rows of some views at this version."""
    views = ("checkpoints", "files", "handles", "unreferenced_files")
    with catalog.at(version=version).duckdb() as connection:
        return [connection.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in views]


def sql(root: object, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["sql", str(root), *arguments])


def test_a_dropped_checkpoint_was_live_at_the_version_that_committed_it(catalog):
    then = catalog.at(version=version_of(catalog, 1))
    assert ask(then, "SELECT checkpoint_id, status FROM checkpoints") == [(1, "live")]
    assert ask(then, "SELECT head_checkpoint_id FROM jobs") == [(1,)]
    assert ("alpha", 1) in ask(catalog, DROPPED)
    assert repr(then).endswith(f"as of version {then.version} of {then.ledger}>")


def test_the_time_of_a_commit_is_that_of_its_version(catalog):
    ((at,),) = ask(catalog, "SELECT CAST(committed_at AS VARCHAR) FROM checkpoints WHERE job = 'alpha' AND checkpoint_id = 2")
    time = datetime.fromisoformat(at)
    assert catalog.at(time=time).version == version_of(catalog, 2)
    assert catalog.at(time=time - timedelta(microseconds=1)).version == version_of(catalog, 2) - 1
    newest = catalog.at(time=datetime.now(UTC) + timedelta(days=1))
    assert ask(newest, "FROM checkpoints ORDER BY ALL") == ask(catalog, "FROM checkpoints ORDER BY ALL")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "pass one of them"),
        ({"version": 1, "time": datetime(2026, 1, 1, tzinfo=UTC)}, "pass one of them"),
        ({"ledger": "ledger", "time": datetime(2026, 1, 1, tzinfo=UTC)}, "pass one of them"),
        ({"version": 10_000}, r"there is no version 10000 of 'ledger.*': the versions of 'ledger.*' are 0 to \d+"),
        ({"version": -1}, "pass a whole number"),
        ({"version": "3"}, "pass a whole number"),
        ({"version": 1, "ledger": "elsewhere"}, "there is no version 1 of 'elsewhere'"),
        ({"version": 1, "ledger": 3}, "pass a text"),
        ({"time": datetime(2026, 1, 1)}, "2026-01-01T00:00:00 has no time zone"),
        ({"time": "2026-01-01"}, "pass a datetime with a time zone"),
        ({"time": datetime(2012, 1, 1, tzinfo=UTC)}, "nothing had been committed to the catalog by 2012-01-01T00:00:00"),
    ],
    ids=str,
)
def test_what_never_was_is_an_error_of_usage(catalog, given, says):
    with pytest.raises(holdfast.UsageError, match=says):
        catalog.at(**given)


def test_upkeep_changes_nothing_that_is_said_of_the_past(tmp_path, small_catalogs):
    """A vacuum deletes files and a fold replaces rows: then is then."""
    small_catalogs.copy(tmp_path / "catalog", checkpoints=4)
    with holdfast.open(tmp_path / "catalog") as catalog:
        versions = [version_of(catalog, n) for n in (2, 4)]
        before = [told_at(catalog, version) for version in versions]
        done = catalog.upkeep()
        assert (done.fold.is_folded, len(done.vacuum.plan.unreferenced) > 0) == (True, True)
        assert [told_at(catalog, version) for version in versions] == before
        assert ask(catalog, "SELECT DISTINCT status FROM files ORDER BY ALL") == [("gone",), ("present",)]


def test_sql_at_a_version_or_a_time_shows_the_catalog_of_then(made, catalog):
    version = version_of(catalog, 2)
    then = catalog.at(version=version)
    ((at,),) = ask(then, "SELECT CAST(max(committed_at) AS VARCHAR) FROM checkpoints")
    expected = [{"checkpoint_id": n} for n in (1, 2)]
    for when in (str(version), f"{then.ledger}:{version}", at, f"{at.replace(' ', 'T')}:00"):
        found = sql(made.root, "SELECT checkpoint_id FROM checkpoints ORDER BY 1", "--at", when, "--json")
        assert (found.exit_code, json.loads(found.stdout)) == (0, expected), when


@pytest.mark.parametrize("when", ["yesterday", "", "-1", "ledger:x", "elsewhere:1", "10000", "2026-01-01", "2012-01-01T00:00Z"])
def test_sql_at_what_never_was_is_an_error_of_usage(made, when):
    assert sql(made.root, "FROM jobs", "--at", when).exit_code == USAGE


def test_checkpoints_lists_live_ones_and_with_all_those_that_were_dropped(made, catalog):
    for arguments, query in (([], "WHERE status = 'live'"), (["--all"], "")):
        found = CliRunner().invoke(main, ["checkpoints", str(made.root), "--json", *arguments])
        expected = ask(catalog, f"SELECT job, checkpoint_id FROM checkpoints {query} ORDER BY ALL")
        assert [(row["job"], row["checkpoint_id"]) for row in json.loads(found.stdout)] == expected


def test_the_past_reads_the_files_of_its_catalog_alone_and_writes_nothing(made, catalog):
    import duckdb

    with catalog.at(version=1).duckdb() as connection:
        for statement in (
            f"FROM read_csv('{made.root.parent}/x.csv')",
            "INSERT INTO holdfast_history FROM holdfast_history",
            "SET threads = 1",
        ):
            with pytest.raises(duckdb.Error):
                connection.execute(statement)


def test_a_session_of_spark_is_asked_for_by_name(catalog):
    for at in (catalog, catalog.at(version=1)):
        with pytest.raises(holdfast.UsageError, match="is not a Spark session"):
            at.register("spark")
