"""The contract with analysts: names, columns and rows of every view, the same from DuckDB and from Spark."""

import re

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from holdfast.catalog import facts as f
from holdfast.catalog.errors import DamagedLedgerError, FormatError, RefusedError, UsageError
from holdfast.catalog.schema import SCHEMA, Operation, to_table
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.definitions import VIEWS, Engine, views_for
from holdfast.writers.spark.views import register_views
from tests.support.history import SMALL_LEDGER, T0, J, K, history, minute, transactions
from tests.support.places import ROOT
from tests.support.spark_support import session_settings

# The views of the design, section 4. Columns (and views) may be added at the end, never changed.
CONTRACT = {
    "jobs": "job_id, job, max_parallelism, registered_at, seq, epoch, head_checkpoint_id, outcome, ended_at",
    "attempts": "job_id, attempt, checkpoint_id, purpose, epoch, parent_job_id, parent_checkpoint_id, status, opened_at, opened_by, "
    "ended_at, reason",
    "checkpoints": "job_id, job, checkpoint_id, attempt, is_savepoint, name, status, parent_job_id, parent_checkpoint_id, seq, "
    "committed_at, dropped_at, drop_reason, is_incremental, is_key_group_aware, parallelism, handles, new_handles, total_bytes, "
    "new_bytes, progress, is_self_contained, format, path",
    "states": "job_id, checkpoint_id, operator, state, key_columns, schema, format, layers, rows, total_bytes",
    "handles": "job_id, savepoint, operator, state, subtask, key_group_from, key_group_to, scope, layer, role, name, file_id, "
    "offset_bytes, length_bytes, sha256, from_seq, to_seq, inline",
    "files": "file_id, job_id, attempt, path, size_bytes, sha256, scope, owner, status",
    "checkpoint_files": "job_id, checkpoint_id, file_id, path, scope, shared",
    "holds": "job_id, checkpoint_id, hold, note, created_at, created_by",
    "readers": "job_id, checkpoint_id, attempt, opened_by, since, process",
    "unreferenced_files": "file_id, job_id, path, size_bytes",
    "ack_metrics": "job_id, checkpoint_id, operator, state, subtask, bytes_written, bytes_reused, upload_ms, digest_ms, sort_ms, sync_ms, rows",
    "maintenance_runs": "run_id, what, started_at, ended_at, outcome, figures",
    "owners": "job_id, job, owner, attempt, opened_at, opened_by, process, files, total_bytes, referenced_files",
}


EXPECTED = {
    "jobs": [
        (J, "flights", 128, minute(1), 11, 2, 2, None, None),
        (K, "ports", 64, minute(12), 4, 2, None, None, None),
    ],
    "attempts": [
        (J, "a1", 1, "checkpoint", 1, None, None, "committed", minute(2), "ann@host", minute(3), None),
        (J, "a2", 2, "checkpoint", 1, J, 1, "committed", minute(3), "ann@host", minute(4), None),
        (J, "a3", 3, "checkpoint", 1, J, 2, "committed", minute(4), "ann@host", minute(10), None),
        (J, "a5", 5, "checkpoint", 1, J, 3, "aborted", minute(10), "ann@host", minute(11), "epoch 2 started"),
        (J, "o6", None, "owner", None, None, None, "open", minute(8), "ann@host", None, None),
        (J, "s4", 4, "savepoint", None, J, 2, "committed", minute(8), "ann@host", minute(9), None),
        (K, "b1", 1, "checkpoint", 1, J, 2, "committed", minute(13), "ann@host", minute(14), None),
    ],
    "checkpoints": [
        (J, "flights", 1, "a1", False, None, "dropped", None, None, 3, minute(3), minute(4), "KeepLast(1)", False, True, 2, 3, 2, 300, 200,
         '{"day": 1}', False, "native", "chk-1"),
        (J, "flights", 2, "a2", False, None, "live", J, 1, 4, minute(4), None, None, True, True, 2, 3, 2, 300, 200, '{"day": 1}', False, "native", "chk-2"),
        (J, "flights", 3, "a3", False, None, "live", J, 2, 10, minute(10), None, None, True, True, 2, 3, 2, 300, 200, '{"day": 1}', False, "native", "chk-3"),
        (J, "flights", 4, "s4", True, "before-upgrade", "live", J, 2, 9, minute(9), None, None, True, True, 2, 3, 2, 300, 200,
         '{"day": 1}', True, "canonical", "chk-4"),
        (K, "ports", 1, "b1", False, None, "live", None, None, 3, minute(14), None, None, False, True, 2, 3, 2, 300, 200, '{"day": 1}', False, "native", "chk-1"),
    ],
    "states": [(J, 1, "main", "per_route", '["origin"]', "{}", "parquet", 1, 2, 20)],
    "handles": [
        (J, None, "", "", None, 0, 127, "EXCLUSIVE", 0, "manifest", None, "a1-m", 0, 10, "5a", 3, 4, None),
        (J, None, "", "", None, 0, 127, "EXCLUSIVE", 0, "manifest", None, "a2-m", 0, 10, "5a", 4, 5, None),
        (J, None, "", "", None, 0, 127, "EXCLUSIVE", 0, "manifest", None, "a3-m", 0, 10, "5a", 10, 11, None),
        (J, None, "main", "offsets", None, 0, 127, "EXCLUSIVE", 0, "base", None, None, 0, 10, "5a", 3, 4, b"\x00\x01"),
        (J, None, "main", "per_route", None, 0, 127, "SHARED", 0, "base", None, "a1-0", 0, 10, "5a", 3, 10, None),
        (J, None, "main", "per_route", None, 0, 127, "SHARED", 0, "base", None, "a1-0", 10, 10, "5a", 3, 4, None),
        (J, None, "main", "per_route", None, 0, 127, "SHARED", 0, "base", None, "a2-0", 0, 10, "5a", 4, 10, None),
        (J, None, "main", "per_route", None, 0, 127, "SHARED", 0, "base", None, "a3-0", 0, 10, "5a", 10, None, None),
        (J, "s4", "", "", None, 0, 127, "EXCLUSIVE", 0, "manifest", None, "s4-m", 0, 10, "5a", 9, 10, None),
        (J, None, "main", "per_route", None, 0, 127, "TASKOWNED", 0, "file", None, "o6-1", 0, 10, "5a", 10, None, None),
        (J, None, "main", "per_route", None, 0, 127, "TASKOWNED", 0, "file", None, "o6-2", 0, 10, "5a", 10, None, None),
        (J, "s4", "main", "per_route", None, 0, 127, "EXCLUSIVE", 0, "base", None, "s4-0", 0, 10, "5a", 9, 10, None),
        (K, None, "", "", None, 0, 127, "EXCLUSIVE", 0, "manifest", None, "b1-m", 0, 10, "5a", 3, 4, None),
        (K, None, "main", "per_route", None, 0, 127, "SHARED", 0, "base", None, "a1-0", 0, 10, "5a", 3, None, None),
    ],
    "files": [
        ("a1-0", J, "a1", f"jobs/{J}/a1-0", 100, "5a", "SHARED", None, "present"),
        ("a1-m", J, "a1", f"jobs/{J}/a1-m", 100, "5a", "EXCLUSIVE", None, "gone"),
        ("a2-0", J, "a2", f"jobs/{J}/a2-0", 100, "5a", "SHARED", None, "present"),
        ("a2-m", J, "a2", f"jobs/{J}/a2-m", 100, "5a", "EXCLUSIVE", None, "present"),
        ("a3-0", J, "a3", f"jobs/{J}/a3-0", 100, "5a", "SHARED", None, "present"),
        ("a3-m", J, "a3", f"jobs/{J}/a3-m", 100, "5a", "EXCLUSIVE", None, "present"),
        ("a5-0", J, "a5", f"jobs/{J}/a5-0", 100, "5a", "SHARED", None, "condemned"),
        ("a5-1", J, "a5", f"jobs/{J}/a5-1", 100, "5a", "SHARED", None, "present"),
        ("b1-m", K, "b1", f"jobs/{K}/b1-m", 100, "5a", "EXCLUSIVE", None, "present"),
        ("o6-0", J, "o6", f"jobs/{J}/o6-0", 100, "5a", "TASKOWNED", "wal", "present"),
        ("o6-1", J, "o6", f"jobs/{J}/o6-1", 100, "5a", "TASKOWNED", "wal", "present"),
        ("o6-2", J, "o6", f"jobs/{J}/o6-2", 100, "5a", "TASKOWNED", "wal", "present"),
        ("o6-3", J, "o6", f"jobs/{J}/o6-3", 100, "5a", "TASKOWNED", "wal", "present"),
        ("s4-0", J, "s4", f"jobs/{J}/s4-0", 100, "5a", "EXCLUSIVE", None, "present"),
        ("s4-m", J, "s4", f"jobs/{J}/s4-m", 100, "5a", "EXCLUSIVE", None, "present"),
    ],
    "checkpoint_files": [
        (J, 2, "a1-0", f"jobs/{J}/a1-0", "SHARED", True),
        (J, 2, "a2-0", f"jobs/{J}/a2-0", "SHARED", False),
        (J, 2, "a2-m", f"jobs/{J}/a2-m", "EXCLUSIVE", False),
        (J, 3, "a3-0", f"jobs/{J}/a3-0", "SHARED", False),
        (J, 3, "a3-m", f"jobs/{J}/a3-m", "EXCLUSIVE", False),
        (J, 3, "o6-1", f"jobs/{J}/o6-1", "TASKOWNED", False),
        (J, 3, "o6-2", f"jobs/{J}/o6-2", "TASKOWNED", False),
        (J, 4, "s4-0", f"jobs/{J}/s4-0", "EXCLUSIVE", False),
        (J, 4, "s4-m", f"jobs/{J}/s4-m", "EXCLUSIVE", False),
        (K, 1, "a1-0", f"jobs/{J}/a1-0", "SHARED", True),
        (K, 1, "b1-m", f"jobs/{K}/b1-m", "EXCLUSIVE", False),
    ],
    "holds": [(J, 2, "audit", "again", minute(7), "ann@host"), (J, 2, "legal", "case 7", minute(6), "ann@host")],
    "readers": [],
    "unreferenced_files": [("a5-1", J, f"jobs/{J}/a5-1", 100), ("o6-3", J, f"jobs/{J}/o6-3", 100)],
    "ack_metrics": [(J, 1, "main", "per_route", 0, 20, 0, 7, 3, None, 5, 2)],
    "maintenance_runs": [("r1", "vacuum", minute(20), minute(22), "done", "{}")],
    "owners": [(J, "flights", "wal", "o6", minute(8), "ann@host", "host:1:2", 2, 200, 1)],
}  # fmt: skip


def rows(table: pa.Table) -> list[tuple]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def view(connection: duckdb.DuckDBPyConnection, name: str) -> pa.Table:
    return connection.execute(f"SELECT * FROM {name}").to_arrow_table()


@pytest.fixture(scope="module")
def ledger(tmp_path_factory) -> str:
    """The history as a Delta table, a commit for each transaction."""
    path = str(tmp_path_factory.mktemp("catalog") / "it's a ledger")
    for table in transactions():
        write_deltalake(path, table, mode="append")
    return path


@pytest.fixture
def small_spark(spark):
    with session_settings(spark, SMALL_LEDGER):
        yield spark


@pytest.fixture(scope="module")
def connection(ledger):
    with duckdb_engine.connect(ledger) as connection:
        yield connection


def test_every_view_of_the_design_exists_in_both_engines_and_no_other():
    assert all(set(views_for(engine)) == set(CONTRACT) for engine in Engine)


@pytest.mark.parametrize("name", CONTRACT)
def test_columns_are_those_of_the_design_in_its_order(connection, name):
    assert ", ".join(view(connection, name).column_names) == CONTRACT[name]


@pytest.mark.parametrize("name", CONTRACT)
def test_rows_of_a_small_history_over_a_delta_table(connection, name):
    assert rows(view(connection, name)) == sorted(EXPECTED[name], key=repr)


@pytest.mark.parametrize("name", CONTRACT)
def test_facts_in_memory_and_in_a_delta_table_give_equal_views(connection, name):
    with duckdb_engine.offline_connection() as memory:
        duckdb_engine.views_over(memory, pa.concat_tables(transactions()))
        assert view(memory, name).schema == view(connection, name).schema
        assert rows(view(memory, name)) == rows(view(connection, name))


def test_a_column_more_is_passed_over_and_a_column_less_is_named(tmp_path):
    """Another version's. What a view names must be there; what it does not name may be."""
    facts = pa.concat_tables(transactions())
    write_deltalake(str(tmp_path / "more"), facts.append_column("later", pa.array(["x"] * facts.num_rows)))
    write_deltalake(str(tmp_path / "less"), facts.drop_columns(["hold"]))
    with duckdb_engine.connect(str(tmp_path / "more")) as connection:
        for name in ("jobs", "checkpoints", "holds"):
            assert rows(view(connection, name)) == sorted(EXPECTED[name], key=repr)
    with pytest.raises(FormatError, match="lack a column that the views need.*hold"):
        duckdb_engine.connect(str(tmp_path / "less"))


def test_columns_have_only_the_types_that_analysts_were_promised(connection):
    types = {str(field.type) for name in CONTRACT for field in view(connection, name).schema}
    assert types <= {"int64", "int32", "string", "bool", "timestamp[us, tz=UTC]", "binary"}


@pytest.mark.slow  # every view by Delta's own reader: half a minute
def test_spark_gives_equal_columns_types_and_rows(small_spark, ledger, connection):
    register_views(small_spark, ledger)
    for name in CONTRACT:
        found, expected = small_spark.table(name).toArrow(), view(connection, name)
        assert found.column_names == expected.column_names
        assert [field.type for field in found.schema if not pa.types.is_timestamp(field.type)] == [
            field.type for field in expected.schema if not pa.types.is_timestamp(field.type)
        ]
        assert rows(found.cast(expected.schema)) == rows(expected), name


@pytest.mark.slow
def test_spark_keeps_to_the_version_that_was_asked_for(small_spark, ledger):
    register_views(small_spark, ledger, version=2)
    assert [row.checkpoint_id for row in small_spark.table("checkpoints").collect()] == [1]
    with pytest.raises(UsageError, match="version 999"):
        register_views(small_spark, ledger, version=999)
    with pytest.raises(DamagedLedgerError, match="nowhere"):
        register_views(small_spark, f"{ledger}/nowhere")


@pytest.mark.slow
def test_spark_reads_the_ledger_once_and_replaces_its_own_views_alone(small_spark, ledger):
    """Seen: each query read the log and its files again, for minutes; and a user's own view named `files` was gone without a word."""
    register_views(small_spark, ledger, version=2)
    register_views(small_spark, ledger, version=4)
    read = small_spark.table("checkpoints")._jdf.queryExecution().withCachedData().toString()
    assert "InMemoryRelation" in read
    assert "Relation [" not in read.replace("InMemoryRelation [", "")
    cached = [str(rdd.name()) for rdd in small_spark.sparkContext._jsc.getPersistentRDDs().values()]
    assert sum("holdfast_ledger" in name for name in cached) == 1, "what an earlier call read is let go"
    assert [row.checkpoint_id for row in small_spark.table("checkpoints").collect()] != [1]
    small_spark.range(3).createOrReplaceTempView("files")
    try:
        with pytest.raises(RefusedError, match="temporary views of your own named 'files', which the views of the catalog would replace"):
            register_views(small_spark, ledger, version=2)
        assert small_spark.table("files").columns == ["id"]
    finally:
        small_spark.catalog.dropTempView("files")


@pytest.mark.slow
def test_spark_without_a_version_stays_at_the_one_of_the_call(small_spark, tmp_path):
    """Until the views are registered again."""
    path = str(tmp_path / "ledger")
    first, second, *_ = transactions()
    write_deltalake(path, first)
    register_views(small_spark, path)
    write_deltalake(path, second, mode="append")

    def epochs():
        return [row.epoch for row in small_spark.sql("SELECT epoch FROM jobs").collect()]

    stayed = epochs()
    register_views(small_spark, path)
    assert (stayed, epochs()) == ([0], [1])


def test_over_its_data_files_every_view_is_what_it_is_over_the_table(connection, tmp_path):
    """Each file with the columns that it needs, in a place whose name is a pattern, ends a string, and says a value for each column: DuckDB
    would take that for the column's, in every row (a review's finding: vacuum then called gone what it had not deleted)."""
    place = tmp_path.joinpath("it's [all]*? there", *(f"{name}=x" for name in SCHEMA.names))
    place.mkdir(parents=True)
    files = [str(place / f"{n}.parquet") for n, _ in enumerate(transactions())]
    for file, table in zip(files, transactions(), strict=True):
        pq.write_table(table.select([name for name in table.column_names if table[name].null_count < len(table)]), file)
    with duckdb_engine.connect_files(files, str(place)) as over_files:
        for name in CONTRACT:
            found, expected = view(over_files, name), view(connection, name)
            assert (found.schema.names, rows(found)) == (expected.schema.names, rows(expected)), name
        assert over_files.execute("SELECT * FROM duckdb_functions() WHERE function_name = 'delta_scan'").fetchall() == []
        with pytest.raises(duckdb.PermissionException):
            over_files.execute(f"SELECT * FROM read_parquet('{ROOT}/*')")


def test_over_no_data_files_every_view_is_empty(tmp_path):
    with duckdb_engine.connect_files([], str(tmp_path)) as connection:
        assert [name for name in CONTRACT if view(connection, name).num_rows] == []


def test_a_version_is_the_ledger_as_it_was(ledger):
    with duckdb_engine.connect(ledger, version=2) as then:
        assert then.execute("SELECT checkpoint_id, status FROM checkpoints").fetchall() == [(1, "live")]
        assert then.execute("SELECT head_checkpoint_id FROM jobs").fetchall() == [(1,)]


def test_without_a_version_a_statement_sees_what_was_committed_before_it(tmp_path):
    path = str(tmp_path / "ledger")
    first, second, *_ = transactions()
    write_deltalake(path, first)
    with duckdb_engine.connect(path) as connection:
        before = connection.execute("SELECT epoch FROM jobs").fetchall()
        write_deltalake(path, second, mode="append")
        assert (before, connection.execute("SELECT epoch FROM jobs").fetchall()) == ([(0,)], [(1,)])


def test_a_start_from_nothing_leaves_no_head(tmp_path):
    """DuckDB's max_by passes over nulls, and would have told the checkpoint before the start."""
    restarted = f.Started(job_id=J, seq=12, epoch=3, parent_job_id=None, parent_checkpoint_id=None)
    facts = [fact for _, facts in history() for fact in facts] + [restarted]
    with duckdb_engine.offline_connection() as memory:
        duckdb_engine.views_over(memory, to_table(facts, Operation(operation_id="op", at=T0, by="ann@host")))
        heads = memory.execute("SELECT epoch, head_checkpoint_id FROM jobs WHERE job = 'flights'").fetchall()
    assert heads == [(3, None)]


def test_the_connection_cannot_write_the_ledger(connection):
    with pytest.raises(duckdb.InvalidInputException, match="read-only"):
        connection.execute("INSERT INTO ledger SELECT * FROM facts LIMIT 1")


def test_a_missing_ledger_and_a_version_that_never_was_are_told_apart(ledger, tmp_path):
    with pytest.raises(DamagedLedgerError, match="nowhere"):
        duckdb_engine.connect(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="version 999"):
        duckdb_engine.connect(ledger, version=999)


def test_no_view_reads_columns_that_it_does_not_need(connection):
    """Inline state may be large: what does not show it must not read it."""
    for name, read in {"checkpoints": False, "unreferenced_files": False, "checkpoint_files": False, "handles": True}.items():
        plan = connection.execute(f"EXPLAIN SELECT * FROM {name}").fetchall()[0][1]
        assert bool(re.search(r"\binline\b", plan)) is read, name


def test_the_page_of_views_names_every_column_in_order():
    page = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
    for name, columns in CONTRACT.items():
        section = page.split(f"\n## `{name}`\n")[1].split("\n## ")[0]
        assert ", ".join(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == columns


@pytest.mark.parametrize("with_directories", [True, False])
def test_the_view_and_the_object_say_the_same_of_a_checkpoint(catalog, tmp_path, with_directories):
    """Seen: of a savepoint with directories of a store, the view said canonical, and its properties native."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "1.sst").write_bytes(b"x" * 100)
    with catalog.coordinate("j") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("b", b"1")
            if with_directories:
                checkpoint.write_directory("d", tmp_path / "store")
        told = {found.checkpoint_id: found.properties for found in (job.latest(), job.savepoint("s"))}
    columns = "checkpoint_id, is_incremental, is_key_group_aware, is_savepoint, is_self_contained, format"
    with catalog.duckdb() as connection:
        for number, *found in connection.execute(f"SELECT {columns} FROM checkpoints").fetchall():
            of = told[number]
            assert found == [of.is_incremental, of.is_key_group_aware, of.is_savepoint, of.is_self_contained, of.format]


def test_views_stand_in_an_order_in_which_each_can_be_made():
    names = list(VIEWS)
    for at, name in enumerate(names):
        assert not [later for later in names[at:] if re.search(rf"(FROM|JOIN) {later}\b", VIEWS[name])]
