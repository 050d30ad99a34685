"""Task-owned files over a real catalog: written, referred to, read back, copied, shared, released; and what is refused with which words."""

import io
import pickle
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog import paths
from holdfast.catalog.types import Scope
from tests.support.invariants import assert_catalog_sound, assert_clean

JOB = "flights"


@pytest.fixture
def job(catalog: holdfast.Catalog):
    with catalog.coordinate(JOB, max_parallelism=8, retention=holdfast.KeepLast(1)) as coordinator:
        yield coordinator


def refer(job: holdfast.Coordinator, owner: holdfast.Owner, *files: holdfast.OwnedFile) -> holdfast.Checkpoint:
    with job.checkpoint() as checkpoint:
        checkpoint.task_owned(owner, files)
    latest = job.latest()
    assert latest is not None
    return latest


def place(catalog: holdfast.Catalog, file: holdfast.OwnedFile) -> Path:
    return Path(catalog.address) / file.path


def names(checkpoint: holdfast.Checkpoint, state: str = "wal") -> list[str]:
    return [file.name for file in checkpoint.owned_files(state)]


# ---- writing and reading ----------------------------------------------------------------------------------------------


def test_an_owner_is_picklable_and_writes_bytes_paths_and_streams(catalog, job, tmp_path: Path) -> None:
    owner = pickle.loads(pickle.dumps(catalog.own(JOB, "wal")))
    (tmp_path / "log").write_bytes(b"of a path")
    sources = {"bytes": b"of bytes", "view": memoryview(b"of a view"), "path": tmp_path / "log", "stream": io.BytesIO(b"of a stream")}
    files = [owner.write(name, source) for name, source in sources.items()]
    latest = refer(job, owner, *files)
    assert latest.owned_files("wal") == tuple(files), "in the order in which they were given"
    found = [latest.read_file("wal", name) for name in sources]
    assert found == [owner.read(file) for file in files] == [b"of bytes", b"of a view", b"of a path", b"of a stream"]
    assert_catalog_sound(catalog)


def test_a_stream_is_read_from_where_it_is_and_left_open(catalog, job) -> None:
    stream = io.BytesIO(b"read already, and the rest")
    stream.read(13)
    owner = catalog.own(JOB, "wal")
    assert owner.read(owner.write("log", stream)) == b" and the rest"
    assert not stream.closed


def test_two_files_of_one_name_and_content_are_two_files(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    one, two = owner.write("log", b"same"), owner.write("log", b"same")
    assert place(catalog, one) != place(catalog, two)


def test_a_state_of_files_is_carried_removed_and_may_be_empty(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    refer(job, owner, owner.write("log", b"1"))
    with job.checkpoint() as checkpoint:
        checkpoint.write_bytes("offsets", b"1")
    assert names(job.latest()) == ["log"]
    assert names(refer(job, owner)) == []
    with job.checkpoint() as checkpoint:
        checkpoint.remove("wal")
    assert job.latest().states == ("offsets",)
    assert_catalog_sound(catalog)


def test_what_a_checkpoint_cost_counts_an_owner_s_bytes_once(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    one, two = owner.write("1", b"1"), owner.write("2", b"22")
    refer(job, owner, one)
    with job.checkpoint() as checkpoint:
        checkpoint.task_owned(owner, [one, two])
    result = checkpoint.result
    assert (result.new_bytes, result.reused_bytes, result.new_handles) == (2, 1, 1)
    with catalog.duckdb() as connection:
        told = connection.execute("SELECT is_incremental FROM checkpoints ORDER BY checkpoint_id").fetchall()
    assert told == [(True,), (True,)]
    assert job.latest().properties.is_incremental


def test_a_damaged_and_a_missing_file_are_told_by_name(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    file = owner.write("log", b"whole")
    latest = refer(job, owner, file)
    place(catalog, file).write_bytes(b"whale")
    with pytest.raises(holdfast.DamagedFileError, match=r"file 'log' of <owner 'wal' .* is damaged"):
        owner.read(file)
    with pytest.raises(holdfast.DamagedFileError, match="does not have the digest"):
        latest.read_file("wal", "log")
    assert [damage.path for damage in catalog.verify().damages] == [file.path]
    place(catalog, file).unlink()
    with pytest.raises(holdfast.DamagedFileError, match=r"file 'log' of .* is missing"):
        owner.read(file)


# ---- lifetimes --------------------------------------------------------------------------------------------------------


def test_files_stay_until_they_are_released(tmp_path: Path) -> None:
    """They outlive checkpoints, coordinators and catalog objects."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate(JOB, retention=holdfast.KeepLast(1)) as job:
            owner = catalog.own(JOB, "wal")
            used, unused = owner.write("used", b"1"), owner.write("unused", b"2")
            refer(job, owner, used)
            refer(job, owner)
    with holdfast.open(tmp_path / "catalog") as catalog, catalog.coordinate(JOB, retention=holdfast.KeepLast(1)) as job:
        catalog.vacuum()
        catalog.scrub()
        owner = catalog.own(JOB, "wal")
        assert [owner.read(file) for file in (used, unused)] == [b"1", b"2"]
        assert names(refer(job, owner, unused, used)) == ["unused", "used"]
        catalog.release(JOB, "wal", [used, unused])
        refer(job, owner)
        assert {file.path for file in catalog.plan_vacuum().unreferenced} >= {used.path, unused.path}
        catalog.vacuum()
        assert not place(catalog, used).exists()
    assert_catalog_sound(catalog)


def test_an_owner_releases_from_wherever_it_is(catalog, job) -> None:
    owner = pickle.loads(pickle.dumps(catalog.own(JOB, "wal")))
    file = owner.write("log", b"1")
    owner.release([file])
    owner.release([file])
    catalog.vacuum()
    assert not place(catalog, file).exists()
    owner.release()
    with pytest.raises(holdfast.AlreadyExistsError, match="a name is never used again"):
        catalog.own(JOB, "wal")


def test_what_an_ended_owner_left_without_a_checkpoint_is_scrubs(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    file = owner.write("log", b"1")
    assert [stored.path for stored in catalog.plan_scrub().in_flight.shown] == [file.path]
    catalog.release(JOB, "wal")
    assert catalog.scrub().deleted_files == 1
    job.close()
    assert_clean(catalog)


def test_a_rollback_carries_what_was_released_since(catalog) -> None:
    with catalog.coordinate(JOB, retention=holdfast.KeepAll()) as job:
        owner = catalog.own(JOB, "wal")
        refer(job, owner, owner.write("log", b"1"))
        refer(job, owner)
        catalog.release(JOB, "wal")
    with catalog.coordinate(JOB, start=1, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")
        catalog.vacuum()
        assert job.latest().read_file("wal", "log") == b"1"
    assert_catalog_sound(catalog)


# ---- copies and forks -------------------------------------------------------------------------------------------------


def test_a_savepoint_and_a_job_started_from_it_have_copies_of_their_own(catalog, job, tmp_path: Path) -> None:
    owner = catalog.own(JOB, "wal")
    refer(job, owner, *(owner.write(str(n), bytes([n])) for n in range(5)))
    savepoint = job.savepoint("mine")
    assert {file.scope for file in savepoint.manifest.files.values()} == {Scope.EXCLUSIVE}
    refer(job, owner)
    catalog.release(JOB, "wal")
    catalog.vacuum()
    assert names(savepoint) == ["0", "1", "2", "3", "4"]
    with (
        holdfast.open(tmp_path / "other", create=True) as other,
        other.coordinate("copy", start=savepoint.path, retention=holdfast.KeepLast(1)) as copy,
    ):
        latest = copy.latest()
        assert {file.scope for file in latest.manifest.files.values()} == {Scope.SHARED}
        copies = latest.owned_files("wal")
        assert [latest.read_file("wal", file.name) for file in copies] == [bytes([n]) for n in range(5)]
        successor = other.own("copy", "wal")
        assert names(refer(copy, successor, *copies[3:], successor.write("new", b"new"))) == ["3", "4", "new"]
        with pytest.raises(holdfast.RefusedError, match=r"file '3' \(jobs/.*\) was not written by owner 'wal' .* A copy, .* has no owner"):
            successor.release(copies[3:])
        other.vacuum()
        assert_catalog_sound(other)
        assert copy.latest().read_file("wal", "3") == b"\x03"
    assert_catalog_sound(catalog)


def test_a_fork_shares_files_and_cannot_release_them(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    file = owner.write("log", b"1")
    source = refer(job, owner, file)
    with catalog.coordinate("what-if", start=source, mode="fork", retention=holdfast.KeepLast(1)) as fork:
        with fork.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", b"1")
        refer(job, owner)
        catalog.release(JOB, "wal")
        catalog.vacuum()
        assert fork.latest().owned_files("wal") == (file,)
        assert fork.latest().read_file("wal", "log") == b"1"
        with pytest.raises(holdfast.NotFoundError, match="job 'what-if' never had an owner named 'wal'"):
            catalog.release("what-if", "wal", [file])
        own = catalog.own("what-if", "wal")
        assert names(refer(fork, own, file, own.write("new", b"2"))) == ["log", "new"]
        refer(fork, own)
    assert catalog.vacuum().deleted_files
    assert not place(catalog, file).exists()
    assert_catalog_sound(catalog)


def test_an_exported_checkpoint_has_its_files(catalog, job, tmp_path: Path) -> None:
    owner = catalog.own(JOB, "wal")
    latest = refer(job, owner, owner.write("log", b"1"))
    copy = holdfast.open_manifest(catalog.export(latest, tmp_path / "export"))
    assert copy.read_file("wal", "log") == b"1"


# ---- refusals ---------------------------------------------------------------------------------------------------------


def test_a_release_while_a_checkpoint_is_written_aborts_it(catalog, job) -> None:
    """The error names file and owner."""
    owner = catalog.own(JOB, "wal")
    file = owner.write("log", b"1")
    with pytest.raises(
        holdfast.RefusedError, match=rf"cannot refer to file 'log' \({file.file_id}\) of owner 'wal': it was released meanwhile"
    ):
        with job.checkpoint() as checkpoint:
            checkpoint.task_owned(owner, [file])
            owner.release([file])
    with catalog.duckdb() as connection:
        ended = connection.execute("SELECT status, reason FROM attempts WHERE purpose = 'checkpoint'").fetchall()
    assert [(status, "was released meanwhile" in reason) for status, reason in ended] == [("aborted", True)]
    catalog.vacuum()
    assert_catalog_sound(catalog)
    assert names(refer(job, owner, owner.write("log", b"2"))) == ["log"]


def test_wrong_calls_are_told_what_to_give(catalog, job) -> None:
    owner, other = catalog.own(JOB, "wal"), catalog.own(JOB, "other")
    file = owner.write("log", b"1")
    with job.checkpoint() as checkpoint:
        for call, words in {
            lambda: checkpoint.task_owned("wal", [file]): r"'wal' is not an owner of files: pass what catalog.own\(job, name\) returned",
            lambda: checkpoint.task_owned(owner, ["log"]): r"'log' is not a file of an owner: pass a list of what owner.write",
            lambda: checkpoint.task_owned(owner, "log"): r"'log' is not a file of an owner",
            lambda: checkpoint.task_owned(owner, [file, file]): "two files of .* are named 'log'",
            lambda: checkpoint.task_owned(other, [file]): "was not written by owner 'other'",
            lambda: owner.write("log", "text"): "file 'log' is given as str: give bytes, a pathlib.Path, or a binary stream",
            lambda: owner.write("log", io.StringIO("text")): "file 'log' is given as StringIO",
            lambda: owner.write("", b""): "'' cannot be the name of a file",
            lambda: catalog.own(JOB, " wal"): "' wal' cannot be the name of an owner",
            lambda: catalog.own("nobody", "wal"): "no job named 'nobody'",
            lambda: catalog.release(JOB, "wall"): "never had an owner named 'wall'; open ones: 'other', 'wal'",
        }.items():
            with pytest.raises(holdfast.UsageError, match=words):
                call()
        checkpoint.task_owned(other, [])
        checkpoint.task_owned(owner, [file])
        with pytest.raises(holdfast.RefusedError, match="state 'wal' is already written"):
            checkpoint.task_owned(owner, [file])
    latest = job.latest()
    with pytest.raises(holdfast.RefusedError, match="has format 'files': use owned_files or read_file"):
        latest.read_bytes("wal")
    with pytest.raises(holdfast.NotFoundError, match="has no file 'lag'; it has: 'log'"):
        latest.read_file("wal", "lag")


def test_an_owner_of_another_job_is_refused(catalog, job) -> None:
    with catalog.coordinate("trains"):
        owner = catalog.own("trains", "wal")
    with (
        pytest.raises(holdfast.RefusedError, match=r"<owner 'wal' of job 'trains' .*> is not of job flights-"),
        job.checkpoint() as checkpoint,
    ):
        checkpoint.task_owned(owner, [])


def test_a_failed_reference_is_not_carried_in_silence(catalog, job) -> None:
    owner = catalog.own(JOB, "wal")
    refer(job, owner, owner.write("log", b"1"))
    with pytest.raises(holdfast.RefusedError, match="the write of 'wal' failed"), job.checkpoint() as checkpoint:
        with pytest.raises(holdfast.UsageError):
            checkpoint.task_owned(owner, ["log"])


def test_referring_to_many_files_compares_each_name_only_a_few_times(catalog, job) -> None:
    compared = 0

    class Name(str):
        __hash__ = str.__hash__
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    owner = catalog.own(JOB, "wal")
    files = [
        holdfast.OwnedFile(
            name=Name(f"segment-{n}"),
            file_id=paths.file_id(owner.attempt, f"f{n}", 0),
            path=paths.owned_file(owner.job_id, "wal", owner.attempt, f"f{n}"),
            size_bytes=1,
            sha256="0" * 64,
        )
        for n in range(500)
    ]
    with pytest.raises(ZeroDivisionError), job.checkpoint() as checkpoint:
        checkpoint.task_owned(owner, files)
        raise ZeroDivisionError
    assert compared < 5 * len(files)
    with pytest.raises(holdfast.UsageError, match="two files of .* are named 'segment-7'"), job.checkpoint() as checkpoint:
        checkpoint.task_owned(owner, [*files, files[7]])
