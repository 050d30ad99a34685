"""The cleanup query has two texts, SQL for real catalogs and Python for the model: on every history that the model makes they agree."""

from collections.abc import Iterator, Sequence

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.facts import Fact
from holdfast.catalog.references import References
from holdfast.catalog.schema import Operation, to_table
from holdfast.catalog.views import duckdb_engine
from holdfast.compaction import queries
from holdfast.compaction.garbage import GarbageFile, find_garbage
from tests.protocol.model import history
from tests.support.model_ports import NOW

OPERATION = Operation(operation_id="op", at=NOW, by="model")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb_engine.offline_connection() as connection:
        duckdb_engine.views_over(connection, to_table([], OPERATION))
        yield connection


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), share=st.floats(0.3, 1.0), order=st.randoms(use_true_random=False))
def test_sql_and_python_find_the_same_garbage(connection: duckdb.DuckDBPyConnection, seed: int, share: float, order) -> None:
    """At any version of any history, and in whatever order compaction left the rows."""
    commits = history(seed, steps=80, rest=False).log.commits
    facts = [fact for commit in commits[: max(2, round(share * len(commits)))] for fact in commit.facts]
    garbage = find_garbage(References.of(facts))
    expected = (_sorted(garbage.unreferenced), _sorted(garbage.condemned))
    assert _by_sql(connection, facts) == expected
    order.shuffle(facts)
    assert _by_sql(connection, facts) == expected
    garbage = find_garbage(References.of(facts))
    assert (_sorted(garbage.unreferenced), _sorted(garbage.condemned)) == expected


def test_the_histories_have_garbage_of_every_kind() -> None:
    """Or the two would agree on nothing at all."""
    found = [find_garbage(References.of([f for c in history(seed, rest=False).log.commits for f in c.facts])) for seed in range(30)]
    assert sum(bool(garbage.unreferenced) for garbage in found) > 10
    assert any(garbage.condemned for garbage in found)
    assert sum("/taskowned/" in file.path for garbage in found for file in garbage.unreferenced) > 3


def _by_sql(connection: duckdb.DuckDBPyConnection, facts: Sequence[Fact]) -> tuple[list[GarbageFile], list[GarbageFile]]:
    connection.register("facts", to_table(facts, OPERATION))  # below the views
    found = queries.unreferenced_files(connection), queries.condemned_files(connection)
    assert [[file.path for file in files] for files in found] == [sorted(file.path for file in files) for files in found]
    return _sorted(found[0]), _sorted(found[1])


def _sorted(files: Sequence[GarbageFile]) -> list[GarbageFile]:
    return sorted(files, key=lambda file: file.file_id)
