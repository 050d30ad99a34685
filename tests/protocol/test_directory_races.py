"""Races of the directories of embedded stores, each as a story: late uploads, parents that go, rollbacks, other jobs, savepoints.

Crashes and other operations at every call are in `test_crash.py` and `test_interleave.py`, by the scene `stores`.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count, takewhile

import pytest

from holdfast.catalog import manifest_store
from holdfast.catalog.errors import AttemptEndedError, DamagedFileError, RefusedError
from holdfast.catalog.types import KeepAll, KeepLast, Purpose
from holdfast.writers.start import Mode
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.scenes import BIG, resume
from tests.support.store_mutants import OF_STORES, UNSEEN
from tests.support.stores import Stores, taking
from tests.support.world import Process, World, write_states

ONE = Stores(({"1.sst": b"run 1", "2.sst": b"run 2", "CURRENT": b"1"}, {"1.sst": b"other", "CURRENT": b"1"}))
TWO = Stores(({"2.sst": b"run 2", "3.sst": b"run 3", "CURRENT": b"2", "LOG": BIG}, {"1.sst": b"other", "CURRENT": b"2"}), in_tasks=True)
OTHER = Stores(({"9.sst": b"run 9", "CURRENT": b"9"},))


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def process(world: World) -> Process:
    return world.process()


def told(stores: Stores, **more: bytes) -> dict[str, bytes]:
    return {"rocks": stores.told, **more}


def clean(world: World) -> None:
    world.process().vacuum()
    world.process().scrub()


def at_call(n: int, process: Process, between: Callable[[], object], act: Callable[[], object]) -> bool:
    """Whether there was an n-th call, before which the other ran whole."""
    done: list[int] = []

    def on_call(call: int, verb: str, path: str) -> None:
        if call == n:
            between()
            done.append(call)

    process.arm(on_call=on_call)
    act()
    process.arm()
    return bool(done)


def test_a_task_that_uploads_after_its_attempt_was_cleaned_leaves_nothing(world: World, process: Process) -> None:
    """Its driver is gone or was told to stop; the executor goes on for a while. Nothing refers to what it writes, and a scrub takes it."""
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": ONE})
    with pytest.raises(AttemptEndedError), coordinator.checkpoint() as writer:
        tasks = writer.directories("rocks", subtasks=1)
        world.process().kill_all(Purpose.CHECKPOINT)
        clean(world)
        writer.acknowledge("rocks", [tasks.write(taking(TWO.shares[0]), subtask=0).ack()])
    tasks.write(taking(TWO.shares[0]), subtask=0).ack()  # and another try, after the driver has gone on
    assert world.states_of(1) == told(ONE)
    coordinator.close()
    clean(world)
    assert_catalog_sound(world)
    assert_clean(world)


def parent_dropped_at(n: int) -> bool:
    world = World()
    process, other = world.process(), world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": ONE})
    slow = process.open_beside(coordinator, 1)

    def replace_parent() -> None:
        if slow.checkpoint_id not in world.job().live:  # else it was faster
            other.checkpoint(coordinator, {"rocks": OTHER})
            assert 1 not in world.job().live
        clean(world)

    def act() -> None:
        write_states(slow, {"rocks": TWO})
        process.commit_beside(coordinator, slow, KeepAll())

    overtaken = at_call(n, process, replace_parent, act)
    assert world.states_of(slow.checkpoint_id) == told(TWO)
    assert_catalog_sound(world)
    return overtaken


def test_a_parent_dropped_and_vacuumed_at_any_call_keeps_referred_files() -> None:
    """Between the reading of the parent and the commit on it: the attempt pins it."""
    assert len([*takewhile(parent_dropped_at, count(1))]) > 8


def test_after_a_rollback_stores_refer_to_the_runs_of_the_older_checkpoint(world: World, process: Process) -> None:
    """Their intervals had ended, and those of the checkpoint that was left are open: it begins new ones, and ends these."""
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"rocks": ONE})
    process.checkpoint(coordinator, {"rocks": OTHER})
    back = process.coordinate(retention=KeepAll(), start=1)
    before = world.paths()
    number = process.checkpoint(back, {"rocks": Stores(({**ONE.shares[0], "CURRENT": b"3"}, ONE.shares[1]))})
    assert [path for path in world.paths() - before if "/shared/" in path] == [], "both runs are there"
    process.drop(1)
    process.drop(2)
    clean(world)
    assert world.process().restore(number) == world.acknowledged[-1].states
    assert_catalog_sound(world)
    resume(world)


@pytest.mark.parametrize("mode", ["fork", "claim", "no-claim"])
def test_another_job_goes_on_with_stores_while_the_first_one_replaces_them(world: World, process: Process, mode: Mode) -> None:
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": ONE})
    heir = process.coordinate_from(1, "heir", mode, retention=KeepLast(1))
    if mode != "claim":  # which fences it
        process.checkpoint(coordinator, {"rocks": OTHER})
    clean(world)
    before = world.paths()
    process.checkpoint(heir, {"rocks": TWO})
    shared = {path for path in world.paths() - before if "/shared/" in path}
    assert len(shared) == 3, "3.sst, by each of three tries; of the others it has the runs of what it began with"
    clean(world)
    assert world.process().restore(int(world.job("heir").head or 0), "heir") == told(TWO)
    assert_catalog_sound(world)


def savepoint_overtaken_at(n: int) -> bool:
    world = World()
    process, saver = world.process(), world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": TWO})
    numbers: list[int] = []

    def go_on() -> None:
        process.checkpoint(coordinator, {"rocks": OTHER})
        clean(world)

    try:
        overtaken = at_call(n, saver, go_on, lambda: numbers.append(saver.savepoint(1, "mine")))
    except RefusedError as error:  # before it was pinned
        assert "it was dropped" in str(error)
        overtaken = True
    else:
        assert world.states_of(numbers[0]) == world.process().restore(numbers[0]) == told(TWO)
    assert_catalog_sound(world)
    return overtaken


def test_a_savepoint_of_stores_is_whole_whatever_happens_at_its_calls() -> None:
    """Whatever is committed and cleaned at any of them. Copied as the directories that they are, while checkpoints go on and replace every
    run."""
    assert len([*takewhile(savepoint_overtaken_at, count(1))]) > 8


# ---- each rule --------------------------------------------------------------------------------------------------------


def test_a_run_of_the_same_name_and_size_with_other_bytes_is_uploaded() -> None:
    """A store that was started again counts from where it was: its next run may have the name of one that the parent has."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": Stores(({"1.sst": b"run 1"},))})
    process.checkpoint(coordinator, {"rocks": Stores(({"1.sst": b"RUN 1"},))})
    assert_catalog_sound(world)


def test_subtasks_that_change_places_refer_to_nothing_of_each_other() -> None:
    """A handle's subtask never changes: referred to by another, it would be restored to the one that had it."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": Stores(({"1.sst": b"run 1"}, {"2.sst": b"run 2"}))})
    process.checkpoint(coordinator, {"rocks": Stores(({"2.sst": b"run 2"}, {"1.sst": b"run 1"}))})
    assert_catalog_sound(world)


def test_a_task_that_is_not_heard_of_has_no_share_in_what_is_committed() -> None:
    """The parent's store of it would be carried without a word, beside the newer ones of the others."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"rocks": ONE})
    with suppress(RefusedError), coordinator.checkpoint() as writer:
        write_states(writer, {"rocks": replace(TWO, missing=frozenset({1}))})
    assert world.job().head == 1


def test_of_two_tries_one_is_referred_to_and_the_other_is_found_by_a_query() -> None:
    """Not by listing storage: the driver knows its files, and may be the last that does."""
    world = World()
    process = world.process()
    process.checkpoint(process.coordinate(), {"rocks": Stores(({"1.sst": b"run 1"},), in_tasks=True)})
    assert_catalog_sound(world)
    assert process.vacuum().deleted_files == 1


STORIES: dict[str, Callable[[], None]] = {
    "reuse_needs_the_digest": test_a_run_of_the_same_name_and_size_with_other_bytes_is_uploaded,
    "reuse_within_a_subtask": test_subtasks_that_change_places_refer_to_nothing_of_each_other,
    "every_share_arrives": test_a_task_that_is_not_heard_of_has_no_share_in_what_is_committed,
    "one_try_counts": test_of_two_tries_one_is_referred_to_and_the_other_is_found_by_a_query,
    "losers_are_garbage": test_of_two_tries_one_is_referred_to_and_the_other_is_found_by_a_query,
}


@pytest.mark.parametrize("name", [*OF_STORES, *UNSEEN])
def test_without_its_rule_the_story_ends_badly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # What a manifest may say is looked at as well, before it is written, and again when it is read.
    monkeypatch.setattr(manifest_store, "require_sound", lambda *_: None)
    with {**OF_STORES, **UNSEEN}[name].without(), pytest.raises((AssertionError, DamagedFileError)):
        STORIES[name]()
