"""`catalog.at`: the facts up to a version or a time, whatever was told, folded or carried over since."""

import os
import random
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.errors import RetryError, UsageError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import DeltaHistory
from holdfast.catalog.views.past import Past, at_time, at_version
from holdfast.compaction.queries import SqlQueries
from holdfast.writers.spark.views import register_past, register_views
from tests.catalog.test_views import CONTRACT, rows, view
from tests.protocol.model import history as model_history
from tests.support.folded import Tables
from tests.support.history import SMALL_LEDGER, J, history, minute
from tests.support.spark_support import session_settings

HISTORIES = int(os.environ.get("PAST_HISTORIES", "15"))

STEPS = 60


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the catalog that was taken at a version of its ledger of then."""

    root: Path
    ledger: str
    version: int
    commits: int


def past_of(tables: Tables, when: int | datetime, ledger: str | None = None) -> Past:
    if isinstance(when, datetime):
        return at_time(tables.ledger, tables.history, when)
    return at_version(tables.ledger, tables.history, when, ledger)


def answers(connection) -> dict[str, list[tuple]]:
    """Every view, without inline bytes."""
    tables = {name: view(connection, name) for name in CONTRACT}
    handles = tables["handles"]
    tables["handles"] = handles.set_column(handles.column_names.index("inline"), "inline", pa.nulls(handles.num_rows, pa.binary()))
    return {name: rows(table) for name, table in tables.items()}


def as_of(tables: Tables, when: int | datetime, ledger: str | None = None) -> dict[str, list[tuple]]:
    with past_of(tables, when, ledger).connect(str(tables.root)) as connection:
        return answers(connection)


def model_commits(seed: int) -> list[list[f.Fact]]:
    """The facts of each commit of a random history; of each checkpoint a state and an acknowledgement as well."""
    commits = []
    for commit in model_history(seed, STEPS, rest=False).log.commits:
        facts = list(commit.facts)
        for fact in commit.facts:
            if isinstance(fact, f.CheckpointCommitted):
                of = {
                    "job_id": fact.job_id,
                    "seq": fact.seq,
                    "checkpoint_id": fact.checkpoint_id,
                    "operator": "main",
                    "state": "s",
                    "rows": 1,
                }
                facts.append(f.StateCommitted(**of, format="parquet", key_columns="[]", schema=None, layers=1, total_bytes=1))
                no_times = {"upload_ms": 1, "digest_ms": 1, "sort_ms": None, "sync_ms": None}
                facts.append(f.Acknowledged(**of, subtask=0, bytes_written=1, bytes_reused=0, **no_times))
        if facts:
            commits.append(facts)
    return commits


def some_history(root, seed: int, number: int) -> tuple[Tables, list[Copy], list[datetime]]:
    """A random history by writers whose clocks differ, told, folded and carried over now and then, with copies taken on the way; and when
    each commit was written."""
    source, commits = random.Random(seed), model_commits(seed)
    tables, copies, times = Tables(root / "now"), [], []
    taken = sorted(source.sample(range(1, len(commits) + 1), min(number, len(commits))))
    carried = source.randrange(len(commits))
    for n, facts in enumerate(commits, 1):
        times.append(minute(n) + timedelta(seconds=source.choice([0, 0, 200, -200])))
        version = tables.commit(facts, times[-1])
        if n in taken:
            copy = root / f"copy-{n}"
            shutil.copytree(tables.root, copy, copy_function=os.link)
            copies.append(Copy(copy, tables.name, version, n))
        if n == carried:
            tables.carry_over()
        elif (roll := source.random()) < 0.15:
            tables.fold()
        elif roll < 0.25:
            tables.tell()
    return tables, copies, times


def require_as_copied(root, seed: int, copies: int = 2) -> None:
    tables, taken, times = some_history(root, seed, copies)
    for copy in taken:
        with Tables(copy.root, copy.ledger).connect() as connection:
            expected = answers(connection)
        assert as_of(tables, copy.version, copy.ledger) == expected, (seed, copy)
        latest = max(times[: copy.commits])
        if copy.commits == len(times) or times[copy.commits] > latest:  # it is the newest with nothing later in it
            assert facts_of(past_of(tables, latest)) == facts_of(past_of(tables, copy.version, copy.ledger)), (seed, copy, latest)


def facts_of(past: Past) -> list[tuple]:
    with past.connect(str(past.history.address)) as connection:
        return sorted(connection.execute("SELECT operation_id, kind, count(*) FROM facts GROUP BY ALL").fetchall())


def test_the_past_is_what_a_copy_of_then_says(tmp_path):
    require_as_copied(tmp_path, seed=1, copies=1)


@pytest.mark.slow
def test_the_past_is_what_a_copy_of_then_says_on_many_histories(tmp_path):
    for seed in range(HISTORIES):
        require_as_copied(tmp_path / str(seed), seed)


def test_the_newest_version_and_its_time_are_the_catalog_of_now(tmp_path):
    tables = small(tmp_path)
    with tables.connect() as connection:
        now = answers(connection)
    assert as_of(tables, tables.ledger.version) == now
    assert past_of(tables, minute(22)).version == tables.ledger.version


# ---- versions and times ------------------------------------------------------------------------------------------------


def small(root) -> Tables:
    """A commit for each transaction of the small history: version and minute of the first is 1. Some are told, the rest is not."""
    tables = Tables(root)
    for n, (at, facts) in enumerate(history(), 1):
        tables.commit(facts, minute(at))
        if n in (5, 12):
            tables.fold()
    return tables


def test_a_fold_has_a_version_at_which_nothing_is_new(tmp_path):
    tables = small(tmp_path)
    five, six, seven, nothing = (facts_of(past_of(tables, version)) for version in (5, 6, 7, 0))
    assert (five == six, six == seven, nothing) == (True, False, [])


@pytest.mark.parametrize("when", [3, minute(3), minute(3).astimezone(tz=None) + timedelta(seconds=59)])
def test_a_version_and_its_time_are_the_same_catalog(tmp_path, when):
    past = past_of(small(tmp_path), when)
    with past.connect(str(tmp_path)) as connection:
        assert connection.execute("SELECT checkpoint_id, status FROM checkpoints").fetchall() == [(1, "live")]
        assert connection.execute("SELECT head_checkpoint_id FROM jobs").fetchall() == [(1,)]
        assert connection.execute("SELECT state, inline FROM handles WHERE state = 'offsets'").fetchall() == [("offsets", None)]
    assert (past.ledger, past.version) == ("ledger", 3)


@pytest.mark.parametrize("told", [0, 2, 4, 6], ids=lambda n: f"{n} told")
def test_no_fact_of_the_past_is_later_than_the_time_that_was_asked_for(tmp_path, told):
    """The clock of a writer may be behind that of another, or ahead: a commit is as late as the latest up to it."""
    tables, times = Tables(tmp_path), [minute(n) for n in (1, 5, 3, 4, 9, 7)]
    for n, at in enumerate(times, 1):
        tables.commit([f.JobRegistered(job_id=f"{J}{n}", seq=1, job=f"j{n}", max_parallelism=1)], at)
        if n == told:
            tables.tell()
    asked = {1: 1, 2: 1, 3: 1, 4: 1, 5: 4, 6: 4, 7: 4, 8: 4, 9: 6, 99: 6}
    assert {n: past_of(tables, minute(n)).version for n in asked} == asked


def test_versions_of_a_ledger_that_was_carried_over_are_asked_by_its_name(tmp_path):
    tables = Tables(tmp_path)
    for n, (at, facts) in enumerate(history(), 1):
        tables.commit(facts, minute(at))
        if n in (4, 9):
            tables.carry_over()

    def operations(when, ledger=None) -> int:
        return len({operation for operation, *_ in facts_of(past_of(tables, when, ledger))})

    first = [operations(*of) for of in ((3, "ledger"), (4, "ledger"), (0, "ledger-1"), (1, "ledger-1"), (2, "ledger-1"), (minute(4),))]
    assert first == [3, 4, 4, 4, 5, 4]
    assert [operations(*of) for of in ((6, "ledger-1"), (0,), (1, "ledger-2"), (2,), (minute(9),))] == [9, 9, 9, 10, 9]
    assert (past_of(tables, minute(9)).ledger, past_of(tables, minute(9)).version) == ("ledger-2", 1)
    for version, ledger in ((5, "ledger"), (99, "ledger-1"), (99, None), (0, "ledger-3"), (0, "elsewhere"), (0, "ledger-01")):
        with pytest.raises(UsageError, match=r"'ledger-2' are 0 to \d+; of ledgers before it, .*: 'ledger' to 4, 'ledger-1' to 6"):
            past_of(tables, version, ledger)


@pytest.mark.parametrize("told", [True, False], ids=["told", "not told"])
def test_a_time_before_the_first_fact_is_refused(tmp_path, told):
    tables = Tables(tmp_path)
    for facts in ([], [f.JobRegistered(job_id=J, seq=1, job="flights", max_parallelism=1)]):
        if facts:
            tables.commit(facts, minute(1))
        if told:
            tables.tell()
        with pytest.raises(UsageError, match="nothing had been committed to the catalog by 2012-12-31T00:00:00"):
            past_of(tables, datetime(2012, 12, 31, tzinfo=UTC))


@pytest.mark.parametrize("stale", [1, 99])
def test_a_log_that_is_cleaned_while_it_is_read_is_read_again(tmp_path, monkeypatch, stale):
    """The history is told more, and the log cleaned, between the reading of both: what is not in the log any more, the history has by then."""
    tables, opened = small(tmp_path), []
    before = DeltaHistory.of(tables.history.directory, tables.name)
    tables.fold()
    tables.ledger.make_checkpoint(tables.ledger.version)
    for version in range(before.told_to + 1, tables.ledger.version - 3):
        (tables.ledger.log / f"{version:020d}.json").unlink()

    def open_history(directory, ledger):
        opened.append(ledger)
        return before if len(opened) <= stale else tables.history

    monkeypatch.setattr(DeltaHistory, "of", open_history)
    asked = SqlQueries(tables.ledger.address, lambda: DeltaLedger.open(tables.ledger.directory), tables.history.address)
    if stale == 1:
        assert facts_of(asked.past(before.told_to + 4, None)) == facts_of(past_of(tables, before.told_to + 4))
        assert opened == ["ledger"] * 2
    else:
        with pytest.raises(RetryError, match="was cleaned 5 times while it was read"):
            asked.past(minute(22), None)


@pytest.mark.slow
def test_spark_shows_the_past_as_duckdb_does(spark, tmp_path):
    """Of facts that the history has, and of some that it was not told."""
    tables = small(tmp_path)
    past = past_of(tables, tables.ledger.version - 1)
    with session_settings(spark, SMALL_LEDGER), past.connect(str(tmp_path)) as connection:
        register_past(spark, past)
        for name in CONTRACT:
            expected = view(connection, name)
            assert rows(spark.table(name).toArrow().cast(expected.schema)) == rows(expected), name
        register_views(spark, tables.ledger.address, history_address=tables.history.address)
        assert spark.table("checkpoints").count() == 5
