"""The races that the design, section 5, says a test must name, each as a story. Those of savepoints and merges come with them."""

import pytest

from holdfast.catalog import paths
from holdfast.catalog.errors import AttemptEndedError, FencedError, ForeignTokensError, RefusedError
from holdfast.catalog.ledger import LedgerConflictError
from holdfast.catalog.ledger.memory import MemoryLedger
from holdfast.catalog.references import FileStatus
from holdfast.catalog.rules import checkpoints
from holdfast.catalog.state import Ref
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import AttemptToken, CheckpointId, KeepAll, KeepLast, Status
from tests.support.faults import Crash
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.scenes import BIG, resume, used_catalog
from tests.support.world import Process, World, late_upload, opened_attempts, sealed, write_states


@pytest.fixture
def world() -> World:
    return World()


def at_first(process: Process, verb: str, act) -> None:
    """Run `act` once, before the process's next call of this verb."""
    done: list[bool] = []

    def on_call(_: int, called: str, path: str) -> None:
        if called == verb and not done:
            done.append(True)
            act()

    process.arm(on_call=on_call)


def test_a_file_that_an_open_attempt_will_reuse_is_not_condemned(world: World) -> None:
    """Reuse against condemn. Attempt 3 builds on checkpoint 1 and means to carry its file. Attempt 2 commits first, and keep-last-1 drops 1.
    A vacuum now: nothing live refers to the file. The pin of 1 keeps it, and 3 commits a reference to a file that is there."""
    process = world.process()
    coordinator = process.coordinate()
    first = process.checkpoint(coordinator, {"planes": [b"one"]})
    slow = process.open_beside(coordinator, first)
    write_states(slow, {"offsets": b"slow"})
    fast = process.open_beside(coordinator, first)
    coordinator._line.end_attempt(fast.attempt, "not needed", ())
    quick = next(o for o in opened_attempts(world) if o.attempt not in (slow.attempt, fast.attempt) and o.checkpoint_id == 2)
    assert quick.parent_checkpoint_id == first
    second = process.checkpoint(coordinator, {"planes": [b"two"]})
    assert set(world.job().live) == {second}
    world.process().vacuum()
    third = process.commit_beside(coordinator, slow, KeepAll())
    assert world.states_of(third) == {"planes": b"one", "offsets": b"slow"}
    assert_catalog_sound(world)
    resume(world)


def test_an_opening_that_a_drop_overtakes_is_refused(world: World) -> None:
    """Drop against open. The opening was decided while checkpoint 1 was live; the drop lands before it: the compare-and-swap makes it look again."""
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"one"]})
    process.checkpoint(coordinator, {"planes": [b"two"]})
    at_first(process, "append", lambda: world.process().drop(1))
    with pytest.raises(RefusedError, match=r"cannot build on checkpoint 1 .* it was dropped; live ones: 2"):
        process.open_beside(coordinator, 1)
    assert_catalog_sound(world)


def test_a_drop_that_an_opening_overtakes_leaves_the_files_to_the_attempt(world: World) -> None:
    """Drop against open, the other way round: the checkpoint is no longer live, but what the attempt builds on stays until it ends."""
    process, operator = world.process(), world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"one"], "model": BIG})
    process.checkpoint(coordinator, {"planes": [b"two"], "model": b"small"})
    writers = []
    at_first(operator, "append", lambda: writers.append(process.open_beside(coordinator, 1)))
    operator.drop(1)
    world.process().vacuum()
    assert_catalog_sound(world)
    process.commit_beside(coordinator, writers[0], KeepAll())
    assert world.states_of(writers[0].checkpoint_id) == {"planes": b"one", "model": BIG}
    resume(world)


def test_a_commit_that_a_kill_overtakes_is_told_so_and_commits_nothing(world: World) -> None:
    """Kill against commit. An operator takes the writer for dead while it is about to commit. It is told, and the job's next one works."""
    process = world.process()
    coordinator = process.coordinate()
    with pytest.raises(AttemptEndedError, match=r"cannot commit checkpoint 1 .* already killed \(by a test\); begin another"):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"planes": [b"one"]})
            at_first(process, "append", lambda: world.process().kill(writer.attempt))
    assert not world.job().checkpoints
    assert process.checkpoint(coordinator, {"planes": [b"two"]}) == 2
    resume(world)


def test_a_kill_that_a_commit_overtakes_is_told_so_and_kills_nothing(world: World) -> None:
    """Kill against commit, the other way round: the attempt is committed, and stays so."""
    process, operator = world.process(), world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    token = opened_attempts(world)[-1].attempt
    at_first(operator, "append", lambda: process.checkpoint(coordinator, {"planes": [b"two"]}))
    with pytest.raises(AttemptEndedError, match="already committed"):
        operator.kill(token)
    assert world.job().attempts[token].status is Status.COMMITTED
    resume(world)


def test_a_release_that_overtakes_a_commit_has_its_file_not_referred_to(world: World) -> None:
    """Release against an attempt in flight. A checkpoint refers to a file; its task takes it for lost, lets go of the file, and a vacuum
    deletes it before the commit. The commit looks again, is refused with the file's name, and its attempt is aborted; the next one works."""
    process, task = world.process(), world.process()
    coordinator = process.coordinate()
    logs = task.log(task.own(), b"log 1")

    def release() -> None:
        task.release_logs(logs)
        assert world.process().vacuum().deleted_files == 1

    with pytest.raises(
        RefusedError, match=r"checkpoint 1 of job 'flights' cannot refer to file 'log 1' .* of owner 'wal': it was released"
    ):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"wal": logs})
            at_first(process, "append", release)
    assert world.job().attempts[writer.attempt].status is Status.ABORTED
    assert process.checkpoint(coordinator, {"wal": task.log(logs.owner, b"log 2")}) == 2
    assert_catalog_sound(world)
    resume(world)


def test_a_release_overtaken_by_a_commit_leaves_the_checkpoint_its_file(world: World) -> None:
    """Release against an attempt in flight, the other way round: the file goes with the last checkpoint that has it."""
    process, task = world.process(), world.process()
    coordinator = process.coordinate()
    logs = task.log(task.own(), b"log 1")
    at_first(task, "append", lambda: process.checkpoint(coordinator, {"wal": logs}))
    task.release_logs(logs)
    world.process().vacuum()
    assert world.states_of(1) == {"wal": b"log 1"}
    process.checkpoint(coordinator, {"wal": None})
    assert world.process().vacuum().deleted_files == 2  # and a manifest
    resume(world)


def test_an_owner_that_is_gone_on_with_is_durable_first(world: World) -> None:
    """Found by the model. A task opened its owner, and died between the commit and the sync. It was started again, went on with the owner
    that it found open, and wrote. The power failed: a file was there whose token the ledger never knew."""
    first, again = world.process(), world.process()
    first.coordinate()
    first.arm(on_call=lambda n, verb, path: first.faults.die(n, verb, path) if verb == "make_durable" else None)
    with pytest.raises(Crash):
        first.own()
    assert world.log.durable_version < world.log.version
    again.log(again.own(), b"log 1")
    world.lose_power()
    assert_catalog_sound(world)
    resume(world)


def test_a_release_that_is_repeated_is_durable_before_it_is_told(world: World) -> None:
    """The first one died between its commit and the sync; the second finds that all is said."""
    first, again = world.process(), world.process()
    first.coordinate()
    logs = first.log(first.own(), b"log 1")
    first.arm(on_call=lambda n, verb, path: first.faults.die(n, verb, path) if verb == "make_durable" else None)
    with pytest.raises(Crash):
        first.release_logs(logs)
    again.release_logs(logs)
    world.lose_power()
    assert world.references().released == {file.file_id for file in logs.files}


def test_what_a_killed_attempt_uploads_after_its_cleanup_is_scrubs(world: World) -> None:
    """The attempt was killed and all of it removed. A task of it that nobody could stop writes once more: an orphan, for the next scrub."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    opened = opened_attempts(world)[-1]
    late_upload(world, opened, part=1)
    process.kill(opened.attempt)
    assert process.scrub().deleted_files == 1
    path = late_upload(world, opened, part=2)
    assert_catalog_sound(world)
    assert not world.process().plan_vacuum().unreferenced
    assert process.scrub().deleted_files == 1
    assert path not in world.paths()
    resume(world)


def test_a_duplicate_upload_that_lands_after_gone_is_scrubs(world: World) -> None:
    """An upload was sent twice; the second copy arrives when the file was long deleted and called gone. The row stays gone; scrub takes it."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    path = next(path for path in world.paths() if "/shared/" in path)
    process.checkpoint(coordinator, {"planes": [b"two"]})
    process.vacuum()
    assert path not in world.paths()
    world.storage.create(path, b"one")
    assert path not in {file.path for file in process.plan_vacuum().unreferenced}
    assert [orphan.path for orphan in process.plan_scrub().orphans] == [path]
    process.scrub()
    assert path not in world.paths()
    references = world.references()
    assert [references.status[i] for i, row in references.files.items() if row.path == path] == [FileStatus.GONE]
    resume(world)


def test_a_scrub_spares_attempts_opened_before_and_after_its_listing(world: World) -> None:
    """Scrub against a new attempt. Storage is listed first: whatever it shows has an opening that the ledger, read later, knows."""
    process, scrubber = world.process(), world.process()
    coordinator = process.coordinate()
    for verb in ("walk", "refresh"):
        with coordinator.checkpoint() as writer:
            write_states(writer, {"planes": [b"before the listing"]})

            def act(writer=writer, verb=verb) -> None:
                write_states(writer, {"model": BIG, f"routes-{verb}": [b"while it runs"]})

            at_first(scrubber, verb, act)
            assert scrubber.scrub().deleted_files == 0
        assert_catalog_sound(world)
    resume(world)


def test_a_scrub_is_not_alarmed_by_an_attempt_that_opens_while_it_runs(world: World) -> None:
    """Scrub against a new attempt: opened, and uploading, right before or after the listing. Were the ledger read first, its token would
    be unknown."""
    process, scrubber = world.process(), world.process()
    coordinator = process.coordinate()
    for verb in ("walk", "refresh", "scan"):
        opened: list[AttemptToken] = []

        def act(opened: list[AttemptToken] = opened) -> None:
            writer = process.open_beside(coordinator, None)
            write_states(writer, {"model": BIG})
            opened.append(writer.attempt)

        at_first(scrubber, verb, act)
        assert scrubber.scrub().deleted_files == 0
        scrubber.arm()
        assert len(world.paths(f"jobs/{coordinator.job_id}/exclusive")) == 1
        process.kill(opened[0])
        assert scrubber.scrub().deleted_files == 1
    resume(world)


def test_a_scrub_spares_an_attempt_that_commits_after_its_listing(world: World) -> None:
    """Listed while in flight, ended when the ledger is read: the file rows say that its files are known."""
    process, scrubber = world.process(), world.process()
    coordinator = process.coordinate()
    for verb in ("refresh", "scan"):
        at_first(scrubber, verb, lambda: process.checkpoint(coordinator, {"planes": [b"p"], "model": BIG}))
        scrubber.scrub()
        assert_catalog_sound(world)
    resume(world)


def test_two_vacuums_at_once_delete_everything_once_and_nothing_else() -> None:
    """Both planned the same files. One runs whole between any two calls of the other: both succeed, every file is gone."""
    n = 1
    while True:
        scene = used_catalog()
        slow, quick = scene.world.process(), scene.world.process()
        plans = slow.plan_vacuum(), quick.plan_vacuum()
        assert plans[0] == plans[1]
        assert plans[0].condemned
        slow.arm(on_call=lambda call, verb, path, n=n, quick=quick, plan=plans[1]: call == n and quick.vacuum(plan) and None)
        assert slow.vacuum(plans[0]).failed == ()
        calls = slow.faults.calls
        if calls < n:
            break
        assert_catalog_sound(scene.world)
        assert scene.world.process().plan_vacuum().size_bytes == 0
        n += 1
    assert n > 5


def test_a_late_delete_of_a_vacuum_deletes_nothing_that_anybody_needs(world: World) -> None:
    """A vacuum sent a delete and died. A second one finished its work, and the job went on. Now the delete arrives: no name ever comes back."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"], "model": BIG})
    process.checkpoint(coordinator, {"planes": [b"two"]})
    crashed = world.process()
    plan = crashed.plan_vacuum()
    crashed.arm(on_call=lambda _, verb, path: crashed.faults.die() if verb == "delete" else None)
    with pytest.raises(Crash):
        crashed.vacuum(plan)
    world.process().vacuum()
    process.checkpoint(coordinator, {"planes": [b"one"], "model": BIG})
    for file in plan.unreferenced:
        world.storage.delete_many([file.path])
    assert_catalog_sound(world)
    resume(world)


def test_a_commit_that_landed_with_its_response_lost_is_success_told_once(world: World) -> None:
    """The ledger took the commit and the answer was lost. The operation's id is found in the log: the caller hears of a success, and only one."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    version = world.log.version
    with coordinator.checkpoint() as writer:
        write_states(writer, {"planes": [b"two"]})
        process.arm({3: "lost"})  # the manifest is made, the files are looked at, then the commit is sent
    assert process.faults.log[2][0] == "append"
    assert writer.result is not None
    assert world.log.version == version + 1
    assert world.job().head == writer.result.checkpoint_id == 2
    process.arm()
    process.checkpoint(coordinator, {"planes": [b"three"]})
    resume(world)


class LyingLedger(MemoryLedger):
    """Takes a commit and calls it a conflict, as a client does that sends a request again."""

    def append(self, facts, *, keys, operation) -> None:
        super().append(facts, keys=keys, operation=operation)
        raise LedgerConflictError("a transaction with this key was committed: your own")


def test_a_landed_commit_that_is_called_a_conflict_is_success_told_once(world: World) -> None:
    """The client sent the commit twice, and met its own first copy. The operation's id is looked for before the conflict is believed."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    version = world.log.version
    transactor = Transactor(LyingLedger(world.log), process.environment)
    transactor.run(lambda state: checkpoints.hold(state, Ref(coordinator.job_id, 1), "audit", None))
    assert world.log.version == version + 1 == world.log.durable_version
    assert world.job().holds == {(1, "audit")}
    resume(world)


def test_nothing_is_uploaded_before_its_attempt_is_open(world: World) -> None:
    """Upload before open. An opening that fails, or is not known to be durable, leaves no byte in storage."""
    process = world.process()
    coordinator = process.coordinate()
    before = world.paths()
    for script in ({1: "before"}, {2: "lost"}, {3: "lost"}):
        process.arm(script)
        try:
            with coordinator.checkpoint() as writer:
                assert writer.attempt in world.job().open_attempts
                assert world.log.durable_version >= world.log.version
        except Crash:
            assert world.paths() == before
            process.faults.dead = False
        process.arm()
    assert_catalog_sound(world)


def test_an_upload_of_an_attempt_that_was_never_opened_stops_scrub(world: World) -> None:
    """Upload before open, from outside: a well-formed name that the ledger never knew. Nobody knows whose it is, so that nothing is deleted."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    opened = opened_attempts(world)[-1]
    process.kill(opened.attempt)
    orphan = late_upload(world, opened)
    stranger = paths.native_directory(opened.job_id, 7, AttemptToken("f" * 16), 0) + "/part-00000.parquet"
    world.objects.create(stranger, b"whose?")
    with pytest.raises(ForeignTokensError, match="Nothing was deleted"):
        process.scrub()
    assert {orphan, stranger} <= world.paths()


def test_a_checkpoint_being_restored_stays_until_the_reader_is_done(world: World) -> None:
    """Restore against drop. The reader pinned checkpoint 1 first: dropped, it stays readable; released, the vacuum takes it."""
    process, reader = world.process(), world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"], "model": BIG})
    pin = reader.pin(1)
    process.checkpoint(coordinator, {"planes": [b"two"], "model": b"2"})
    assert 1 not in world.job().live
    world.process().vacuum()
    assert world.states_of(1) == {"planes": b"one", "model": BIG}
    assert_catalog_sound(world)
    reader.release(pin)
    assert world.process().vacuum().deleted_files == 3
    resume(world)


def test_a_restore_that_a_drop_overtakes_is_refused_before_it_reads(world: World) -> None:
    process, reader = world.process(), world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"one"]})
    process.checkpoint(coordinator, {"planes": [b"two"]})
    at_first(reader, "append", lambda: world.process().drop(1))
    with pytest.raises(RefusedError, match=r"cannot read checkpoint 1 .* it was dropped"):
        reader.restore(1)
    assert_catalog_sound(world)


def test_a_second_coordinator_fences_the_first_and_its_retention(world: World) -> None:
    """Two coordinators of one job. The first, which keeps one, writes while a second starts and commits twice, keeping all. The first may
    neither commit, nor open, nor drop: with its retention it would have taken what the second committed."""
    old, new = world.process(), world.process()
    first = old.coordinate(retention=KeepLast(1))
    old.checkpoint(first, {"planes": [b"one"]})
    with pytest.raises(FencedError, match=r"epoch 2 fenced epoch 1; stop this process"):
        with first.checkpoint() as writer:
            write_states(writer, {"planes": [b"mine"]})
            second = new.coordinate(retention=KeepAll())
            new.checkpoint(second, {"planes": [b"two"]})
            new.checkpoint(second, {"planes": [b"three"]})
    with pytest.raises(FencedError, match="epoch 2 has started since"), first.checkpoint():
        raise AssertionError("the block must not run")
    with pytest.raises(FencedError, match="epoch 1 cannot drop"):
        first.drop(1)
    first.close()
    assert set(world.job().live) == {1, 3, 4}
    assert world.states_of(4) == {"planes": b"three"}
    resume(world)


def test_of_two_committers_of_one_attempt_one_wins(world: World) -> None:
    """A driver was started twice for one attempt, by mistake. The manifest is created exclusively, and the attempt ends once."""
    one, two = world.process(), world.process()
    coordinator = one.coordinate()
    writer = one.open_beside(coordinator, None)
    write_states(writer, {"offsets": b"one"})
    request = sealed(writer, KeepAll())
    with pytest.raises(AttemptEndedError, match="another process commits the same attempt"):
        sealed(writer, KeepAll())
    at_first(one, "append", lambda: two.commit_request(coordinator.job_id, request))
    with pytest.raises(AttemptEndedError, match="already committed"):
        one.commit_request(coordinator.job_id, request)
    assert list(world.job().checkpoints) == [writer.checkpoint_id]
    assert_catalog_sound(world)


def test_a_commit_after_a_rollback_loses_neither_line(world: World) -> None:
    """Checkpoint 2 replaced planes and ended routes. A new epoch begins with 1 and commits 4, carrying both. 4 must hold what 1 held, not
    what 2 left open; and 2, held, must stay what it is. Comparing with the parent instead of the open handles would lose one of them."""
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"p1"], "routes": [b"r1"], "model": BIG})
    process.checkpoint(coordinator, {"planes": [b"p2"], "routes": None, "weather": [b"w2"]})
    process.hold(2)
    rolled_back = process.coordinate(start=1)
    number = process.checkpoint(rolled_back, {"offsets": b"4"})
    assert world.states_of(number) == {"planes": b"p1", "routes": b"r1", "model": BIG, "offsets": b"4"}
    process.vacuum()
    assert world.states_of(2) == {"planes": b"p2", "weather": b"w2", "model": BIG}
    assert set(world.job().live) == {2, number}
    assert_catalog_sound(world)
    again = process.coordinate(start=2)
    assert world.states_of(process.checkpoint(again, {"offsets": b"5"})) == {
        "planes": b"p2", "weather": b"w2", "model": BIG, "offsets": b"5",
    }  # fmt: skip
    resume(world)


@pytest.mark.parametrize("retention", [KeepAll(), KeepLast(1), KeepLast(2)], ids=str)
def test_of_two_overlapping_attempts_both_commit_in_order(world: World, retention) -> None:
    """Both build on checkpoint 1. The lower id commits first, then the higher: its content is 1 and its own, nothing of the other's."""
    process = world.process()
    coordinator = process.coordinate(retention=retention)
    process.checkpoint(coordinator, {"planes": [b"p1"], "routes": [b"r1"]})
    low, high = process.open_beside(coordinator, 1), process.open_beside(coordinator, 1)
    write_states(low, {"planes": [b"low"]})
    write_states(high, {"routes": [b"high"]})
    process.commit_beside(coordinator, low, retention)
    process.vacuum()
    process.commit_beside(coordinator, high, retention)
    process.vacuum()
    assert world.states_of(high.checkpoint_id) == {"planes": b"p1", "routes": b"high"}
    if low.checkpoint_id in world.job().live:
        assert world.states_of(low.checkpoint_id) == {"planes": b"low", "routes": b"r1"}
    assert_catalog_sound(world)
    resume(world)


def test_the_lower_of_overlapping_attempts_is_over_at_the_highers_commit(world: World) -> None:
    """Committed ids only rise: when the higher one commits it aborts the lower, whose commit is told so."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"p1"]})
    low, high = process.open_beside(coordinator, 1), process.open_beside(coordinator, 1)
    write_states(low, {"planes": [b"low"]})
    process.commit_beside(coordinator, high)
    with pytest.raises(AttemptEndedError, match=rf"aborted \(checkpoint {high.checkpoint_id} was committed first\)"):
        process.commit_beside(coordinator, low)
    assert world.job().head == high.checkpoint_id
    resume(world)


def test_a_ledger_restored_from_a_backup_costs_no_newer_state(world: World) -> None:
    """The ledger is a copy of last night's; storage has today's checkpoints. To this ledger their files are nobody's. Scrub stops, deletes
    nothing and says why; the vacuum of the old ledger takes what was garbage then, and nothing newer."""
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"one"]})
    aborted = opened_attempts(world)[-1]
    late_upload(world, aborted)
    process.kill(aborted.attempt)
    backup = list(world.log.commits)
    process.checkpoint(coordinator, {"planes": [b"two"], "model": BIG})
    newer, commits = world.paths(), list(world.log.commits)

    world.log.commits[:] = backup
    world.log.durable_version = world.log.version
    world.log._last_version.clear()
    restored = world.process()
    with pytest.raises(ForeignTokensError, match="probably restored from a backup"):
        restored.scrub()
    restored.vacuum()
    assert world.paths() == newer

    world.log.commits[:] = commits
    world.log.durable_version = world.log.version
    assert_catalog_sound(world)
    resume(world)


def test_a_newer_manifest_is_spared_though_its_number_is_given_again(world: World) -> None:
    """`chk-<n>` carries no token. The restored ledger opens its own attempt for the n that the lost one committed: its commit finds the
    manifest there and replaces nothing, and once it is aborted the newer manifest still counts as unknown, not as its orphan."""
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"offsets": b"one"})
    backup = list(world.log.commits)  # knows the attempt for 2, which the commit of 1 opened, and none for 3
    process.checkpoint(coordinator, {"offsets": b"two"})
    process.checkpoint(coordinator, {"offsets": b"three"})
    newer = paths.manifest_path(coordinator.job_id, CheckpointId(3))
    data = world.objects.read(newer)

    world.log.commits[:] = backup
    world.log.durable_version = world.log.version
    world.log._last_version.clear()
    restored = world.process()
    again = restored.coordinate(retention=KeepAll())
    with pytest.raises(ForeignTokensError, match="has never given checkpoint 3 to another attempt"), again.checkpoint() as checkpoint:
        assert checkpoint.checkpoint_id == 3
    with pytest.raises(ForeignTokensError, match="probably restored from a backup"):
        restored.scrub()
    assert world.objects.read(newer) == data


def test_a_fork_of_a_decision_between_two_jobs_touches_both(world: World) -> None:
    """An opening that builds on another job's checkpoint carries that job's key too: a drop there, meanwhile, is a conflict."""
    process = world.process()
    other = process.coordinate("other", retention=KeepAll())
    process.checkpoint(other, {"planes": [b"one"]})
    process.checkpoint(other, {"planes": [b"two"]})
    coordinator = process.coordinate()
    ref = Ref(other.job_id, 1)

    def decide(state):
        return checkpoints.open_checkpoint(state, coordinator.job_id, coordinator.epoch, AttemptToken("a" * 16), ref)

    at_first(process, "append", lambda: world.process().drop(1, "other"))
    with pytest.raises(RefusedError, match="it was dropped"):
        process.transactor.run(decide)
    process.arm()
    process.vacuum()
    other.close()
    process.scrub()
    assert_catalog_sound(world)
    assert_clean(world)
