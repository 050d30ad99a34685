"""Views over what is live, and over all time, are the same wherever the history has been told and the ledger folded."""

import threading

import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.views.past import at_version
from holdfast.writers.spark.views import register_views
from tests.catalog.test_views import CONTRACT, EXPECTED, rows, view
from tests.support.folded import Tables
from tests.support.history import SMALL_LEDGER, J, history, minute
from tests.support.spark_support import session_settings

COMMITS = len(history())
# What is done after which of the commits.
MOMENTS = {
    "nothing told": {},
    "told in part": {9: "tell"},
    "told whole": {COMMITS: "tell"},
    "told and not folded, then told again": {5: "tell", COMMITS: "tell"},
    "folded": {9: "fold"},
    "folded at the end": {COMMITS: "fold"},
    "folded, told, and died before the fold": {6: "fold", 12: "tell"},
    "folded again and again": dict.fromkeys(range(3, COMMITS + 1, 4), "fold"),
    "folded after each commit": dict.fromkeys(range(1, COMMITS + 1), "fold"),
    "carried over": {9: "carry_over"},
    "carried over and folded": {4: "fold", 9: "carry_over", 12: "fold", 17: "tell"},
    "carried over twice": {4: "carry_over", 12: "carry_over", 15: "fold"},
}

FAST = ("told in part", "folded, told, and died before the fold", "carried over and folded")


def tables_at(root, moment: str) -> Tables:
    tables = Tables(root)
    for n, (at, facts) in enumerate(history(), 1):
        tables.commit(facts, minute(at))
        if what := MOMENTS[moment].get(n):
            getattr(tables, what)()
    return tables


def without_inline(found: list[tuple]) -> list[tuple]:
    return sorted(((*row[:-1], None) for row in found), key=repr)


@pytest.mark.parametrize("moment", [m if m in FAST else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS])
def test_each_view_says_the_same_at_any_moment_of_a_fold(tmp_path, moment):
    tables = tables_at(tmp_path, moment)
    with tables.connect() as connection:
        for name in CONTRACT:
            found, expected = rows(view(connection, name)), sorted(EXPECTED[name], key=repr)
            if name == "handles":
                found, expected = without_inline(found), without_inline(expected)
            assert found == expected, name
        told = connection.execute("SELECT count(*), count(DISTINCT operation_id) FROM all_facts").fetchone()
    assert told == (sum(len(facts) for _, facts in history()), COMMITS)


@pytest.mark.parametrize(("moment", "inline"), [("nothing told", b"\x00\x01"), ("told whole", b"\x00\x01"), ("folded at the end", None)])
def test_inline_bytes_are_shown_while_the_ledger_has_them(tmp_path, moment, inline):
    """Of a state that was inline, the view names no file, also where its bytes are gone."""
    with tables_at(tmp_path, moment).connect() as connection:
        found = connection.execute("SELECT file_id, inline FROM handles WHERE state = 'offsets'").fetchall()
    assert found == [(None, inline)]


def test_a_job_that_was_folded_has_its_head_epoch_and_seq(tmp_path):
    """From nothing, too: a fold says so in place of the start."""
    tables = Tables(tmp_path)
    for at, facts in history():
        tables.commit(facts, minute(at))
    tables.commit([f.Started(job_id=J, seq=12, epoch=3, parent_job_id=None, parent_checkpoint_id=None)], minute(30))
    for do in (lambda: None, tables.fold, tables.fold):
        do()
        with tables.connect() as connection:
            query = "SELECT seq, epoch, head_checkpoint_id FROM jobs WHERE job = 'flights'"
            assert connection.execute(query).fetchall() == [(12, 3, None)]


def test_an_analyst_may_call_a_table_history(tmp_path):
    tables = tables_at(tmp_path, "folded")
    with tables.connect() as connection, past_connection(tables) as past:
        for each in (connection, past):
            each.execute("CREATE TEMP TABLE history AS SELECT 1 AS a; CREATE TEMP TABLE tail AS SELECT 1 AS a")
            assert len(each.execute("FROM checkpoints").fetchall()) == len(EXPECTED["checkpoints"])


def past_connection(tables: Tables):
    return at_version(tables.ledger, tables.history, tables.ledger.version).connect(str(tables.root))


def test_the_cleanup_query_reads_the_ledger_alone(tmp_path):
    with tables_at(tmp_path, "folded").connect() as connection:
        of_now = ("jobs", "holds", "readers", "owners", "unreferenced_files", "checkpoint_files")
        read = {name: "history" in connection.execute(f"EXPLAIN FROM {name}").fetchall()[0][1] for name in CONTRACT}
    assert {name for name, reads_it in read.items() if not reads_it} == {*of_now}


@pytest.mark.slow  # it has to meet a fold between two readings
def test_no_fact_is_lost_or_doubled_while_folds_go_on(tmp_path):
    """Each statement reads the ledger first: what a fold takes out of it after that, the history had been told before."""
    tables, done, stop = Tables(tmp_path), [0], threading.Event()
    register = f.JobRegistered(job_id=J, seq=1, job="flights", max_parallelism=128)
    tables.commit([register], minute(0))

    def fold_on() -> None:
        while not stop.is_set() and done[0] < 500:
            n = done[0] + 1
            tables.commit(
                [f.RunEnded(run_id=f"r{n}", what="vacuum", started_at=minute(n), ended_at=minute(n), outcome="done", figures="{}")],
                minute(n),
            )
            done[0] = n
            if n % 3 == 0:
                tables.fold()

    worker = threading.Thread(target=fold_on)
    worker.start()
    try:
        with tables.connect() as connection:
            for _ in range(150):
                before = done[0]
                runs, distinct = connection.execute("SELECT count(*), count(DISTINCT run_id) FROM maintenance_runs").fetchone()
                assert before <= distinct <= done[0] + 1
                assert runs == distinct
    finally:
        stop.set()
        worker.join()
    assert done[0] > 10


@pytest.mark.slow
def test_spark_gives_the_rows_of_duckdb_over_ledger_and_history(spark, tmp_path):
    tables = tables_at(tmp_path, "carried over and folded")
    with session_settings(spark, SMALL_LEDGER), tables.connect() as connection:
        register_views(spark, tables.ledger.address, history_address=tables.history.address)
        for name in CONTRACT:
            found, expected = spark.table(name).toArrow(), view(connection, name)
            assert found.column_names == expected.column_names
            assert rows(found.cast(expected.schema)) == rows(expected), name
