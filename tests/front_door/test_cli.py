"""The command line: what it prints, and the code that it exits with."""

import json
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast import report
from holdfast.catalog import errors
from holdfast.cli import CORRUPTION, DIFFERENCES, ENDED, INTERRUPTED, MACHINE, RETRY, USAGE, Commands, exit_code, main

JOB = "flights"
LARGE = b"x" * 50_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cli") / "catalog"
    with holdfast.open(place, create=True) as catalog, catalog.coordinate(JOB, retention=holdfast.KeepLast(3)) as job:
        for n in (1, 2, 3):
            with job.checkpoint(progress={"week": n}) as checkpoint:
                checkpoint.write_bytes("large", LARGE + bytes([n]))
    return place


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A catalog with checkpoints 1 to 3 of one job, all live; the large state of each is a file of its own."""
    return Path(shutil.copytree(made, tmp_path / "catalog"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run_json(*arguments: object):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def a_state_file(root: Path) -> Path:
    return min(root.glob("jobs/*/exclusive/*"))


def test_every_class_of_error_has_its_exit_code() -> None:
    for kind, code in {
        errors.NotFoundError: USAGE,
        errors.RefusedError: USAGE,
        errors.ConflictError: RETRY,
        errors.UnknownOutcomeError: RETRY,
        errors.DamagedFileError: CORRUPTION,
        errors.ForeignTokensError: CORRUPTION,
        errors.FencedError: ENDED,
        errors.AttemptEndedError: ENDED,
        errors.WorkingDirectoryError: MACHINE,
        PermissionError: MACHINE,
    }.items():
        assert exit_code(kind("what happened")) == code, kind


def test_every_error_of_the_tree_has_an_exit_code() -> None:
    for name in dir(errors):
        kind = getattr(errors, name)
        if isinstance(kind, type) and issubclass(kind, errors.HoldfastError):
            assert exit_code(kind("what happened")) is not None, kind


def test_a_bug_has_no_exit_code_of_its_own_and_shows_its_traceback() -> None:
    assert exit_code(KeyError("bug")) is None


def test_help_tells_the_exit_codes_and_every_command_has_help() -> None:
    assert "Exit codes:" in run("--help").output
    for name, command in main.commands.items():
        assert command.help, name
        assert run(name, "--help").exit_code == 0


def test_an_error_is_one_line_on_standard_error_without_traceback(tmp_path: Path) -> None:
    result = run("vacuum", tmp_path / "nowhere")
    assert result.exit_code == USAGE
    assert result.stdout == ""
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1
    assert "nowhere" in result.stderr


def test_an_address_of_unsupported_storage_is_refused_by_name() -> None:
    result = run("jobs", "s3://bucket/prefix")
    assert result.exit_code == USAGE
    assert "s3" in result.stderr


def test_jobs_and_checkpoints_are_listed_as_text_and_as_json(root: Path) -> None:
    assert [job["head_checkpoint_id"] for job in run_json("jobs", root)] == [3]
    rows = run_json("checkpoints", root, "--job", JOB)
    assert [row["checkpoint_id"] for row in rows] == [1, 2, 3]
    assert [json.loads(row["progress"]) for row in rows] == [{"week": 1}, {"week": 2}, {"week": 3}]
    text = run("checkpoints", root).stdout.splitlines()
    assert text[0].split()[:3] == ["job", "checkpoint_id", "status"]
    assert len(text) == 4


def test_checkpoints_of_an_unknown_job_are_an_error_that_names_the_jobs(root: Path) -> None:
    result = run("checkpoints", root, "--job", "other")
    assert result.exit_code == USAGE
    assert "'other'" in result.stderr
    assert JOB in result.stderr


def test_savepoints_are_told_from_checkpoints_in_the_list_by_their_names(root: Path) -> None:
    number = run_json("savepoint", root, JOB, "mine")["checkpoint_id"]
    rows = run_json("checkpoints", root)
    assert [(row["is_savepoint"], row["name"]) for row in rows] == [*[(False, None)] * 3, (True, "mine")]
    refused = run("drop", root, JOB, number)
    assert refused.exit_code == USAGE
    assert "`holdfast dispose`" in refused.stderr


def test_dispose_says_what_it_found(root: Path, tmp_path: Path) -> None:
    def taken(name: str, *target: object) -> Path:
        return Path(run_json("savepoint", root, JOB, name, *target)["path"])

    inside, (whole, damaged, gone) = taken("inside"), (taken(name, "--target", tmp_path / "away") for name in ("whole", "damaged", "gone"))
    (damaged / "_metadata").unlink()
    shutil.rmtree(gone)
    assert f"files in {inside} are deleted by the next vacuum" in run("dispose", root, JOB, "inside").stdout
    assert f"deleted 2 files in {whole}" in run("dispose", root, JOB, "whole").stdout
    assert "its _metadata was lost or damaged: deleted 1 file" in run("dispose", root, JOB, "damaged").stdout
    assert run_json("dispose", root, JOB, "gone") == {"name": "gone", "path": str(gone), "found": "absent", "deleted_files": 0}
    assert f"nothing was at {gone}" in run("dispose", root, JOB, "gone").stdout
    assert "within by" not in run("dispose", "--help").output


def test_readers_are_listed_with_their_jobs(root: Path) -> None:
    with holdfast.open(root) as catalog:
        catalog.checkpoint(JOB, 2)
        assert [(row["job"], row["checkpoint_id"]) for row in run_json("readers", root)] == [(JOB, 2)]
        assert run("readers", root, "--end-dead").stdout == "ended 0 attempts of dead processes\n"


def test_a_dropped_checkpoint_is_listed_only_with_all(root: Path) -> None:
    assert run("drop", root, JOB, 1, "--reason", "too old").exit_code == 0
    assert [row["checkpoint_id"] for row in run_json("checkpoints", root)] == [2, 3]
    assert [row["status"] for row in run_json("checkpoints", root, "--all")] == ["dropped", "live", "live"]


def test_a_dry_run_of_vacuum_says_what_the_vacuum_then_deletes(root: Path) -> None:
    run("drop", root, JOB, 1)
    planned = run_json("vacuum", root, "--dry-run")
    assert planned["deleted_files"] == 0
    assert len(planned["plan"]["unreferenced"]) == 2  # the state's file and the manifest
    assert "would delete 2 files" in run("vacuum", root, "--dry-run").stdout
    assert run_json("vacuum", root)["deleted_files"] == 2
    assert run("vacuum", root).stdout == "deleted 0 files, 0 B\n"


def test_scrub_deletes_what_a_dead_attempt_left_and_reports_foreign_files(root: Path) -> None:
    left = a_state_file(root)
    token = left.name.split("-")[1]
    (left.parent / f"1-{token}-9-0.bytes").write_bytes(b"late")
    (root / "jobs" / "notes.txt").write_text("mine")
    assert [stored["size_bytes"] for stored in run_json("scrub", root, "--dry-run")["plan"]["orphans"]] == [4]
    result = run("scrub", root)
    assert result.stdout.startswith("deleted 1 file, 4 B\n")
    assert "jobs/notes.txt" in result.stdout
    assert (root / "jobs" / "notes.txt").exists()


def test_scrub_stops_with_the_code_of_corruption_at_unknown_tokens(root: Path) -> None:
    """At tokens that the ledger never knew."""
    stranger = a_state_file(root).with_name("7-00000000deadbeef-0-0.bytes")
    stranger.write_bytes(b"newer")
    assert run("scrub", root).exit_code == CORRUPTION
    assert stranger.exists()


def test_verify_exits_with_1_and_names_the_damaged_file(root: Path) -> None:
    assert run("verify", root).exit_code == 0
    damaged = a_state_file(root)
    damaged.write_bytes(b"y" + damaged.read_bytes()[1:])
    result = run("verify", root)
    assert result.exit_code == DIFFERENCES
    assert damaged.name in result.stdout


def test_a_held_checkpoint_is_not_dropped_until_it_is_let_go(root: Path) -> None:
    assert run("hold", root, JOB, 1, "audit", "--note", "until March").exit_code == 0
    assert [hold["note"] for hold in run_json("sql", root, "select * from holds")] == ["until March"]
    refused = run("drop", root, JOB, 1)
    assert refused.exit_code == USAGE
    assert "audit" in refused.stderr
    assert run("unhold", root, JOB, 1, "audit").exit_code == 0
    assert run_json("drop", root, JOB, 1) == {"done": "dropped checkpoint 1 of job 'flights'"}


@pytest.mark.parametrize("name", ["", "  "])
def test_a_hold_without_a_name_is_refused(root: Path, name: str) -> None:
    assert run("hold", root, JOB, 1, name).exit_code == USAGE
    assert run_json("sql", root, "select * from holds") == []


def test_owners_are_listed_and_released_by_name_and_never_killed(root: Path) -> None:
    with holdfast.open(root) as catalog, catalog.coordinate(JOB) as job:
        owner = catalog.own(JOB, "wal")
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(owner, [owner.write("one", b"1"), owner.write("two", b"22")])
    (row,) = run_json("owners", root)
    told = {name: row[name] for name in ("job", "owner", "files", "total_bytes", "referenced_files", "attempt")}
    assert told == {"job": JOB, "owner": "wal", "files": 2, "total_bytes": 3, "referenced_files": 2, "attempt": owner.attempt}
    killed = run("kill", root, JOB, owner.attempt)
    assert (killed.exit_code, "`holdfast release`" in killed.stderr) == (USAGE, True)
    assert run("release", root, JOB, "wal").stdout == "released owner 'wal' of job 'flights'\n"
    assert run("release", root, JOB, "wal").exit_code == 0, "releasing again does nothing"
    assert run_json("owners", root) == []
    unknown = run("release", root, JOB, "wall")
    assert (unknown.exit_code, "never had an owner named 'wall'" in unknown.stderr) == (USAGE, True)


def test_kill_ends_an_open_attempt_and_tells_of_one_that_has_ended(root: Path) -> None:
    with holdfast.open(root) as catalog:
        catalog.checkpoint(JOB)  # a reading attempt
        [token] = [row["attempt"] for row in run_json("sql", root, "select attempt from attempts where status = 'open'")]
        assert run("kill", root, JOB, token).exit_code == 0
        assert run("kill", root, JOB, token).exit_code == ENDED


def test_wrong_sql_is_an_error_of_usage_in_one_line(root: Path) -> None:
    result = run("sql", root, "select nothing from nowhere")
    assert result.exit_code == USAGE
    assert result.stderr.count("\n") == 1


def test_sql_cannot_write_to_the_ledger(root: Path) -> None:
    assert run("sql", root, "insert into ledger select * from ledger").exit_code == USAGE
    assert len(run_json("checkpoints", root)) == 3


@pytest.mark.parametrize("query", ["", " ", "-- nothing", "select 1; select 2"])
def test_sql_takes_exactly_one_statement(root: Path, query: str) -> None:
    result = run("sql", root, "--", query)
    assert result.exit_code == USAGE
    assert "one statement" in result.stderr


def test_sql_writes_no_file_and_opens_no_other_database(root: Path, tmp_path: Path) -> None:
    written, other = tmp_path / "written.csv", tmp_path / "other.db"
    for query in (
        f"copy (select 1) to '{written}'",
        f"explain analyze copy (select 1) to '{written}'",
        f"explain (analyze, format json) copy (select 1) to '{written}'",
        f"explain /**/ analyze /**/ copy (select 1) to '{written}'",
        f"attach '{other}'",
        "create table mine as select 1",
        "set threads = 1",
        "checkpoint",
        "call pragma_version()",
    ):
        result = run("sql", root, query)
        assert result.exit_code == USAGE, query
        assert "SELECT" in result.stderr, query
    assert not written.exists()
    assert not other.exists()


@pytest.mark.parametrize(
    "query",
    ["with one as (select 1) from one", "values (1)", "describe jobs", "show tables", "summarize jobs", "select 1; -- all",
     "explain select 1", "EXPLAIN ANALYZE SELECT 1", "explain (format json) select 1", "-- why\nexplain select 1"],
)  # fmt: skip
def test_sql_runs_whatever_only_reads(root: Path, query: str) -> None:
    assert run("sql", root, "--", query).exit_code == 0


def test_numbers_are_printed_exactly(root: Path) -> None:
    """DuckDB's sum of integers is a HUGEINT, which Arrow gives as a decimal: as a float it would lose its last digits."""
    query = "select sum(9007199254740993) as s, 1.10::decimal(4, 2) as d, 1.5 + 1e0 as f"
    assert run_json("sql", root, query) == [{"s": 9007199254740993, "d": "1.10", "f": 2.5}]
    assert run("sql", root, query).stdout.splitlines()[1].split() == ["9007199254740993", "1.10", "2.5"]
    assert report.plain([Decimal("1E+2"), Decimal("-0.5"), Decimal("NaN")]) == [100, "-0.5", None]


def test_what_is_not_finite_is_null_in_json_and_shown_to_people(root: Path) -> None:
    query = "select 'nan'::double as a, 'inf'::double as b, ['-inf'::float] as c"
    assert run_json("sql", root, query) == [{"a": None, "b": None, "c": [None]}]
    assert run("sql", root, query).stdout.splitlines()[1].split()[:2] == ["nan", "inf"]


def test_columns_of_one_name_are_all_in_the_json(root: Path) -> None:
    assert run_json("sql", root, "select 1 as a, 2 as a, 3 as a_2, 4 as a") == [{"a": 1, "a_3": 2, "a_2": 3, "a_4": 4}]


@pytest.mark.parametrize(
    "interrupt", [KeyboardInterrupt(), click.Abort(), RuntimeError("Query interrupted")], ids=lambda e: type(e).__name__
)
def test_an_interrupt_exits_as_shells_have_it_and_not_as_damage_found(interrupt: BaseException) -> None:
    @click.group(cls=Commands)
    def group() -> None:
        pass

    @group.command()
    def stopped() -> None:
        raise interrupt

    result = CliRunner().invoke(group, ["stopped"])
    assert (result.exit_code, result.stderr) == (INTERRUPTED, "holdfast: interrupted\n")
    assert str(INTERRUPTED) in run("--help").output


def test_a_savepoint_of_a_dataframe_is_refused_before_its_name_is_taken(spark, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate(JOB) as job, job.checkpoint() as checkpoint:
        checkpoint.write("planes", spark.range(3), key=["id"])
    command = [sys.executable, "-m", "holdfast", "savepoint", str(tmp_path / "catalog"), JOB, "mine"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == USAGE
    assert "state 'planes'" in refused.stderr
    assert "call catalog.savepoint(..., spark=...)" in refused.stderr
    assert run_json("sql", tmp_path / "catalog", "select * from attempts where purpose = 'savepoint'") == []
    with holdfast.open(tmp_path / "catalog") as catalog:
        assert catalog.savepoint(JOB, "mine", spark=spark).is_savepoint


def test_another_error_while_running_is_still_a_bug() -> None:
    assert not report.is_interrupt(RuntimeError("dictionary changed size during iteration"))


def test_people_are_told_what_an_empty_catalog_lacks(tmp_path: Path) -> None:
    """Programs get no rows."""
    holdfast.open(tmp_path / "catalog", create=True).close()
    for command, told in {
        "jobs": "no jobs yet",
        "checkpoints": "no live checkpoints",
        "readers": "no readers",
        "owners": "no owners",
    }.items():
        (line,) = run(command, tmp_path / "catalog").stdout.splitlines()
        assert line.startswith(told)
        assert run_json(command, tmp_path / "catalog") == []
    assert run("sql", tmp_path / "catalog", "SELECT job FROM jobs").stdout.splitlines() == ["job", "no rows"]
    assert run("checkpoints", tmp_path / "catalog", "--all").stdout == "no checkpoints yet\n"


def test_what_the_output_s_encoding_lacks_is_shown_as_an_escape(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, catalog.coordinate("ü → 😀"):
        pass

    def printed(*arguments: str) -> str:
        command = [sys.executable, "-m", "holdfast", "jobs", str(tmp_path / "catalog"), *arguments]
        environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        return subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode("ascii")

    assert r"\xfc \u2192 \U0001f600" in printed()
    assert json.loads(printed("--json"))[0]["job"] == "ü → 😀"
