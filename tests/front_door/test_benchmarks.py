"""The benchmarks' harness: the line it prints, how goals are judged, the exit code; and that each benchmark runs, in small."""

import contextlib
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

import holdfast
from benchmarks import __main__ as program
from benchmarks import (
    commit,
    delete,
    embedded_store,
    garbage,
    garbage_10m,
    harness,
    local_recovery,
    long_life,
    many_jobs,
    restore,
    state_store,
    streaming,
    thousand_jobs,
    vacuum_beside_writers,
    verify,
)
from benchmarks.harness import Result
from benchmarks.ledger_facts import Size, write_ledger
from holdfast.catalog import errors
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.compaction import upkeep

SMALL_HISTORY = Size(jobs=2, checkpoints=60, handles=14, files=4, kept=5, held=2, vacuumed=40, small_files=3)


def result(ratio=1.21, at_most=1.3) -> Result:
    return Result(benchmark="commit", measures="p50", ratio=ratio, at_most=at_most, figures={"runs": 3})


def use_benchmark(monkeypatch, run):
    monkeypatch.setattr(program, "_load", lambda _: run)


def test_a_line_has_exactly_the_promised_fields():
    line = json.loads(result().as_json({"cores": 2}))
    assert line == {
        "benchmark": "commit",
        "measures": "p50",
        "ratio": 1.21,
        "goal": "<= 1.3",
        "holds": True,
        "figures": {"runs": 3},
        "machine": {"cores": 2},
    }
    assert list(line) == ["benchmark", "measures", "ratio", "goal", "holds", "figures", "machine"]


@pytest.mark.parametrize(("ratio", "holds"), [(10.0, True), (9.99, False), (float("nan"), False)])
def test_a_goal_from_below_holds_from_its_limit_on(ratio, holds):
    found = Result(benchmark="changed_groups", measures="bytes", ratio=ratio, at_least=10, figures={})
    assert (found.goal, found.holds) == (">= 10", holds)


@pytest.mark.parametrize(("ratio", "holds"), [(1.299, True), (1.3, True), (1.301, False), (float("nan"), False)])
def test_a_goal_holds_up_to_its_limit(ratio, holds):
    assert result(ratio).holds is holds


def test_a_whole_goal_is_printed_without_a_fraction():
    assert result(at_most=3.0).goal == "<= 3"


def test_a_missed_goal_stands_out_in_the_text():
    assert "DOES NOT HOLD" in result(2.0).as_text()
    assert "DOES NOT HOLD" not in result(1.0).as_text()


def test_the_ratio_is_of_medians_so_that_one_slow_run_does_not_matter():
    assert harness.ratio([1.2, 1.2, 90.0], [1.0, 1.0, 1.0]) == 1.2


def test_the_sides_take_turns():
    turns = []
    sides = {"a": lambda n: turns.append(("a", n)) or 1.0, "b": lambda n: turns.append(("b", n)) or 2.0}
    taken = harness.interleave(sides, 2, what="test")
    assert turns == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert taken == {"a": [1.0, 1.0], "b": [2.0, 2.0]}


def test_no_round_begins_after_the_time_is_over_but_one_is_always_run():
    assert harness.interleave({"a": lambda _: 1.0}, 5, what="test", within_s=-1) == {"a": [1.0]}


def test_a_spread_of_one_run_is_that_run():
    assert harness.spread([0.25], "ms") == {"median_ms": 250, "p25_ms": 250, "p75_ms": 250, "min_ms": 250, "max_ms": 250, "runs": 1}


def test_the_exit_code_is_zero_whether_or_not_the_goal_holds(monkeypatch, capsys):
    use_benchmark(monkeypatch, lambda _: [result(1.0), result(9.0)])
    assert program.main(["commit", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["holds"] for line in lines] == [True, False]
    assert all(line["machine"]["versions"]["deltalake"] for line in lines)


def test_a_crash_exits_with_one_after_the_other_benchmarks_ran(monkeypatch, capsys):
    def load(name):
        def run(_):
            if name == "commit":
                raise AssertionError("the answers differ")
            return [Result(benchmark=name, measures="x", ratio=1.0, at_most=1.0, figures={})]

        return run

    monkeypatch.setattr(program, "_load", load)
    assert program.main([]) == 1
    printed = capsys.readouterr()
    assert "restore x: 1 (goal <= 1: holds)" in printed.out
    assert "the answers differ" in printed.err
    assert "crashed: commit" in printed.err


def test_an_unknown_benchmark_is_refused_with_the_names_there_are(capsys):
    with pytest.raises(SystemExit) as exit_:
        program.main(["speed"])
    assert exit_.value.code == 2
    told = capsys.readouterr().err
    assert all(name in told for name in program.ABOUT)


@pytest.mark.parametrize("name", program.ABOUT)
def test_every_benchmark_that_is_listed_exists(name):
    assert callable(program._load(name))


def test_commit_measures_p50_and_growth(tmp_path):
    p50, growth = commit.run(tmp_path, commits=6, warm_up=2, edge=2)
    assert (p50.measures, p50.goal) == ("p50", "<= 1.3")
    assert (growth.measures, growth.goal) == ("growth", "<= 1.2")
    assert p50.figures["holdfast"]["runs"] == p50.figures["floor"]["runs"] == 6


@pytest.mark.slow
def test_many_jobs_commit_on_both_sides(tmp_path):
    results = many_jobs.run(tmp_path, processes=2, rounds=1, window_s=0.5, others=3, commits=2)
    assert [(each.measures, each.goal) for each in results] == [("rate", ">= 0.8"), ("crowd", "<= 1.2"), ("memory", "<= 1.2")]
    assert all(rate > 0 for rates in results[0].figures["commits_per_s"].values() for rate in rates)


@pytest.mark.slow
def test_a_long_life_is_measured_just_before_a_fold_is_due(tmp_path, monkeypatch):
    monkeypatch.setattr(upkeep, "FOLD_EVERY", 12)
    monkeypatch.setattr(long_life, "FOLD_EVERY", 12)
    monkeypatch.setattr(long_life, "OPENINGS", 2)
    results = long_life.run(tmp_path, commits=40, edge=10)
    assert [(each.measures, each.goal) for each in results] == [("commit", "<= 1.2"), ("open", "<= 1.5"), ("memory", "<= 1.2")]
    assert results[0].figures["data_files"] >= 5, "nothing was folded since"
    assert results[1].figures["upkeep"]["runs"] >= 2


@pytest.mark.slow
def test_a_thousand_jobs_are_as_many_as_one_says(tmp_path):
    [landed] = thousand_jobs.run(tmp_path, jobs=6, processes=2, every_s=1.0, window_s=2.0)
    assert (landed.measures, landed.goal) == ("landed", ">= 0.99")
    assert 0 < landed.figures["commit"]["runs"] <= 12, "two commits of each of six, but for what a busy machine does not come to"


@pytest.mark.slow
def test_maintenance_beside_writers_is_compared_with_none(tmp_path):
    p50, failed, resent = vacuum_beside_writers.run(tmp_path, writers=2, rounds=1, window_s=2.0)
    assert [(each.measures, each.goal) for each in (p50, failed, resent)] == [("p50", "<= 1.3"), ("failed", "<= 0"), ("resent", "<= 0")]
    assert (failed.ratio, failed.figures["checkpoints"] >= 12) == (0, True)
    assert p50.figures["maintenance"]["fold"] > 0


def test_a_race_that_is_lost_is_held_against_who_won_it(tmp_path, monkeypatch):
    window, job = vacuum_beside_writers.Window(), commit.Job.start(tmp_path / "ledger")
    of_the_job = job.transactor.ledger.version
    commit.Keeper.of(tmp_path).run()
    monkeypatch.setattr(vacuum_beside_writers.Committer, "_send", lambda *_: False)
    vacuum_beside_writers.counting(window)
    for version in (of_the_job, of_the_job, DeltaLedger.open(tmp_path / "ledger").version):
        assert not job.transactor.ledger._committer._send(None, version, None)
    assert (window.sent, window.lost_to_writers, window.lost_to_maintenance) == (3, 2, 1)


def test_the_floor_of_commit_writes_its_rows_as_the_ledger_does(tmp_path):
    """A floor with more work in it than the ledger's own writing could be undercut, and would prove nothing."""
    job, floor = commit.Job.start(tmp_path / "ledger"), commit.Floor.create(tmp_path / "floor")
    job.commit(0)
    floor.commit(job.facts)

    def layout(directory):
        with pq.ParquetFile(max(directory.glob("*.parquet"), key=lambda path: path.stat().st_size)) as file:
            group = file.metadata.row_group(0)
            columns = [group.column(i) for i in range(group.num_columns)]
            return file.metadata.metadata, [(c.path_in_schema, c.compression, c.encodings, c.is_stats_set) for c in columns]

    assert layout(tmp_path / "floor") == layout(tmp_path / "ledger")


def test_restore_pays_for_its_pin_in_every_round(tmp_path):
    """A pin that the set-up still holds costs a reader nothing: each round must pin and let go for itself."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate(restore.JOB) as job, job.checkpoint() as checkpoint:
            checkpoint.write_bytes(restore.STATE, b"42")
        for _ in range(2):
            with contextlib.suppress(errors.RefusedError):  # bytes are not scanned, but the checkpoint was opened
                restore._restore(catalog, None, verify=True)
        with catalog.duckdb() as connection:
            assert connection.execute("SELECT status, count(*) FROM attempts WHERE purpose = 'read' GROUP BY status").fetchall() == [
                ("released", 2)
            ]


def test_garbage_gives_equal_answers_on_a_small_history(tmp_path):
    [query] = garbage.run(tmp_path, SMALL_HISTORY, rounds=1)
    assert (query.benchmark, query.goal) == ("garbage", "<= 1.3")
    assert query.figures["references"] == 2 * 60 * 14
    assert query.figures["unreferenced"] > 0


def test_garbage_fails_where_the_two_answers_differ(tmp_path, monkeypatch):
    monkeypatch.setattr(garbage, "BY_HAND", garbage.BY_HAND.replace("k.seq >= i.from_seq", "k.seq > i.from_seq"))
    with pytest.raises(AssertionError, match="disagree"):
        garbage.run(tmp_path, SMALL_HISTORY, rounds=1)


def test_garbage_10m_condemns_and_forgets_the_same_files_on_both_sides(tmp_path):
    decide, cycle, memory = garbage_10m.run(tmp_path, SMALL_HISTORY, rounds=1)
    assert [(each.measures, each.goal) for each in (decide, cycle, memory)] == [
        ("decide", "<= 1.3"),
        ("cycle", "<= 1.3"),
        ("memory", "<= 1"),
    ]
    assert decide.figures["unreferenced"] > 0 < decide.figures["condemned"]
    assert cycle.figures["commits"] == {"holdfast": 2, "by_hand": 2}
    assert 0 < memory.ratio < 0.2


def test_garbage_10m_fails_where_the_vacuum_leaves_something(tmp_path, monkeypatch):
    write_ledger(tmp_path / "ledger", SMALL_HISTORY)
    monkeypatch.setattr(garbage_10m, "run_vacuum", lambda *given: None)
    with pytest.raises(AssertionError, match="has left"):
        garbage_10m._cycle(tmp_path / "ledger", [], 1, tmp_path, {})


def test_delete_deletes_the_same_files_on_both_sides(tmp_path):
    [time] = delete.run(tmp_path, files=200, rounds=1)
    assert (time.measures, time.goal) == ("time", "<= 1.2")
    assert time.figures["files"] == 200
    assert time.figures["directories"] == 20 + 10 + 2  # of manifests, of native writes, and the two that all share


def test_delete_fails_where_something_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(delete, "_vacuum", lambda names, storage: storage.delete_many(names[1:]))
    with pytest.raises(AssertionError, match="are left"):
        delete.run(tmp_path, files=50, rounds=1)


def test_verify_reads_the_same_bytes_on_both_sides(tmp_path):
    [rate] = verify.run(tmp_path, sizes_mb=[0.1, 0.2, 0.5], rounds=1)
    assert (rate.measures, rate.goal) == ("rate", ">= 0.8")
    assert (rate.figures["files"], rate.figures["bytes"] > 800_000) == (3 + 1, True)  # and the manifest


def test_embedded_store_counts_what_a_snapshot_has_new(tmp_path):
    fewer, floor = embedded_store.run(tmp_path, keys=2_000, rounds=1)
    assert [(each.measures, each.goal) for each in (fewer, floor)] == [("bytes", ">= 10"), ("floor", "<= 1.05")]
    figures = fewer.figures
    assert 20 * 1_000 < figures["new_sorted_run_bytes"] <= figures["written_bytes"] < figures["directory_bytes"]


def test_local_recovery_reads_nothing_of_the_catalog(tmp_path):
    read, time = local_recovery.run(tmp_path, keys=2_000, rounds=1)
    assert (read.measures, read.ratio, read.holds) == ("bytes", 0, True)
    assert read.figures["local_bytes"] == time.figures["store_bytes"] > 2_000 * 1_000
    assert (time.measures, time.goal) == ("time", "<= 0.8")


def test_what_a_checkpoint_adds_is_the_median_of_differences():
    """So that load which comes and goes does not matter."""

    def query(triggers):
        return streaming.Query(spark=None, directory=None, run=None, triggers=triggers, functions=triggers)

    floor = streaming.Floor(directory=None, rows=None, ledger=None, facts=(), writes=[0.4, 0.4, 4.0], commits=[0.1, 0.1, 1.0])
    found = streaming._overhead(query([1.5, 9.0, 1.4, 30.0]), query([0.5, 8.0, 0.4, 0.4]), floor, rows=5)
    assert (found.measures, found.goal, found.ratio) == ("overhead", "<= 3", 2.0)
    assert found.figures["added"]["mean_ms"] == 8_150  # a batch that writes a new base is not hidden


def test_the_bytes_of_a_directory_are_those_of_a_moment_on(tmp_path):
    """Without what Hadoop adds to a local disk."""
    for i, name in enumerate(["before", "after", "state/0/1.zip", ".after.crc"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 10**i)
        os.utime(tmp_path / name, ns=(i + 1, i + 1))
    assert state_store._bytes_in(tmp_path) == 111
    assert state_store._bytes_in(tmp_path, after_ns=1) == 110


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arguments", "measures"),
    [
        ("full_checkpoint", "rows=1_000, rounds=1", ["write"]),
        ("restore", "rows=1_000, rounds=1", ["verified", "plain"]),
        ("streaming", "batches=4, turn=2, rows=50", ["overhead"]),
        ("state_store", "keys=1_000, batches=2", ["snapshots"]),
    ],
)
def test_the_benchmarks_of_spark_run_in_a_session_of_their_own(tmp_path, name, arguments, measures):
    program_text = (
        f"from pathlib import Path; from benchmarks.{name} import run\n"
        f"for result in run(Path({str(tmp_path)!r}), {arguments}): print(result.as_json({{}}))"
    )
    done = subprocess.run([sys.executable, "-c", program_text], capture_output=True, text=True, check=True, cwd=os.getcwd())
    assert [json.loads(line)["measures"] for line in done.stdout.splitlines()] == measures
