"""Vacuum in batches, of which each is one commit, deleted in parts: each may fail in part, or end in the middle; what was not confirmed is
never called gone, and the next one does it."""

from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from holdfast.catalog import paths
from holdfast.catalog.errors import AddressError
from holdfast.catalog.references import FileStatus, References
from holdfast.catalog.storage import PassingStorage
from holdfast.catalog.types import KeepLast
from holdfast.compaction import runs, vacuum
from holdfast.compaction.upkeep import EndVacuum
from tests.support.faults import MODES, Crash, Faults, Mode
from tests.support.invariants import assert_catalog_sound
from tests.support.scenes import BIG, resume
from tests.support.world import World

FILES = 7  # with parts of three: two whole ones and a rest


@pytest.fixture(autouse=True, params=[100, 2, 1], ids=["a-part-a-commit", "two-batches", "one-batch"])
def small_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BATCH", 3)
    monkeypatch.setattr(vacuum, "COMMITS", request.param)


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
        assert 1 <= len(left) <= vacuum.batch_size(len(plan.files)), f"the batch that {verb} {path} was in"
        assert not called(world, FileStatus.GONE) & world.paths()
        assert_catalog_sound(world)
        assert world.process().vacuum().deleted_files >= len(left)
        resume(world)


@pytest.mark.parametrize(
    "error", [EndVacuum(), OSError(5, "Input/output error"), KeyError("a bug")], ids=lambda error: type(error).__name__
)
def test_what_is_deleted_when_a_run_is_ended_is_called_gone(error: Exception) -> None:
    """By its progress function, after any of its parts; and nothing else is deleted."""
    total = len(with_garbage().process().plan_vacuum().files)
    for last in range(3, total + 3, 3):
        world = with_garbage()
        cleaner = world.process()
        before = world.paths()

        def end(done: int, of: int, last: int = last) -> None:
            if done >= min(last, of):
                raise error

        with pytest.raises(type(error)):
            vacuum.run_vacuum(cleaner.plan_vacuum(), cleaner.transactor, cleaner.storage, cleaner.environment, end)
        deleted = before - world.paths()
        assert called(world, FileStatus.GONE) == deleted
        assert len(deleted) == min(last, total)
        assert_catalog_sound(world)
        assert world.process().vacuum().deleted_files == total - len(deleted)
        assert_catalog_sound(world)
        resume(world)


def test_storage_that_is_lost_in_the_middle_leaves_no_doubt() -> None:
    """From some part on every deletion raises: what was confirmed before is called gone, and the error is the caller's."""
    total = len(with_garbage().process().plan_vacuum().files)
    for parts in range(1, -(-total // 3)):
        world = with_garbage()
        cleaner = world.process()
        before = world.paths()
        with pytest.raises(AddressError, match="unmounted"):
            vacuum.run_vacuum(cleaner.plan_vacuum(), cleaner.transactor, _Unmounted(cleaner.storage, [None] * parts), cleaner.environment)
        assert called(world, FileStatus.GONE) == before - world.paths()
        assert len(before - world.paths()) == 3 * parts
        assert world.process().vacuum().deleted_files == total - 3 * parts
        resume(world)


@dataclass(frozen=True, slots=True)
class _Unmounted(PassingStorage):
    """It is there for as many calls of `delete_many` as it has tickets."""

    tickets: list[None]

    def delete_many(self, paths: Collection[str]) -> Mapping[str, OSError]:
        if not self.tickets:
            msg = "unmounted"
            raise AddressError(msg)
        self.tickets.pop()
        return self.inner.delete_many(paths)


def test_each_deletion_comes_after_its_condemnation_is_durable() -> None:
    """And of what a run has taken over, after the condemnation of the run before."""
    world = with_garbage()
    for is_second in (False, True):
        cleaner = world.process(Faults())
        deleted = []

        def look(_: int, verb: str, path: str, of: list[str] = deleted, by=cleaner, *, ends: bool = not is_second) -> None:
            if verb == "delete":
                durable = world.log.commits[: world.log.durable_version + 1]
                said = References.of(fact for commit in durable for fact in commit.facts)
                assert [said.status[file_id] for file_id, row in said.files.items() if row.path == path] == [FileStatus.CONDEMNED]
                of.append(path)
                if ends and len(of) == 2:
                    by.faults.die()

        plan = cleaner.plan_vacuum()
        cleaner.arm(on_call=look)
        with pytest.raises(Crash) if not is_second else nullcontext():
            cleaner.vacuum(plan)
        assert len(deleted) == (len(plan.files) if is_second else 2)
        assert bool(plan.condemned) is is_second


@pytest.mark.parametrize(
    ("files", "size"), [(0, 1000), (999, 1000), (100_000, 1000), (100_001, 2000), (4_000_000, 40_000), (10**7, 100_000), (10**8, 100_000)]
)
def test_batches_grow_with_a_run_up_to_a_bound(monkeypatch: pytest.MonkeyPatch, files: int, size: int) -> None:
    monkeypatch.undo()
    assert vacuum.batch_size(files) == size


def test_progress_comes_part_by_part_up_to_the_whole() -> None:
    world = with_garbage()
    total = len(world.process().plan_vacuum().unreferenced)
    told: list[tuple[int, int]] = []
    world.process().catalog.vacuum(progress=lambda done, of: told.append((done, of)))
    assert told == [(min(done, total), total) for done in range(3, total + 3, 3)]
