"""Vacuum in batches: each may fail in part, or end in the middle; what was not confirmed is never called gone, and the next one does it."""

import pytest

from holdfast.catalog import paths
from holdfast.catalog.references import FileStatus
from holdfast.catalog.types import KeepLast
from holdfast.compaction import runs
from tests.support.faults import MODES, Crash, Faults, Mode
from tests.support.invariants import assert_catalog_sound
from tests.support.scenes import BIG, resume
from tests.support.world import World

FILES = 7  # with batches of three: two whole ones and a rest


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BATCH", 3)


def with_garbage() -> World:
    """Seven files that a vacuum would take, in two directories and in those of checkpoints."""
    world = World()
    process = world.process()
    coordinator = process.coordinate(retention=KeepLast(1))
    process.checkpoint(coordinator, {"planes": [b"1", b"2"], "routes": [b"1"], "model": BIG})
    process.checkpoint(coordinator, {"planes": [b"3"], "routes": [b"2"]})
    process.checkpoint(coordinator, {"planes": [b"4"], "routes": None, "model": None})
    assert len(world.process().plan_vacuum().unreferenced) > FILES
    return world


def called(world: World, status: FileStatus) -> set[str]:
    """The paths of the files that the ledger calls so."""
    references = world.references()
    return {references.files[file_id].path for file_id, found in references.status.items() if found is status}


def calls_of_a_vacuum() -> list[tuple[str, str]]:
    cleaner = with_garbage().process()
    plan = cleaner.plan_vacuum()
    cleaner.arm()
    cleaner.vacuum(plan)
    return list(cleaner.faults.log)


def deletions() -> list[tuple[int, str, str]]:
    """Each call that deletes, or syncs what was deleted: its number, its verb and its path."""
    calls = [(n, verb, path) for n, (verb, path) in enumerate(calls_of_a_vacuum(), 1) if verb in ("delete", "sync")]
    assert len({verb for _, verb, _ in calls}) == 2
    return calls


@pytest.mark.parametrize("mode", ["refused", "lost"])
def test_only_what_was_confirmed_is_called_gone(mode: str) -> None:
    """One path of a batch fails, or the sync of one directory, with its effect or without it."""
    calls = calls_of_a_vacuum()
    for n, verb, path in deletions():
        world = with_garbage()
        cleaner = world.process()
        plan = cleaner.plan_vacuum()

        def refuse(call: int, verb: str, path: str, n: int = n) -> None:
            if call == n:
                raise PermissionError(13, "Permission denied", path)

        cleaner.arm({n: "lost"} if mode == "lost" else {}, None if mode == "lost" else refuse)
        report = cleaner.vacuum(plan)
        batch = [found for before, (found_verb, found) in enumerate(calls, 1) if found_verb == "delete" and before <= n][-3:]
        expected = {path} if verb == "delete" else {found for found in batch if paths.parent(found) == path}
        assert {failure.partition(": ")[0] for failure in report.failed} == expected == called(world, FileStatus.CONDEMNED), (
            f"{mode} {verb} {path}"
        )
        assert report.deleted_files == len(plan.unreferenced) - len(expected)
        assert_catalog_sound(world)
        again = world.process().vacuum()
        assert {file.path for file in again.plan.condemned} == expected
        assert (again.failed, called(world, FileStatus.CONDEMNED)) == ((), set())
        resume(world)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "lost"])
def test_a_vacuum_that_dies_in_a_batch_calls_nothing_of_it_gone(mode: Mode) -> None:
    for n, verb, path in deletions():
        world = with_garbage()
        cleaner = world.process(Faults())
        plan = cleaner.plan_vacuum()
        cleaner.arm({n: mode})
        with pytest.raises(Crash):
            cleaner.vacuum(plan)
        left = called(world, FileStatus.CONDEMNED)
        assert 1 <= len(left) <= 3, f"the batch that {verb} {path} was in"
        assert not called(world, FileStatus.GONE) & world.paths()
        assert_catalog_sound(world)
        assert world.process().vacuum().deleted_files >= len(left)
        resume(world)


def test_progress_comes_batch_by_batch_up_to_the_whole() -> None:
    world = with_garbage()
    total = len(world.process().plan_vacuum().unreferenced)
    told: list[tuple[int, int]] = []
    world.process().catalog.vacuum(progress=lambda done, of: told.append((done, of)))
    assert told == [(min(done, total), total) for done in range(3, total + 3, 3)]
