"""Interleave at every call: other operations run whole between any two calls of a commit, and a commit between any two calls of each.

Whoever loses gets a clear error of the right kind; the catalog is sound after each, goes on, and is clean after vacuum and scrub.
"""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest

from holdfast.catalog.errors import AlreadyExistsError, AttemptEndedError, FencedError, HoldfastError, RefusedError
from holdfast.catalog.types import KeepAll, KeepLast, Purpose
from tests.support import scenes
from tests.support.invariants import assert_catalog_sound
from tests.support.scenes import SCENES, Scene, later_checkpoint, open_checkpoint_attempt, resume
from tests.support.world import Logs, State, World

OTHERS: dict[str, State] = {"planes": [b"by another"], "offsets": b"other"}


# ---- what runs whole ------------------------------------------------------------------------------------------------


def vacuum(scene: Scene) -> None:
    scene.world.process().vacuum()


def stale_vacuum(scene: Scene) -> None:
    """Its plan is from before: other vacuums and commits have been there since."""
    scene.world.process().vacuum(scene.plan)


def scrub(scene: Scene) -> None:
    scene.world.process().scrub()


def vacuum_then_scrub(scene: Scene) -> None:
    vacuum(scene)
    scrub(scene)


def second_coordinator(scene: Scene) -> None:
    process = scene.world.process()
    process.checkpoint(process.coordinate(), OTHERS)


def second_coordinator_and_cleanup(scene: Scene) -> None:
    """Keep-last-1 drops all that the first one knew, and the vacuum takes it."""
    second_coordinator(scene)
    vacuum_then_scrub(scene)


def rolled_back_coordinator(scene: Scene) -> None:
    """It begins with the older live checkpoint, and lets go of nothing."""
    process = scene.world.process()
    live = process.transactor.fresh().job_named("flights").live
    process.checkpoint(process.coordinate(retention=KeepAll(), start=min(live)), OTHERS)


def drop(scene: Scene) -> None:
    process = scene.world.process()
    try:
        process.drop(2)
    except RefusedError:  # it was retention that dropped it first
        assert 2 not in scene.world.job().live
        return
    process.vacuum()


def kill(scene: Scene) -> None:
    """Of every checkpoint attempt that is open now, and then its cleanup."""
    scene.world.process().kill_all(Purpose.CHECKPOINT)
    vacuum_then_scrub(scene)


def expire(scene: Scene) -> None:
    """The block's time is over, and a cleanup takes what it wrote: now, or once the block is out of the transaction that it is in, for the
    alarm's thread waits for that."""
    coordinator, process = scene.coordinator, scene.actor
    assert coordinator is not None

    def ring(*_: object) -> None:
        if is_free(coordinator._transactor._lock):
            process.faults.on_call = None
            process.environment.ring()
            vacuum_then_scrub(scene)

    process.faults.on_call = ring
    ring()


def is_free(lock: Any) -> bool:
    """Whether another thread than this would get the lock."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock.acquire(blocking=False))
        if got[0]:
            lock.release()

    thread = Thread(target=take)
    thread.start()
    thread.join()
    return got[0]


def hold(scene: Scene) -> None:
    try:
        scene.world.process().hold(2)
    except RefusedError:  # the commit was faster, and retention has dropped it
        assert 2 not in scene.world.job().live


def read(scene: Scene) -> None:
    """A reader pins, and does not come back before the end."""
    scene.world.process().pin(max(scene.world.job().live))


def release_logs(scene: Scene) -> None:
    """The owner lets go of everything that it has written so far, and a cleanup comes by."""
    process = scene.world.process()
    process.release_logs(Logs(process.own(), dict(scene.world.owned)))
    vacuum_then_scrub(scene)


def release_owner(scene: Scene) -> None:
    """An operator takes the task for dead, and releases its owner; a cleanup comes by."""
    scene.world.process().release_owner()
    vacuum_then_scrub(scene)


OPERATIONS: dict[str, Callable[[Scene], None]] = {
    operation.__name__: operation
    for operation in (
        vacuum, stale_vacuum, scrub, vacuum_then_scrub, second_coordinator, second_coordinator_and_cleanup, rolled_back_coordinator,
        drop, kill, expire, hold, read, release_logs, release_owner,
    )
}  # fmt: skip

# What the acting process may be told when this operation came between. Nothing else, and never a lost checkpoint.
MAY_RAISE: dict[str, tuple[type[HoldfastError], ...]] = {
    "second_coordinator": (FencedError,),
    "second_coordinator_and_cleanup": (FencedError,),
    "rolled_back_coordinator": (FencedError,),
    "kill": (AttemptEndedError,),
    "expire": (AttemptEndedError,),
}


def run_with(prepare: Callable[[], Scene], n: int, between: Callable[[Scene], None]) -> tuple[Scene, BaseException | None, int]:
    """The scene's act with `between` run whole before its n-th call; what it raised, and how many calls it made."""
    scene = prepare()
    done: list[int] = []

    def on_call(call: int, verb: str, path: str) -> None:
        if call == n:
            between(scene)
            done.append(call)

    scene.actor.arm(on_call=on_call)
    raised: BaseException | None = None
    try:
        scene.act()
    except (HoldfastError, scenes.Boom) as error:
        raised = error
    except FileNotFoundError as error:  # a cleaner took what an ended attempt was still writing
        told = "".join(getattr(error, "__notes__", []))
        if scene.coordinator is not None and scene.coordinator.epoch < scene.world.job().epoch:
            told = "fenced: the newer coordinator dropped what the older one still read"
        assert "had been ended before" in told or "fenced" in told, told
        raised = FencedError(told) if "fenced" in told else AttemptEndedError(told)
    calls = scene.actor.faults.calls
    scene.actor.arm()
    assert done or calls < n
    return scene, raised, calls


def told_at_every_call(
    prepare: Callable[[], Scene], between: Callable[[Scene], None], allowed: tuple[type[BaseException], ...]
) -> Iterator[BaseException | None]:
    """What the act was told, with `between` before its first call, before its second and so on; each time the catalog is sound and goes on."""
    n = 1
    while True:
        scene, raised, calls = run_with(prepare, n, between)
        if calls < n:
            return
        try:
            assert raised is None or isinstance(raised, allowed), f"it was told {raised!r}"
            resume(scene.world)
        except BaseException as error:
            error.add_note(f"{between.__name__} before call {n} of {prepare.__name__}: {scene.actor.faults.log}")
            raise
        yield raised
        n += 1


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_between_any_two_calls_of_a_commit(operation: Callable[[Scene], None]) -> None:
    allowed = MAY_RAISE.get(operation.__name__, ())
    outcomes = [type(raised) for raised in told_at_every_call(later_checkpoint, operation, allowed)]
    assert len(outcomes) >= 10
    assert {*outcomes} >= {*allowed, type(None)}, "the commit was never overtaken"


@pytest.mark.parametrize("prepare", SCENES.values(), ids=SCENES)
def test_a_whole_commit_between_any_two_calls_of_everything_else(prepare: Callable[[], Scene]) -> None:
    """The commit is by the job's own coordinator, where the scene has one that does not act itself; else by a new one, with a cleanup."""
    if prepare in (
        scenes.first_checkpoint, scenes.later_checkpoint, scenes.checkpoint_after_others, scenes.abort, scenes.expire, scenes.close,
        scenes.task_owned, scenes.stores,
    ):  # fmt: skip
        between, allowed = second_coordinator_and_cleanup, (FencedError, scenes.Boom)
    elif prepare is scenes.register_and_start:
        between, allowed = second_coordinator, ()
    elif prepare is scenes.kill:
        between, allowed = own_coordinator, (AttemptEndedError,)
    else:
        between, allowed = own_coordinator, (RefusedError,)
    assert len([*told_at_every_call(prepare, between, allowed)]) >= 3


@pytest.mark.parametrize(
    "operation", [release_logs, release_owner, vacuum_then_scrub, second_coordinator_and_cleanup, rolled_back_coordinator]
)
def test_between_any_two_calls_of_a_task_that_writes_refers_and_releases(operation: Callable[[Scene], None]) -> None:
    """Release against an attempt in flight, at every call: the checkpoint is committed with the file there, or refused."""
    refusals: dict[str, set[type[BaseException]]] = {
        "release_logs": {RefusedError},
        "release_owner": {RefusedError, AlreadyExistsError},
        "vacuum_then_scrub": set(),
    }
    allowed = refusals.get(operation.__name__, {FencedError})
    outcomes: set[type] = set()
    for raised in told_at_every_call(scenes.task_owned, operation, tuple(allowed)):
        assert raised is None or type(raised) in allowed
        if isinstance(raised, RefusedError):
            assert "of owner 'wal': it was released meanwhile" in str(raised)
        outcomes.add(type(raised))
    assert outcomes == {*allowed, type(None)}


@pytest.mark.parametrize("operation", [vacuum_then_scrub, kill, expire])
def test_between_any_two_calls_of_uploads_of_stores(operation: Callable[[Scene], None]) -> None:
    """A task's upload against the end of its attempt and the cleanup of that, at every call: nothing is committed, and nothing stays."""
    allowed = MAY_RAISE.get(operation.__name__, ())
    outcomes = {type(raised) for raised in told_at_every_call(scenes.stores, operation, allowed)}
    assert outcomes == {*allowed, type(None)}


def own_coordinator(scene: Scene) -> None:
    """The scene's coordinator commits with keep-last-1, so that the older live checkpoint goes unless it is held or pinned; then a cleanup."""
    assert scene.coordinator is not None
    world = scene.world
    committing = world.process()
    scene.coordinator._line.retention = KeepLast(1)
    try:
        committing.checkpoint(scene.coordinator, OTHERS)
    except (AttemptEndedError, FencedError) as error:  # the scene killed its attempt, or fenced it
        assert isinstance(error, AttemptEndedError) or scene.coordinator.epoch < world.job().epoch
        return
    committing.vacuum()
    committing.scrub()


def test_two_commits_by_turns_always_have_one_winner_for_each_epoch() -> None:
    """Two coordinators take turns call by call; the fenced one stops at its next call to the ledger that matters, the newer never does."""
    for n in range(1, 20):
        scene = later_checkpoint()
        newer: list[int] = []

        def on_call(call: int, verb: str, path: str, n: int = n, world: World = scene.world, newer: list[int] = newer) -> None:
            if call == n:
                process = world.process()
                coordinator = process.coordinate(retention=KeepAll())
                newer.append(process.checkpoint(coordinator, OTHERS))
                newer.append(process.checkpoint(coordinator, {"offsets": b"again"}))

        scene.actor.arm(on_call=on_call)
        try:
            scene.act()
        except FencedError:
            pass
        if newer:
            assert scene.world.job().head == newer[-1]
            assert set(newer) <= set(scene.world.job().live)
        assert_catalog_sound(scene.world)
        assert open_checkpoint_attempt(scene.world) is not None
