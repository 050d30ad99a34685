"""What a job begins with: nothing is lost or renamed without a word, and a start that is refused has not happened."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog import paths
from holdfast.catalog.rules import checkpoints, jobs
from holdfast.catalog.rules.commit_facts import CommitRequest
from holdfast.catalog.state import Ref
from holdfast.catalog.types import AttemptToken, Role, Scope, Status, StoredFile
from tests.support.front_door import LARGE, ask, contents
from tests.support.invariants import assert_catalog_sound


def write(job: holdfast.Coordinator, **states: bytes) -> int:
    with job.checkpoint() as checkpoint:
        for name, data in states.items():
            checkpoint.write_bytes(name, data)
    return int(checkpoint.checkpoint_id)


# ---- savepoints are copied, however they are named ---------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_a_savepoint_by_its_number_is_copied(catalog: holdfast.Catalog, tmp_path: Path, outside: bool) -> None:
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
        write(job, big=LARGE, offsets=b"1")
        savepoint = job.savepoint("mine", target=tmp_path / "away" if outside else None)
        write(job, big=LARGE + b"2", offsets=b"2")
    with catalog.coordinate("flights", start=int(savepoint.checkpoint_id), retention=holdfast.KeepLast(1)) as job:
        assert contents(job.latest()) == {"big": LARGE, "offsets": b"1"}
        write(job, offsets=b"3")
        write(job, offsets=b"4")
        catalog.dispose("flights", "mine")
        catalog.vacuum()
        assert contents(job.latest()) == {"big": LARGE, "offsets": b"4"}
    assert catalog.verify().damages == ()
    assert_catalog_sound(catalog)


def test_the_ledger_refuses_a_line_that_goes_on_from_a_savepoint(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        write(job, big=LARGE)
        ref = Ref(job.job_id, job.savepoint("mine").checkpoint_id)
        transactor = catalog._transactor
        with pytest.raises(holdfast.RefusedError, match="cannot continue from a savepoint itself"):
            transactor.run(lambda state: jobs.start(state, job.job_id, ref))
        opened = transactor.run(lambda state: checkpoints.open_checkpoint(state, job.job_id, job.epoch, AttemptToken("0" * 16), ref))
        manifest = job.latest().manifest  # type: ignore[union-attr]
        request = CommitRequest(
            attempt=opened.attempt,
            content=manifest.chunks,
            states=manifest.states,
            inherited=frozenset(chunk.identity for chunk in manifest.chunks),
            files=(),
            acks=(),
            manifest=StoredFile(
                file_id=paths.manifest_file_id(opened.attempt), path="chk-9", size_bytes=1, sha256="1" * 64, scope=Scope.EXCLUSIVE
            ),
            progress=None,
            retention=holdfast.KeepAll(),
        )
        with pytest.raises(holdfast.RefusedError, match="takes over chunks of a savepoint"):
            transactor.run(lambda state: checkpoints.commit_checkpoint(state, job.job_id, request))
        transactor.run(lambda state: checkpoints.end_attempt(state, job.job_id, opened.attempt, Status.ABORTED, None))
    assert {chunk.role for chunk in manifest.chunks} == {Role.BASE}


@pytest.mark.parametrize("mode", ["fork", "claim"])
def test_a_mode_that_shares_files_does_not_go_with_what_is_copied(catalog: holdfast.Catalog, tmp_path: Path, mode: Any) -> None:
    with catalog.coordinate("flights") as job:
        write(job, offsets=b"1")
        savepoint = job.savepoint("mine", target=tmp_path)
    with catalog.checkpoint("flights") as checkpoint:
        exported = catalog.export(checkpoint, tmp_path / "copy")
    for start in (savepoint.path, exported):
        with pytest.raises(holdfast.RefusedError, match="is copied: leave the mode out"):
            catalog.coordinate("next", start=start, mode=mode)
    assert ask(catalog, "select job from jobs") == [("flights",)]


# ---- a start that is refused has not happened --------------------------------------------------------------------------------


def test_a_refused_start_fences_nobody(catalog: holdfast.Catalog) -> None:
    job = catalog.coordinate("flights")
    write(job, planes=b"1", offsets=b"1")
    with pytest.raises(holdfast.RefusedError, match="has state 'offsets', which the program does not have"):
        catalog.coordinate("flights", states={"planes"})
    write(job, planes=b"2")
    assert job.epoch == 1
    job.close()


@pytest.mark.parametrize("mode", ["fork", "claim"])
def test_a_refused_fork_or_claim_registers_fences_and_pins_nothing(catalog: holdfast.Catalog, mode: Any) -> None:
    job = catalog.coordinate("flights")
    write(job, planes=b"1", offsets=b"1")
    start = job.latest()
    assert start is not None
    for options, message in (
        ({"states": {"planes"}}, "has state 'offsets'"),
        ({"max_parallelism": 256}, "has max_parallelism=128, not 256: .*rekey"),
        ({"renamed": {"planes": "aircraft"}}, "cannot be renamed to 'aircraft' where the files are shared"),
    ):
        with pytest.raises(holdfast.RefusedError, match=message):
            catalog.coordinate("next", start=start, mode=mode, **options)
    assert ask(catalog, "select job, epoch from jobs") == [("flights", 1)]
    assert ask(catalog, "select count(*) from attempts where status = 'open'") == [(1,)]
    write(job, planes=b"2")
    with catalog.coordinate("next", start=job.latest(), mode=mode) as other:  # type: ignore[arg-type]
        assert contents(other.latest()) == {"planes": b"2", "offsets": b"1"}
    job.close()


def test_a_savepoint_with_other_key_groups_is_refused_before_registration(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights", max_parallelism=64) as job:
        write(job, planes=b"1")
        savepoint = job.savepoint("mine")
    with pytest.raises(holdfast.RefusedError, match=r"max_parallelism=64, not 32: .*rekey\(savepoint, max_parallelism=32\)"):
        catalog.coordinate("next", start=savepoint.path, max_parallelism=32)
    with catalog.coordinate("trains", max_parallelism=32) as trains, pytest.raises(holdfast.RefusedError, match="rekey"):
        write(trains, planes=b"2")
        catalog.coordinate("trains", start=savepoint.path)
    assert sorted(ask(catalog, "select job, epoch from jobs")) == [("flights", 1), ("trains", 1)]


# ---- states by name --------------------------------------------------------------------------------------------------------------


def test_a_program_is_restarted_with_the_arguments_it_was_restored_with(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        write(job, planes=b"1", old=b"2", offsets=b"3")
        savepoint = job.savepoint("mine")
    options: dict[str, Any] = {"states": ["aircraft", "offsets", "new"], "renamed": {"planes": "aircraft"}, "allow_non_restored": ["old"]}
    with catalog.coordinate("next", start=savepoint.path, **options) as job:
        assert contents(job.latest()) == {"aircraft": b"1", "offsets": b"3"}
    with catalog.coordinate("next", **options) as job:
        write(job, new=b"4")
        assert contents(job.latest()) == {"aircraft": b"1", "offsets": b"3", "new": b"4"}


@pytest.mark.parametrize("start", ["head", 1])
def test_a_state_is_not_renamed_where_its_files_are_shared(catalog: holdfast.Catalog, start: Any) -> None:
    with catalog.coordinate("flights") as job:
        write(job, planes=b"1")
    with pytest.raises(holdfast.RefusedError, match="'planes' .* cannot be renamed to 'aircraft' .*: start from a savepoint"):
        catalog.coordinate("flights", start=start, renamed={"planes": "aircraft"}, states={"aircraft"})
    with pytest.raises(holdfast.RefusedError, match="has no state 'plains' that could be renamed to 'aircraft'; it has: planes"):
        catalog.coordinate("flights", start=start, renamed={"plains": "aircraft"})


@pytest.mark.parametrize(
    "options",
    [{"states": "planes"}, {"allow_non_restored": "planes"}, {"states": [1]}, {"renamed": ["planes"]}, {"renamed": {"planes": 1}}],
    ids=str,
)
def test_what_does_not_name_states_is_refused(catalog: holdfast.Catalog, options: dict[str, Any]) -> None:
    with pytest.raises(holdfast.UsageError, match=f"{next(iter(options))}="):
        catalog.coordinate("flights", **options)
    assert ask(catalog, "select * from jobs") == []


# ---- claims and forks --------------------------------------------------------------------------------------------------------------


def test_a_claimed_job_does_not_begin_anew_without_a_word(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("old", retention=holdfast.KeepLast(1)) as old:
        write(old, planes=b"1")
        start = old.latest()
    with catalog.coordinate("new", start=start, mode="claim", retention=holdfast.KeepLast(1)) as new:  # type: ignore[arg-type]
        write(new, planes=b"2")
        with pytest.raises(holdfast.RefusedError, match="job 'old' was claimed by job 'new', whose retention has dropped its head"):
            catalog.coordinate("old")
        write(new, planes=b"3")
    with catalog.coordinate("old", start="nothing", retention=holdfast.KeepLast(1)) as old:
        assert old.latest() is None


def test_the_end_of_a_job_drops_what_it_has_claimed(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("old", retention=holdfast.KeepAll()) as old:
        for n in range(3):
            write(old, planes=bytes([n]))
        old.savepoint("mine")
        catalog.hold("old", 1, "audit")
        start = old.latest()
    policy = holdfast.OnEnd(drop=frozenset({holdfast.Outcome.FINISHED}))
    with catalog.coordinate("new", start=start, mode="claim", retention=holdfast.KeepAll(), on_end=policy) as new:  # type: ignore[arg-type]
        write(new, planes=b"4")
        new.end("finished")
    assert ask(catalog, "select job, checkpoint_id, is_savepoint from checkpoints where status = 'live' order by 2") == [
        ("old", 1, False),
        ("old", 5, True),
    ]
    assert_catalog_sound(catalog)


def test_a_fork_has_no_savepoint_before_a_checkpoint_of_its_own(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        write(job, planes=b"1")
        start = job.latest()
    with catalog.coordinate("what-if", start=start, mode="fork") as fork:  # type: ignore[arg-type]
        with pytest.raises(holdfast.NotFoundError, match="has no checkpoint of its own"):
            fork.savepoint("mine")
        write(fork, planes=b"2")
        assert fork.savepoint("mine").job == "what-if"


def test_a_fork_that_closed_before_its_first_checkpoint_says_how_to_go_on(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights", retention=holdfast.KeepLast(1)) as job:
        write(job, planes=b"1")
        catalog.coordinate("what-if", start=job.latest(), mode="fork").close()  # type: ignore[arg-type]
        write(job, planes=b"2")
        with pytest.raises(
            holdfast.RefusedError,
            match="checkpoint 1 of job 'flights', which was dropped before .*: coordinate 'what-if' with start='nothing'",
        ):
            catalog.coordinate("what-if")
        savepoint = job.savepoint("mine")
    with catalog.coordinate("what-if", start=savepoint.path, retention=holdfast.KeepLast(1)) as fork:
        assert contents(fork.latest()) == {"planes": b"2"}


def test_the_view_of_jobs_tells_how_a_job_ended_until_it_is_started_again(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        write(job, planes=b"1")
        job.end("cancelled")
    assert ask(catalog, "select job, outcome, ended_at is not null from jobs") == [("flights", "cancelled", True)]
    with catalog.coordinate("flights"):
        assert ask(catalog, "select job, outcome, ended_at from jobs") == [("flights", None, None)]


def test_the_properties_of_a_fork_say_that_it_is_incremental(catalog: holdfast.Catalog) -> None:
    with catalog.coordinate("flights") as job:
        write(job, big=LARGE)
        start = job.latest()
    with catalog.coordinate("what-if", start=start, mode="fork") as fork:  # type: ignore[arg-type]
        write(fork, offsets=b"2")
        latest = fork.latest()
    assert latest is not None
    assert dataclasses.asdict(latest.properties)["is_incremental"]
