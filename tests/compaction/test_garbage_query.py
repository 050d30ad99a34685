"""The cleanup query finds exactly what the definition of the design finds, in both engines, on any history."""

import random

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from holdfast.catalog import facts as f
from holdfast.catalog.errors import FormatError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.schema import SCHEMA, Operation, to_table
from holdfast.catalog.types import Purpose, Scope, Status
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.definitions import VIEWS, Engine, views_for
from holdfast.compaction import queries
from holdfast.compaction.queries import SqlQueries
from holdfast.writers.spark.views import register_views
from tests.support.history import SMALL_LEDGER, T0, J, K, committed, end, ended, file, handle, history, manifest, opened
from tests.support.spark_support import session_settings

# The definition, word for word, over the other views: references times live checkpoints, as cleanup itself must never be.
DEFINITION = """
SELECT f.file_id, f.job_id, f.path, f.size_bytes
FROM files f
WHERE f.status = 'present' AND (
  f.scope <> 'TASKOWNED'
  OR f.file_id IN (SELECT file_id FROM facts WHERE kind = 'release')
  OR (f.job_id, f.attempt) IN (SELECT (job_id, attempt) FROM attempts WHERE status = 'released')
) AND NOT EXISTS (
  SELECT 1
  FROM handles h
  JOIN checkpoints c ON c.job_id = h.job_id AND h.from_seq <= c.seq AND (h.to_seq IS NULL OR c.seq < h.to_seq)
    AND ((h.savepoint IS NULL AND NOT c.is_savepoint) OR (c.is_savepoint AND h.savepoint = c.attempt))
  WHERE h.file_id = f.file_id AND (
    c.status = 'live'
    OR (c.job_id, c.checkpoint_id) IN (SELECT (parent_job_id, parent_checkpoint_id) FROM attempts WHERE status = 'open')
    OR (c.job_id, c.checkpoint_id) IN (SELECT (job_id, checkpoint_id) FROM holds)
  )
)
"""
OPERATION = Operation(operation_id="op", at=T0, by="ann@host")


def some_facts(rng: random.Random, prefix: str = "") -> list[f.Fact]:
    """Facts that no protocol need have written: anything goes that keeps ids single and gives a chunk one end."""
    jobs = [f"{prefix}j{n}" for n in range(rng.randint(1, 2))]
    files = [f"{prefix}f{n}" for n in range(rng.randint(1, 8))]
    facts: list[f.Fact] = []
    checkpoints = [(job, n, f"{job}t{n}") for job in jobs for n in range(1, rng.randint(1, 6) + 1)]
    for job, n, token in checkpoints:
        facts.append(committed(rng.randint(1, 12), token, n, None, job=job, is_savepoint=rng.random() < 0.3))
        if rng.random() < 0.6:
            facts.append(f.Dropped(job_id=job, seq=13, checkpoint_id=n, reason="r"))
        holds = [(f.Held, {"note": None}), (f.Unheld, {})]
        for seq in range(13, 13 + rng.randint(0, 3)):
            fact, more = holds[rng.randint(0, 1)]
            facts.append(fact(job_id=job, seq=seq, checkpoint_id=n, hold=rng.choice("xy"), **more))
    for n in range(rng.randint(0, 3)):
        job, (parent_job, parent, _), attempt = rng.choice(jobs), rng.choice(checkpoints), f"{prefix}a{n}"
        facts.append(opened(1, attempt, 9, parent, job=job, parent_job=parent_job, purpose=rng.choice(list(Purpose))))
        if rng.random() < 0.5:
            facts.append(ended(2, attempt, rng.choice([Status.ABORTED, Status.KILLED, Status.COMMITTED]), job=job))
    for file_id in files:
        job = rng.choice(jobs)
        facts.append(file(1, file_id, job=job, scope=rng.choice([*Scope, Scope.TASKOWNED, Scope.SHARED, Scope.SHARED])))
        if rng.random() < 0.3:
            facts.append(f.Released(job_id=job, seq=2, attempt=file_id, file_id=file_id))
        if rng.random() < 0.3:  # an id without a hyphen is its own attempt here
            facts += [opened(1, file_id, None, None, job=job, purpose=Purpose.OWNER), ended(3, file_id, Status.RELEASED, job=job)]
        for fact in (f.Condemned, f.Condemned, f.Gone):
            if rng.random() < 0.1:
                facts.append(fact(job_id=jobs[0], file_id=file_id, run_id="r"))
    return facts + some_handles(rng, files, checkpoints)


def some_handles(rng: random.Random, files: list[str], checkpoints: list[tuple[str, int, str]]) -> list[f.Fact]:
    facts: list[f.Fact] = []
    for job, _, token in rng.choices(checkpoints, k=rng.randint(0, 12)):
        file_id, offset, from_seq = rng.choice(files), rng.choice([0, 10]), rng.randint(1, 12)
        if any((h.job_id, h.file_id, h.offset_bytes, h.from_seq) == (job, file_id, offset, from_seq) for h in facts):
            continue
        savepoint = rng.choice([None, None, token])
        if savepoint or rng.random() < 0.3:
            facts.append(handle(from_seq, file_id, job=job, offset=offset, scope=Scope.EXCLUSIVE, savepoint=savepoint))
            continue
        facts.append(handle(from_seq, file_id, job=job, offset=offset))
        if rng.random() < 0.6:
            facts.append(end(rng.randint(from_seq + 1, 14), file_id, from_seq, offset, job=job))
    return facts


@pytest.fixture(scope="module")
def connection():
    with duckdb_engine.offline_connection() as connection:
        yield connection


def unreferenced(connection, facts) -> list[str]:
    duckdb_engine.views_over(connection, to_table(facts, OPERATION))
    return [garbage.file_id for garbage in queries.unreferenced_files(connection)]


def answer(connection, query: str) -> list[tuple]:
    return sorted(connection.execute(query).fetchall())


def many_histories(number: int) -> list[f.Fact]:
    """All in one ledger, each with jobs and files of its own, whose ids begin with its seed: one query judges them all."""
    return [fact for seed in range(number) for fact in some_facts(random.Random(seed), f"{seed}/")]


def test_duckdb_gives_the_answer_of_the_definition_on_any_history(connection):
    duckdb_engine.views_over(connection, to_table(many_histories(600), OPERATION))
    expected = answer(connection, DEFINITION)
    assert 200 < len(expected) < 2400
    assert answer(connection, "FROM unreferenced_files") == expected


@pytest.mark.slow
def test_spark_gives_the_answer_of_the_definition_on_many_histories(spark, connection, tmp_path):
    table = to_table(many_histories(150), OPERATION)
    write_deltalake(str(tmp_path / "ledger"), table)
    duckdb_engine.views_over(connection, table)
    expected = answer(connection, DEFINITION)
    assert 50 < len(expected) < 600
    with session_settings(spark, SMALL_LEDGER):
        register_views(spark, str(tmp_path / "ledger"))
        assert sorted(tuple(row) for row in spark.table("unreferenced_files").collect()) == expected
    assert answer(connection, "FROM unreferenced_files") == expected


def all_facts() -> list[f.Fact]:
    return [fact for _, facts in history() for fact in facts]


def test_a_file_goes_with_the_last_checkpoint_that_has_it(connection):
    """An exclusive file with its one checkpoint, a shared one with its last."""
    drop = [f.Dropped(job_id=J, seq=12, checkpoint_id=2, reason="user")]
    assert unreferenced(connection, all_facts()) == ["a5-1", "o6-3"]  # of an aborted attempt; released by its owner
    without_holds = [fact for fact in all_facts() if not isinstance(fact, f.Held | f.Unheld)]
    assert unreferenced(connection, without_holds + drop) == ["a2-0", "a2-m", "a5-1", "o6-3"]  # a1-0 is still used by the other job


def test_a_hold_keeps_the_files_until_every_name_of_it_is_gone(connection):
    history_of_both = [fact for fact in all_facts() if not (isinstance(fact, f.FileWritten) and fact.attempt in ("a5", "o6"))]
    dropped = [*history_of_both, f.Dropped(job_id=J, seq=12, checkpoint_id=2, reason="user")]
    one_left = [*dropped, f.Unheld(job_id=J, seq=13, checkpoint_id=2, hold="audit")]
    none_left = [*one_left, f.Unheld(job_id=J, seq=14, checkpoint_id=2, hold="legal")]
    assert [unreferenced(connection, facts) for facts in (dropped, one_left, none_left)] == [[], [], ["a2-0", "a2-m"]]


def test_a_dropped_parent_keeps_its_files_until_all_attempts_on_it_ended(connection):
    facts = [
        committed(2, "t1", 1, None), file(2, "f1"), handle(2, "f1"), opened(3, "t2", 2, 1),
        opened(1, "r", None, 1, job=K, purpose=Purpose.READ),
        committed(4, "t3", 3, 1), end(4, "f1", from_seq=2), f.Dropped(job_id=J, seq=5, checkpoint_id=1, reason="r"),
    ]  # fmt: skip
    assert unreferenced(connection, facts) == []
    assert unreferenced(connection, [*facts, ended(6, "t2", Status.KILLED)]) == []
    assert unreferenced(connection, [*facts, ended(6, "t2", Status.KILLED), ended(2, "r", Status.ABORTED, job=K)]) == ["f1"]


def test_a_checkpoint_below_the_newest_keeps_a_file_that_a_rollback_ended(connection):
    """The greatest kept seq below the end decides, not the newest of all: the interval [2, 4) holds the live checkpoint at 3."""
    live = [committed(2, "t1", 1, None), committed(3, "t2", 2, 1), committed(4, "t3", 3, 2)]
    facts = [*live, file(2, "f1"), handle(2, "f1"), end(4, "f1", from_seq=2), f.Dropped(job_id=J, seq=5, checkpoint_id=1, reason="r")]
    assert unreferenced(connection, facts) == []
    assert unreferenced(connection, [*facts, f.Dropped(job_id=J, seq=6, checkpoint_id=2, reason="r")]) == ["f1"]


def test_no_handle_of_the_line_lives_because_of_a_savepoint(connection):
    facts = [
        committed(2, "t1", 1, None), file(2, "f1"), handle(2, "f1"), committed(3, "s2", 2, 1, is_savepoint=True), file(3, "f2"),
        manifest(3, "f2", savepoint="s2"), committed(4, "t3", 3, 1), end(4, "f1", from_seq=2),
        f.Dropped(job_id=J, seq=5, checkpoint_id=1, reason="r"),
    ]  # fmt: skip
    assert unreferenced(connection, facts) == ["f1"]
    assert unreferenced(connection, [*facts, f.Dropped(job_id=J, seq=6, checkpoint_id=2, reason="user")]) == ["f1", "f2"]


def test_a_file_without_handles_goes_and_one_of_an_owner_stays(connection):
    assert unreferenced(connection, [file(2, "f1"), file(2, "f2", scope=Scope.TASKOWNED, owner="wal")]) == ["f1"]


def test_a_task_owned_file_goes_when_released_and_in_no_kept_interval(connection):
    """By itself or with its owner; and not while a live checkpoint refers to it."""
    rows = [file(2, f"o{n}", scope=Scope.TASKOWNED, owner="wal") for n in range(1, 5)]
    used = [committed(2, "t1", 1, None), handle(2, "o3", scope=Scope.TASKOWNED), handle(2, "o4", scope=Scope.TASKOWNED)]
    released = [f.Released(job_id=J, seq=3, attempt="o1", file_id=i) for i in ("o1", "o3")]
    assert unreferenced(connection, [*rows, *used]) == []
    assert unreferenced(connection, [*rows, *used, *released]) == ["o1"]
    ends = [ended(4, "o2", Status.RELEASED), ended(4, "o3", Status.RELEASED), ended(4, "o4", Status.KILLED)]
    assert unreferenced(connection, [*rows, *used, *released, *ends]) == ["o1", "o2"]
    assert unreferenced(connection, [*rows, *used, *released, *ends, f.Dropped(job_id=J, seq=5, checkpoint_id=1, reason="r")]) == [
        "o1",
        "o2",
        "o3",
    ]


def test_condemned_files_are_offered_again_until_they_are_gone(connection):
    facts = [file(2, "f1"), file(2, "f2"), *(f.Condemned(job_id=J, file_id=i, run_id=r) for i in ("f1", "f2") for r in ("r1", "r2"))]
    gone = f.Gone(job_id=J, file_id="f2", run_id="r1")
    assert unreferenced(connection, [*facts, gone]) == []
    assert [garbage.path for garbage in queries.condemned_files(connection)] == [f"jobs/{J}/f1"]


def test_cleanup_never_expands_checkpoint_files():
    texts = [*(views_for(engine)["unreferenced_files"] for engine in Engine), VIEWS["files"]]
    assert not [text for text in texts if "checkpoint_files" in text]


def test_a_file_condemned_between_the_two_questions_is_counted_once(tmp_path, monkeypatch):
    """A vacuum of another process condemned it in between: two snapshots offered it as unreferenced, and as condemned."""
    address = str(tmp_path / "ledger")
    write_deltalake(address, to_table([file(2, "f1"), file(2, "f2")], OPERATION))
    ask = queries.condemned_files

    def condemn_and_ask(connection):
        condemned = [f.Condemned(job_id=J, file_id="f1", run_id="r")]
        write_deltalake(address, to_table(condemned, OPERATION), mode="append")
        return ask(connection)

    monkeypatch.setattr(queries, "condemned_files", condemn_and_ask)
    garbage = SqlQueries.at(address).garbage()
    assert [row.file_id for row in (*garbage.unreferenced, *garbage.condemned)] == ["f1", "f2"]
    monkeypatch.undo()
    later = SqlQueries.at(address).garbage()
    assert ([row.file_id for row in later.unreferenced], [row.file_id for row in later.condemned]) == (["f2"], ["f1"])


@pytest.mark.parametrize(
    ("column", "word"), [("kind", "trashed"), ("purpose", "mirror"), ("status", "paused"), ("scope", "COPIED"), ("role", "index")]
)
def test_cleanup_is_refused_where_the_ledger_has_an_unknown_word(tmp_path, column, word):
    """A newer program wrote it, and may need what this one would delete."""
    ledger, asked = DeltaLedger.create(tmp_path / "ledger", catalog_id="c0ffee"), SqlQueries.at(str(tmp_path / "ledger"))
    known = to_table([file(2, "f1"), handle(2, "f1"), opened(2, "a1", 1, None), ended(3, "a1", Status.KILLED)], OPERATION)
    ledger.add(known, keys={}, operation=OPERATION)
    assert [found.file_id for found in asked.garbage().unreferenced] == ["f1"]
    ledger.refresh()
    row = next(row for row in known.to_pylist() if row[column] is not None)
    ledger.add(pa.Table.from_pylist([row | {column: word}], schema=SCHEMA), keys={}, operation=OPERATION)
    for ask in (asked.garbage, asked.live_files, lambda: asked.present_paths(0)):
        with pytest.raises(FormatError, match=rf"does not know \({column} '{word}'\)"):
            ask()
