"""The command line: what it prints, and the code that it exits with."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import holdfast
from holdfast.catalog import errors
from holdfast.cli import CORRUPTION, DIFFERENCES, ENDED, MACHINE, RETRY, USAGE, exit_code, main

JOB = "flights"
LARGE = b"x" * 50_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A catalog with checkpoints 1 to 3 of one job, all live; the large state of each is a file of its own."""
    with (
        holdfast.open(tmp_path / "catalog", create=True) as catalog,
        catalog.coordinate(JOB, retention=holdfast.KeepLast(3)) as job,
    ):
        for n in (1, 2, 3):
            with job.checkpoint(progress={"week": n}) as checkpoint:
                checkpoint.write_bytes("large", LARGE + bytes([n]))
    return tmp_path / "catalog"


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


def test_checkpoints_of_an_unknown_job_are_none(root: Path) -> None:
    assert run_json("checkpoints", root, "--job", "other") == []


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


def test_scrub_stops_with_the_code_of_corruption_at_tokens_that_the_ledger_never_knew(root: Path) -> None:
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
