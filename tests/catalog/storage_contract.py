"""The duties of a storage adapter as tests: every adapter's test class derives from `StorageContract`."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.catalog.storage import Digest, Storage, StorageConflictError, StoredDirectory, StoredObject

OUTSIDE = ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a/.", "a\\b", "a\0b", ".."]


def listed(storage: Storage, prefix: str = "") -> list[str]:
    return sorted(found.path for found in storage.list(prefix))


def directories(storage: Storage) -> list[str]:
    return [found.path for found in storage.walk("") if isinstance(found, StoredDirectory)]


class StorageContract:
    """A subclass gives the fixture `storage`, empty, and `write_as_engine`, which writes under the root without the adapter."""

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError

    def write_as_engine(self, storage: Storage, path: str, data: bytes) -> None:
        raise NotImplementedError

    def test_created_object_reads_back_with_its_size_and_digest(self, storage: Storage) -> None:
        storage.create("jobs/a/x", b"abc")
        assert storage.read("jobs/a/x") == b"abc"
        assert storage.size("jobs/a/x") == 3
        assert storage.digest("jobs/a/x") == Digest(size_bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())

    def test_empty_object_is_an_object(self, storage: Storage) -> None:
        storage.create("empty", b"")
        assert storage.read("empty") == b""
        assert [*storage.list("")] == [StoredObject(path="empty", size_bytes=0)]

    def test_second_create_conflicts_and_keeps_the_first(self, storage: Storage) -> None:
        storage.create("a/x", b"first")
        with pytest.raises(FileExistsError):
            storage.create("a/x", b"second")
        assert storage.read("a/x") == b"first"
        assert [o.path for o in storage.list("")] == ["a/x"]

    def test_of_many_creators_of_one_name_one_wins(self, storage: Storage) -> None:
        barrier = threading.Barrier(8)

        def create(i: int) -> int | None:
            barrier.wait()
            try:
                storage.create("a/x", str(i).encode())
            except FileExistsError:
                return None
            return i

        with ThreadPoolExecutor(8) as pool:
            winners = [i for i in pool.map(create, range(8)) if i is not None]
        assert len(winners) == 1
        assert storage.read("a/x") == str(winners[0]).encode()

    def test_stream_appears_when_its_block_ends(self, storage: Storage) -> None:
        with storage.create_stream("a/x") as stream:
            stream.write(b"ab")
            with pytest.raises(FileNotFoundError):
                storage.read("a/x")
            stream.write(b"c")
        assert storage.read("a/x") == b"abc"
        assert [o.path for o in storage.list("")] == ["a/x"]

    def test_stream_takes_a_parquet_writer(self, storage: Storage) -> None:
        table = pa.table({"n": [1, 2, 3]})
        with storage.create_stream("a/x.parquet") as stream, pq.ParquetWriter(stream, table.schema) as writer:
            writer.write_table(table)
        assert pq.read_table(pa.BufferReader(storage.read("a/x.parquet"))).equals(table)

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
    def test_stream_whose_block_raises_leaves_nothing(self, storage: Storage, error: type[BaseException]) -> None:
        with pytest.raises(error):  # the block is what is tested
            with storage.create_stream("a/x") as stream:
                stream.write(b"half")
                raise error
        assert [*storage.list("")] == []
        storage.create("a/x", b"whole")
        assert storage.read("a/x") == b"whole"

    def test_stream_to_a_taken_name_conflicts_and_keeps_the_first(self, storage: Storage) -> None:
        storage.create("a/x", b"first")
        with pytest.raises(FileExistsError), storage.create_stream("a/x") as stream:
            stream.write(b"second")
        assert storage.read("a/x") == b"first"
        assert [o.path for o in storage.list("")] == ["a/x"]

    def test_name_taken_while_streaming_conflicts_and_keeps_the_first(self, storage: Storage) -> None:
        with pytest.raises(FileExistsError):  # the block is what is tested
            with storage.create_stream("a/x") as stream:
                stream.write(b"second")
                storage.create("a/x", b"first")
        assert storage.read("a/x") == b"first"

    @pytest.mark.parametrize("verb", ["read", "size", "digest", "make_durable"])
    @pytest.mark.parametrize("path", ["missing", "a", "a/x/below"])
    def test_missing_object_raises_file_not_found(self, storage: Storage, verb: str, path: str) -> None:
        storage.create("a/x", b"")
        with pytest.raises(FileNotFoundError):
            getattr(storage, verb)(path)

    def test_what_an_engine_wrote_reads_and_can_be_made_durable(self, storage: Storage) -> None:
        self.write_as_engine(storage, "jobs/a/part-0", b"rows")
        storage.make_durable("jobs/a/part-0")
        storage.make_durable("jobs/a/part-0")
        assert storage.read("jobs/a/part-0") == b"rows"

    def test_list_gives_all_below_a_prefix(self, storage: Storage) -> None:
        paths = ["a-b", "a.txt", "a/_temporary/0/x", "a/.hidden", "a/b.c/d", "a/b/c", "ab/c", "b"]
        for path in reversed(paths):
            storage.create(path, path.encode())
        assert {*storage.list("")} == {StoredObject(path=p, size_bytes=len(p)) for p in paths}
        assert listed(storage, "a") == sorted(p for p in paths if p.startswith("a/"))
        assert listed(storage, "a/b") == ["a/b/c"]
        assert listed(storage, "b") == listed(storage, "nowhere") == []

    def test_a_walk_gives_a_directory_after_all_that_is_in_it(self, storage: Storage) -> None:
        """And comes back to none: what is in a directory comes together. Where there are no directories, only their contents come."""
        paths = [f"a/{d}/{e}/{n}" for d in "xyz" for e in "pq" for n in range(3)] + ["a/f", "a/y.f", "g"]
        for path in paths:
            storage.create(path, b"12")
        walked = [*storage.walk("")]
        assert {found for found in walked if isinstance(found, StoredObject)} == {StoredObject(path=p, size_bytes=2) for p in paths}
        directories = [found.path for found in walked if isinstance(found, StoredDirectory)]
        assert sorted(directories) in (
            [],
            ["a", *sorted({p.rpartition("/")[0] for p in paths if p.count("/") == 3} | {"a/x", "a/y", "a/z"})],
        )
        for above in {path.rpartition("/")[0] for path in paths} - {""}:
            places = [n for n, found in enumerate(walked) if f"{found.path}/".startswith(f"{above}/")]
            assert places == [*range(places[0], places[-1] + 1)], f"{above} was left, and came back"
            assert above not in directories or walked[places[-1]] == StoredDirectory(path=above)
        assert {found.path for found in storage.walk("a/x") if isinstance(found, StoredDirectory)} in (set(), {"a/x/p", "a/x/q"})
        assert [*storage.walk("nowhere")] == []

    def test_list_goes_on_while_objects_come_and_go(self, storage: Storage) -> None:
        for i in range(5):
            storage.create(f"a/{i}/x", b"")
        seen = []
        for found in storage.list("a"):
            seen.append(found.path)
            storage.delete_many(["a/3/x"])
            storage.remove_empty_directories(["a/3"])
            if len(seen) == 1:
                storage.create("a/9/x", b"")
        assert {"a/0/x", "a/1/x", "a/2/x", "a/4/x"} <= set(seen) <= {f"a/{i}/x" for i in (0, 1, 2, 3, 4, 9)}

    def test_deleted_objects_are_gone_and_missing_ones_are_no_error(self, storage: Storage) -> None:
        for path in ("a/x", "a/y", "b/c/z", "top"):
            storage.create(path, b"")
        assert storage.delete_many(["a/x", "b/c/z", "nowhere/x", "a/y/below", "top"]) == {}
        assert storage.delete_many(["a/x", "b/c/z"]) == storage.delete_many([]) == {}
        with pytest.raises(FileNotFoundError):
            storage.read("a/x")
        assert listed(storage) == ["a/y"]

    def test_hundreds_are_deleted_at_once(self, storage: Storage) -> None:
        for i in range(60):
            storage.create(f"{'abc'[i % 3]}/{i % 7}/{i}", b"")
        storage.create("a/0/stays", b"")
        paths = [path for path in listed(storage) if not path.endswith("stays")]
        assert storage.delete_many([*paths, *(f"a/0/never-{i}" for i in range(300))]) == {}
        assert listed(storage) == ["a/0/stays"]

    def test_deleting_a_directory_deletes_nothing(self, storage: Storage) -> None:
        storage.create("a/x", b"")
        assert storage.delete_many(["a"]) == {}
        assert listed(storage) == ["a/x"]

    # ---- replacement ------------------------------------------------------------------------------------------------

    def test_an_object_is_replaced_where_it_is_as_expected(self, storage: Storage) -> None:
        storage.create("a/x", b"one")
        storage.replace("a/x", b"two, and longer", b"one")
        storage.replace("a/x", b"", b"two, and longer")
        storage.replace("a/x", b"three", b"")
        storage.replace("a/x", b"three", b"three")
        storage.replace("b/new", b"1", None)
        assert (storage.read("a/x"), storage.read("b/new")) == (b"three", b"1")
        assert listed(storage) == ["a/x", "b/new"]

    @pytest.mark.parametrize("expected", [None, b"", b"on", b"one ", b"One", b"two"])
    def test_what_is_not_as_expected_is_kept(self, storage: Storage, expected: bytes | None) -> None:
        storage.create("a/x", b"one")
        with pytest.raises(StorageConflictError, match="nothing was replaced"):
            storage.replace("a/x", b"two", expected)
        assert storage.read("a/x") == b"one"
        assert listed(storage) == ["a/x"]

    @pytest.mark.parametrize("path", ["missing", "a/missing", "nowhere/x", "a/x/below"])
    def test_what_is_missing_is_replaced_only_where_that_is_expected(self, storage: Storage, path: str) -> None:
        storage.create("a/x", b"one")
        with pytest.raises(StorageConflictError, match="nothing was replaced"):
            storage.replace(path, b"two", b"")
        assert listed(storage) == ["a/x"]

    def test_of_many_that_expect_the_same_one_replaces_it(self, storage: Storage) -> None:
        storage.create("a/x", b"0")
        barrier = threading.Barrier(8)

        def replace(i: int) -> list[str]:
            barrier.wait()
            won = []
            for turn in range(5):
                before = storage.read("a/x")
                try:
                    storage.replace("a/x", before + f" {i}.{turn}".encode(), before)
                except StorageConflictError:
                    continue
                won.append(f"{i}.{turn}")
            return won

        with ThreadPoolExecutor(8) as pool:
            won = [name for names in pool.map(replace, range(8)) for name in names]
        assert sorted(storage.read("a/x").decode().split()) == sorted(["0", *won]), "each is built on the one before, and none is lost"
        assert listed(storage) == ["a/x"]

    # ---- second names -----------------------------------------------------------------------------------------------

    def test_a_second_name_outlives_the_first_and_the_other_way_round(self, storage: Storage) -> None:
        for kept, deleted in (("a/x", "b/c/y"), ("d/y", "d/x")):
            storage.create(min(kept, deleted), b"bytes")
            storage.link_or_copy(min(kept, deleted), max(kept, deleted))
            assert storage.digest(kept) == storage.digest(deleted)
            assert storage.delete_many([deleted]) == {}
            assert storage.read(kept) == b"bytes"
        assert listed(storage) == ["a/x", "d/y"]

    def test_replacing_one_name_leaves_the_other(self, storage: Storage) -> None:
        storage.create("x", b"1")
        storage.link_or_copy("x", "y")
        storage.replace("x", b"2", b"1")
        assert (storage.read("x"), storage.read("y")) == (b"2", b"1")

    def test_a_second_name_that_is_taken_conflicts_and_keeps_what_it_names(self, storage: Storage) -> None:
        storage.create("x", b"1")
        storage.create("y", b"2")
        for target in ("y", "x"):
            with pytest.raises(FileExistsError):
                storage.link_or_copy("x", target)
        assert (storage.read("x"), storage.read("y")) == (b"1", b"2")

    @pytest.mark.parametrize("source", ["missing", "a", "a/x/below", "nowhere/x"])
    def test_what_is_missing_gets_no_second_name(self, storage: Storage, source: str) -> None:
        storage.create("a/x", b"1")
        with pytest.raises(FileNotFoundError):
            storage.link_or_copy(source, "b/y")
        assert listed(storage) == ["a/x"]

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def test_a_stream_of_an_object_can_be_read_in_parts(self, storage: Storage) -> None:
        storage.create("a/x", b"0123456789")
        with storage.open_stream("a/x") as stream:
            stream.seek(4)
            assert stream.read(3) == b"456"
            assert stream.read() == b"789"
        with pytest.raises(FileNotFoundError), storage.open_stream("a/none"):
            pass

    def test_removing_directories_never_removes_an_object(self, storage: Storage) -> None:
        storage.create("a/b/x", b"")
        assert storage.remove_empty_directories(["a", "a/b", "a/b/x", "nowhere", "nowhere/below"]) == {}
        assert listed(storage) == ["a/b/x"]

    def test_empty_directories_are_removed_the_deepest_first(self, storage: Storage) -> None:
        for path in ("a/b/c/x", "a/b/y/z", "a/kept/x"):
            storage.create(path, b"")
        assert storage.delete_many(["a/b/c/x", "a/b/y/z"]) == {}
        assert set(directories(storage)) <= {"a", "a/b", "a/b/c", "a/b/y", "a/kept"}
        assert storage.remove_empty_directories(["a", "a/b", "a/b/y", "a/b/c", "a/kept"]) == {}
        assert set(directories(storage)) <= {"a", "a/kept"}
        assert listed(storage) == ["a/kept/x"]

    @pytest.mark.parametrize("path", OUTSIDE)
    def test_path_that_could_leave_the_root_is_refused(self, storage: Storage, path: str) -> None:
        storage.create("kept", b"")
        for verb in (storage.read, storage.size, storage.digest, storage.make_durable):
            with pytest.raises(ValueError, match="relative"):
                verb(path)
        for change in (
            lambda: storage.create(path, b""),
            lambda: storage.replace(path, b"", None),
            lambda: storage.replace(path, b"", b""),
            lambda: storage.link_or_copy("kept", path),
            lambda: storage.link_or_copy(path, "other"),
            lambda: storage.delete_many([path, "kept"]),
            lambda: storage.remove_empty_directories([path]),
        ):
            with pytest.raises(ValueError, match="relative"):
                change()
        assert listed(storage) == ["kept"]
        with pytest.raises(ValueError, match="relative"), storage.create_stream(path):
            pass
        with pytest.raises(ValueError, match="relative"), storage.open_stream(path):
            pass
        if path:
            for walk in (storage.list, storage.walk):
                with pytest.raises(ValueError, match="relative"):
                    walk(path)

    def test_address_has_no_slash_at_its_end(self, storage: Storage) -> None:
        assert storage.address
        assert not storage.address.endswith("/")
