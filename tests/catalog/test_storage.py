"""The adapters held to the contract, what is particular to each, and the faults of the tests themselves."""

import errno
import fcntl
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog.errors import AddressError, NotDurableError
from holdfast.catalog.marker import create_marker
from holdfast.catalog.storage import Digest, PassingStorage, Storage, local_deletion
from holdfast.catalog.storage.guard import GuardedStorage
from holdfast.catalog.storage.local import LocalStorage, make_root, open_storage
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.catalog.storage.prefix import PrefixStorage
from tests.catalog.storage_contract import StorageContract
from tests.support.faults import MODES, Crash, Faults, LostResponseError, Mode
from tests.support.faulty_storage import FaultyStorage
from tests.support.invariants import empty_directories


def write_file(root: Path, path: str, data: bytes) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(data)


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        make_root(str(tmp_path / "not" / "yet"))
        return LocalStorage(tmp_path / "not" / "yet")

    def write_as_engine(self, storage: Storage, path: str, data: bytes) -> None:
        write_file(Path(storage.address), path, data)


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> MemoryStorage:
        return MemoryStorage()

    def write_as_engine(self, storage: MemoryStorage, path: str, data: bytes) -> None:  # type: ignore[override]
        storage.write_as_engine(path, data)


class TestPrefixStorage(StorageContract):
    @pytest.fixture(params=["memory", "local"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> PrefixStorage:
        inner = MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path)
        inner.create("beside", b"it")
        inner.create("part/of-another/x", b"1")
        return PrefixStorage(inner, "part/of")

    def write_as_engine(self, storage: PrefixStorage, path: str, data: bytes) -> None:  # type: ignore[override]
        if isinstance(storage.inner, MemoryStorage):
            storage.inner.write_as_engine(f"{storage.prefix}/{path}", data)
        else:
            place = Path(storage.address) / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)


class TestFaultyStorageWithoutFaults(StorageContract):
    @pytest.fixture(params=["memory", "local"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> FaultyStorage:
        return FaultyStorage(MemoryStorage() if request.param == "memory" else LocalStorage(tmp_path))

    def write_as_engine(self, storage: FaultyStorage, path: str, data: bytes) -> None:  # type: ignore[override]
        if isinstance(storage.inner, MemoryStorage):
            storage.inner.write_as_engine(path, data)
        else:
            write_file(Path(storage.address), path, data)


class Syscalls:
    """Records what reaches the disk: (`sync`, path), (`link`, path), (`unlink`, path), in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.root = root
        fsync, link, unlink = os.fsync, os.link, os.unlink

        def record_fsync(descriptor: int) -> None:
            self.calls.append(("sync", self.name_of(os.readlink(f"/proc/self/fd/{descriptor}"))))
            fsync(descriptor)

        def record_link(source: str, target: str, *, dst_dir_fd: int, **more: Any) -> None:
            self.calls.append(("link", self.name_of(target, dst_dir_fd)))
            link(source, target, dst_dir_fd=dst_dir_fd, **more)

        def record_unlink(path: str, *, dir_fd: int | None = None) -> None:
            self.calls.append(("unlink", self.name_of(path, dir_fd)))
            unlink(path, dir_fd=dir_fd)

        monkeypatch.setattr(os, "fsync", record_fsync)
        monkeypatch.setattr(os, "link", record_link)
        monkeypatch.setattr(os, "unlink", record_unlink)

    def name_of(self, path: str, directory: int | None = None) -> str:
        above = self.root if directory is None else os.readlink(f"/proc/self/fd/{directory}")
        name = os.path.relpath(os.path.join(above, path), self.root)
        return name.split(".")[0] + ".tmp" if name.endswith(".tmp") else name


@pytest.fixture
def syscalls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Syscalls:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("names of open files are known on Linux only")
    return Syscalls(monkeypatch, tmp_path)


def test_create_syncs_the_bytes_before_the_name_and_then_the_directories(tmp_path: Path, syscalls: Syscalls) -> None:
    """That is, every directory up to the root."""
    LocalStorage(tmp_path).create("jobs/a/x", b"1")
    assert syscalls.calls == [
        ("sync", "jobs/a/x.tmp"),
        ("link", "jobs/a/x"),
        ("unlink", "jobs/a/x.tmp"),
        ("sync", "jobs/a"),
        ("sync", "jobs"),
        ("sync", "."),
    ]


def test_directories_that_another_process_made_are_synced_too(tmp_path: Path, syscalls: Syscalls) -> None:
    """Its maker may not have come to that yet: power loss would take the directory, and our file with it."""
    storage = LocalStorage(tmp_path)
    storage.create("jobs/a/x", b"1")
    syscalls.calls.clear()
    storage.create("jobs/a/y", b"1")
    assert syscalls.calls[-3:] == [("sync", "jobs/a"), ("sync", "jobs"), ("sync", ".")]


def test_a_new_root_is_synced_into_its_parent(tmp_path: Path, syscalls: Syscalls) -> None:
    make_root(str(tmp_path / "new" / "root"))
    assert syscalls.calls[:3] == [("sync", "new"), ("sync", "."), ("sync", "..")]


def test_a_root_that_somebody_else_made_is_synced_into_its_parent(tmp_path: Path, syscalls: Syscalls) -> None:
    """By mkdir, or by a creation that was killed before its sync: everything below it was durable, and its name was not."""
    (tmp_path / "root").mkdir()
    make_root(str(tmp_path / "root"))
    assert syscalls.calls[0] == ("sync", ".")


def test_a_root_that_is_a_link_is_synced_where_it_lies(tmp_path: Path, syscalls: Syscalls) -> None:
    (tmp_path / "elsewhere" / "root").mkdir(parents=True)
    (tmp_path / "root").symlink_to(tmp_path / "elsewhere" / "root")
    make_root(str(tmp_path / "root"))
    assert syscalls.calls[0] == ("sync", "elsewhere")


@pytest.mark.parametrize("path", ["x", "jobs/a/x"])
def test_a_root_that_is_missing_is_told_and_never_made(tmp_path: Path, path: str) -> None:
    """A host without the mount wrote to its own disk, and the checkpoint was committed with files that nobody else would ever see."""
    storage = LocalStorage(tmp_path / "mount" / "catalog")
    with pytest.raises(AddressError, match="mount/catalog is not a directory on host .* Mount it on every host"):
        storage.create(path, b"1")
    with pytest.raises(AddressError, match="does not see the catalog's file system"), storage.create_stream(path) as stream:
        stream.write(b"1")
    assert list(tmp_path.iterdir()) == []


def test_make_durable_syncs_the_file_and_every_directory_up_to_the_root(tmp_path: Path, syscalls: Syscalls) -> None:
    write_file(tmp_path, "jobs/a/b/part-0", b"1")
    LocalStorage(tmp_path).make_durable("jobs/a/b/part-0")
    assert syscalls.calls == [("sync", name) for name in ("jobs/a/b/part-0", "jobs/a/b", "jobs/a", "jobs", ".")]


def test_each_directory_is_synced_once_and_after_the_last_unlink(tmp_path: Path, syscalls: Syscalls) -> None:
    storage = LocalStorage(tmp_path)
    paths = [f"{directory}/{i}" for directory in ("a", "a/b", "c") for i in range(3)]
    for path in [*paths, "a/stays"]:
        storage.create(path, b"1")
    syscalls.calls.clear()
    assert storage.delete_many(paths) == {}
    assert sorted(syscalls.calls[:9]) == sorted(("unlink", path) for path in paths)
    assert sorted(syscalls.calls[9:]) == [("sync", "a"), ("sync", "a/b"), ("sync", "c")]


def test_what_somebody_else_removed_is_synced_as_well(tmp_path: Path, syscalls: Syscalls) -> None:
    """It may have died before its own sync. Where the directory is gone too, that is written in the deepest one that is left."""
    storage = LocalStorage(tmp_path)
    storage.create("a/b/x", b"1")
    (tmp_path / "a" / "b" / "x").unlink()
    syscalls.calls.clear()
    assert storage.delete_many(["a/b/x"]) == {}
    assert syscalls.calls == [("unlink", "a/b/x"), ("sync", "a/b")]
    (tmp_path / "a" / "b").rmdir()
    syscalls.calls.clear()
    assert storage.delete_many(["a/b/x", "a/b/y", "a/c/d/z", "e/z"]) == {}
    assert sorted(syscalls.calls) == [("sync", "."), ("sync", "a")]


def test_the_parents_that_survive_are_synced_once_after_all_removals(tmp_path: Path, syscalls: Syscalls) -> None:
    storage = LocalStorage(tmp_path)
    for directory in ("a/b/c", "a/b/d", "e/f", "g/h"):
        (tmp_path / directory).mkdir(parents=True)
    storage.create("g/stays", b"1")
    syscalls.calls.clear()
    assert storage.remove_empty_directories(["g", "g/h", "a", "a/b", "a/b/c", "a/b/d", "e/f"]) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e", "g"]
    assert sorted(syscalls.calls) == [("sync", "."), ("sync", "e"), ("sync", "g")]


@pytest.fixture
def no_doubts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test's failed syncs leave in the process's memory."""
    monkeypatch.setattr(local_deletion, "_doubted", {})


def fail_syncs_of(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Once, as the system does: the next one succeeds over whatever became of the directory."""
    fsync, left = os.fsync, [directory]

    def failing(descriptor: int) -> None:
        if left and os.path.samestat(os.fstat(descriptor), directory.stat()):
            left.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)


@pytest.mark.usefixtures("no_doubts")
@pytest.mark.parametrize("again", [LocalStorage, lambda root: PrefixStorage(LocalStorage(root), "jobs")])
def test_after_a_failed_sync_nothing_of_the_directory_is_called_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Callable[[Path], Storage]
) -> None:
    """Nor is it later in this process, by whatever object: the second sync would succeed, and the names may be back after a loss of power."""
    storage = LocalStorage(tmp_path)
    for path in ("jobs/a/x", "jobs/a/y", "jobs/a/z", "jobs/b/x"):
        storage.create(path, b"1")
    fail_syncs_of(monkeypatch, tmp_path / "jobs" / "a")
    errors = storage.delete_many(["jobs/a/x", "jobs/a/y", "jobs/a/missing", "jobs/b/x"])
    assert set(errors) == {"jobs/a/x", "jobs/a/y", "jobs/a/missing"}
    for error in errors.values():
        assert isinstance(error, NotDurableError)
        assert "jobs/a could not be made durable" in str(error)
        assert error.errno == errno.EIO
    other = again(tmp_path)
    within = "" if isinstance(other, LocalStorage) else "jobs/"
    assert set(other.delete_many([path.removeprefix(within) for path in ("jobs/a/x", "jobs/a/z")])) == {
        path.removeprefix(within) for path in ("jobs/a/x", "jobs/a/z")
    }
    storage.create("jobs/a/new", b"1")
    assert storage.read("jobs/a/new") == b"1", "what is written there now is synced by itself"


@pytest.mark.usefixtures("no_doubts")
def test_directories_whose_parent_could_not_be_synced_are_not_called_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for directory in ("a/b", "c/d"):
        (tmp_path / directory).mkdir(parents=True)
    fail_syncs_of(monkeypatch, tmp_path / "a")
    assert [*LocalStorage(tmp_path).remove_empty_directories(["a/b", "c/d"])] == ["a/b"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may delete everything")
def test_what_may_not_be_deleted_is_told_and_the_rest_is_gone(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    for path in ("a/x", "a/y", "b/x", "c/d/x"):
        storage.create(path, b"1")
    (tmp_path / "a").chmod(0o500)
    (tmp_path / "c").chmod(0)
    try:
        errors = storage.delete_many(["a/x", "a/y", "b/x", "c/d/x"])
        stuck = storage.remove_empty_directories(["a", "b", "c/d"])
    finally:
        (tmp_path / "a").chmod(0o700)
        (tmp_path / "c").chmod(0o700)
    assert {path: error.errno for path, error in errors.items()} == dict.fromkeys(("a/x", "a/y", "c/d/x"), errno.EACCES)
    assert [*stuck] == ["c/d"]
    assert sorted(o.path for o in storage.list("")) == ["a/x", "a/y", "c/d/x"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EIO])
@pytest.mark.parametrize("verb", ["unlink", "rmdir"])
def test_of_what_cannot_be_deleted_only_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, number: int) -> None:
    """As whom the tests run."""
    storage, real = LocalStorage(tmp_path), getattr(os, verb)
    for name in ("x", "y", "z"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / name).mkdir() if verb == "rmdir" else (tmp_path / "a" / name).touch()

    def refusing(path: str, *, dir_fd: int) -> None:
        if path == "y":
            raise OSError(number, os.strerror(number), path)
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, verb, refusing)
    delete = storage.delete_many if verb == "unlink" else storage.remove_empty_directories
    errors = delete(["a/x", "a/y", "a/z"])
    assert {path: (error.errno, error.filename) for path, error in errors.items()} == {"a/y": (number, str(tmp_path / "a" / "y"))}
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["y"]


@pytest.mark.parametrize("paths", [["a/x"], ["a/x", "b/y"]])
def test_where_the_root_is_missing_nothing_is_called_gone(tmp_path: Path, paths: list[str]) -> None:
    storage = LocalStorage(tmp_path / "mount")
    for delete in (storage.delete_many, storage.remove_empty_directories):
        with pytest.raises(AddressError, match="does not see the catalog's file system"):
            delete(paths)


@pytest.mark.parametrize("when", ["unlink", "fsync"])
def test_a_root_that_is_lost_on_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """What is looked for afterwards is missing there, and is not gone for that."""
    root = tmp_path / "mount"
    make_root(str(root))
    storage = LocalStorage(root)
    for path in ("a/x", "b/y", "c/z"):
        storage.create(path, b"1")
    real = getattr(os, when)
    lost = threading.Lock()

    def losing(*arguments: Any, **more: Any) -> None:
        real(*arguments, **more)
        if lost.acquire(blocking=False):
            root.rename(tmp_path / "unmounted")

    monkeypatch.setattr(os, when, losing)
    monkeypatch.setattr(local_deletion, "THREADS", 1)
    monkeypatch.setattr(local_deletion, "PIECE", 1)
    with pytest.raises(AddressError, match="does not see the catalog's file system"):
        storage.delete_many(["a/x", "b/y", "c/z"])


@pytest.mark.parametrize("there", ["nothing", "another catalog", "an empty directory"])
def test_what_is_missing_after_the_mount_was_lost_is_not_called_gone(tmp_path: Path, there: str) -> None:
    """The catalog was there before the batch: the marker is asked for again after it."""
    root = tmp_path / "mount"
    make_root(str(root))
    storage = LocalStorage(root)
    create_marker(storage, "mine")
    storage.create("a/x", b"1")

    class Unmounted(PassingStorage):
        def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
            root.rename(tmp_path / "unmounted")
            if there != "nothing":
                make_root(str(root))
            if there == "another catalog":
                create_marker(storage, "other")
            return self.inner.delete_many(paths) if there != "nothing" else {}

    with pytest.raises(AddressError, match="is not a directory|is not the root of catalog mine"):
        GuardedStorage(Unmounted(storage), "mine").delete_many(["a/x"])
    assert (tmp_path / "unmounted" / "a" / "x").exists()


def test_a_replacement_is_durable_before_and_after_it_is_seen(tmp_path: Path, syscalls: Syscalls, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, rename = LocalStorage(tmp_path), os.rename
    storage.create("a/x", b"1")
    os.chmod(tmp_path / "a" / "x", 0o640)
    syscalls.calls.clear()

    def record(source: str, target: str, **more: Any) -> None:
        syscalls.calls.append(("rename", target))
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", record)
    storage.replace("a/x", b"2", b"1")
    assert [call for call in syscalls.calls if call[0] != "unlink"] == [("sync", "a/x.tmp"), ("rename", "x"), ("sync", "a"), ("sync", ".")]
    assert stat.S_IMODE((tmp_path / "a" / "x").stat().st_mode) == 0o640
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]


@pytest.mark.parametrize("fails", ["rename", "fsync", "flock"])
def test_a_replacement_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("x", b"1")

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as patched:
        patched.setattr(fcntl if fails == "flock" else os, fails, refuse)
        with pytest.raises(OSError, match="No locks available|cannot be replaced safely|could not be made durable"):
            storage.replace("x", b"2", b"1")
    assert [(o.path, storage.read(o.path)) for o in storage.list("")] == [("x", b"1")]
    storage.replace("x", b"2", b"1")
    assert storage.read("x") == b"2"


REPLACER = """
import sys
from pathlib import Path
from holdfast.catalog.storage import StorageConflictError
from holdfast.catalog.storage.local import LocalStorage
storage, name, won = LocalStorage(Path(sys.argv[1])), sys.argv[2], 0
while won < 20:
    before = storage.read("x")
    try:
        storage.replace("x", before + f" {name}.{won}".encode(), before)
    except StorageConflictError:
        continue
    won += 1
"""


@pytest.mark.slow
def test_processes_that_replace_one_object_lose_nothing(tmp_path: Path) -> None:
    LocalStorage(tmp_path).create("x", b"0")
    running = [subprocess.Popen([sys.executable, "-c", REPLACER, str(tmp_path), name]) for name in "abc"]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert sorted(LocalStorage(tmp_path).read("x").decode().split()[1:]) == sorted(f"{name}.{i}" for name in "abc" for i in range(20))
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_second_name_is_a_link_with_bytes_and_names_synced(tmp_path: Path, syscalls: Syscalls) -> None:
    """What an engine wrote may never have been synced."""
    write_file(tmp_path, "a/x", b"1")
    storage = LocalStorage(tmp_path)
    storage.link_or_copy("a/x", "b/y")
    assert os.path.samefile(tmp_path / "a" / "x", tmp_path / "b" / "y")
    assert syscalls.calls == [("sync", "a/x"), ("link", "b/y"), ("sync", "b"), ("sync", ".")]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_there_are_no_links_a_copy_is_made_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Such as across a mount below the root, or of another user's file."""
    storage, link = LocalStorage(tmp_path), os.link
    storage.create("a/x", b"bytes")

    def refuse(source: str, target: str, **more: Any) -> None:
        if source == "x":
            raise OSError(number, os.strerror(number))
        link(source, target, **more)

    monkeypatch.setattr(os, "link", refuse)
    storage.link_or_copy("a/x", "b/y")
    assert storage.read("b/y") == b"bytes"
    assert not os.path.samefile(tmp_path / "a" / "x", tmp_path / "b" / "y")
    monkeypatch.setattr(LocalStorage, "digest", lambda *_: Digest(size_bytes=5, sha256="other"))
    with pytest.raises(OSError, match="The copy is not what a/x is, and was deleted"):
        storage.link_or_copy("a/x", "b/z")
    assert sorted(o.path for o in storage.list("")) == ["a/x", "b/y"]


def test_what_takes_the_source_s_place_meanwhile_gets_no_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, link = LocalStorage(tmp_path), os.link
    storage.create("x", b"1")

    def exchanged(source: str, target: str, **more: Any) -> None:
        (tmp_path / "x").rename(tmp_path / "moved")
        (tmp_path / "x").write_bytes(b"a stranger's")
        link(source, target, **more)

    monkeypatch.setattr(os, "link", exchanged)
    with pytest.raises(FileNotFoundError):
        storage.link_or_copy("x", "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["moved", "x"]


def test_stream_that_fails_to_sync_leaves_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        LocalStorage(tmp_path).create("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_links_are_listed_as_objects_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_file(outside, "precious", b"1")
    root = tmp_path / "root"
    write_file(root, "a/x", b"1")
    (root / "a" / "way-out").symlink_to(outside)
    (root / "a" / "dangling").symlink_to(root / "nowhere")
    storage = LocalStorage(root)
    assert sorted(o.path for o in storage.list("")) == ["a/dangling", "a/way-out", "a/x"]
    assert storage.delete_many(["a/way-out"]) == {}
    assert (outside / "precious").read_bytes() == b"1"


def test_a_walk_gives_empty_directories_and_their_removal_is_never_deep(tmp_path: Path) -> None:
    for path in ("a/b/c", "a/d", "e/f"):
        (tmp_path / path).mkdir(parents=True)
    write_file(tmp_path, "a/full/x", b"1")
    storage = LocalStorage(tmp_path)
    assert empty_directories(storage) == ["a/b/c", "a/b", "a/d", "e/f", "e"]
    assert empty_directories(storage, "e") == ["e/f"]
    assert storage.remove_empty_directories(["a/b", "e/f"]) == {}
    assert empty_directories(storage) == ["a/b/c", "a/b", "a/d", "e"]


def test_a_listing_holds_no_directory_in_memory(tmp_path: Path) -> None:
    """It is read as it is asked for: what was deleted before the system was asked for it is not given."""
    for i in range(5_000):
        (tmp_path / f"{i}").touch()
    listing = LocalStorage(tmp_path).list("")
    next(listing)
    for path in tmp_path.iterdir():
        path.unlink()
    assert len([*listing]) < 4_000


def test_local_storage_travels_to_other_processes(tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(LocalStorage(tmp_path)))
    storage.create("x", b"1")
    assert (tmp_path / "x").read_bytes() == b"1"
    assert storage == LocalStorage(tmp_path)


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    LocalStorage(tmp_path).create("x", b"1")
    write_file(tmp_path, "y", b"1")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_addresses_of_a_file_system_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = str(tmp_path / "a b")
    for address in (
        tmp_path / "a b",
        "a b",
        "./a b/",
        f"file:{tmp_path}/a%20b",
        f"file://{tmp_path}/a%20b",
        f"FILE://localhost{tmp_path}/a b/",
    ):
        assert open_storage(address).address == expected
    assert open_storage(f"/{tmp_path}/a b").address == expected
    assert open_storage("./s3:x").address == str(tmp_path / "s3:x")
    assert open_storage(Path("s3:x")).address == str(tmp_path / "s3:x")


def test_a_leading_tilde_in_a_text_is_the_user_s_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_storage("~").address == str(tmp_path / "home")
    assert open_storage("~/a/b").address == str(tmp_path / "home/a/b")
    for literal in ("./~/a", f"{tmp_path}/~/a", Path("~/a")):
        assert open_storage(literal).address == str(tmp_path / "~/a")


def test_a_home_that_does_not_exist_is_no_directory_of_that_name() -> None:
    with pytest.raises(AddressError, match="no home directory"):
        open_storage("~no.such.user/catalog")


@pytest.mark.parametrize("scheme", ["s3", "s3a", "hdfs", "gs", "abfss", "dbfs", "http", "S3"])
@pytest.mark.parametrize("rest", ["://bucket/prefix", ":/x"])
def test_other_storage_is_refused_by_name(scheme: str, rest: str) -> None:
    with pytest.raises(AddressError, match=f"'{scheme.lower()}', so far only file systems are supported"):
        open_storage(scheme + rest)


@pytest.mark.parametrize("address", ["", "a\0b", "file:", "file:x", "file://", "file://host/x", "file://x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(AddressError):
        open_storage(address)


def test_memory_forgets_at_power_loss_what_was_not_made_durable() -> None:
    storage = MemoryStorage()
    storage.create("created", b"1")
    storage.write_as_engine("synced", b"1")
    storage.write_as_engine("lost", b"1")
    storage.make_durable("synced")
    storage.lose_power()
    assert [o.path for o in storage.list("")] == ["created", "synced"]


def create(storage: Storage) -> None:
    storage.create("x", b"1")


def stream(storage: Storage) -> None:
    with storage.create_stream("x") as out:
        out.write(b"1")


@pytest.mark.parametrize(("write", "call"), [(create, 1), (stream, 2)])
@pytest.mark.parametrize("mode", MODES)
def test_fault_has_the_effect_that_its_mode_says(tmp_path: Path, write: Callable[[Storage], None], call: int, mode: Mode) -> None:
    for inner in (MemoryStorage(), LocalStorage(tmp_path)):
        storage = FaultyStorage(inner, Faults({call: mode}))
        with pytest.raises(LostResponseError if mode == "lost" else Crash):
            write(storage)
        assert [o.path for o in inner.list("")] == ([] if mode == "before" else ["x"])


@pytest.mark.parametrize("mode", MODES)
def test_stream_that_fails_at_its_start_writes_nothing(tmp_path: Path, mode: Mode) -> None:
    for inner in (MemoryStorage(), LocalStorage(tmp_path)):
        with pytest.raises(LostResponseError if mode == "lost" else Crash):
            stream(FaultyStorage(inner, Faults({1: mode})))
        assert [*inner.list("")] == []


def test_a_dead_process_does_nothing_more_and_no_handler_saves_it() -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner, Faults({2: "before"}))
    storage.create("a", b"")

    def careful() -> None:
        try:
            storage.create("b", b"")
        except Exception:
            pytest.fail("a crash was swallowed")
        finally:
            storage.delete_many(["a"])

    with pytest.raises(Crash):
        careful()
    assert [o.path for o in inner.list("")] == ["a"]


def test_crash_within_a_stream_publishes_nothing() -> None:
    inner = MemoryStorage()
    storage = FaultyStorage(inner, Faults({2: "after"}))
    with pytest.raises(Crash), storage.create_stream("x"):
        storage.create("y", b"")
    assert [o.path for o in inner.list("")] == ["y"]


def test_process_goes_on_after_a_lost_response() -> None:
    storage = FaultyStorage(MemoryStorage(), Faults({1: "lost"}))
    with pytest.raises(LostResponseError):
        storage.create("x", b"1")
    assert storage.read("x") == b"1"


def test_lost_response_hides_what_the_call_raised() -> None:
    storage = FaultyStorage(MemoryStorage(), Faults({1: "lost"}))
    with pytest.raises(LostResponseError) as raised:
        storage.read("missing")
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_hook_runs_whole_operations_between_two_calls_uncounted() -> None:
    inner = MemoryStorage()
    seen = []

    def between(n: int, verb: str, path: str) -> None:
        seen.append((n, verb, path, len([*storage.list("")])))

    storage = FaultyStorage(inner, Faults(on_call=between))
    storage.create("x", b"1")
    with storage.create_stream("y"):
        pass
    storage.delete_many(["x"])
    assert seen == [
        (1, "create", "x", 0),
        (2, "create_stream", "y", 1),
        (3, "publish", "y", 1),
        (4, "delete", "x", 2),
        (5, "sync", "", 1),
    ]
    assert storage.faults.calls == 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", range(1, 6))
def test_a_deletion_of_many_breaks_at_any_path_and_at_any_sync(tmp_path: Path, mode: Mode, call: int) -> None:
    """The others are gone, unless the process is: then what was before is, and what comes after is not."""
    paths = ["a/x", "a/y", "b/z"]
    for inner in (MemoryStorage(), LocalStorage(tmp_path)):
        for path in paths:
            inner.create(path, b"1")
        storage = FaultyStorage(inner, Faults({call: mode}))
        deleted = set(paths[: call - (mode == "before")])
        if mode == "lost":
            errors = storage.delete_many(paths)
            assert [*errors] == [[paths[0]], [paths[1]], [paths[2]], paths[:2], paths[2:]][call - 1]
            deleted = set(paths)
        else:
            with pytest.raises(Crash):
                storage.delete_many(paths)
        assert {o.path for o in inner.list("")} == set(paths) - deleted


def test_one_script_counts_the_calls_of_several_ports() -> None:
    faults = Faults({2: "before"})
    first, second = FaultyStorage(MemoryStorage(), faults), FaultyStorage(MemoryStorage(), faults)
    first.create("x", b"")
    with pytest.raises(Crash):
        second.create("x", b"")
    with pytest.raises(Crash):
        first.read("x")
