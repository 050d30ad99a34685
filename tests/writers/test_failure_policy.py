"""A checkpoint's timeout, and failures that a job tolerates: over the reference adapters, with alarms that ring when a test says so."""

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.errors import (
    AttemptEndedError,
    ConflictError,
    CorruptionError,
    FencedError,
    HoldfastError,
    RefusedError,
    RetryError,
    TooManyFailuresError,
    UnknownOutcomeError,
    UsageError,
)
from holdfast.catalog.types import AttemptToken, CheckpointId, JobId, Purpose, Status
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.failure_policy import AttemptWatch, FailureCount, FailurePolicy
from tests.support.invariants import assert_catalog_sound
from tests.support.scenes import BIG, Boom, resume
from tests.support.world import Process, State, World, late_upload, write_states

MINUTES = FailurePolicy(timeout_s=600)


@pytest.fixture
def world() -> World:
    return World()


def begun(world: World, patience: FailurePolicy = MINUTES) -> tuple[Process, Coordinator]:
    """A job with one checkpoint."""
    process = world.process()
    coordinator = process.coordinate(patience=patience)
    process.checkpoint(coordinator, {"planes": [b"1"]})
    return process, coordinator


def status_of(world: World, token: AttemptToken) -> tuple[Status, str | None]:
    attempt = world.job().attempts[token]
    return attempt.status, attempt.reason


EXPIRED = (Status.ABORTED, "expired: not committed within 600 s")


# ---- a timeout ---------------------------------------------------------------------------------------------------------


def test_the_timeout_ends_the_attempt_in_the_ledger_while_the_block_runs(world: World) -> None:
    """Whoever looks sees it at once: the attempt is aborted, it pins nothing, and what it acknowledged goes with the next vacuum."""
    process, coordinator = begun(world)
    with pytest.raises(AttemptEndedError, match="expired: not committed within 600 s"):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"planes": [b"2", b"3"], "model": BIG})
            acked = {file.path for file in writer._attempt.acked_files}
            process.environment.ring()
            assert status_of(world, writer.attempt) == EXPIRED
            assert not world.job().open_attempts
            assert len(acked) == 3
            assert {file.path for file in world.process().plan_vacuum().unreferenced} == acked
            world.process().vacuum()
            assert not acked & world.paths()
            assert_catalog_sound(world)
    assert process.checkpoint(coordinator, {"offsets": b"3"}) == 3, "the id of the expired attempt is never given again"
    assert world.states_of(3) == {"planes": b"1", "offsets": b"3"}
    resume(world)


def test_a_checkpoint_that_ends_in_time_calls_its_alarm_off(world: World) -> None:
    process, coordinator = begun(world)
    assert process.environment.alarms == []
    with coordinator.checkpoint() as writer:
        assert len(process.environment.alarms) == 1
        write_states(writer, {"planes": [b"2"]})
    with pytest.raises(Boom), coordinator.checkpoint():
        raise Boom
    assert process.environment.alarms == []
    assert writer.result is not None


def test_the_time_between_two_checkpoints_does_not_count(world: World) -> None:
    """The attempt was opened by the commit before; what counts is the block."""
    process, coordinator = begun(world)
    process.environment.passed_s += 10_000
    process.environment.ring()
    assert process.checkpoint(coordinator, {"offsets": b"2"}) == 2


@pytest.mark.parametrize("late", ["before the write", "before the commit"])
def test_a_step_ends_what_is_over_by_the_clock_where_no_alarm_has_rung(world: World, late: str) -> None:
    """A process that was suspended wakes up: its block may be faster than its alarm."""
    process, coordinator = begun(world)
    reached = []
    with pytest.raises(AttemptEndedError, match="expired"):
        with coordinator.checkpoint() as writer:
            if late == "before the write":
                process.environment.passed_s += 601
            write_states(writer, {"model": BIG})
            reached.append("written")
            process.environment.passed_s += 601
    assert status_of(world, writer.attempt) == EXPIRED
    assert reached == ([] if late == "before the write" else ["written"])
    resume(world)


def test_a_late_ack_is_discarded_and_its_files_are_cleaned(world: World) -> None:
    """The time is over in the middle of a write, which goes on to its end."""
    process, coordinator = begun(world)
    with pytest.raises(AttemptEndedError, match="expired"):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"model": BIG})
            process.arm(on_call=ring_at(process, "create", "/shared/"))
            write_states(writer, {"planes": [b"late 1", b"late 2"]})
            raise AssertionError("the write must be told that its ack came too late")
    process.arm()
    late = {path for path in world.paths() if f"-{writer.attempt}-" in path and "/shared/" in path}
    assert len(late) == 2
    assert_catalog_sound(world)
    assert process.vacuum().deleted_files == 1, "the model, whose ack had arrived"
    assert {file.path for file in process.plan_scrub().orphans} == late
    process.scrub()
    assert not late & world.paths()
    resume(world)


def ring_at(process: Process, verb: str, place: str, then: Callable[[], object] = lambda: None) -> Callable[[int, str, str], None]:
    """Every alarm rings before the first call like this."""

    def on_call(call: int, called: str, path: str) -> None:
        if called == verb and place in path and process.environment.alarms:
            process.environment.ring()
            then()

    return on_call


def test_a_write_whose_directory_goes_fails_the_attempt_with_its_reason(world: World) -> None:
    """The expired attempt's files are scrubbed while it writes more: what storage says then is only the cause."""
    process, coordinator = begun(world)
    other = world.process()
    with pytest.raises(AttemptEndedError, match="expired: not committed within 600 s.*begin another") as raised:
        with coordinator.checkpoint() as writer:
            process.arm(on_call=ring_at(process, "digest", writer.attempt, then=other.scrub))
            write_states(writer, {"planes": [b"2", b"3"]})
    process.arm()
    assert isinstance(raised.value.__cause__, FileNotFoundError)
    assert process.checkpoint(coordinator, {"offsets": b"3"}) == 3
    resume(world)


def test_a_write_whose_killed_attempts_directory_goes_says_it_was_killed(world: World) -> None:
    process, coordinator = begun(world, FailurePolicy())
    other = world.process()

    def kill(call: int, verb: str, path: str) -> None:
        if verb == "digest" and other.kill_all(Purpose.CHECKPOINT):
            other.scrub()

    with pytest.raises(AttemptEndedError, match="killed .by a test.") as raised:
        with coordinator.checkpoint() as writer:
            process.arm(on_call=kill)
            write_states(writer, {"planes": [b"2"]})
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_a_write_that_fails_in_an_open_attempt_is_told_as_it_is(world: World) -> None:
    process, coordinator = begun(world)
    with pytest.raises(OSError, match="a disk") as raised, coordinator.checkpoint() as writer:
        process.arm(on_call=fail_at("create", OSError(errno.EIO, "a disk")))
        write_states(writer, {"planes": [b"2"]})
    assert raised.value.__cause__ is None


def fail_at(verb: str, error: Exception) -> Callable[[int, str, str], None]:
    def on_call(call: int, called: str, path: str) -> None:
        if called == verb:
            raise error

    return on_call


def test_the_users_own_error_comes_out_as_it_is_of_an_expired_attempt(world: World) -> None:
    process, coordinator = begun(world)
    with pytest.raises(Boom) as raised, coordinator.checkpoint():
        process.environment.ring()
        raise Boom
    assert "expired" in "".join(raised.value.__notes__)


def test_an_alarm_that_cannot_reach_the_ledger_is_set_again(world: World) -> None:
    process, coordinator = begun(world)
    with pytest.raises(AttemptEndedError, match="expired"), coordinator.checkpoint() as writer:
        process.arm(on_call=fail_at("append", OSError(errno.EIO, "no ledger")))
        process.environment.ring()
        assert writer.attempt in world.job().open_attempts
        process.arm()
        process.environment.ring()
        assert status_of(world, writer.attempt) == EXPIRED


def test_an_alarm_after_a_kill_or_a_newer_coordinator_ends_nothing_twice(world: World) -> None:
    process, coordinator = begun(world)
    with pytest.raises(AttemptEndedError, match="killed"), coordinator.checkpoint() as writer:
        world.process().kill(writer.attempt)
        process.environment.ring()
        assert process.environment.alarms == []
    with pytest.raises(FencedError), coordinator.checkpoint() as writer:
        world.process().coordinate()
        process.environment.ring()
        write_states(writer, {"planes": [b"2"]})
    resume(world)


def test_an_expired_attempt_of_a_fork_hands_its_pin_to_the_next_one(world: World) -> None:
    """What another job's checkpoint is pinned by is the first attempt alone."""
    process, coordinator = begun(world, FailurePolicy())
    forked = world.process()
    fork = forked.coordinate_from(1, "what-if", "fork", patience=MINUTES)
    with pytest.raises(AttemptEndedError, match="expired"), fork.checkpoint() as writer:
        forked.environment.ring()
        process.checkpoint(coordinator, {"planes": [b"2"]})
        process.vacuum()
        write_states(writer, {"offsets": b"late"})
    assert forked.checkpoint(fork, {"offsets": b"2"}) == 2
    assert world.states_of(2, "what-if") == {"planes": b"1", "offsets": b"2"}
    resume(world)


def test_a_task_that_writes_after_its_attempt_expired_is_cleaned_by_scrub(world: World) -> None:
    process, coordinator = begun(world)
    with suppress(AttemptEndedError), coordinator.checkpoint() as writer:
        process.environment.ring()
    path = late_upload(world, world.job().attempts[writer.attempt].opened)
    process.scrub()
    assert path not in world.paths()
    resume(world)


def test_the_machines_own_alarm_ends_an_attempt_from_a_thread_of_its_own(tmp_path: Path) -> None:
    """The one test with a real alarm and a real ledger: the block waits for the attempt's end to be seen, not for a time."""
    with holdfast.open(tmp_path / "catalog", create=True) as catalog, holdfast.open(tmp_path / "catalog") as other:
        job = catalog.coordinate("flights", checkpoint_timeout_s=0.01)
        ended: list[tuple[str, str]] = []
        with pytest.raises(AttemptEndedError, match=r"expired: not committed within 0.01 s"), job.checkpoint():
            while not ended:
                with other.duckdb() as connection:
                    ended = connection.execute("SELECT status, reason FROM attempts WHERE status <> 'open'").fetchall()
        assert ended == [("aborted", "expired: not committed within 0.01 s")]


def test_an_alarm_in_the_middle_of_the_commit_waits_and_ends_nothing(world: World) -> None:
    """In a thread of its own, as the machine's alarms are: one lock spans a transaction from its decision to its end."""
    process, coordinator = begun(world)
    threads: list[threading.Thread] = []

    def on_call(call: int, verb: str, path: str) -> None:
        if verb == "append" and not threads:
            threads.append(threading.Thread(target=process.environment.ring))
            threads[0].start()

    with coordinator.checkpoint() as writer:
        write_states(writer, {"planes": [b"2"]})
        process.arm(on_call=on_call)
    threads[0].join()
    assert writer.result is not None
    assert status_of(world, writer.attempt) == (Status.COMMITTED, None)
    assert process.checkpoint(coordinator, {"offsets": b"3"}) == 3
    resume(world)


def test_the_machines_alarm_keeps_no_process_alive_and_can_be_called_off() -> None:
    before = set(threading.enumerate())
    call_off = SystemEnvironment().alarm(1e12, lambda: None)  # beyond what a thread may wait for at once
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    assert thread.is_alive()
    call_off()
    thread.join()


def test_a_watch_when_over_waits_for_an_end_on_its_way_and_begins_no_other() -> None:
    """An alarm that has begun to ring is past being called off: when the block has ended it must have done what it does, or nothing."""
    ends: list[str] = []
    rings: list[Callable[[], None]] = []

    class Slow(SystemEnvironment):
        def alarm(self, after_s: float, ring: Callable[[], None]) -> Callable[[], None]:
            rings.append(ring)
            return lambda: None  # too late

    with AttemptWatch(timeout_s=1, environment=Slow(), end=ends.append, ask=lambda: None):
        pass
    rings[0]()
    assert ends == []


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), True, "600"])
def test_what_is_no_timeout_is_refused_before_anything_is_registered(tmp_path: Path, timeout_s) -> None:
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with pytest.raises(UsageError, match=r"checkpoint_timeout_s=.* is not a time"):
            catalog.coordinate("flights", checkpoint_timeout_s=timeout_s)
        with pytest.raises(UsageError, match=r"tolerated_failures=.* is not a number"):
            catalog.coordinate("flights", tolerated_failures=-1 if timeout_s == 0 else timeout_s)
        assert catalog.duckdb().execute("SELECT count(*) FROM jobs").fetchone() == (0,)


# ---- failures that are tolerated ------------------------------------------------------------------------------------------

TWO = FailurePolicy(timeout_s=600, tolerated_failures=2)
WRITTEN: dict[str, State] = {"planes": [b"new"]}


def fail_by_expiry(world: World, process: Process, coordinator: Coordinator) -> holdfast.CheckpointWriter:
    with coordinator.checkpoint() as writer:
        process.environment.ring()
        write_states(writer, WRITTEN)
        raise AssertionError("a write in an expired attempt must fail")
    return writer


def fail_by_kill(world: World, process: Process, coordinator: Coordinator) -> holdfast.CheckpointWriter:
    with coordinator.checkpoint() as writer:
        write_states(writer, WRITTEN)
        world.process().kill(writer.attempt)
    return writer


def fail_by_storage(world: World, process: Process, coordinator: Coordinator) -> holdfast.CheckpointWriter:
    with coordinator.checkpoint() as writer:
        process.arm(on_call=fail_at("create", OSError(errno.EIO, "no disk")))
        with suppress(Boom):
            write_states(writer, WRITTEN)
    return writer


def fail_by_manifest(world: World, process: Process, coordinator: Coordinator) -> holdfast.CheckpointWriter:
    def on_call(call: int, verb: str, path: str) -> None:
        if verb == "create" and path.endswith("_metadata"):
            raise OSError(errno.EIO, "no disk")

    with coordinator.checkpoint() as writer:
        write_states(writer, WRITTEN)
        process.arm(on_call=on_call)
    return writer


def fail_by_races(world: World, process: Process, coordinator: Coordinator) -> holdfast.CheckpointWriter:
    def on_call(call: int, verb: str, path: str) -> None:
        if verb == "append":
            other = world.process()
            other.hold(1)
            other.unhold(1)

    with coordinator.checkpoint() as writer:
        write_states(writer, WRITTEN)
        process.arm(on_call=on_call)
    return writer


@pytest.mark.parametrize(
    ("fail", "kind"),
    [
        (fail_by_expiry, AttemptEndedError),
        (fail_by_kill, AttemptEndedError),
        (fail_by_storage, OSError),
        (fail_by_manifest, OSError),
        (fail_by_races, ConflictError),
    ],
    ids=lambda each: each.__name__,
)
def test_a_tolerated_failure_raises_nothing_and_is_told_by_the_writer(world: World, fail, kind) -> None:
    process, coordinator = begun(world, TWO)
    writer = fail(world, process, coordinator)
    process.arm()
    assert writer.result is None
    assert isinstance(writer.failure, kind)
    assert world.job().head == 1
    latest = coordinator.latest()
    assert latest is not None
    assert latest.checkpoint_id == 1
    process.checkpoint(coordinator, {"offsets": b"2"})
    resume(world)


def test_a_success_ends_the_row_and_one_failure_too_many_raises(world: World) -> None:
    """The error says how many failed in a row."""
    process, coordinator = begun(world, TWO)
    for _ in range(2):
        for _ in range(2):
            fail_by_kill(world, process, coordinator)
        process.checkpoint(coordinator, {"offsets": b"went on"})
    for _ in range(2):
        fail_by_expiry(world, process, coordinator)
    with pytest.raises(
        TooManyFailuresError, match=r"the last 3 checkpoints of job .* failed, and 2 in a row are tolerated.*killed"
    ) as raised:
        fail_by_kill(world, process, coordinator)
    assert isinstance(raised.value.__cause__, AttemptEndedError)
    assert not world.job().open_attempts
    process.checkpoint(coordinator, {"offsets": b"the program decided to go on"})
    resume(world)


def test_without_a_tolerance_every_failure_raises_as_it_is(world: World) -> None:
    process, coordinator = begun(world)
    with pytest.raises(AttemptEndedError, match="killed"):
        fail_by_kill(world, process, coordinator)
    with pytest.raises(OSError, match="no disk"):
        fail_by_storage(world, process, coordinator)


@pytest.mark.parametrize(
    "error", [Boom(), OSError(errno.ENOSPC, "the program's own file"), AttemptEndedError("of another job"), KeyboardInterrupt()]
)
def test_what_the_users_own_code_raises_is_never_tolerated(world: World, error: BaseException) -> None:
    """Also of the kinds that are tolerated of a write: it is the block's own."""
    process, coordinator = begun(world, TWO)
    with pytest.raises(type(error)) as raised, coordinator.checkpoint() as writer:
        write_states(writer, WRITTEN)
        raise error
    assert raised.value is error
    assert writer.failure is None
    with pytest.raises(Boom, match="wrapped"), coordinator.checkpoint() as writer:
        process.arm(on_call=fail_at("create", OSError(errno.EIO, "no disk")))
        try:
            write_states(writer, WRITTEN)
        except OSError as of_write:
            raise Boom("wrapped") from of_write
    process.arm()
    resume(world)


def test_a_write_that_failed_and_was_swallowed_is_never_tolerated(world: World) -> None:
    """The program believes that it was written."""
    process, coordinator = begun(world, TWO)
    with pytest.raises(RefusedError, match="the write of 'planes' failed"), coordinator.checkpoint() as writer:
        process.arm(on_call=fail_at("create", OSError(errno.EIO, "no disk")))
        with suppress(OSError):
            write_states(writer, WRITTEN)
        process.arm()


def test_a_fenced_coordinator_is_told_whatever_it_tolerates(world: World) -> None:
    _, coordinator = begun(world, TWO)
    with pytest.raises(FencedError), coordinator.checkpoint() as writer:
        world.process().coordinate()
        write_states(writer, WRITTEN)
    resume(world)


def test_an_unknown_outcome_is_told_whatever_the_job_tolerates(world: World) -> None:
    process, coordinator = begun(world, TWO)
    with pytest.raises(UnknownOutcomeError), coordinator.checkpoint() as writer:
        write_states(writer, WRITTEN)
        process.arm(on_call=lambda n, verb, path: process.arm(dict.fromkeys(range(1, 50), "lost")) if verb == "append" else None)
    process.arm()
    assert writer.failure is None


@pytest.mark.parametrize(
    "error", [CorruptionError("x"), UsageError("x"), RefusedError("x"), UnknownOutcomeError("x"), FencedError("x"), ValueError("x")]
)
def test_errors_that_another_try_does_not_mend_are_not_tolerated(error: Exception) -> None:
    assert not FailureCount(5, JobId("j")).tolerates(error, CheckpointId(1))


def test_batches_of_a_stream_are_refused_by_a_job_that_tolerates_failures(world: World) -> None:
    """A batch whose checkpoint failed without a word would be lost: Spark brings again only what raised."""
    _, coordinator = begun(world, TWO)
    with pytest.raises(RefusedError, match="a micro-batch whose checkpoint failed would be lost: coordinate it with tolerated_failures=0"):
        holdfast.foreach_batch(coordinator, lambda *_: None)


def test_the_first_checkpoint_of_a_copy_is_neither_timed_nor_tolerated(world: World) -> None:
    begun(world, FailurePolicy())
    other = world.process()
    other.arm(on_call=fail_at("create", RetryError("no disk")))
    with pytest.raises(HoldfastError, match="no disk"):
        other.coordinate_from(1, "copy", "no-claim", patience=TWO)
    assert other.environment.alarms == []
