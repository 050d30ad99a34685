"""The duties of a storage adapter as tests: every adapter's test class derives from `StorageContract`."""

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.catalog.storage import Digest, Storage, StoredObject

OUTSIDE = ["", "/a", "../a", "a/../b", "a//b", "a/", "./a", "a/.", "a\\b", "a\0b", ".."]


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

    def test_list_gives_all_below_a_prefix_in_the_order_of_paths(self, storage: Storage) -> None:
        paths = ["a-b", "a.txt", "a/_temporary/0/x", "a/.hidden", "a/b", "a/b.c/d", "a/b/c", "ab/c", "b"]
        paths.remove("a/b")  # a name cannot be object and directory where directories exist
        for path in reversed(paths):
            storage.create(path, path.encode())
        assert [*storage.list("")] == [StoredObject(path=p, size_bytes=len(p)) for p in sorted(paths)]
        assert [o.path for o in storage.list("a")] == sorted(p for p in paths if p.startswith("a/"))
        assert [o.path for o in storage.list("a/b")] == ["a/b/c"]
        assert [*storage.list("b")] == []
        assert [*storage.list("nowhere")] == []

    def test_list_goes_on_while_objects_come_and_go(self, storage: Storage) -> None:
        for i in range(5):
            storage.create(f"a/{i}/x", b"")
        seen = []
        for found in storage.list("a"):
            seen.append(found.path)
            storage.delete("a/3/x")
            storage.remove_empty_directory("a/3")
            if len(seen) == 1:
                storage.create("a/9/x", b"")
        assert {"a/0/x", "a/1/x", "a/2/x", "a/4/x"} <= set(seen) <= {f"a/{i}/x" for i in (0, 1, 2, 3, 4, 9)}

    def test_deleted_object_is_gone_and_deleting_again_is_no_error(self, storage: Storage) -> None:
        storage.create("a/x", b"")
        storage.create("a/y", b"")
        storage.delete("a/x")
        storage.delete("a/x")
        storage.delete("nowhere/x")
        storage.delete("a/y/below")
        with pytest.raises(FileNotFoundError):
            storage.read("a/x")
        assert [o.path for o in storage.list("")] == ["a/y"]

    def test_deleting_a_directory_deletes_nothing(self, storage: Storage) -> None:
        storage.create("a/x", b"")
        storage.delete("a")
        assert [o.path for o in storage.list("")] == ["a/x"]

    def test_a_stream_of_an_object_can_be_read_in_parts(self, storage: Storage) -> None:
        storage.create("a/x", b"0123456789")
        with storage.open_stream("a/x") as stream:
            stream.seek(4)
            assert stream.read(3) == b"456"
            assert stream.read() == b"789"
        with pytest.raises(FileNotFoundError), storage.open_stream("a/none"):
            pass

    def test_removing_a_directory_never_removes_an_object(self, storage: Storage) -> None:
        storage.create("a/b/x", b"")
        for path in ("a", "a/b", "a/b/x", "nowhere"):
            assert not storage.remove_empty_directory(path)
        assert [o.path for o in storage.list("")] == ["a/b/x"]

    def test_empty_directories_are_those_that_can_be_removed_in_their_order(self, storage: Storage) -> None:
        for path in ("a/b/c/x", "a/b/y/z", "a/kept/x"):
            storage.create(path, b"")
        assert [*storage.empty_directories("")] == []
        storage.delete("a/b/c/x")
        storage.delete("a/b/y/z")
        assert set(storage.empty_directories("a")) <= {"a/b", "a/b/c", "a/b/y"}
        for directory in storage.empty_directories("a"):
            assert storage.remove_empty_directory(directory)
        assert [*storage.empty_directories("")] == []
        assert [o.path for o in storage.list("")] == ["a/kept/x"]

    @pytest.mark.parametrize("path", OUTSIDE)
    def test_path_that_could_leave_the_root_is_refused(self, storage: Storage, path: str) -> None:
        for verb in (storage.read, storage.size, storage.digest, storage.make_durable, storage.delete, storage.remove_empty_directory):
            with pytest.raises(ValueError, match="relative"):
                verb(path)
        with pytest.raises(ValueError, match="relative"):
            storage.create(path, b"")
        with pytest.raises(ValueError, match="relative"), storage.create_stream(path):
            pass
        with pytest.raises(ValueError, match="relative"), storage.open_stream(path):
            pass
        if path:
            for walk in (storage.list, storage.empty_directories):
                with pytest.raises(ValueError, match="relative"):
                    walk(path)

    def test_address_has_no_slash_at_its_end(self, storage: Storage) -> None:
        assert storage.address
        assert not storage.address.endswith("/")
