"""Operations of one process, each with the world that it finds: crash tests break them at every call, interleaving tests step between.

A scene prepares the world with unbroken processes, then says what its process does. Everything before `act` is acknowledged and sound.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache

from holdfast.catalog.errors import AttemptEndedError
from holdfast.catalog.facts import AttemptOpened
from holdfast.catalog.types import AttemptToken, KeepAll, KeepLast, Purpose, Status
from holdfast.compaction.vacuum import VacuumPlan
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.failure_policy import FailurePolicy
from holdfast.writers.start import Mode
from tests.support.faults import Crash
from tests.support.invariants import assert_catalog_sound, assert_clean, assert_sound_now
from tests.support.snapshots import Snapshot
from tests.support.stores import Stores
from tests.support.world import JOB, Logs, Process, State, World, foreign_file, late_upload, write_states

OTHER_JOB = "what-if"
BIG = b"x" * 20_001  # of bytes: a file of its own

# Of two subtasks: one has the run of the parent and its name; the other that name and size, with other bytes, and a log that is not small.
STORES = ({"1.sst": b"run 1", "2.sst": b"run 2", "CURRENT": b"3"}, {"1.sst": b"other", "CURRENT": b"1", "LOG": BIG})

FIRST: dict[str, State] = {"planes": [b"p1", b"p2"], "routes": [b"r1"], "offsets": b"1", "model": BIG}
SECOND: dict[str, State] = {"planes": [b"p3", b"p4"], "airports": [b"a1"], "offsets": b"2"}
THIRD: dict[str, State] = {"routes": None, "planes": [b"p5"], "weather": [b"w1"], "model": BIG + b"3"}


class Boom(Exception):
    """What the user's own code raises in a checkpoint's block."""


@dataclass(slots=True)
class Scene:
    """A world, and the one process in it that acts. `coordinator` is the acting process's, `plan` a vacuum's from long ago."""

    world: World
    actor: Process
    act: Callable[[], object] = lambda: None
    coordinator: Coordinator | None = None
    plan: VacuumPlan | None = None
    before: dict[str, bytes] = field(default_factory=dict)  # the head's states before the act
    logs: Logs | None = None  # of the head, by the owner `wal`


def empty_catalog() -> Scene:
    world = World()
    return Scene(world, world.process())


def used_catalog() -> Scene:
    """As `make_used_catalog` makes it, which is done once: this is a copy."""
    return _snapshot().copy()


@cache
def _snapshot() -> Snapshot[Scene]:
    return Snapshot(make_used_catalog())


def make_used_catalog() -> Scene:
    """Checkpoints 1 (dropped, its files garbage), 2 and 4 (live, 4 the head), an aborted attempt 3 with an orphan, a stranger's file.

    A vacuum once ran half-way: one file is condemned and still there. The coordinator of the acting process is on 4.
    A store has a run in 2, to which 4 refers. A task owns four files: 1 is released and in 1 and 2, 2 in all of them, 3 is only in 4, and 4 in none.
    """
    world = World()
    foreign_file(world)
    actor = world.process()
    coordinator = actor.coordinate(retention=KeepLast(2), patience=FailurePolicy(timeout_s=600))
    owner = actor.own()
    one, two, three, _ = (actor.log(owner, data) for data in (b"log 1", b"log 2", b"log 3", b"log 4"))
    actor.checkpoint(coordinator, {**FIRST, "wal": both(one, two)})
    actor.checkpoint(coordinator, {**SECOND, "wal": both(two, one), "rocks": Stores(({"1.sst": b"run 1", "CURRENT": b"1"},))}, {"week": 2})
    actor.release_logs(one)
    aborted = fail_checkpoint(coordinator)
    late_upload(world, aborted)
    logs = both(two, three)
    actor.checkpoint(
        coordinator, {"offsets": b"4", "planes": [b"p4"], "wal": logs, "rocks": Stores(({"1.sst": b"run 1", "CURRENT": b"2"},))}
    )
    crashed = world.process()
    plan = crashed.plan_vacuum()
    crashed.arm(on_call=lambda _, verb, path: crashed.faults.die() if (verb, path) == ("delete", plan.unreferenced[1].path) else None)
    with suppress(Crash):
        crashed.vacuum(plan)
    assert crashed.faults.dead
    assert len(world.process().plan_vacuum().condemned) == len(plan.unreferenced)
    return Scene(world, actor, coordinator=coordinator, plan=plan, before=world.states_of(4), logs=logs)


def both(first: Logs, second: Logs) -> Logs:
    """The files of both, of one owner."""
    return Logs(first.owner, {**first.files, **second.files})


def fail_checkpoint(coordinator: Coordinator) -> AttemptOpened:
    """A checkpoint whose block raises after it wrote; returns its opening."""
    with suppress(Boom), coordinator.checkpoint() as writer:
        write_states(writer, {"planes": [b"never"], "model": BIG + b"never"})
        raise Boom("the user's own error")
    job = coordinator._transactor.known().job(coordinator.job_id)
    return job.attempts[writer.attempt].opened


# ---- scenes ---------------------------------------------------------------------------------------------------------


def first_checkpoint() -> Scene:
    scene = empty_catalog()
    scene.coordinator = coordinator = scene.actor.coordinate()
    scene.act = lambda: scene.actor.checkpoint(coordinator, FIRST)
    return scene


def later_checkpoint() -> Scene:
    """Carries, adds and removes; retention drops one; the attempt is the one that the last commit opened."""
    scene = used_catalog()
    coordinator = scene.coordinator
    assert coordinator is not None
    scene.act = lambda: scene.actor.checkpoint(coordinator, THIRD, {"week": 5})
    return scene


def checkpoint_after_others() -> Scene:
    """As `later_checkpoint`, but operators were there since the coordinator last looked: its memory is stale."""
    scene = later_checkpoint()
    operator = scene.world.process()
    operator.hold(2)
    operator.hold(4, "other")
    operator.unhold(4, "other")
    return scene


def abort() -> Scene:
    scene = used_catalog()
    coordinator = scene.coordinator
    assert coordinator is not None
    scene.act = lambda: fail_checkpoint(coordinator)
    return scene


def expire() -> Scene:
    """The time of a checkpoint is over between two of its writes; the block goes on, and would commit."""
    scene = used_catalog()
    coordinator, environment = scene.coordinator, scene.actor.environment
    assert coordinator is not None

    def act() -> None:
        with suppress(AttemptEndedError), coordinator.checkpoint() as writer:
            write_states(writer, {"planes": [b"never"], "model": BIG + b"never"})
            environment.ring()
            environment.passed_s += 601  # so that its next step ends it, should the alarm not have got through
            write_states(writer, {"weather": [b"late"]})

    scene.act = act
    return scene


def close() -> Scene:
    scene = used_catalog()
    coordinator = scene.coordinator
    assert coordinator is not None
    scene.act = coordinator.close
    return scene


def vacuum() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = scene.actor.vacuum
    return scene


def scrub() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = scene.actor.scrub
    return scene


def drop() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.drop(2)
    return scene


def hold() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.hold(2)
    return scene


def unhold() -> Scene:
    scene = used_catalog()
    scene.world.process().hold(2)
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.unhold(2)
    return scene


def kill() -> Scene:
    scene = used_catalog()
    token = open_checkpoint_attempt(scene.world)
    assert token is not None
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.kill(token)
    return scene


def restore() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    expected = scene.world.states_of(2)

    def act() -> None:
        assert scene.actor.restore(2) == expected

    scene.act = act
    return scene


def start() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = scene.actor.coordinate
    return scene


def register_and_start() -> Scene:
    scene = empty_catalog()
    scene.act = scene.actor.coordinate
    return scene


def savepoint() -> Scene:
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.savepoint(4, "mine")
    return scene


def dispose() -> Scene:
    scene = used_catalog()
    number = scene.world.process().savepoint(4, "mine")
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.drop(number)
    return scene


def own() -> Scene:
    """A new owner."""
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = lambda: scene.actor.own("spill")
    return scene


def task_owned() -> Scene:
    """A task writes a file, and releases an older one, which the head has; then a checkpoint refers to the new one."""
    scene = used_catalog()
    coordinator, logs = scene.coordinator, scene.logs
    assert coordinator is not None
    assert logs is not None
    older, newer = ((file, data) for file, data in logs.files.items())

    def act() -> None:
        owner = scene.actor.own()
        new = scene.actor.log(owner, b"log 5")
        scene.actor.release_logs(Logs(owner, dict([older])))
        scene.actor.checkpoint(coordinator, {"offsets": b"5", "wal": both(new, Logs(owner, dict([newer])))})

    scene.act = act
    return scene


def stores() -> Scene:
    """The parent's store has a second subtask now; and stores of another state are uploaded by tasks, one of which is tried again."""
    scene = used_catalog()
    coordinator = scene.coordinator
    assert coordinator is not None
    states: dict[str, State] = {"rocks": Stores(STORES), "tables": Stores(STORES[:1], in_tasks=True)}
    scene.act = lambda: scene.actor.checkpoint(coordinator, states)
    return scene


def release_files() -> Scene:
    """Of the head, of an older checkpoint, and one that no checkpoint has."""
    scene = used_catalog()
    logs = scene.logs
    assert logs is not None
    scene.actor = scene.world.process()

    def act() -> None:
        owner = scene.actor.own()
        scene.actor.release_logs(both(logs, scene.actor.log(owner, b"never referred to")))

    scene.act = act
    return scene


def release_owner() -> Scene:
    """By an operator."""
    scene = used_catalog()
    scene.actor = scene.world.process()
    scene.act = scene.actor.release_owner
    return scene


def fork() -> Scene:
    return _other_job("fork")


def no_claim() -> Scene:
    return _other_job("no-claim")


def claim() -> Scene:
    return _other_job("claim")


def _other_job(mode: Mode) -> Scene:
    """Starts from the head of the first job, writes its own first checkpoint, and stays open."""
    scene = used_catalog()
    scene.actor = scene.world.process()
    kept = {name: data for name, data in scene.world.states_of(4).items() if name != "offsets"}

    def act() -> None:
        coordinator = scene.actor.coordinate_from(4, OTHER_JOB, mode, retention=KeepLast(2))
        scene.actor.checkpoint(coordinator, {"offsets": b"what if"})
        head = scene.world.job(OTHER_JOB).head
        assert head is not None
        assert scene.world.states_of(head, OTHER_JOB) == {**kept, "offsets": b"what if"}

    scene.act = act
    return scene


SCENES: dict[str, Callable[[], Scene]] = {
    scene.__name__: scene
    for scene in (
        first_checkpoint, later_checkpoint, checkpoint_after_others, abort, expire, close, vacuum, scrub, drop, hold, unhold, kill, restore, start, register_and_start,
        savepoint, dispose, own, task_owned, stores, release_files, release_owner, fork, no_claim, claim,
    )
}  # fmt: skip


# ---- afterwards -----------------------------------------------------------------------------------------------------


def open_checkpoint_attempt(world: World) -> AttemptToken | None:
    """The token of an open checkpoint attempt, if there is one."""
    tokens = [attempt.opened.attempt for attempt in world.job().open_attempts.values() if attempt.opened.purpose is Purpose.CHECKPOINT]
    return tokens[-1] if tokens else None


def resume(world: World) -> int:
    """A new process goes on: one more checkpoint, readers that died are killed, vacuum, scrub; sound before and clean after."""
    assert_sound_now(world)
    process = world.process()
    coordinator = process.coordinate()
    latest = coordinator.latest()
    acknowledged = max((ack.checkpoint_id for ack in world.acknowledged if ack.job_id == coordinator.job_id), default=0)
    assert (latest.checkpoint_id if latest else 0) >= acknowledged, "the job goes on from before what was acknowledged"
    number = process.checkpoint(coordinator, {"offsets": b"resumed", "airports": [b"a9"]})
    coordinator.close()
    state = world.references().state
    for name in set(state.names) - {JOB}:
        # One that died before its first commit pinned nothing any more: what it began with may be gone.
        start = "head" if state.job_named(name).head is not None else "nothing"
        process.coordinate(name, retention=KeepAll(), start=start).close()
    for purpose in (Purpose.READ, Purpose.SAVEPOINT):
        process.kill_all(purpose)
    for held, name in sorted(state.job_named(JOB).holds):
        process.unhold(held, name)
        process.drop(held)
    process.vacuum()
    process.scrub()
    assert_sound_now(world)  # of owners that are open too
    for owner in [owner.opened.name for owner in state.job_named(JOB).owners.values()]:
        assert owner is not None
        process.release_owner(owner)
    process.vacuum()
    process.scrub()
    assert_catalog_sound(world)
    assert_clean(world)
    job = world.job()
    directories = {path.split("/")[2] for path in world.paths(f"jobs/{job.job_id}") if "/chk-" in path}
    assert directories == {f"chk-{number}"}, f"keep-last-1 leaves one chk directory, here are {sorted(directories)}"
    assert all(attempt.status is not Status.OPEN for attempt in job.attempts.values())
    return number


def keep_all(scene: Scene) -> Coordinator:
    """A coordinator of a new process that drops nothing."""
    return scene.world.process().coordinate(retention=KeepAll())
