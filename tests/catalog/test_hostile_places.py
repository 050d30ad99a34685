"""What is not a plain file or directory where storage expects one: links, FIFOs, sockets, and files that have grown."""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.errors import AddressError
from holdfast.catalog.storage import Storage, StorageConflictError, read_committed
from holdfast.catalog.storage.local import LocalStorage
from tests.support.front_door import LARGE

GROWN_BYTES = 1 << 40  # sparse: takes no room, and all memory if somebody reads it


def create_stream(storage: Storage, path: str) -> None:
    with storage.create_stream(path) as stream:
        stream.write(b"1")


VERBS: dict[str, Callable[[Storage, str], object]] = {
    "create": lambda storage, path: storage.create(path, b"1"),
    "create_stream": create_stream,
    "make_durable": lambda storage, path: storage.make_durable(path),
    "replace": lambda storage, path: storage.replace(path, b"2", b"precious"),
    "replace none": lambda storage, path: storage.replace(path, b"2", None),
    "link_or_copy from": lambda storage, path: storage.link_or_copy(path, "jobs/b/y"),
    "link_or_copy to": lambda storage, path: storage.link_or_copy(KEPT, path),
}
DELETIONS: dict[str, Callable[[Storage, str], Mapping[str, OSError]]] = {
    "delete_many": lambda storage, path: storage.delete_many([path, KEPT]),
    "remove_empty_directories": lambda storage, path: storage.remove_empty_directories([path, KEPT]),
}
KEPT = "of-its-own/kept"
NEW_FILES = ("create", "create_stream", "replace none", "link_or_copy to")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("linked", ["jobs", "jobs/a", "jobs/a/shared"])
def test_a_linked_directory_is_refused_by_every_verb_that_changes(tmp_path: Path, verb: str, linked: str) -> None:
    """A vacuum deleted, and a writer wrote, wherever the link led."""
    root, outside = linked_away(tmp_path, linked, "nothing" if verb in NEW_FILES else "file")
    before = sorted(outside.rglob("*"))
    with pytest.raises(AddressError, match=f"{linked} is a link on host .* put the directory itself in its place"):
        VERBS[verb](LocalStorage(root), "jobs/a/shared/x")
    assert sorted(outside.rglob("*")) == before


@pytest.mark.parametrize("verb", DELETIONS)
@pytest.mark.parametrize("linked", ["jobs", "jobs/a", "jobs/a/shared"])
def test_what_lies_behind_a_link_is_not_deleted_and_what_does_not_is(tmp_path: Path, verb: str, linked: str) -> None:
    """One link in the catalog must not end every vacuum."""
    root, outside = linked_away(tmp_path, linked, "directory" if "directories" in verb else "file")
    if "directories" in verb:
        (root / KEPT).unlink()
        (root / KEPT).mkdir()
    before = sorted(outside.rglob("*"))
    errors = DELETIONS[verb](LocalStorage(root), "jobs/a/shared/x")
    assert [*errors] == ["jobs/a/shared/x"]
    assert f"{linked} is a link" in str(errors["jobs/a/shared/x"])
    assert sorted(outside.rglob("*")) == before
    assert not (root / KEPT).exists()


def linked_away(tmp_path: Path, linked: str, what: str) -> tuple[Path, Path]:
    """A root in which a directory is a link to one outside, where x is a file, a directory or nothing; and that one."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    place = outside.joinpath(*Path("jobs/a/shared/x").parts[len(Path(linked).parts) :])
    place.parent.mkdir(parents=True)
    if what == "directory":
        place.mkdir()
    elif what == "file":
        place.write_bytes(b"precious")
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(outside)
    LocalStorage(root).create(KEPT, b"1")
    return root, outside


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "volume")
    storage = LocalStorage(tmp_path / "root")
    for verb in ("create", "make_durable", "link_or_copy from"):
        VERBS[verb](storage, "jobs/a/x")
    storage.replace("jobs/a/x", b"2", b"1")
    assert storage.delete_many(["jobs/a/x"]) == storage.remove_empty_directories(["jobs/a"]) == {}
    assert [path.name for path in (tmp_path / "volume" / "jobs").iterdir()] == ["b"]


def test_a_file_in_the_place_of_a_directory_is_a_taken_name(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("jobs", b"1")
    with pytest.raises(FileExistsError):
        storage.create("jobs/a/x", b"1")
    with pytest.raises(FileExistsError):
        storage.link_or_copy("jobs", "jobs/a/x")
    assert storage.delete_many(["jobs/a/x"]) == storage.remove_empty_directories(["jobs/a", "jobs"]) == {}
    assert storage.read("jobs") == b"1"


def exchange(place: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    place.unlink()
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "link to a fifo":
        os.mkfifo(place.with_name("fifo"))
        place.symlink_to("fifo")
    elif kind == "device":
        place.symlink_to("/dev/zero")
    elif kind == "socket":
        here = os.open(".", os.O_RDONLY)
        os.chdir(place.parent)  # the name of a socket has a limit
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name)
        os.fchdir(here)
        os.close(here)
    else:
        place.symlink_to(place.name)


KINDS = ["fifo", "link to a fifo", "device", "socket", "link to itself"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["read", "size", "digest", "make_durable", "open_stream"])
def test_what_is_no_regular_file_is_missing_and_waits_for_nobody(tmp_path: Path, verb: str, kind: str) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a/x", b"1")
    exchange(tmp_path / "a" / "x", kind)
    with pytest.raises(FileNotFoundError):
        with storage.open_stream("a/x") if verb == "open_stream" else open(os.devnull):
            getattr(storage, verb)("a/x")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_neither_replaced_nor_given_a_name(tmp_path: Path, kind: str) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a/x", b"1")
    exchange(tmp_path / "a" / "x", kind)
    before = sorted((path, path.lstat().st_mode) for path in tmp_path.rglob("*"))
    for expected in (b"1", b"", None):
        with pytest.raises(StorageConflictError):
            storage.replace("a/x", b"2", expected)
    with pytest.raises(FileNotFoundError):
        storage.link_or_copy("a/x", "a/y")
    assert sorted((path, path.lstat().st_mode) for path in tmp_path.rglob("*")) == before
    assert storage.delete_many(["a/x"]) == {}, "it is deleted as a name, whatever it is"
    assert not os.path.lexists(tmp_path / "a" / "x")


def test_directories_in_the_place_of_files_are_left_by_every_verb(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("a/x/inside", b"1")
    for expected in (b"1", b"", None):
        with pytest.raises(StorageConflictError):
            storage.replace("a/x", b"2", expected)
    with pytest.raises(FileNotFoundError):
        storage.link_or_copy("a/x", "a/y")
    storage.create("z", b"1")
    with pytest.raises(FileExistsError):
        storage.link_or_copy("z", "a/x")
    assert storage.delete_many(["a/x"]) == storage.remove_empty_directories(["a/x", "a/x/inside"]) == {}
    assert storage.read("a/x/inside") == b"1"


@pytest.fixture
def savepoint(catalog: holdfast.Catalog, tmp_path: Path) -> Path:
    """A savepoint outside of a catalog with a checkpoint."""
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write_bytes("bytes", LARGE)
    return Path(catalog.savepoint("j", "s", target=tmp_path / "target").path)


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_savepoint_of_such_files_is_told_at_once(catalog: holdfast.Catalog, savepoint: Path, kind: str) -> None:
    opened = holdfast.open_savepoint(savepoint)
    exchange(next(savepoint.glob("data/*")), kind)
    with pytest.raises(holdfast.DamagedFileError, match="is missing"):
        opened.read_bytes("bytes")
    assert [damage.what for damage in catalog.verify().damages] == ["missing"]
    exchange(savepoint / "_metadata", kind)
    with pytest.raises(holdfast.NotFoundError, match="not a savepoint"):
        holdfast.open_savepoint(savepoint)
    assert len(catalog.verify().damages) == 1


def test_of_a_file_that_grew_no_more_is_read_than_was_committed(catalog: holdfast.Catalog, savepoint: Path) -> None:
    opened = holdfast.open_savepoint(savepoint)
    for place in (*savepoint.glob("data/*"), *Path(catalog.address).glob("jobs/*/exclusive/*")):
        os.truncate(place, GROWN_BYTES)
    for checkpoint in (opened, catalog.checkpoint("j")):
        with pytest.raises(holdfast.DamagedFileError, match="does not have the digest"):
            checkpoint.read_bytes("bytes")
    with (
        pytest.raises(holdfast.DamagedFileError, match="data/.* has [0-9]+ bytes, not [0-9]+: nothing was begun"),
        catalog.coordinate("other", start=str(savepoint)),
    ):
        pass
    assert [damage.what for damage in catalog.verify().damages] == [f"{GROWN_BYTES} bytes, committed {len(LARGE)}"] * 2
    os.truncate(next(Path(catalog.address).glob("jobs/j-*/chk-1/_metadata")), GROWN_BYTES)
    with pytest.raises(holdfast.DamagedFileError, match="is not the one that was committed"):
        catalog.checkpoint("j")


def test_a_committed_object_is_read_to_one_byte_more(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("x", b"1234")
    assert [read_committed(storage, "x", size) for size in (3, 4, 5)] == [b"1234", b"1234", b"1234"]
    assert read_committed(storage, "x", 2) == b"123"
