"""The working directory of a process: where it is, what is in it after a start and a stop, and whose it is."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.errors import RefusedError, UsageError, WorkingDirectoryError
from holdfast.writers.local.disk import LocalFiles
from holdfast.writers.local.local_state import LocalSlot
from holdfast.writers.local.lock import lock_directory
from holdfast.writers.local.working_directory import WorkingDirectory, plan_places
from tests.support.faults import Faults
from tests.support.vanishing import RefusingFiles, VanishingFiles, assert_deleting_changes_nothing, delete_all, read_at_once
from tests.support.world import FakeEnvironment

GENERAL, OF_JM, OF_TM = (f"HOLDFAST_PROCESS_{of}WORKING_DIR" for of in ("", "JOBMANAGER_", "TASKMANAGER_"))
ABC = (3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
SLOT = LocalSlot(
    catalog_id="c0ffee", job_id="flights-1a2b3c4d", operator="main", state="rocks", subtask=0, checkpoint_id=1, attempt="0123456789abcdef"
)

HOLD = """
import sys, holdfast
holder = holdfast.working_directory("taskmanager", "a", base=sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""

FORK_AND_HOLD = """
import os, signal, sys, threading, holdfast
holder = holdfast.working_directory("taskmanager", "a", base=sys.argv[1])
(holder.tmp / "live").touch()
if os.fork():
    os.close(1)
    signal.pause()


def try_it():
    try:
        holdfast.working_directory("taskmanager", "a", base=sys.argv[1])
    except holdfast.RefusedError as error:
        print(error, flush=True)


thread = threading.Thread(target=try_it, daemon=True)
thread.start()
thread.join(20)
holder.close()
holder._locks.close()
print(sorted(os.listdir(holder.path)), os.listdir(holder.path / "tmp"), flush=True)
sys.stdin.read()
print("the child ends", flush=True)
"""

RACE = """
import os, sys
from pathlib import Path
from holdfast.catalog.errors import RefusedError
from holdfast.writers.local.lock import lock_directory
base, won = Path(sys.argv[1]), 0
children = [os.fork() for _ in range(3) if os.getpid() == int(os.environ.setdefault("RACE", str(os.getpid())))]
while won < 100:
    try:
        lock = lock_directory(base / "tm_a")
    except RefusedError:
        os.sched_yield()
        continue
    os.close(os.open(base / "inside", os.O_CREAT | os.O_EXCL))  # fails while another is inside
    os.unlink(base / "inside")
    lock.release()
    won += 1
if all(children):
    sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


def opened(base: Path, process: str = "taskmanager", resource_id: str | None = "a", **options) -> WorkingDirectory:
    return holdfast.working_directory(process, resource_id, base=base, **options)


@pytest.fixture
def start(tmp_path: Path):
    """Start a program with `tmp_path` as its argument; it ends with the test."""
    started: list[subprocess.Popen] = []

    def run(text: str) -> subprocess.Popen:
        command = [sys.executable, "-c", text, str(tmp_path)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for program in started:
        program.kill()
        with program:
            pass


def place(settings: dict[str, str], process: str = "taskmanager", base: str | None = None) -> str:
    return str(
        plan_places(process, "a", base=base, elsewhere=dict.fromkeys(("tmp", "local_state", "blob_storage")), settings=settings).path
    )


# --- where it is


def test_driver_and_executor_have_directories_of_their_own_by_their_ids(tmp_path) -> None:
    with opened(tmp_path, "jobmanager", "a") as driver, opened(tmp_path, "taskmanager", "a") as executor:
        assert driver.path == tmp_path / "jm_a"
        assert executor.path == tmp_path / "tm_a"
        assert executor.tmp == tmp_path / "tm_a" / "tmp"


def test_the_base_is_the_option_else_a_setting_else_the_systems() -> None:
    """Of the settings, that of the process comes before the general one."""
    everything = {GENERAL: "/general", OF_JM: "/jm", OF_TM: "/tm"}
    assert place(everything, base="/option") == "/option/tm_a"
    assert place(everything) == "/tm/tm_a"
    assert place(everything, "jobmanager") == "/jm/jm_a"
    assert place({GENERAL: "/general", OF_JM: "/jm"}) == "/general/tm_a"
    assert place({GENERAL: "/general", OF_TM: ""}) == "/general/tm_a"
    assert place({}) == os.path.realpath(tempfile.gettempdir()) + "/tm_a"


def test_settings_are_the_environment_by_default(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(OF_JM, str(tmp_path / "of jm"))
    with holdfast.working_directory("jobmanager", "a") as found:
        assert found.path == tmp_path / "of jm" / "jm_a"


def test_a_base_is_made_absolute_and_links_on_its_way_are_followed(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to("real")
    assert place({}, base="link") == place({}, base="~/link") == str(tmp_path / "real" / "tm_a")


@pytest.mark.parametrize("given", ["/a,/b", f"/a{os.pathsep}/b", ["/a", "/b"], ("/a",), "s3://bucket/x", "", 5, b"/a", "/a\0"], ids=repr)
def test_a_list_of_bases_or_what_is_no_path_is_refused(tmp_path, given) -> None:
    for option in ("base", "tmp", "local_state", "blob_storage"):
        with pytest.raises(UsageError, match=f"{option}=.* is not one local directory.*not a list"):
            holdfast.working_directory("taskmanager", "a", **{"base": tmp_path, option: given})
    assert os.listdir(tmp_path) == []


def test_a_list_in_a_setting_is_refused_by_its_name() -> None:
    for name in (GENERAL, OF_TM):
        with pytest.raises(UsageError, match=f"{name}='/a,/b' is not one local directory"):
            place({name: "/a,/b"})


@pytest.mark.parametrize("resource_id", ["", ".", "..", "a/b", "../a", "a\0", "a\n", " a", 7, "x" * 250, "ö" * 130], ids=repr)
def test_an_id_that_is_no_file_name_is_refused(tmp_path, resource_id) -> None:
    with pytest.raises(UsageError, match="is not the id of a process"):
        opened(tmp_path, resource_id=resource_id)
    assert os.listdir(tmp_path) == []


def test_an_id_may_be_what_a_cluster_calls_a_process(tmp_path) -> None:
    with opened(tmp_path, resource_id="10.0.0.7:6122-a1b2 (3)") as found:
        assert found.path.name == "tm_10.0.0.7:6122-a1b2 (3)"


def test_without_an_id_it_is_a_fresh_one(tmp_path) -> None:
    environment = FakeEnvironment("process", count())
    with (
        opened(tmp_path, resource_id=None, environment=environment) as one,
        opened(tmp_path, resource_id=None, environment=environment) as two,
    ):
        assert one.path != two.path
        assert {one.path, two.path} == {*tmp_path.glob("tm_????????????????")}


@pytest.mark.parametrize(
    "wrong", [{"local_recovery": "false"}, {"blob_limit_bytes": -1}, {"blob_limit_bytes": True}, {"blob_limit_bytes": 1.5}, {"process": "worker"}], ids=str
)  # fmt: skip
def test_what_is_no_option_is_refused(tmp_path, wrong) -> None:
    with pytest.raises(UsageError):
        opened(tmp_path, **wrong)
    assert os.listdir(tmp_path) == []


# --- what is in it


def test_tmp_is_empty_after_a_start_and_the_rest_survives_stop_and_crash(tmp_path) -> None:
    for stop in (WorkingDirectory.close, lambda directory: directory._locks.close()):
        with opened(tmp_path) as directory:
            (directory.tmp / "store" / "below").mkdir(parents=True)
            (directory.tmp / "store" / "000007.sst").write_bytes(b"abc")
            directory.local_state.keep(SLOT, directory.tmp / "store", {"000007.sst": ABC})
            directory.blob_cache.get(ABC[1], 3, lambda stream: stream.write(b"abc"))
            stop(directory)
            with opened(tmp_path) as restarted:
                assert os.listdir(restarted.tmp) == []
                assert restarted.local_state.find(SLOT, "000007.sst", *ABC).read_bytes() == b"abc"
                assert restarted.blob_cache.get(ABC[1], 3, lambda stream: 1 / 0).read_bytes() == b"abc"
                assert restarted.blob_cache.figures.bytes_fetched == 0


def test_an_orderly_stop_leaves_local_state_and_blobs_only(tmp_path) -> None:
    with opened(tmp_path) as directory:
        (directory.tmp / "x").write_bytes(b"abc")
        directory.local_state.keep(SLOT, directory.tmp, {"x": ABC})
        directory.blob_cache.get(ABC[1], 3, lambda stream: stream.write(b"abc"))
    directory.close()
    assert sorted(os.listdir(tmp_path / "tm_a")) == ["blobStorage", "localState"]
    assert os.listdir(tmp_path) == ["tm_a"], "no lock file"


def test_snapshots_in_tmp_are_linked_and_not_copied(tmp_path) -> None:
    with opened(tmp_path) as directory:
        (directory.tmp / "x").write_bytes(b"abc")
        directory.local_state.keep(SLOT, directory.tmp, {"x": ABC})
        assert directory.local_state.find(SLOT, "x", *ABC).samefile(directory.tmp / "x")


def test_each_directory_may_be_elsewhere_and_is_the_processs_own_there(tmp_path) -> None:
    """Several processes of a host are given the same places, and no start may empty another's `tmp`, nor what a user has there."""
    (tmp_path / "ssd" / "tmp").mkdir(parents=True)
    (tmp_path / "ssd" / "tmp" / "of a user").touch()
    elsewhere = {"tmp": tmp_path / "ssd", "local_state": tmp_path / "local", "blob_storage": str(tmp_path / "blobs")}
    with opened(tmp_path / "base", **elsewhere) as one:
        (one.tmp / "live").write_bytes(b"abc")
        one.local_state.keep(SLOT, one.tmp, {"live": ABC})
        one.blob_cache.get(ABC[1], 3, lambda stream: stream.write(b"abc"))
        with opened(tmp_path / "base", resource_id="b", **elsewhere):
            assert (tmp_path / "ssd" / "tm_a" / "tmp" / "live").exists()
        assert one.local_state.find(SLOT, "live", *ABC).is_relative_to(tmp_path / "local" / "tm_a" / "localState")
        assert (tmp_path / "blobs" / "tm_a" / "blobStorage" / ABC[1]).exists()
        with pytest.raises(RefusedError, match=f"{tmp_path}/ssd/tm_a is in use"):
            opened(tmp_path / "another base", tmp=tmp_path / "ssd")
    assert (tmp_path / "ssd" / "tmp" / "of a user").exists()


def test_without_local_recovery_nothing_is_kept_and_nothing_found(tmp_path) -> None:
    with opened(tmp_path) as directory:
        (directory.tmp / "x").write_bytes(b"abc")
        directory.local_state.keep(SLOT, directory.tmp, {"x": ABC})
    with opened(tmp_path, local_recovery=False) as directory:
        (directory.tmp / "x").write_bytes(b"abc")
        directory.local_state.keep(SLOT, directory.tmp, {"x": ABC})
        assert directory.local_state.find(SLOT, "x", *ABC) is None
        assert directory.local_state.figures.kept_files == 0


def test_the_limit_of_the_cache_is_an_option(tmp_path) -> None:
    with opened(tmp_path, blob_limit_bytes=0) as directory:
        directory.blob_cache.get(ABC[1], 3, lambda stream: stream.write(b"abc"))
    with opened(tmp_path, blob_limit_bytes=2) as directory:
        assert not [*(tmp_path / "tm_a" / "blobStorage").iterdir()]


def test_tmp_that_is_a_link_is_removed_and_what_it_leads_to_stays(tmp_path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "file").touch()
    (tmp_path / "base" / "tm_a").mkdir(parents=True)
    (tmp_path / "base" / "tm_a" / "tmp").symlink_to(tmp_path / "theirs")
    with opened(tmp_path / "base") as directory:
        (directory.tmp / "x").touch()
    assert os.listdir(tmp_path / "theirs") == ["file"]


def test_a_directory_that_is_a_link_is_refused(tmp_path) -> None:
    """In a temporary directory that all users share, its name is known and its place is free."""
    (tmp_path / "theirs" / "tmp").mkdir(parents=True)
    (tmp_path / "theirs" / "tmp" / "file").touch()
    (tmp_path / "tm_a").symlink_to("theirs")
    with pytest.raises(RefusedError, match="is a symbolic link"):
        opened(tmp_path)
    assert (tmp_path / "theirs" / "tmp" / "file").exists()


def test_nobody_else_may_look_into_it(tmp_path) -> None:
    with opened(tmp_path / "new" / "base") as directory:
        lock = tmp_path / "new" / "base" / ".tm_a.lock"
        assert lock.stat().st_mode & 0o777 == 0o600
        for _ in range(2):
            assert directory.tmp.stat().st_mode & 0o777 == 0o700
            made = [place for place in (tmp_path / "new").rglob("*") if place.is_dir()]
            assert {place.stat().st_mode & 0o777 for place in (tmp_path / "new", *made)} == {0o700}
            shutil.rmtree(directory.path)  # and it is made again, by who needs tmp


def plant(kind: str, place: Path, victim: Path) -> None:
    if kind == "link":
        place.symlink_to(victim)
    elif kind == "dangling link":
        victim.rename(victim.with_name("moved"))
        place.symlink_to(victim)
    elif kind == "second name":
        os.link(victim, place)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()


@pytest.mark.parametrize("kind", ["link", "dangling link", "second name", "pipe", "directory"])
def test_what_is_planted_as_the_lock_file_is_refused_and_not_touched(tmp_path, kind: str) -> None:
    """Seen: the file that a link led to was emptied, and signed."""
    victim = tmp_path / "important"
    victim.write_text("important " * 10)
    base = tmp_path / "base"
    base.mkdir()
    plant(kind, base / ".tm_a.lock", victim)
    for _ in range(2):
        with pytest.raises(RefusedError, match=r"the lock file .*/base/\.tm_a\.lock is .*another base"):
            opened(base)
    assert os.path.lexists(base / ".tm_a.lock")
    (kept,) = (place for place in (victim, victim.with_name("moved")) if place.exists())
    assert kept.read_text() == "important " * 10
    assert not list(victim.parent.glob("important?*"))


def test_a_directory_and_a_lock_file_of_another_user_are_refused(tmp_path, monkeypatch) -> None:
    opened(tmp_path).close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(RefusedError, match=rf"/tm_a is a directory of another user \({os.getuid()}\).*another base"):
        opened(tmp_path)
    (tmp_path / ".tm_b.lock").write_text("theirs")
    with pytest.raises(RefusedError, match=rf"\.tm_b\.lock is a file of another user \({os.getuid()}\)"):
        lock_directory(tmp_path / "tm_b")
    assert (tmp_path / ".tm_b.lock").read_text() == "theirs"


def test_a_lock_file_is_signed_and_not_cut(tmp_path) -> None:
    """A dead holder may have signed at greater length."""
    (tmp_path / ".tm_a.lock").write_text("x" * 500)
    lock = lock_directory(tmp_path / "tm_a")
    with pytest.raises(RefusedError, match=rf"in use by this process itself \(pid {os.getpid()}\)"):
        lock_directory(tmp_path / "tm_a")
    assert (tmp_path / ".tm_a.lock").stat().st_size == 500
    lock.release()


def test_a_disk_that_takes_nothing_is_told_with_what_to_do(tmp_path) -> None:
    with pytest.raises(WorkingDirectoryError, match=rf"{tmp_path}/tm_a cannot be used.*Read-only.*{GENERAL}"):
        opened(tmp_path, files=RefusingFiles("make_directory", 30))
    (tmp_path / "file").touch()
    with pytest.raises(WorkingDirectoryError, match="file/tm_a cannot be used"):
        opened(tmp_path / "file")


def test_a_start_that_cannot_empty_tmp_fails_and_lets_go_of_the_directory(tmp_path) -> None:
    class Stubborn(LocalFiles):
        def discard(self, path: Path) -> None:
            pass

    (tmp_path / "tm_a" / "tmp" / "stale").mkdir(parents=True)
    with pytest.raises(WorkingDirectoryError, match="cannot be emptied, it still has 'stale'"):
        opened(tmp_path, files=Stubborn())
    opened(tmp_path).close()


# --- whose it is


def test_a_second_live_process_with_the_same_id_is_refused(start, tmp_path) -> None:
    """A dead holder is not in the way."""
    holder = start(HOLD)
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(RefusedError, match=rf"{tmp_path}/tm_a is in use by pid {holder.pid} of host {socket.gethostname()}.*resource_id="):
        opened(tmp_path)
    with opened(tmp_path, resource_id="b"), opened(tmp_path, "jobmanager"):
        holder.kill()
        holder.communicate()
    assert (tmp_path / ".tm_a.lock").exists()
    with opened(tmp_path), pytest.raises(RefusedError, match=f"pid {os.getpid()}"):
        opened(tmp_path)


def test_a_forked_child_does_not_hold_it_nor_keep_it_past_its_parent(start, tmp_path) -> None:
    holder = start(FORK_AND_HOLD)
    refused = holder.stdout.readline()
    assert refused.startswith(f"working directory {tmp_path}/tm_a is in use by pid {holder.pid} of host")
    assert holder.stdout.readline() == "['tmp'] ['live']\n", "the child's close does nothing"
    with pytest.raises(RefusedError, match=f"in use by pid {holder.pid}"):
        opened(tmp_path)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    opened(tmp_path).close()
    assert holder.communicate()[0] == "the child ends\n", "it lived all the time"


def test_a_program_that_was_started_meanwhile_does_not_keep_it(tmp_path) -> None:
    with opened(tmp_path):
        other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
    try:
        opened(tmp_path).close()
    finally:
        other.communicate()


def test_one_process_may_open_it_once_at_a_time(tmp_path) -> None:
    with opened(tmp_path):
        with pytest.raises(RefusedError, match="this process itself.*close that first"):
            opened(tmp_path)
        (tmp_path / "link").symlink_to(tmp_path)
        with pytest.raises(RefusedError, match="this process itself"):
            opened(tmp_path / "link")
    with opened(tmp_path) as again:
        again.close()
        with opened(tmp_path) as another:
            (another.tmp / "live").touch()
            again.close()
            assert (another.tmp / "live").exists()


def test_deleting_the_directory_lets_no_second_process_in(tmp_path) -> None:
    with opened(tmp_path) as directory:
        delete_all(directory.path)
        with pytest.raises(RefusedError, match="is in use"):
            opened(tmp_path)
        assert directory.tmp.is_dir(), "made again"


def test_of_processes_that_come_and_go_one_is_inside_at_a_time(start, tmp_path) -> None:
    """Each removes the lock file when it goes: who has opened that one meanwhile must not take it for the lock."""
    racers = start(RACE)
    racers.communicate()
    assert racers.returncode == 0
    assert os.listdir(tmp_path) == []


def test_a_lock_file_removed_while_it_is_being_locked_is_not_the_lock(tmp_path, monkeypatch) -> None:
    flock, calls = fcntl.flock, []

    def removed_before(descriptor: int, operation: int) -> None:
        calls.append(operation)
        if len(calls) == 1:
            (tmp_path / ".tm_a.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    lock = lock_directory(tmp_path / "tm_a")
    assert len(calls) == 2
    with pytest.raises(RefusedError):
        lock_directory(tmp_path / "tm_a")
    lock.release()


def test_who_holds_it_may_not_have_signed_yet(tmp_path) -> None:
    lock = lock_directory(tmp_path / "tm_a")
    for signed in (b"", b"\xff\xfe", b"nonsense"):
        (tmp_path / ".tm_a.lock").write_bytes(signed)
        with pytest.raises(RefusedError, match="in use by another process"):
            lock_directory(tmp_path / "tm_a")
    lock.release()


def test_deleting_everything_at_any_call_changes_no_result(tmp_path) -> None:
    """A process with a store in `tmp` that is checkpointed and restored, and is started again, from start to stop."""

    def scene(faults: Faults) -> list[bytes]:
        read = []
        for _ in range(2):
            with opened(tmp_path, files=VanishingFiles(faults)) as directory:
                copy = directory.local_state.find(SLOT, "x", *ABC)
                read.append(copy.read_bytes() if copy else b"abc")
                read.append(read_at_once(lambda: directory.blob_cache.get(ABC[1], 3, lambda stream: stream.write(b"abc"))))
                store = directory.tmp / "store"
                try:
                    store.mkdir()
                    (store / "x").write_bytes(b"abc")
                except FileNotFoundError:  # a store that has lost its files is restored
                    continue
                directory.local_state.keep(SLOT, store, {"x": ABC})
        return read

    assert assert_deleting_changes_nothing(scene, tmp_path / "tm_a") > 30
