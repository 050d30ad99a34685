"""What happens to directories of embedded stores when everything around them is hostile: damaged acknowledgements, snapshots that go or
change, uploads that fail in part, callers that catch errors and go on, manifests from strangers."""

import json
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import holdfast
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import DamagedFileError, RefusedError, UsageError
from holdfast.catalog.facts import Acknowledged
from holdfast.catalog.types import MAX_PARALLELISM_LIMIT, Ack
from holdfast.writers.failure_policy import FailurePolicy
from holdfast.writers.stores.ack_codec import decode_ack, sealed
from holdfast.writers.stores.reader import directory_reader, new_directory
from holdfast.writers.stores.shares import DirectoryShares
from holdfast.writers.stores.snapshot import files_of
from tests.support.invariants import assert_catalog_sound
from tests.support.mutants import replaced
from tests.support.stores import taking
from tests.support.world import Process, World

STATE = "rocks"
Files = dict[str, bytes]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


def restored(world: World, to: Path, subtask: int = 0, number: int | None = None) -> Files:
    """By the real reader, of the head."""
    job = world.job()
    manifest = world.manifest(number or int(job.head or 0))
    info = next(info for info in manifest.states if info.state == STATE)
    directory_reader(manifest, info, world.objects, SystemEnvironment()).restore(to, subtask=subtask)
    return {path.relative_to(to).as_posix(): path.read_bytes() for path in to.rglob("*") if path.is_file()}


def an_ack(process: Process) -> bytes:
    coordinator = process.coordinate()
    writer = process.open_beside(coordinator, None)
    return writer.directories(STATE, subtasks=1).write(taking({"1.sst": b"one", "CURRENT": b"1"}), subtask=0).ack()


# ---- acknowledgements -------------------------------------------------------------------------------------------------


def test_an_ack_of_which_any_byte_was_changed_lost_or_added_is_refused(process: Process) -> None:
    """One flipped digit of a size or of a file's digest is JSON as before, and would be a checkpoint that cannot be restored."""
    ack = an_ack(process)
    decode_ack(ack)
    damaged = [ack[:at] + bytes([ack[at] ^ 1]) + ack[at + 1 :] for at in range(len(ack))]
    for data in (*damaged, *(ack[:at] for at in range(len(ack))), ack + b" ", ack * 2, b"[" * 100_000):
        with pytest.raises(UsageError, match="damaged on its way"):
            decode_ack(data)


@pytest.mark.parametrize(
    "wrong",
    [
        {"subtask": "0"}, {"subtask": None}, {"subtask": True}, {"subtask": 7}, {"checkpoint_id": "1"}, {"attempt": 5}, {"state": "another"},
        {"chunks": []}, {"chunks": {}}, {"files": 3}, {"metrics": None}, {"metrics": {"bytes_written": "3"}}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_an_ack_with_a_field_of_another_type_is_refused(process: Process, wrong: dict[str, object]) -> None:
    """As another version of the task's side might send it."""
    plain = json.loads(an_ack(process)[64:])
    with pytest.raises(UsageError, match="is not an acknowledgement"):
        decode_ack(sealed(json.dumps(plain | wrong).encode()))


@pytest.mark.parametrize("of", ["chunks", "files"])
def test_each_field_of_an_acks_chunks_and_files_has_its_type(process: Process, of: str) -> None:
    plain = json.loads(an_ack(process)[64:])
    for field in plain[of][0]:
        for value in ([], True):
            wrong = plain | {of: [plain[of][0] | {field: value}, *plain[of][1:]]}
            with pytest.raises(UsageError, match="is not an acknowledgement"):
                decode_ack(sealed(json.dumps(wrong).encode()))


def test_an_ack_that_is_delivered_twice_counts_once(world: World, process: Process) -> None:
    """By the channel; or by a program that also gives back what `write_directory` is waited for anyway."""
    with process.coordinate().checkpoint() as writer:
        upload = writer.write_directory(STATE, taking({"1.sst": b"one"}))
        writer.acknowledge(STATE, [upload.ack(), upload.ack()])
        tasks = writer.directories("by tasks", subtasks=1)
        counts, late = (tasks.write(taking({"1.sst": b"12345"}), subtask=0).ack() for _ in range(2))
        writer.acknowledge("by tasks", [counts, late, counts, late])
    facts = [fact for commit in world.log.commits for fact in commit.facts if isinstance(fact, Acknowledged)]
    assert sorted(fact.bytes_written for fact in facts) == [3, 5, 5], "two tries of the second, of which one is late"
    assert_catalog_sound(world)


def test_a_late_try_reused_nothing_and_each_subtask_says_what_it_reused(world: World, process: Process) -> None:
    """The late one's figure was counted as well, and then one subtask was given the sum of all."""
    coordinator = process.coordinate()
    shares: list[Files] = [{"1.sst": b"a" * 10}, {"1.sst": b"b" * 20}]
    for tries in (1, 2):
        with coordinator.checkpoint() as writer:
            tasks = writer.directories(STATE, subtasks=2)
            now = [files | {f"{tries + 1}.sst": b"new"} for files in shares]
            acks = [tasks.write(taking(files), subtask=i).ack() for _ in range(tries) for i, files in enumerate(now)]
            writer.acknowledge(STATE, acks)
    facts = [fact for fact in world.log.commits[-1].facts if isinstance(fact, Acknowledged)]
    assert [(fact.subtask, fact.bytes_reused) for fact in facts] == [(0, 10), (1, 20), (0, 0), (1, 0)]


def test_an_unknown_subtasks_ack_is_garbage_though_its_refusal_was_caught(world: World, process: Process) -> None:
    """It had been taken before it was refused, and was committed with the others: a store that nobody would restore."""
    coordinator = process.coordinate()
    with coordinator.checkpoint() as writer:
        tasks = writer.directories(STATE, subtasks=1)
        one, two = (tasks.write(taking({"1.sst": b"one"}), subtask=i).ack() for i in range(2))
        with pytest.raises(UsageError, match="has 1 subtasks, counted from 0, and subtask 1"):
            writer.acknowledge(STATE, [two])
        writer.acknowledge(STATE, [one])
    assert {chunk.subtask for chunk in world.manifest(1).chunks} == {0}
    assert len(world.process().plan_vacuum().unreferenced) == 1


# ---- callers that go on -----------------------------------------------------------------------------------------------


def failing(to: str) -> None:
    raise OSError("the store says no")


def test_a_subtask_whose_snapshots_error_was_caught_is_missing(world: World, process: Process) -> None:
    """Without a parent nothing else says how many there are: the state was committed without it, or with nothing at all."""
    coordinator = process.coordinate()
    for others in ([], [0], [0, 2]):
        with pytest.raises(RefusedError, match=rf"subtask {1 if others else 0} was not acknowledged"), coordinator.checkpoint() as writer:
            for subtask in others:
                writer.write_directory(STATE, taking({"1.sst": b"one"}), subtask=subtask)
            with pytest.raises(OSError, match="the store says no"):
                writer.write_directory(STATE, failing, subtask=1)
    assert world.job().head is None


def test_a_state_whose_subtasks_could_not_begin_is_not_committed_as_empty(world: World, process: Process) -> None:
    with pytest.raises(RefusedError, match="subtask 0 was not acknowledged"), process.coordinate().checkpoint() as writer:
        with pytest.raises(UsageError):
            writer.write_directory(STATE, taking({"1.sst": b"one"}), subtask=-1)
    assert world.job().head is None


def test_a_subtask_whose_snapshot_failed_may_be_written_again(world: World, process: Process, tmp_path: Path) -> None:
    with process.coordinate().checkpoint() as writer:
        with pytest.raises(OSError, match="the store says no"):
            writer.write_directory(STATE, failing)
        writer.write_directory(STATE, taking({"1.sst": b"one"}))
    assert restored(world, tmp_path / "back") == {"1.sst": b"one"}


def test_more_subtasks_than_any_job_has_are_refused_before_being_counted(process: Process) -> None:
    """Of a subtask numbered a billion, all that are missing were listed."""
    with pytest.raises(UsageError, match="is not a number of"), process.coordinate().checkpoint() as writer:
        with pytest.raises(UsageError, match="subtask=1000000000000 is not the number of a subtask"):
            writer.write_directory(STATE, taking({"1.sst": b"one"}), subtask=10**12)
        writer.directories("another", subtasks=MAX_PARALLELISM_LIMIT + 1)


def test_an_upload_that_the_caller_cancelled_is_no_share(world: World) -> None:
    """Its files are not begun any more; what was told was CancelledError, without a word."""
    process = world.process()
    process.environment.starts = never
    with pytest.raises(RefusedError, match=r"upload of subtask 0 of state 'rocks' of checkpoint 1 was cancelled"):
        with process.coordinate().checkpoint() as writer:
            writer.write_directory(STATE, taking({"1.sst": b"one"})).cancel()
    assert world.job().head is None


def never(work: Callable[[], object]) -> "Future[object]":
    """Every thread is busy."""
    return Future()


# ---- snapshots that go or change --------------------------------------------------------------------------------------


def test_a_snapshot_that_goes_while_it_is_read_is_told_as_such(tmp_path: Path) -> None:
    place = tmp_path / "one"
    taking({"1.sst": b"one", "2.sst": b"two"})(str(place))
    scan = os.scandir

    class Vanishing:
        """What `scandir` gives of a directory whose first file goes at once."""

        def __init__(self, path: Path) -> None:
            self.entries = [*scan(path)]
            (path / "1.sst").unlink(missing_ok=True)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.entries

        def __exit__(self, *_: object) -> None:
            pass

    with replaced(os, "scandir", Vanishing), pytest.raises(UsageError, match=r"1\.sst vanished while .* was read"):
        files_of(place, ["*.sst"])


@pytest.mark.parametrize("change", ["grows", "shrinks", "goes", "all go"])
def test_a_snapshot_that_changes_while_it_is_uploaded_is_never_committed(world: World, tmp_path: Path, change: str) -> None:
    """Between the listing and the upload of its files: of the parent's name and size too, and small ones."""
    process, place = world.process(), tmp_path / "one"
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"offsets": b"1"})
    for name in ("1.sst", "CURRENT", "LOG"):
        files = {"1.sst": b"one", "CURRENT": b"1", "LOG": b"x" * 20_001}
        taking(files)(str(place))
        waiting: list[tuple[Callable[[], object], Future[object]]] = []
        process.environment.starts = partial(later, waiting)
        with pytest.raises(UsageError, match="was changed while it was uploaded"), coordinator.checkpoint() as writer:
            writer.write_directory(STATE, place)
            for each in [*place.iterdir()] if change == "all go" else [place / name]:
                each.unlink()
            if change in ("grows", "shrinks"):
                (place / name).write_bytes(files[name] + b"more" if change == "grows" else b"")
            for work, future in waiting:
                do(work, future)
    assert world.job().head == 1
    coordinator.close()
    process.scrub()
    assert_catalog_sound(world)
    assert not [path for path in world.paths() if "/shared/" in path or "/exclusive/" in path]


def later(waiting: list[tuple[Callable[[], object], "Future[object]"]], work: Callable[[], object]) -> "Future[object]":
    """What a pool does whose threads are slow."""
    waiting.append((work, Future()))
    return waiting[-1][1]


def do(work: Callable[[], object], future: "Future[object]") -> None:
    future.set_running_or_notify_cancel()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)


def test_a_file_that_fails_lets_running_ones_end_before_the_snapshot_goes(process: Process) -> None:
    """One file cannot be read while another is being uploaded: the directory goes after both, and nothing is written afterwards."""
    uploading, go_on, seen = Event(), Event(), list[bool]()

    class Awaited(Future[Any]):
        """The upload goes on as soon as somebody waits for its end."""

        def exception(self, timeout: float | None = None) -> BaseException | None:
            go_on.set()
            return super().exception(timeout)

    def upload(work: Any) -> Any:
        file: Path = work.args[0].path
        if file.name == "1.sst":
            raise OSError("unreadable")
        uploading.set()
        go_on.wait(5)
        seen.append(file.exists())
        return work()

    def start(work: Any) -> "Future[Any]":
        future = Awaited()
        Thread(target=do, args=(partial(upload, work), future)).start()
        return future

    process.environment.starts = start
    writer = process.open_beside(process.coordinate(), None)
    begun = writer.directories(STATE, subtasks=1).write(taking({"1.sst": b"1", "2.sst": b"2"}), subtask=0)
    uploading.wait(5)
    with pytest.raises(OSError, match="unreadable"):
        begun.wait()
    assert seen == [True]
    assert not begun._taken.directory.exists()


# ---- names ------------------------------------------------------------------------------------------------------------


def test_names_of_every_kind_come_back(world: World, process: Process, tmp_path: Path) -> None:
    """Cases, spaces, line ends, hidden ones, other alphabets in both spellings, and as long as a file system takes; and a thousand of them."""
    names = ["a.sst", "A.sst", " ", "a\nb", ".hidden", "\u00e9", "e\u0301", "x" * 251 + ".sst", "d/" * 40 + "deep", "\u4e2d.sst", "'\"$`;"]
    files = {name: name.encode() for name in (*names, *(f"{n:06}.sst" for n in range(1000)))}
    with process.coordinate().checkpoint() as writer:
        writer.write_directory(STATE, taking(files))
    assert restored(world, tmp_path / "back") == files


@pytest.mark.parametrize("name", [b"\xff.sst", b"a\\b"])
def test_a_name_that_no_restore_could_give_back_is_refused(process: Process, tmp_path: Path, name: bytes) -> None:
    place = os.fsencode(tmp_path)
    with open(place + b"/" + name, "wb"):
        pass
    with pytest.raises(UsageError, match="Rename it"), process.coordinate().checkpoint() as writer:
        writer.write_directory(STATE, tmp_path)


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "a/../../out", "", ".", "a//b", "CURRENT"])
def test_no_manifest_makes_a_restore_write_outside_its_directory(world: World, process: Process, tmp_path: Path, name: str) -> None:
    """A manifest may come from anywhere (`open_manifest`): its names are a stranger's."""
    with process.coordinate().checkpoint() as writer:
        writer.write_directory(STATE, taking({"1.sst": b"one", "CURRENT": b"1"}))
    manifest = world.manifest(1)
    chunks = tuple(replace(chunk, name=name) if chunk.name == "1.sst" else chunk for chunk in manifest.chunks)
    reader = directory_reader(replace(manifest, chunks=chunks), manifest.states[0], world.objects, process.environment)
    (tmp_path / "in").mkdir()
    with pytest.raises(DamagedFileError, match=r"file .* of subtask 0 of state 'rocks'.*nothing was written"):
        reader.restore(tmp_path / "in" / "back", subtask=0)
    assert [*tmp_path.rglob("*")] == [tmp_path / "in"]


# ---- places of a restore ----------------------------------------------------------------------------------------------


def test_a_link_to_an_empty_directory_is_a_place_to_restore_to(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "volume")
    with new_directory(tmp_path / "link", SystemEnvironment()) as draft:
        (draft / "1.sst").write_bytes(b"one")
    assert (tmp_path / "volume" / "1.sst").read_bytes() == b"one"


def test_the_second_of_two_restores_to_a_place_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(holdfast.AlreadyExistsError, match="is not empty"), new_directory(tmp_path / "to", SystemEnvironment()) as draft:
        (draft / "1.sst").write_bytes(b"second")
        with new_directory(tmp_path / "to", SystemEnvironment()) as faster:
            (faster / "1.sst").write_bytes(b"first")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.sst")} == {tmp_path / "to" / "1.sst": b"first"}
    assert [*tmp_path.iterdir()] == [tmp_path / "to"]


# ---- the alarm --------------------------------------------------------------------------------------------------------


def test_an_alarm_ends_the_attempt_though_another_state_begins_meanwhile(world: World) -> None:
    """The alarm's thread goes through the states of directories while the block begins one more: it died of that, and nothing was ended."""
    process = world.process()
    coordinator = process.coordinate(patience=FailurePolicy(timeout_s=600))
    acks_so_far: Callable[[DirectoryShares], list[Ack]] = vars(DirectoryShares)["acks"].fget
    more = iter(("second", "third", "fourth"))

    def acks(shares: DirectoryShares) -> list[Ack]:
        if (name := next(more, None)) is not None:
            writer.directories(name, subtasks=1)
        return acks_so_far(shares)

    with pytest.raises(holdfast.AttemptEndedError), coordinator.checkpoint() as writer:
        writer.write_directory(STATE, taking({"1.sst": b"one"})).ack()
        with replaced(DirectoryShares, "acks", property(acks)):
            process.environment.ring()
        assert writer.attempt not in world.job().open_attempts
    process.vacuum()
    process.scrub()
    assert_catalog_sound(world)
