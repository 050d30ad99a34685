"""A coordinator and its checkpoints, over the reference adapters: what a user writes, carries, removes and gets back."""

from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.errors import (
    AttemptEndedError,
    DamagedFileError,
    FencedError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from holdfast.catalog.types import INLINE_LIMIT_BYTES, CheckpointId, KeepAll, KeepLast, Status
from tests.support.invariants import Acknowledgement, assert_catalog_sound, assert_clean, evidence_of, with_acknowledged
from tests.support.scenes import Boom, resume
from tests.support.world import World, opened_attempts, write_states


@pytest.fixture
def world() -> World:
    return World()


def test_a_state_that_is_not_written_is_carried(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1", b"p2"], "offsets": b"1", "model": b"m" * 30_000})
    files = {path for path in world.paths() if "/shared/" in path or "/exclusive/" in path}
    number = process.checkpoint(coordinator, {"offsets": b"2"})
    assert world.states_of(number) == {"planes": b"p1p2", "offsets": b"2", "model": b"m" * 30_000}
    assert files == {path for path in world.paths() if "/shared/" in path or "/exclusive/" in path}
    fact = world.job().checkpoints[number].fact
    assert (fact.new_bytes, fact.total_bytes, fact.is_incremental) == (1, 30_005, True)
    resume(world)


def test_a_removed_state_is_gone_and_its_name_is_free_again(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1"], "routes": [b"r1"]})
    assert world.states_of(process.checkpoint(coordinator, {"planes": None})) == {"routes": b"r1"}
    assert world.states_of(process.checkpoint(coordinator, {"planes": [b"p3"]})) == {"routes": b"r1", "planes": b"p3"}
    resume(world)


def test_a_state_that_the_parent_has_not_cannot_be_removed(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    with pytest.raises(NotFoundError, match=r"checkpoint 1 of job 'flights' cannot remove state 'x': its parent has none"):
        process.checkpoint(coordinator, {"x": None})
    process.checkpoint(coordinator, {"planes": b"1", "routes": b"2"})
    with pytest.raises(NotFoundError, match="its parent has planes, routes"):
        process.checkpoint(coordinator, {"x": None})


@pytest.mark.parametrize(("first", "second"), [(b"1", b"2"), ([b"1"], [b"2"]), (b"1", None), (None, b"2")], ids=str)
def test_a_state_is_named_once_in_a_checkpoint(world: World, first, second) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": b"0"})
    with pytest.raises(RefusedError, match=r"state 'planes' is already (written|removed) in checkpoint 2 .*: name each state once"):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"planes": first})
            write_states(writer, {"planes": second})
    assert world.job().head == 1


@pytest.mark.parametrize("name", ["", "a\nb", "\x00"])
def test_a_state_needs_a_printable_name(world: World, name: str) -> None:
    process = world.process()
    coordinator = process.coordinate()
    with pytest.raises(UsageError, match="cannot be the name of a state"):
        process.checkpoint(coordinator, {name: b"1"})


def test_bytes_are_inline_up_to_the_limit_and_a_file_beyond_it(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"small": b"x" * INLINE_LIMIT_BYTES, "empty": b""})
    assert not [path for path in world.paths() if "/exclusive/" in path]
    process.checkpoint(coordinator, {"large": b"x" * (INLINE_LIMIT_BYTES + 1)})
    assert len([path for path in world.paths() if "/exclusive/" in path]) == 1
    latest = coordinator.latest()
    assert latest is not None
    assert latest.read_bytes("small") == b"x" * 20_000
    assert latest.read_bytes("large") == b"x" * 20_001
    assert latest.read_bytes("empty") == b""


def test_bytes_in_a_file_are_checked_before_they_are_returned(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"large": b"x" * 20_001})
    path = next(path for path in world.paths() if "/exclusive/" in path)
    latest = coordinator.latest()
    assert latest is not None
    world.objects.delete(path)
    with pytest.raises(DamagedFileError, match=f"{path} of checkpoint 1 of job 'flights' is missing"):
        latest.read_bytes("large")
    world.objects.create(path, b"y" * 20_001)
    with pytest.raises(DamagedFileError, match=f"{path} .* does not have the digest that was committed"):
        latest.read_bytes("large")


def test_a_state_is_read_by_the_call_of_its_format(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"1"], "offsets": b"2"})
    latest = coordinator.latest()
    assert latest is not None
    with pytest.raises(RefusedError, match="has format 'parquet': use read"):
        latest.read_bytes("planes")
    with pytest.raises(NotFoundError, match="has no state 'x'; it has: planes, offsets"):
        latest.read_bytes("x")


def test_a_manifest_that_is_not_the_committed_one_is_refused(world: World) -> None:
    """Even one that is whole: an older copy put back in its place, say."""
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"1"]})
    process.checkpoint(coordinator, {"planes": [b"2"]})
    one, two = (f"jobs/{coordinator.job_id}/chk-{n}/_metadata" for n in (1, 2))
    world.objects.delete(two)
    world.objects.create(two, world.objects.read(one))
    with pytest.raises(DamagedFileError, match="chk-2/_metadata of checkpoint 2 is not the one that was committed"):
        world.process().coordinate().latest()


def test_an_exception_in_the_block_aborts_and_comes_out_as_it_is(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"1"]})
    with pytest.raises(Boom, match="the user's own") as raised:
        with coordinator.checkpoint() as writer:
            write_states(writer, {"planes": [b"2"], "model": b"m" * 30_000})
            raise Boom("the user's own")
    assert getattr(raised.value, "__notes__", []) == []
    attempt = world.job().attempts[writer.attempt]
    assert (attempt.status, attempt.reason) == (Status.ABORTED, "Boom")
    assert writer.result is None
    assert process.vacuum().deleted_files == 2, "the files of the acks that arrived have rows, so that a query finds them"
    assert process.checkpoint(coordinator, {"offsets": b"3"}) == 3
    assert world.states_of(3) == {"planes": b"1", "offsets": b"3"}
    resume(world)


def test_an_abort_that_fails_keeps_the_error_and_says_so(world: World) -> None:
    """Whatever the ledger answers to the abort, a plain OSError included, the caller's own error comes out."""
    for n in range(1, 12):
        fresh = World()
        process = fresh.process()
        coordinator = process.coordinate()
        with pytest.raises(Boom):
            with coordinator.checkpoint() as writer:
                write_states(writer, {"planes": [b"2"]})
                process.arm(dict.fromkeys(range(n, 60), "lost"))
                raise Boom
        process.arm()
        assert_catalog_sound(fresh)
        resume(fresh)


def test_nothing_can_be_written_when_the_checkpoint_has_ended(world: World) -> None:
    """It would be uploaded, and belong to nothing."""
    process = world.process()
    coordinator = process.coordinate()
    with coordinator.checkpoint() as committed:
        write_states(committed, {"planes": [b"1"]})
    with pytest.raises(Boom), coordinator.checkpoint() as aborted:
        raise Boom
    for writer in (committed, aborted):
        with pytest.raises(RefusedError, match="has ended: write state 'late' in the next one"):
            writer.write_bytes("late", b"1")
        with pytest.raises(RefusedError, match="has ended"):
            writer.remove("planes")


def test_a_job_writes_one_checkpoint_at_a_time(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    with coordinator.checkpoint() as writer:
        with pytest.raises(RefusedError, match="already writing a checkpoint"), coordinator.checkpoint():
            raise AssertionError("the block must not run")
        write_states(writer, {"planes": [b"1"]})
    assert world.job().head == 1


def test_a_fenced_coordinator_is_told_before_it_uploads(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"1"]})
    world.process().coordinate()
    before = world.paths()
    with pytest.raises(FencedError, match=r"epoch 1 cannot continue with a checkpoint of job 'flights': epoch 2 has started since"):
        process.checkpoint(coordinator, {"planes": [b"2"]})
    assert world.paths() == before
    coordinator.close()
    resume(world)


def test_after_a_kill_the_next_checkpoint_works(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"1"]})
    process.kill(opened_attempts(world)[-1].attempt)
    assert process.checkpoint(coordinator, {"offsets": b"2"}) == 3, "the id of the killed attempt is never given again"
    with pytest.raises(AttemptEndedError):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"offsets": b"3"})
            process.kill(writer.attempt)
    assert process.checkpoint(coordinator, {"offsets": b"4"}) == 5
    assert world.states_of(5) == {"planes": b"1", "offsets": b"4"}
    resume(world)


def test_a_rollback_by_number_goes_on_from_there(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    for n in range(1, 4):
        process.checkpoint(coordinator, {"planes": [f"p{n}".encode()]}, {"week": n})
    rolled_back = process.coordinate(start=1)
    latest = rolled_back.latest()
    assert latest is not None
    assert (latest.checkpoint_id, latest.progress) == (1, {"week": 1})
    assert world.job().head == 1
    assert process.checkpoint(rolled_back, {"offsets": b"2"}) == 5
    assert world.states_of(5) == {"planes": b"p1", "offsets": b"2"}
    assert set(world.job().live) == {5}
    resume(world)


@pytest.mark.parametrize("start", [1, 7])
def test_a_start_from_what_is_not_live_is_refused_and_starts_nothing(world: World, start: int) -> None:
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"1"]})
    process.checkpoint(coordinator, {"planes": [b"2"]})
    with pytest.raises(UsageError, match=r"live ones: 2"):
        world.process().coordinate(start=start)
    assert world.job().epoch == 1
    process.checkpoint(coordinator, {"planes": [b"3"]})


def test_a_start_from_nothing_carries_nothing(world: World) -> None:
    process = world.process()
    process.checkpoint(process.coordinate(), {"planes": [b"1"]})
    coordinator = process.coordinate(start="nothing")
    assert coordinator.latest() is None
    assert world.states_of(process.checkpoint(coordinator, {"routes": [b"2"]})) == {"routes": b"2"}
    resume(world)


@pytest.mark.parametrize("progress", [{"x": object()}, {"x": {1, 2}}, {"x": float("nan")}, {("a", "b"): 1}, [1, 2], "text", {"x": b"1"}])
def test_progress_that_json_cannot_hold_is_refused_before_any_write(world: World, progress) -> None:
    process = world.process()
    coordinator = process.coordinate()
    with pytest.raises(UsageError, match="progress must be a mapping that JSON can hold"), coordinator.checkpoint(progress):
        raise AssertionError("the block must not run")
    assert process.checkpoint(coordinator, {"planes": [b"1"]}) == 1, "the attempt serves the next call"


def test_latest_is_none_then_the_last_commit_with_its_progress(world: World) -> None:
    process = world.process()
    coordinator = process.coordinate()
    assert coordinator.latest() is None
    for week in (1, 2):
        process.checkpoint(coordinator, {"planes": [b"1"]}, {"week": week, "days": ["mo", None]})
        for seen in (coordinator.latest(), world.process().coordinate().latest() if week == 2 else coordinator.latest()):
            assert seen is not None
            assert (seen.checkpoint_id, seen.progress, seen.states) == (week, {"week": week, "days": ["mo", None]}, ("planes",))


def test_a_checkpoint_costs_one_commit_to_the_ledger(world: World) -> None:
    """The commit opens the next attempt, so that only the first of a coordinator needs an opening of its own."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"1"]})
    process.arm()
    for n in range(2, 7):
        process.checkpoint(coordinator, {"offsets": str(n).encode()})
    assert [verb for verb, _ in process.faults.log].count("append") == 5
    assert not [call for call in process.faults.log if call[0] == "scan"], "it validates from memory"


def test_a_reader_of_the_head_gets_the_newer_one_if_that_is_dropped(world: World) -> None:
    """Between the finding of the head and its pin the job commits, and its retention drops what was found. By its number it is refused."""
    process, reader = world.process(), world.process()
    coordinator = process.coordinate(retention=KeepLast(1))
    process.checkpoint(coordinator, {"offsets": b"1"})

    def commit(_: int, verb: str, __: str) -> None:
        if verb == "append":
            reader.arm()
            process.checkpoint(coordinator, {"offsets": b"%d" % world.log.version})

    reader.arm(on_call=commit)
    checkpoint = reader.catalog.checkpoint("flights")
    assert (checkpoint.checkpoint_id, checkpoint.is_pinned) == (2, True)
    checkpoint.close()
    reader.arm(on_call=commit)
    with pytest.raises(RefusedError, match="cannot read checkpoint 2 .*: it was dropped"):
        reader.catalog.checkpoint("flights", 2)
    reader.arm()
    reader.catalog.close()
    resume(world)


def test_close_ends_the_next_attempt_so_that_nothing_is_pinned(world: World) -> None:
    process = world.process()
    with process.coordinate() as coordinator:
        process.checkpoint(coordinator, {"planes": [b"1"]})
        assert len(world.job().open_attempts) == 1
    assert not world.job().open_attempts
    version = world.log.version
    coordinator.close()
    assert world.log.version == version, "closing twice is nothing"
    assert world.job().head == 1
    resume(world)


def test_close_in_the_wake_of_an_error_keeps_the_error(world: World) -> None:
    process = world.process()
    with pytest.raises(Boom) as raised, process.coordinate() as coordinator:
        process.checkpoint(coordinator, {"planes": [b"1"]})
        process.arm(dict.fromkeys(range(1, 40), "lost"))
        raise Boom
    assert "closing the coordinator failed as well" in "".join(getattr(raised.value, "__notes__", []))
    process.arm()
    resume(world)


def test_jobs_do_not_disturb_each_other(world: World) -> None:
    """A commit of another job between any two calls of a commit is no conflict: neither repeats anything."""
    process, other = world.process(), world.process()
    mine, theirs = process.coordinate(), other.coordinate("other")
    process.checkpoint(mine, {"planes": [b"1"]})
    process.arm(on_call=lambda *_: other.checkpoint(theirs, {"planes": [b"theirs"]}) and None)
    process.checkpoint(mine, {"planes": [b"2"]})
    assert [verb for verb, _ in process.faults.log].count("append") == 1
    process.arm()
    assert_catalog_sound(world)
    other.checkpoint(theirs, {"offsets": b"last"})
    theirs.close()
    resume(world)


def test_the_invariants_hold_over_a_real_catalog_as_well(tmp_path: Path) -> None:
    """The same checks over the Delta ledger and a local disk, folded from the commits in its log."""
    large = b"x" * 30_000
    with holdfast.open(tmp_path / "catalog", create=True) as catalog:
        with catalog.coordinate("flights", retention=KeepLast(2)) as job:
            for n in range(1, 5):
                with job.checkpoint({"week": n}) as cp:
                    cp.write_bytes("offsets", str(n).encode())
                    if n != 3:
                        cp.write_bytes("model", large + str(n).encode())
                if n == 3:
                    catalog.hold("flights", 2, "audit")
            with pytest.raises(Boom), job.checkpoint() as cp:
                cp.write_bytes("model", large)
                raise Boom
        with catalog.coordinate("flights", start=2, retention=holdfast.KeepLast(1)) as job, job.checkpoint() as cp:
            cp.write_bytes("offsets", b"back")
        assert catalog.vacuum().deleted_files > 0
        assert catalog.scrub().failed == ()
        told = Acknowledgement(job_id=job.job_id, checkpoint_id=CheckpointId(6), states={"offsets": b"back", "model": large + b"2"})
        evidence = with_acknowledged(evidence_of(catalog), [told])
        assert len(evidence.versions) > 10
        assert_catalog_sound(evidence)
        assert_clean(evidence)
