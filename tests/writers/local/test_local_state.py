"""Local copies of what a task wrote: found where they hold, and otherwise as if they had never been."""

import errno
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from holdfast.catalog.errors import UsageError
from holdfast.writers.local.disk import STAGING
from holdfast.writers.local.local_state import LocalFigures, LocalShare, LocalSlot, LocalState
from tests.support.faults import MODES, Crash, Faults
from tests.support.vanishing import RefusingFiles, VanishingFiles, assert_deleting_changes_nothing, delete_all

SHARE = LocalShare(catalog_id="c0ffee", job_id="flights-1a2b3c4d", operator="main", state="rocks", subtask=3)
SNAPSHOT = {"000007.sst": b"seven", "a/b.sst": b"below", "CURRENT": b""}
WRITES = ("make_directory", "link_or_copy", "rename")


def slot(checkpoint_id: int, token: str = "0123456789abcdef", share: LocalShare = SHARE) -> LocalSlot:
    fields = {name: getattr(share, name) for name in ("catalog_id", "job_id", "operator", "state", "subtask")}
    return LocalSlot(**fields, checkpoint_id=checkpoint_id, attempt=token)


def told(files: Mapping[str, bytes]) -> dict[str, tuple[int, str]]:
    return {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}


def keep(local: LocalState, checkpoint: LocalSlot, source: Path, files: Mapping[str, bytes] = SNAPSHOT) -> None:
    """Keep a snapshot as a store makes it, in a directory that then goes."""
    for name, data in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(data)
    local.keep(checkpoint, source, told(files))
    shutil.rmtree(source)


def found(local: LocalState, files: Mapping[str, bytes] = SNAPSHOT, share: LocalShare = SHARE) -> dict[str, bytes]:
    paths = {name: local.find(share, name, *of) for name, of in told(files).items()}
    return {name: path.read_bytes() for name, path in paths.items() if path is not None}


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if not path.is_dir())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "localState"


@pytest.fixture
def local(directory: Path) -> LocalState:
    return LocalState(directory)


def test_what_was_kept_is_found_by_the_next_process_as_hard_links(local, directory, tmp_path) -> None:
    source = tmp_path / "snapshot"
    source.mkdir()
    (source / "000007.sst").write_bytes(b"seven")
    local.keep(slot(1), source, told({"000007.sst": b"seven"}))
    keep(local, slot(2), tmp_path / "next", {"a/b.sst": b"below"})
    assert local.figures == LocalFigures(kept_files=2, kept_bytes=10)
    restarted = LocalState(directory)
    path = restarted.find(SHARE, "000007.sst", *told({"": b"seven"})[""])
    assert path.samefile(source / "000007.sst"), "no byte was copied"
    assert found(restarted, {"a/b.sst": b"below", "000007.sst": b"seven"}) == {"a/b.sst": b"below", "000007.sst": b"seven"}
    assert restarted.figures == LocalFigures(hits=3, bytes_from_local=15)


@pytest.mark.parametrize(
    "other", [{"catalog_id": "beef"}, {"job_id": "flights-00000000"}, {"operator": "join"}, {"state": "rocks/2"}, {"state": "Rocks"}, {"subtask": 4}], ids=str
)  # fmt: skip
def test_another_share_has_copies_of_its_own(local, tmp_path, other) -> None:
    keep(local, slot(1), tmp_path / "snapshot")
    stranger = replace(SHARE, **other)
    assert found(local, share=stranger) == {}
    local.retain(stranger, [])
    assert found(local) == SNAPSHOT


def test_states_of_any_name_have_a_place(local, tmp_path) -> None:
    for state in ("../../etc", "ö" * 300, "a\nb", "", "."):
        share = replace(SHARE, operator=state, state=state)
        keep(local, slot(1, share=share), tmp_path / "snapshot")
        assert found(local, share=share) == SNAPSHOT
    assert os.listdir(tmp_path) == ["localState"]


def test_another_name_size_or_digest_is_not_found_and_costs_nothing(local, tmp_path) -> None:
    keep(local, slot(1), tmp_path / "snapshot")
    size_bytes, sha256 = told(SNAPSHOT)["000007.sst"]
    assert local.find(SHARE, "000008.sst", size_bytes, sha256) is None
    assert local.find(SHARE, "000007.sst", size_bytes, told({"": b"SEVEN"})[""][1]) is None
    assert local.figures.misses == 2
    assert found(local) == SNAPSHOT


def test_a_store_uses_a_name_again_and_both_are_found(local, tmp_path) -> None:
    keep(local, slot(1), tmp_path / "snapshot", {"MANIFEST": b"old"})
    keep(local, slot(2), tmp_path / "snapshot", {"MANIFEST": b"new"})
    assert found(local, {"MANIFEST": b"old"}) == {"MANIFEST": b"old"}
    assert found(local, {"MANIFEST": b"new"}) == {"MANIFEST": b"new"}
    assert local.figures.damaged == 0


def test_a_task_that_is_tried_again_replaces_what_it_kept(local, directory, tmp_path) -> None:
    keep(local, slot(1), tmp_path / "snapshot", {"x": b"first"})
    keep(local, slot(1), tmp_path / "snapshot", {"x": b"second"})
    assert [path.read_bytes() for path in files_below(directory)] == [b"second"]


def test_only_the_checkpoints_that_are_retained_stay(local, directory, tmp_path) -> None:
    for n in (1, 2, 3, 10):
        keep(local, slot(n), tmp_path / "snapshot", {"x": b"%d" % n})
    local.retain(slot(10), {10, 2})
    assert [path.read_bytes() for path in files_below(directory)] == [b"10", b"2"]
    local.retain(SHARE, [])
    assert files_below(directory) == []


def test_a_copy_with_any_byte_changed_is_removed_and_another_is_used(local, directory, tmp_path) -> None:
    files = {"x": b"state of a task", "y": b"another"}
    size_bytes = len(files["x"])
    keep(local, slot(1), tmp_path / "snapshot", files)
    for n in range(size_bytes):
        keep(local, slot(2), tmp_path / "snapshot", files)
        (newer,) = directory.rglob("2-*/*/x")
        newer.write_bytes(bytes(byte ^ (1 << n % 8) if i == n else byte for i, byte in enumerate(files["x"])))
        path = local.find(SHARE, "x", *told(files)["x"])
        assert path.read_bytes() == files["x"]
        assert "1-" in path.parts[-3]
        assert not newer.exists()
    assert local.figures.damaged == size_bytes
    assert found(local, files) == files


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def a_link(path: Path) -> None:
    path.rename(path.with_name("there"))
    path.symlink_to("there")  # a link has a size as well, that of its text: here the same


def a_directory(path: Path) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


@pytest.mark.parametrize("damage", [cut, lengthened, a_link, a_directory])
def test_what_is_not_the_file_that_was_kept_is_removed(local, directory, tmp_path, damage) -> None:
    keep(local, slot(1), tmp_path / "snapshot", {"x": b"state"})
    (path,) = files_below(directory)
    damage(path)
    assert local.find(SHARE, "x", *told({"x": b"state"})["x"]) is None
    assert not os.path.lexists(path)
    assert local.figures.damaged == 1


def test_across_volumes_files_are_copied(local, tmp_path, monkeypatch) -> None:
    def refuse(*_, **__):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", refuse)
    keep(local, slot(1), tmp_path / "snapshot")
    assert found(local) == SNAPSHOT
    assert local.figures.copied_bytes == local.figures.kept_bytes == 10


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("verb", WRITES)
def test_a_disk_that_takes_nothing_fails_no_checkpoint(directory, tmp_path, verb, code) -> None:
    keep(LocalState(directory), slot(1), tmp_path / "snapshot")
    full = LocalState(directory, files=RefusingFiles(verb, code))
    keep(full, slot(2), tmp_path / "snapshot", {"x": b"2"})
    assert full.figures == LocalFigures(given_up=1)
    assert not files_below(directory / STAGING)
    assert found(full) == SNAPSHOT


@pytest.mark.parametrize("verb", ["names", "size", "digest"])
def test_a_disk_that_cannot_be_read_has_no_copies(directory, tmp_path, verb) -> None:
    keep(LocalState(directory), slot(1), tmp_path / "snapshot")
    broken = LocalState(directory, files=RefusingFiles(verb, errno.EIO))
    assert found(broken) == {}
    broken.retain(SHARE, [])


@pytest.mark.parametrize("source", [{}, {"x": b"state"}, {"x": b"state", "y": b"longer"}])
def test_a_snapshot_that_is_not_what_was_written_is_not_kept(local, directory, tmp_path, source) -> None:
    tmp_path.joinpath("snapshot").mkdir()
    for name, data in source.items():
        (tmp_path / "snapshot" / name).write_bytes(data)
    local.keep(slot(1), tmp_path / "snapshot", told({"x": b"state", "y": b"state"}))
    assert local.figures == LocalFigures(given_up=1)
    assert files_below(directory) == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../x", "a//x", "", ".", "a\0x"])
def test_a_name_that_leads_elsewhere_is_refused(local, tmp_path, name) -> None:
    tmp_path.joinpath("x").write_bytes(b"1")
    with pytest.raises(UsageError, match="cannot be the name of a file"):
        local.keep(slot(1), tmp_path / "snapshot", {name: told({"": b"1"})[""]})
    with pytest.raises(UsageError, match="cannot be the name of a file"):
        local.find(SHARE, name, *told({"": b"1"})[""])
    assert os.listdir(tmp_path) == ["x"]


def test_a_digest_that_is_none_is_refused_for_it_becomes_a_path(local, tmp_path) -> None:
    for sha256 in ("../../x", "", "AB" * 32):
        with pytest.raises(UsageError, match="is not a digest"):
            local.find(SHARE, "x", 1, sha256)
        with pytest.raises(UsageError, match="is not a digest"):
            local.keep(slot(1), tmp_path, {"x": (1, sha256)})


def test_without_local_recovery_nothing_is_kept_and_nothing_found(local, tmp_path) -> None:
    off = LocalState(None)
    keep(off, slot(1), tmp_path / "snapshot")
    assert found(off) == {}
    off.retain(SHARE, [])
    assert os.listdir(tmp_path) == []
    assert off.figures == LocalFigures()


def test_a_crash_at_any_call_leaves_a_whole_entry_or_none(directory, tmp_path) -> None:
    """The entry of checkpoint 1 is there before, and one of the same slot, which is replaced."""
    outcomes = set()
    old = {**SNAPSHOT, "000007.sst": b"SEVEN"}

    def play(faults: Faults) -> None:
        delete_all(directory)
        keep(LocalState(directory), slot(1), tmp_path / "snapshot", {"old": b"old"})
        keep(LocalState(directory), slot(2), tmp_path / "snapshot", old)
        try:
            keep(LocalState(directory, files=VanishingFiles(faults)), slot(2), tmp_path / "snapshot")
        except Crash:
            pass

    count = Faults()
    play(count)
    for n in range(1, count.calls + 1):
        for mode in MODES:
            play(Faults({n: mode}))
            restarted = LocalState(directory)
            assert not (directory / STAGING).exists()
            new, before = found(restarted), found(restarted, old)
            assert found(restarted, {"old": b"old"}) == {"old": b"old"}
            assert restarted.figures.damaged == 0
            assert [new == SNAPSHOT, before == old, new == before == {}].count(True) == 1, (count.log[n - 1], mode)
            outcomes.add((new == SNAPSHOT, before == old))
    assert outcomes == {(True, False), (False, True), (False, False)}


def test_deleting_everything_at_any_call_changes_no_result(directory, tmp_path) -> None:
    """What is restored is the same, from local copies or from elsewhere: a copy is right, or it is none."""
    remote = {1: SNAPSHOT, 2: {**SNAPSHOT, "000008.sst": b"eight"}}

    def restore(local: LocalState, files: Mapping[str, bytes]) -> dict[str, bytes]:
        restored = dict(files)
        for name, of in told(files).items():
            path = local.find(SHARE, name, *of)
            if path is not None:
                restored[name] = path.read_bytes()
        return restored

    def scene(faults: Faults) -> list[dict[str, bytes]]:
        local = LocalState(directory, files=VanishingFiles(faults))
        for n, files in remote.items():
            keep(local, slot(n), tmp_path / "snapshot", files)
        restored = [restore(local, remote[1])]
        local.retain(SHARE, [2])
        keep(local, slot(2), tmp_path / "snapshot", remote[2])
        return [*restored, restore(LocalState(directory, files=VanishingFiles(faults)), remote[2])]

    assert assert_deleting_changes_nothing(scene, directory) > 40


def test_threads_keep_find_and_retain_at_once(local, tmp_path) -> None:
    wrong: list[object] = []

    def writer(number: int) -> None:
        for n in range(1, 21):
            keep(local, slot(n, f"{number:016x}"), tmp_path / f"snapshot-{number}", {"x": b"%d" % n})
            local.retain(SHARE, [n, n - 1])

    def reader() -> None:
        for n in range(1, 21):
            path = local.find(SHARE, "x", *told({"x": b"%d" % n})["x"])
            try:
                if path is not None and path.read_bytes() != b"%d" % n:
                    wrong.append(path)
            except FileNotFoundError:  # retained no longer
                pass

    threads = [Thread(target=writer, args=(1,)), Thread(target=writer, args=(2,)), Thread(target=reader)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert local.figures.kept_files == 40
    assert found(local, {"x": b"20"}) == {"x": b"20"}
