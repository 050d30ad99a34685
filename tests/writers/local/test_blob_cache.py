"""A cache of remote files by digest: what it returns has the bytes that were asked for, whatever lies on the disk."""

import errno
import hashlib
import os
from itertools import count
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from holdfast.catalog.errors import DamagedFileError, UsageError, WorkingDirectoryError
from holdfast.writers.local.blob_cache import BlobCache, BlobFigures
from holdfast.writers.local.disk import STAGING, LocalFiles
from tests.support.faults import MODES, Crash, Faults, LostResponseError
from tests.support.vanishing import RefusingFiles, VanishingFiles, assert_deleting_changes_nothing, delete_all, read_at_once
from tests.support.world import FakeEnvironment

DATA = b"a remote file"
ROOMY = 1_000_000


class Remote:
    """A store of files by digest that counts how often it is read."""

    def __init__(self, *files: bytes, faults: Faults | None = None) -> None:
        self.files = {digest(data): data for data in files}
        self.faults = faults or Faults()
        self.reads: list[str] = []

    def get(self, cache: BlobCache, data: bytes) -> Path:
        def fetch(stream) -> None:
            self.reads.append(digest(data))
            there = self.files[digest(data)]
            stream.write(there[:3])
            self.faults.run("fetch", digest(data), lambda: stream.write(memoryview(there)[3:]))

        return cache.get(digest(data), len(data), fetch)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def open_cache(directory: Path, limit_bytes: int = ROOMY, files: LocalFiles | None = None) -> BlobCache:
    return BlobCache(directory, limit_bytes, environment=FakeEnvironment("cache", count()), files=files)


def cached(directory: Path) -> set[bytes]:
    return {path.read_bytes() for path in directory.iterdir() if path.name != STAGING}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "blobStorage"


def test_a_file_is_fetched_once_and_the_next_process_has_it(directory) -> None:
    remote, cache = Remote(DATA), open_cache(directory)
    assert remote.get(cache, DATA).read_bytes() == DATA
    assert remote.get(cache, DATA) == directory / digest(DATA)
    assert cache.figures == BlobFigures(hits=1, misses=1, bytes_from_cache=len(DATA), bytes_fetched=len(DATA))
    restarted = open_cache(directory)
    assert remote.get(restarted, DATA).read_bytes() == DATA
    assert restarted.figures == BlobFigures(hits=1, bytes_from_cache=len(DATA)), "0 bytes read remotely"
    assert len(remote.reads) == 1


def test_an_empty_file_is_a_file(directory) -> None:
    assert Remote(b"").get(open_cache(directory), b"").read_bytes() == b""


def test_a_file_with_any_byte_changed_is_removed_and_fetched_again(directory) -> None:
    remote, cache = Remote(DATA), open_cache(directory)
    remote.get(cache, DATA)
    for n in range(len(DATA)):
        (directory / digest(DATA)).write_bytes(bytes(byte ^ (1 << n % 8) if i == n else byte for i, byte in enumerate(DATA)))
        assert remote.get(cache, DATA).read_bytes() == DATA
    assert cache.figures.damaged == len(DATA)
    assert cache.figures.hits == 0


@pytest.mark.parametrize("data", [DATA[:-1], DATA + b"\0", b""])
def test_a_file_of_another_length_is_removed_and_fetched_again(directory, data) -> None:
    remote, cache = Remote(DATA), open_cache(directory)
    remote.get(cache, DATA).write_bytes(data)
    assert remote.get(cache, DATA).read_bytes() == DATA
    assert cache.figures.damaged == 1


def test_what_is_no_file_at_its_place_is_removed(directory, tmp_path) -> None:
    remote, cache = Remote(DATA), open_cache(directory)
    (directory / digest(DATA) / "x").mkdir(parents=True)
    assert remote.get(cache, DATA).read_bytes() == DATA
    (directory / digest(DATA)).unlink()
    tmp_path.joinpath("theirs").write_bytes(DATA)
    (directory / digest(DATA)).symlink_to(tmp_path / "theirs")
    assert not remote.get(cache, DATA).is_symlink()
    assert tmp_path.joinpath("theirs").read_bytes() == DATA


@pytest.mark.parametrize("sent", [b"", DATA[:-1], DATA + b"x", b"A" + DATA[1:]])
def test_other_bytes_from_the_remote_store_are_an_error_and_leave_nothing(directory, sent) -> None:
    cache = open_cache(directory)
    with pytest.raises(DamagedFileError, match=f"{digest(DATA)}.*came with {len(sent)} bytes"):
        cache.get(digest(DATA), len(DATA), lambda stream: stream.write(sent))
    assert [path for path in directory.rglob("*") if not path.is_dir()] == []
    assert cache.figures == BlobFigures(misses=1, bytes_fetched=len(sent))


def test_an_error_of_the_remote_store_goes_through_and_leaves_nothing(directory) -> None:
    """Also one that the cache would take for its own if it came from the disk: it is not tried again."""
    cache, error, calls = open_cache(directory), FileNotFoundError("the object is gone"), []

    def fetch(stream) -> None:
        calls.append(stream.write(b"some"))
        raise error

    with pytest.raises(FileNotFoundError) as caught:
        cache.get(digest(DATA), len(DATA), fetch)
    assert caught.value is error
    assert calls == [4]
    assert [path for path in directory.rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("verb", ["make_directory", "create", "rename"])
def test_a_disk_that_takes_nothing_is_told_from_the_remote_store(directory, verb, code) -> None:
    remote, cache = Remote(DATA), open_cache(directory, files=RefusingFiles(verb, code))
    with pytest.raises(WorkingDirectoryError, match="does not take a file.*make room"):
        remote.get(cache, DATA)
    assert len(remote.reads) == int(verb == "rename"), "fetched once at most"
    assert [path for path in directory.rglob("*") if not path.is_dir()] == []


def test_a_disk_that_fills_up_during_a_fetch_is_told_from_the_remote_store(directory) -> None:
    class Full(LocalFiles):
        def create(self, path: Path):
            path.touch()
            return open("/dev/full", "wb")

    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    cache = open_cache(directory, files=Full())
    for pieces in ([DATA], [b"x" * 100_000] * 10):  # the first is in a buffer until the end
        data = b"".join(pieces)

        def fetch(stream, pieces=pieces) -> None:
            for piece in pieces:
                stream.write(piece)

        with pytest.raises(WorkingDirectoryError, match="No space left"):
            cache.get(digest(data), len(data), fetch)
    assert [path for path in directory.rglob("*") if not path.is_dir()] == []


@pytest.mark.parametrize("verb", ["names", "listing", "size", "digest"])
def test_a_disk_that_cannot_be_read_is_a_cache_without_files(directory, verb) -> None:
    remote = Remote(DATA)
    remote.get(open_cache(directory), DATA)
    assert remote.get(open_cache(directory, files=RefusingFiles(verb, errno.EIO)), DATA).read_bytes() == DATA


def test_a_read_only_cache_still_has_what_it_has(directory) -> None:
    remote = Remote(DATA)
    remote.get(open_cache(directory), DATA)
    assert remote.get(open_cache(directory, files=RefusingFiles("touch", errno.EROFS)), DATA).read_bytes() == DATA
    assert len(remote.reads) == 1


def test_a_digest_that_is_none_is_refused_for_it_becomes_a_path(directory) -> None:
    for sha256 in ("../../x", "", digest(DATA).upper()):
        with pytest.raises(UsageError, match="is not a digest"):
            open_cache(directory).get(sha256, 1, lambda stream: None)


def test_what_is_no_cached_file_is_swept_at_the_next_start(directory) -> None:
    Remote(DATA).get(open_cache(directory), DATA)
    (directory / STAGING).mkdir(exist_ok=True)
    for orphan in (f"{STAGING}/0123456789abcdef", "notes.txt", digest(DATA)[:-1], f"{digest(DATA)}.tmp", "lost+found/x"):
        (directory / orphan).parent.mkdir(exist_ok=True)
        (directory / orphan).write_bytes(b"orphan")
    open_cache(directory)
    assert os.listdir(directory) == [digest(DATA)]


def test_the_least_recently_used_goes_at_the_limit(directory) -> None:
    one, two, three, four = (bytes([n]) * 10 for n in range(1, 5))
    remote, cache = Remote(one, two, three, four), open_cache(directory, 30)
    for data in (one, two, three, one, four):
        remote.get(cache, data)
    assert cached(directory) == {one, three, four}
    assert cache.figures.evicted == 1
    remote.get(cache, two)
    assert cached(directory) == {one, two, four}


def test_a_file_above_the_limit_is_returned_and_is_the_first_to_go(directory) -> None:
    small, large = b"small", b"large" * 10
    remote, cache = Remote(small, large), open_cache(directory, 20)
    remote.get(cache, small)
    assert remote.get(cache, large).read_bytes() == large
    assert not (directory / digest(small)).exists()
    assert remote.get(cache, small).read_bytes() == small
    assert not (directory / digest(large)).exists()


def test_a_lower_limit_holds_from_the_next_start(directory) -> None:
    one, two = b"1" * 10, b"2" * 10
    remote, cache = Remote(one, two), open_cache(directory)
    remote.get(cache, one)
    remote.get(cache, two)
    open_cache(directory, 15)
    assert cached(directory) == {two}


def test_a_file_that_another_thread_is_about_to_return_is_not_evicted(directory) -> None:
    """Both are above the limit. The first fetch ends, and waits before it removes anything, until the second has done so."""
    one, two = b"1" * 10, b"2" * 10
    fetched, evicted = Event(), Event()

    class Slow(LocalFiles):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            if target.name == digest(one):
                fetched.set()
                assert evicted.wait(60)

    remote, cache = Remote(one, two), open_cache(directory, 5, files=Slow())
    paths: list[Path] = []
    first = Thread(target=lambda: paths.append(remote.get(cache, one)))
    first.start()
    assert fetched.wait(60)
    remote.get(cache, two)
    assert (directory / digest(one)).exists()
    evicted.set()
    first.join()
    assert paths[0].read_bytes() == one


def test_threads_that_want_one_file_fetch_it_once(directory) -> None:
    remote, cache, together = Remote(DATA), open_cache(directory), Barrier(4)
    got: list[bytes] = []

    def want() -> None:
        together.wait(60)
        got.append(remote.get(cache, DATA).read_bytes())

    threads = [Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [DATA] * 4
    assert len(remote.reads) == 1
    assert (cache.figures.hits, cache.figures.misses) == (3, 1)


def test_a_fetch_that_fails_lets_the_next_thread_try(directory) -> None:
    cache = open_cache(directory)
    with pytest.raises(ZeroDivisionError):
        cache.get(digest(DATA), len(DATA), lambda stream: 1 / 0)
    assert Remote(DATA).get(cache, DATA).read_bytes() == DATA


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a process that dies closes nothing
def test_a_crash_at_any_call_leaves_a_whole_file_or_none(directory) -> None:
    before = b"cached before"

    def play(faults: Faults) -> None:
        delete_all(directory)
        Remote(before).get(open_cache(directory), before)
        (directory / "orphan").touch()
        try:
            Remote(DATA, faults=faults).get(open_cache(directory, len(DATA), files=VanishingFiles(faults)), DATA)
        except (Crash, LostResponseError, WorkingDirectoryError):
            pass

    counted = Faults()
    play(counted)
    assert counted.calls > 8
    for n in range(1, counted.calls + 1):
        for mode in MODES:
            play(Faults({n: mode}))
            restarted = open_cache(directory)
            assert {digest(path.read_bytes()) for path in directory.iterdir()} == {path.name for path in directory.iterdir()}
            assert Remote(DATA).get(restarted, DATA).read_bytes() == DATA
            assert restarted.figures.damaged == 0, (counted.log[n - 1], mode)


def test_deleting_everything_at_any_call_changes_no_result(directory) -> None:
    other = b"another file"

    def scene(faults: Faults) -> list[bytes]:
        remote = Remote(DATA, other, faults=faults)
        cache = open_cache(directory, 20, files=VanishingFiles(faults))
        got = [read_at_once(lambda data=data: remote.get(cache, data)) for data in (DATA, other, other, DATA)]
        restarted = open_cache(directory, 20, files=VanishingFiles(faults))
        return [*got, read_at_once(lambda: remote.get(restarted, DATA))]

    assert assert_deleting_changes_nothing(scene, directory) > 30
