"""The contract with analysts: names, columns and rows of every view, the same from DuckDB and from Spark."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from holdfast.catalog import duckdb_engine
from holdfast.catalog import facts as f
from holdfast.catalog.errors import DamagedLedgerError, UsageError
from holdfast.catalog.schema import Operation, to_table
from holdfast.catalog.types import Purpose, Role, Scope, Status
from holdfast.catalog.views import VIEWS, Engine, views_for
from holdfast.writers.spark_views import register_views

# The design's table, section 4. Columns may be added at the end, never changed.
CONTRACT = {
    "jobs": "job_id, job, max_parallelism, registered_at, seq, epoch, head_checkpoint_id",
    "attempts": "job_id, attempt, checkpoint_id, purpose, epoch, parent_job_id, parent_checkpoint_id, status, opened_at, opened_by, "
    "ended_at, reason",
    "checkpoints": "job_id, job, checkpoint_id, attempt, is_savepoint, name, status, parent_job_id, parent_checkpoint_id, seq, "
    "committed_at, dropped_at, drop_reason, is_incremental, is_key_group_aware, parallelism, handles, new_handles, total_bytes, "
    "new_bytes, progress",
    "states": "job_id, checkpoint_id, operator, state, key_columns, schema, format, layers, rows, total_bytes",
    "handles": "job_id, savepoint, operator, state, subtask, key_group_from, key_group_to, scope, layer, role, name, file_id, "
    "offset_bytes, length_bytes, sha256, from_seq, to_seq, inline",
    "files": "file_id, job_id, attempt, path, size_bytes, sha256, scope, owner, status",
    "checkpoint_files": "job_id, checkpoint_id, file_id, path, scope, shared",
    "holds": "job_id, checkpoint_id, hold, note, created_at, created_by",
    "unreferenced_files": "file_id, job_id, path, size_bytes",
    "ack_metrics": "job_id, checkpoint_id, operator, state, subtask, bytes_written, bytes_reused, upload_ms, digest_ms, rows",
    "maintenance_runs": "run_id, what, started_at, ended_at, outcome, figures",
}

J, K = "flights-1a2b3c4d", "ports-5e6f7a8b"
T0 = datetime(2013, 1, 1, tzinfo=UTC)


def minute(n: int) -> datetime:
    return T0 + timedelta(minutes=n)


def opened(seq, attempt, checkpoint_id, parent, *, job=J, purpose=Purpose.CHECKPOINT, epoch=1, parent_job=J):
    return f.AttemptOpened(
        job_id=job, seq=seq, attempt=attempt, checkpoint_id=checkpoint_id, purpose=purpose, epoch=epoch,
        parent_job_id=parent_job if parent else None, parent_checkpoint_id=parent,
    )  # fmt: skip


def ended(seq, attempt, status=Status.COMMITTED, reason=None, *, job=J):
    return f.AttemptEnded(job_id=job, seq=seq, attempt=attempt, status=status, reason=reason)


def committed(seq, attempt, checkpoint_id, parent, *, job=J, is_savepoint=False, name=None):
    return f.CheckpointCommitted(
        job_id=job, seq=seq, checkpoint_id=checkpoint_id, attempt=attempt, is_savepoint=is_savepoint, name=name,
        parent_job_id=job if parent else None, parent_checkpoint_id=parent, is_incremental=parent is not None, is_key_group_aware=True,
        parallelism=2, handles=3, new_handles=2, total_bytes=300, new_bytes=200, progress='{"day": 1}', path=f"chk-{checkpoint_id}",
        sha256="5a", size_bytes=9,
    )  # fmt: skip


def handle(seq, file_id, *, job=J, offset=0, scope=Scope.SHARED, role=Role.BASE, state="per_route", savepoint=None, inline=None):
    return f.HandleAdded(
        job_id=job, seq=seq, savepoint=savepoint, operator="" if role is Role.MANIFEST else "main", state=state, subtask=None,
        key_group_from=0, key_group_to=127, scope=scope, layer=0, role=role, name=None, file_id=file_id, offset_bytes=offset,
        length_bytes=10, sha256="5a", rows=1, from_seq=seq, to_seq=seq + 1 if scope is Scope.EXCLUSIVE else None, inline=inline,
    )  # fmt: skip


def manifest(seq, file_id, *, job=J, savepoint=None):
    return handle(seq, file_id, job=job, scope=Scope.EXCLUSIVE, role=Role.MANIFEST, state="", savepoint=savepoint)


def end(seq, file_id, from_seq, offset=0, *, job=J):
    return f.HandleEnded(job_id=job, seq=seq, file_id=file_id, offset_bytes=offset, from_seq=from_seq, to_seq=seq)


def file(seq, file_id, *, job=J, scope=Scope.SHARED, owner=None):
    return f.FileWritten(
        job_id=job, seq=seq, file_id=file_id, attempt=file_id.split("-")[0], path=f"jobs/{job}/{file_id}", size_bytes=100, sha256="5a",
        scope=scope, owner=owner,
    )  # fmt: skip


def history() -> list[tuple[int, list[f.Fact]]]:
    """(minute, facts of one transaction). Two jobs; K was forked from J's checkpoint 2."""
    exclusive = Scope.EXCLUSIVE
    return [
        (1, [f.JobRegistered(job_id=J, seq=1, job="flights", max_parallelism=128)]),
        (2, [f.Started(job_id=J, seq=2, epoch=1, parent_job_id=None, parent_checkpoint_id=None), opened(2, "a1", 1, None)]),
        (3, [
            committed(3, "a1", 1, None), ended(3, "a1"), opened(3, "a2", 2, 1),
            file(3, "a1-m", scope=exclusive), manifest(3, "a1-m"), file(3, "a1-0"), handle(3, "a1-0"), handle(3, "a1-0", offset=10),
            handle(3, "a1-i", scope=exclusive, state="offsets", inline=b"\x00\x01"),
            f.StateCommitted(job_id=J, seq=3, checkpoint_id=1, operator="main", state="per_route", format="parquet",
                             key_columns='["origin"]', schema="{}", layers=1, rows=2, total_bytes=20),
            f.Acknowledged(job_id=J, seq=3, checkpoint_id=1, operator="main", state="per_route", subtask=0, bytes_written=20,
                           bytes_reused=0, rows=2, upload_ms=7, digest_ms=3),
        ]),
        # Checkpoint 2 keeps one chunk of a1-0, ends the other, and drops checkpoint 1.
        (4, [
            committed(4, "a2", 2, 1), ended(4, "a2"), f.Dropped(job_id=J, seq=4, checkpoint_id=1, reason="KeepLast(1)"),
            opened(4, "a3", 3, 2), file(4, "a2-m", scope=exclusive), manifest(4, "a2-m"),
            file(4, "a2-0"), handle(4, "a2-0"), end(4, "a1-0", from_seq=3, offset=10),
        ]),
        (5, [f.Held(job_id=J, seq=5, checkpoint_id=2, hold="audit", note=None)]),
        (6, [f.Unheld(job_id=J, seq=6, checkpoint_id=2, hold="audit"), f.Held(job_id=J, seq=6, checkpoint_id=2, hold="legal", note="case 7")]),
        (7, [f.Held(job_id=J, seq=7, checkpoint_id=2, hold="audit", note="again")]),
        (8, [opened(8, "s4", 4, 2, purpose=Purpose.SAVEPOINT, epoch=None)]),
        (9, [
            committed(9, "s4", 4, 2, is_savepoint=True, name="before-upgrade"), ended(9, "s4"),
            file(9, "s4-m", scope=exclusive), manifest(9, "s4-m", savepoint="s4"),
            file(9, "s4-0", scope=exclusive), handle(9, "s4-0", scope=exclusive, savepoint="s4"),
        ]),
        # Checkpoint 3 rewrites the state; a rollback to 2 follows, and aborts the attempt that was next.
        (10, [
            committed(10, "a3", 3, 2), ended(10, "a3"), opened(10, "a5", 5, 3), file(10, "a3-m", scope=exclusive), manifest(10, "a3-m"),
            file(10, "a3-0"), handle(10, "a3-0"), end(10, "a1-0", from_seq=3), end(10, "a2-0", from_seq=4),
        ]),
        (11, [
            f.Started(job_id=J, seq=11, epoch=2, parent_job_id=J, parent_checkpoint_id=2),
            ended(11, "a5", Status.ABORTED, "epoch 2 started"), file(11, "a5-0"), file(11, "o6-0", scope=Scope.TASKOWNED, owner="wal"),
        ]),
        (12, [f.JobRegistered(job_id=K, seq=1, job="ports", max_parallelism=64)]),
        (13, [f.Started(job_id=K, seq=2, epoch=1, parent_job_id=J, parent_checkpoint_id=2), opened(2, "b1", 1, 2, job=K)]),
        (14, [
            committed(3, "b1", 1, None, job=K), ended(3, "b1", job=K), file(3, "b1-m", job=K, scope=exclusive), manifest(3, "b1-m", job=K),
            handle(3, "a1-0", job=K),
        ]),
        (15, [f.Started(job_id=K, seq=4, epoch=2, parent_job_id=J, parent_checkpoint_id=2)]),
        (20, [f.Condemned(job_id=J, file_id="a1-m", run_id="r1"), f.Condemned(job_id=J, file_id="a5-0", run_id="r1")]),
        (21, [f.Condemned(job_id=J, file_id="a1-m", run_id="r2"), f.Gone(job_id=J, file_id="a1-m", run_id="r1"),
              f.Gone(job_id=J, file_id="a1-m", run_id="r2")]),
        (22, [f.RunEnded(run_id="r1", what="vacuum", started_at=minute(20), ended_at=minute(22), outcome="done", figures="{}")]),
    ]  # fmt: skip


def transactions() -> list[pa.Table]:
    return [to_table(facts, Operation(operation_id=f"op{n}", at=minute(n), by="ann@host")) for n, facts in history()]


EXPECTED = {
    "jobs": [
        (J, "flights", 128, minute(1), 11, 2, 2),
        (K, "ports", 64, minute(12), 4, 2, None),
    ],
    "attempts": [
        (J, "a1", 1, "checkpoint", 1, None, None, "committed", minute(2), "ann@host", minute(3), None),
        (J, "a2", 2, "checkpoint", 1, J, 1, "committed", minute(3), "ann@host", minute(4), None),
        (J, "a3", 3, "checkpoint", 1, J, 2, "committed", minute(4), "ann@host", minute(10), None),
        (J, "a5", 5, "checkpoint", 1, J, 3, "aborted", minute(10), "ann@host", minute(11), "epoch 2 started"),
        (J, "s4", 4, "savepoint", None, J, 2, "committed", minute(8), "ann@host", minute(9), None),
        (K, "b1", 1, "checkpoint", 1, J, 2, "committed", minute(13), "ann@host", minute(14), None),
    ],
    "checkpoints": [
        (J, "flights", 1, "a1", False, None, "dropped", None, None, 3, minute(3), minute(4), "KeepLast(1)", False, True, 2, 3, 2, 300, 200,
         '{"day": 1}'),
        (J, "flights", 2, "a2", False, None, "live", J, 1, 4, minute(4), None, None, True, True, 2, 3, 2, 300, 200, '{"day": 1}'),
        (J, "flights", 3, "a3", False, None, "live", J, 2, 10, minute(10), None, None, True, True, 2, 3, 2, 300, 200, '{"day": 1}'),
        (J, "flights", 4, "s4", True, "before-upgrade", "live", J, 2, 9, minute(9), None, None, True, True, 2, 3, 2, 300, 200, '{"day": 1}'),
        (K, "ports", 1, "b1", False, None, "live", None, None, 3, minute(14), None, None, False, True, 2, 3, 2, 300, 200, '{"day": 1}'),
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
        ("b1-m", K, "b1", f"jobs/{K}/b1-m", 100, "5a", "EXCLUSIVE", None, "present"),
        ("o6-0", J, "o6", f"jobs/{J}/o6-0", 100, "5a", "TASKOWNED", "wal", "present"),
        ("s4-0", J, "s4", f"jobs/{J}/s4-0", 100, "5a", "EXCLUSIVE", None, "present"),
        ("s4-m", J, "s4", f"jobs/{J}/s4-m", 100, "5a", "EXCLUSIVE", None, "present"),
    ],
    "checkpoint_files": [
        (J, 2, "a1-0", f"jobs/{J}/a1-0", "SHARED", True),
        (J, 2, "a2-0", f"jobs/{J}/a2-0", "SHARED", False),
        (J, 2, "a2-m", f"jobs/{J}/a2-m", "EXCLUSIVE", False),
        (J, 3, "a3-0", f"jobs/{J}/a3-0", "SHARED", False),
        (J, 3, "a3-m", f"jobs/{J}/a3-m", "EXCLUSIVE", False),
        (J, 4, "s4-0", f"jobs/{J}/s4-0", "EXCLUSIVE", False),
        (J, 4, "s4-m", f"jobs/{J}/s4-m", "EXCLUSIVE", False),
        (K, 1, "a1-0", f"jobs/{J}/a1-0", "SHARED", True),
        (K, 1, "b1-m", f"jobs/{K}/b1-m", "EXCLUSIVE", False),
    ],
    "holds": [(J, 2, "audit", "again", minute(7), "ann@host"), (J, 2, "legal", "case 7", minute(6), "ann@host")],
    "unreferenced_files": [],
    "ack_metrics": [(J, 1, "main", "per_route", 0, 20, 0, 7, 3, 2)],
    "maintenance_runs": [("r1", "vacuum", minute(20), minute(22), "done", "{}")],
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


def test_columns_have_only_the_types_that_analysts_were_promised(connection):
    types = {str(field.type) for name in CONTRACT for field in view(connection, name).schema}
    assert types <= {"int64", "int32", "string", "bool", "timestamp[us, tz=UTC]", "binary"}


def test_spark_gives_equal_columns_types_and_rows(spark, ledger, connection):
    register_views(spark, ledger)
    for name in CONTRACT:
        found, expected = spark.table(name).toArrow(), view(connection, name)
        assert found.column_names == expected.column_names
        assert [field.type for field in found.schema if not pa.types.is_timestamp(field.type)] == [
            field.type for field in expected.schema if not pa.types.is_timestamp(field.type)
        ]
        assert rows(found.cast(expected.schema)) == rows(expected), name


def test_spark_keeps_to_the_version_that_was_asked_for(spark, ledger):
    register_views(spark, ledger, version=2)
    assert [row.checkpoint_id for row in spark.table("checkpoints").collect()] == [1]
    with pytest.raises(UsageError, match="version 999"):
        register_views(spark, ledger, version=999)
    with pytest.raises(DamagedLedgerError, match="nowhere"):
        register_views(spark, f"{ledger}/nowhere")


def test_a_version_is_the_ledger_as_it_was(ledger):
    with duckdb_engine.connect(ledger, version=2) as then:
        assert then.execute("SELECT checkpoint_id, status FROM checkpoints").fetchall() == [(1, "live")]
        assert then.execute("SELECT head_checkpoint_id FROM jobs").fetchall() == [(1,)]


def test_without_a_version_each_statement_sees_what_was_committed_before_it(tmp_path):
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
    page = (Path(__file__).resolve().parent.parent / "docs" / "views.md").read_text(encoding="utf-8")
    for name, columns in CONTRACT.items():
        section = page.split(f"\n## `{name}`\n")[1].split("\n## ")[0]
        assert ", ".join(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == columns


def test_views_stand_in_an_order_in_which_each_can_be_made():
    names = list(VIEWS)
    for at, name in enumerate(names):
        assert not [later for later in names[at:] if re.search(rf"(FROM|JOIN) {later}\b", VIEWS[name])]
