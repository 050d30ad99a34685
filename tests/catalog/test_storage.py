"""The adapters held to the contract, what is particular to each, and the faults of the tests themselves."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.catalog.errors import AddressError
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import LocalStorage, make_root, open_storage
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.catalog.storage.prefix import PrefixStorage
from tests.catalog.storage_contract import StorageContract
from tests.support.faults import MODES, Crash, Faults, LostResponseError, Mode
from tests.support.faulty_storage import FaultyStorage


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

        def record_unlink(path: str, *, dir_fd: int) -> None:
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


def test_delete_syncs_the_directory_even_if_somebody_else_removed_the_file(tmp_path: Path, syscalls: Syscalls) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a/b/x", b"1")
    syscalls.calls.clear()
    storage.delete("a/b/x")
    assert syscalls.calls == [("unlink", "a/b/x"), ("sync", "a/b")]
    (tmp_path / "a" / "b").rmdir()
    syscalls.calls.clear()
    storage.delete("a/b/x")
    assert syscalls.calls == [("sync", "a")]


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
    assert [o.path for o in storage.list("")] == ["a/dangling", "a/way-out", "a/x"]
    storage.delete("a/way-out")
    assert (outside / "precious").read_bytes() == b"1"


def test_empty_directories_come_deepest_first_and_without_the_prefix(tmp_path: Path) -> None:
    for path in ("a/b/c", "a/d", "e/f"):
        (tmp_path / path).mkdir(parents=True)
    write_file(tmp_path, "a/full/x", b"1")
    storage = LocalStorage(tmp_path)
    assert [*storage.empty_directories("")] == ["a/b/c", "a/b", "a/d", "e/f", "e"]
    assert [*storage.empty_directories("e")] == ["e/f"]
    assert storage.remove_empty_directory("a/b/c")
    assert not (tmp_path / "a/b/c").exists()


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
            storage.delete("a")

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
    storage.delete("x")
    assert seen == [(1, "create", "x", 0), (2, "create_stream", "y", 1), (3, "publish", "y", 1), (4, "delete", "x", 2)]
    assert storage.faults.calls == 4


def test_one_script_counts_the_calls_of_several_ports() -> None:
    faults = Faults({2: "before"})
    first, second = FaultyStorage(MemoryStorage(), faults), FaultyStorage(MemoryStorage(), faults)
    first.create("x", b"")
    with pytest.raises(Crash):
        second.create("x", b"")
    with pytest.raises(Crash):
        first.read("x")
