"""I9 over random histories: a fold changes no answer about what is live and no later decision; and each thing that it keeps, and each of
its steps, is needed (`tests/support/fold_mutants.py`)."""

import pytest

from holdfast.catalog.ledger import FILE_ROWS
from holdfast.catalog.types import KeepAll, KeepLast
from tests.protocol import bisimulation, model
from tests.support.faults import MODES, Crash, Faults
from tests.support.fold_mutants import OF_FACTS, OF_FILES, OF_PARTIAL, OF_STEPS
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.scenes import used_catalog
from tests.support.world import World

HISTORIES = {"whole": 15, "partial": 10, "of big files": 75}  # in the fast suite
BOUND = 300  # histories in which a difference must be found
STEPS_BOUND = 1500
# Too rare in random histories to be found in a second or two.
RARE = {
    "folded_claim", "folded_last_committed", "pinned_rows", "begin_rows", "disposed_savepoints", "open_handles_of_nothing",
    "handles_of_forks", "ledger_then_history",
}  # fmt: skip
BY_ITS_STORY = {"where_a_line_leaves_its_job"}  # the model has two jobs, and this takes three


@pytest.mark.parametrize("folds", bisimulation.CHECKS)
def test_folded_and_unfolded_decide_alike(folds: str) -> None:
    assert bisimulation.explore(HISTORIES[folds], check=bisimulation.CHECKS[folds]) is None


@pytest.mark.slow
@pytest.mark.parametrize("folds", bisimulation.CHECKS)
def test_folded_and_unfolded_decide_alike_at_length(folds: str) -> None:
    assert bisimulation.explore(400, first_seed=10_000, check=bisimulation.CHECKS[folds]) is None


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in OF_FACTS if name not in BY_ITS_STORY]
)
def test_without_what_a_fold_keeps_something_is_answered_otherwise(name: str) -> None:
    assert bisimulation.explore(BOUND, mutant=name) is not None, f"{BOUND} histories without {name} answered everything alike"


@pytest.mark.parametrize("name", OF_PARTIAL)
def test_without_what_a_partial_fold_keeps_something_is_answered_otherwise(name: str) -> None:
    for check in (bisimulation.check_partly, bisimulation.check_files):
        assert bisimulation.explore(BOUND, mutant=name, check=check) is not None


@pytest.mark.parametrize("name", OF_FILES)
def test_without_what_a_fold_reads_of_big_files_answers_differ(name: str) -> None:
    assert bisimulation.explore(BOUND, mutant=name, check=bisimulation.check_files) is not None


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in RARE else name for name in OF_STEPS])
def test_without_a_step_of_folding_the_model_finds_a_violation(name: str) -> None:
    assert model.explore(STEPS_BOUND, mutant=name) is not None, f"{STEPS_BOUND} histories without {name} broke nothing"


# ---- stories ---------------------------------------------------------------------------------------------------------


def with_big_files(file_rows: int) -> World:
    """A used catalog that was folded into files of so many rows, and in which since a checkpoint was committed and files were deleted."""
    scene = used_catalog()
    process = scene.world.process()
    process.fold(file_rows=file_rows)
    process.checkpoint(scene.coordinator, {"planes": [b"p5"], "model": b"5"})
    process.vacuum()
    return scene.world


@pytest.mark.parametrize("file_rows", [FILE_ROWS, 4])
def test_a_folder_that_dies_at_any_call_leaves_a_catalog_that_folds(file_rows: int) -> None:
    """Before and after each of its calls to the ledger, and where only the response is lost. The next one goes on from there."""
    calls = Faults()
    with_big_files(file_rows).process(calls).fold(file_rows=file_rows)
    assert calls.calls > 3
    for n in range(1, calls.calls + 1):
        for mode in MODES:
            world = with_big_files(file_rows)
            with pytest.raises((Crash, OSError)):
                world.process(Faults({n: mode})).fold(file_rows=file_rows)
            assert_catalog_sound(world)
            world.lose_power()
            survivor = world.process()
            survivor.fold(file_rows=file_rows)
            assert survivor.is_folded(), f"{mode} call {n}"
            survivor.vacuum()
            survivor.fold(file_rows=file_rows)
            assert survivor.is_folded()
            assert_catalog_sound(world)


def test_a_coordinator_goes_on_over_folds_that_it_has_not_seen() -> None:
    """And over a log that was cleaned below them: what it reads anew is what it knew."""
    world = World()
    process, folder = world.process(), world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"one"]})
    for cleans in (False, True):
        folder.vacuum()
        assert folder.fold(cleans=cleans)
        process.checkpoint(coordinator, {"routes": [b"two"]})
    folder.fold()
    other = world.process()
    number = other.checkpoint(other.coordinate(), {"model": b"three"})
    assert world.states_of(number) == {"planes": b"one", "routes": b"two", "model": b"three"}
    assert_catalog_sound(world)


def test_a_scrub_after_a_fold_takes_what_forgotten_attempts_left() -> None:
    """And nothing of what is live; `chk-<n>` of a forgotten attempt is judged by its manifest."""
    scene = used_catalog()
    world, process = scene.world, scene.world.process()
    scene.coordinator.close()
    for job in world.references().state.jobs.values():
        for token, owner in list(job.open_attempts.items()):
            if token in job.owners:
                process.release_owner(str(owner.opened.name), job.name)
            else:
                process.kill(token, job.name)
    process.vacuum()
    assert process.fold()
    plan = process.plan_scrub()
    assert not plan.unknown.count
    process.scrub(plan)
    assert_catalog_sound(world)
    assert_clean(world)


def test_two_folders_at_once_tell_the_history_once() -> None:
    """Another comes between the reading of one and its telling, which conflicts; or between its telling and its fold, which comes too late."""
    for verb in ("commits", "fold"):
        world = World()
        process = world.process()
        process.checkpoint(process.coordinate(), {"planes": [b"one"]})
        slow, others = world.process(), []
        slow.arm(on_call=lambda _, called, __, verb=verb, others=others, world=world: fold_once(world, others) if called == verb else None)
        assert not slow.fold()
        assert others == [True]
        versions = [commit.version for commit in world.told.commits]
        assert versions == sorted(set(versions))
        assert_catalog_sound(world)


def fold_once(world: World, others: list[bool]) -> None:
    if not others:
        others.append(world.process().fold(cleans=False))


def test_a_claimer_that_rolled_back_follows_its_line_after_a_fold() -> None:
    """Seen in the model: the process had forgotten the dropped row of the other job at which its own line begins, and died of a KeyError."""
    world = World()
    process, operator = world.process(), world.process()
    job = process.coordinate(retention=KeepAll())
    for n in range(3):
        process.checkpoint(job, {"a": b"%d" % n})
    operator.hold(1)
    claimer = process.coordinate_from(3, "copy", "claim", retention=KeepLast(3))
    for n in range(3):
        process.checkpoint(claimer, {"a": b"x%d" % n})
    operator.unhold(1)
    back = process.coordinate("copy", start=1, retention=KeepLast(3))
    assert operator.fold()
    process.checkpoint(back, {"a": b"y"})
    assert_catalog_sound(world)
