"""Each rule is needed: a story that the rule makes end well, and the same story, and the model, with the rule left out of the code.

The stories are tests of their own: they pass on the code as it is. `tests/support/mutants.py` has the code without each rule.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from holdfast.catalog.errors import AttemptEndedError, DamagedFileError, FencedError, RefusedError
from holdfast.catalog.manifest_store import load_committed
from holdfast.catalog.rules import checkpoints
from holdfast.catalog.types import AttemptToken, KeepAll, KeepLast, Purpose
from holdfast.compaction import vacuum
from holdfast.writers import attempt
from tests.protocol.model import explore
from tests.support.faults import Crash
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.mutants import MUTANTS
from tests.support.world import Process, World, sealed, write_states

BOUND = 1500  # histories in which the model must find each rule's absence


# ---- stories --------------------------------------------------------------------------------------------------------


def test_after_a_rollback_a_commit_reopens_what_it_carries() -> None:
    """Checkpoint 2 replaced the file of 1, so its interval ended. A rollback to 1 carries that file: it needs a new interval, and the
    file of 2, which is open and no longer used, must end. By comparing with the parent neither would happen."""
    world = World()
    process = world.process()
    process.checkpoint(process.coordinate(retention=KeepAll()), {"planes": [b"one"]})
    process.checkpoint(process.coordinate(retention=KeepAll()), {"planes": [b"two"]})
    process.checkpoint(process.coordinate(retention=KeepAll(), start=1), {"routes": [b"three"]})
    assert_catalog_sound(world)


def test_what_a_rollback_adds_again_keeps_its_layer() -> None:
    """A base and a change set end when the job starts from nothing. Going back to them adds both at one seq, which says nothing of which
    of them lies above the other."""
    world = World()
    process = world.process()
    coordinator = process.coordinate(retention=KeepAll())
    process.checkpoint(coordinator, {"planes": [b"one"]})
    with coordinator.checkpoint() as writer:
        writer.write_changes("planes", upserts=[b"two"], key=())  # type: ignore[arg-type]
    process.checkpoint(process.coordinate(retention=KeepAll(), start="nothing"), {"routes": [b"three"]})
    number = process.checkpoint(process.coordinate(retention=KeepAll(), start=2), {"routes": [b"four"]})
    assert world.states_of(number) == {"planes": b"onetwo", "routes": b"four"}
    assert_catalog_sound(world)


def test_a_vacuum_spares_what_a_reader_pinned() -> None:
    """Keep-last-1 drops checkpoint 1 while a reader is in it. A vacuum comes by."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    process.pin(1)
    process.checkpoint(coordinator, {"planes": [b"two"]})
    process.vacuum()
    assert world.states_of(1) == {"planes": b"one"}


def test_a_killed_attempt_cannot_commit_what_scrub_took() -> None:
    """The operator's guess was wrong: the attempt lives, and commits after a scrub has taken its files as those of a dead one."""
    world = World()
    process, operator = world.process(), world.process()
    coordinator = process.coordinate()
    with suppress(AttemptEndedError), coordinator.checkpoint() as writer:
        write_states(writer, {"planes": [b"one"]})
        operator.kill_all(Purpose.CHECKPOINT)
        operator.scrub()
    assert_catalog_sound(world)


def test_a_fenced_coordinator_never_moves_the_head() -> None:
    """A network partition heals: the old coordinator goes on where it was, while another has taken the job over."""
    world = World()
    old, new = world.process(), world.process()
    fenced = old.coordinate(retention=KeepAll())
    old.checkpoint(fenced, {"planes": [b"one"]})
    head = new.checkpoint(new.coordinate(retention=KeepAll()), {"planes": [b"two"]})
    with suppress(FencedError), fenced.checkpoint() as writer:
        write_states(writer, {"planes": [b"by a ghost"]})
    assert world.job().head == head


def test_a_forks_first_commit_protects_the_files_that_it_shares() -> None:
    """Another job forks; then the first one replaces, drops and vacuums what was forked from."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    number = process.checkpoint(process.coordinate_from(1, "what if", "fork"), {"routes": [b"two"]})
    process.checkpoint(coordinator, {"planes": [b"three"]})
    process.vacuum()
    assert_catalog_sound(world)
    assert world.states_of(number, "what if") == {"planes": b"one", "routes": b"two"}


def test_a_claimed_jobs_own_coordinator_commits_no_more() -> None:
    """Another job takes this one over, with its checkpoints, while its coordinator is alive and knows nothing of it."""
    world = World()
    old, heir = world.process(), world.process()
    fenced = old.coordinate(retention=KeepAll())
    old.checkpoint(fenced, {"planes": [b"one"]})
    heir.coordinate_from(1, "heir", "claim")
    with suppress(FencedError), fenced.checkpoint() as writer:
        write_states(writer, {"planes": [b"by a ghost"]})
    assert world.job().head == 1


def test_a_start_leaves_readers_their_pins() -> None:
    """A coordinator starts and commits while a restore of the same job runs, and the retention drops what is being read."""
    world = World()
    process, reader = world.process(), world.process()
    process.checkpoint(process.coordinate(), {"planes": [b"one"]})
    reader.pin(1)
    process.checkpoint(process.coordinate(), {"planes": [b"two"]})
    process.vacuum()
    assert world.states_of(1) == {"planes": b"one"}


def test_no_attempt_opens_on_a_dropped_checkpoint() -> None:
    """A coordinator that did not hear of its own commit goes on from the checkpoint before, whose files a vacuum has taken."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    process.checkpoint(coordinator, {"planes": [b"two"]})
    process.vacuum()
    parent, token = process.ref(1), AttemptToken(process.environment.new_id())
    with suppress(RefusedError):
        process.transactor.run(lambda state: checkpoints.open_checkpoint(state, parent.job_id, coordinator.epoch, token, parent))
    assert_catalog_sound(world)


def test_a_reader_with_an_old_memory_pins_nothing_that_was_dropped() -> None:
    """In the reader's memory checkpoint 1 is live. Since then it was dropped, and vacuumed: the compare-and-swap tells."""
    world = World()
    process, reader = world.process(), world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    ref = reader.ref(1)
    process.checkpoint(coordinator, {"planes": [b"two"]})
    process.vacuum()
    with suppress(RefusedError):
        reader.transactor.run(lambda state: checkpoints.open_reading(state, ref, AttemptToken(reader.environment.new_id())))
    assert_catalog_sound(world)


def test_a_scrub_spares_what_is_being_written() -> None:
    world = World()
    process, scrubber = world.process(), world.process()
    with process.coordinate().checkpoint() as writer:
        write_states(writer, {"planes": [b"one"]})
        scrubber.scrub()
    assert_catalog_sound(world)


def test_a_file_that_came_back_after_gone_is_scrubbed() -> None:
    """The second copy of an upload lands when the file was deleted and called gone. No vacuum looks at it again."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    (path,) = (path for path in world.paths() if "/shared/" in path)
    process.checkpoint(coordinator, {"planes": [b"two"]})
    coordinator.close()
    process.vacuum()
    world.storage.create(path, b"one")
    process.scrub()
    assert_clean(world)


def test_a_commit_takes_nothing_but_its_own_and_its_parents() -> None:
    """A coordinator remembers that checkpoint 1 had the same bytes, and refers to that file instead of writing it again. It is gone."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    remembered = load_committed(process.storage, world.job().checkpoints[process.ref(1).checkpoint_id].fact).chunks
    process.checkpoint(coordinator, {"planes": [b"two"]})
    process.vacuum()
    writer = process.open_beside(coordinator, 2)
    request = sealed(writer, KeepLast(1))
    with suppress(RefusedError):
        process.commit_request(coordinator.job_id, replace(request, content=remembered))
    assert_catalog_sound(world)


def test_a_scrub_from_long_ago_hits_no_later_checkpoint() -> None:
    """An attempt wrote `_metadata` and was killed; two scrubs plan to take it. One does; checkpoints go on; then the other does."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    coordinator.close()
    process.kill_all(Purpose.CHECKPOINT)
    lost = process.open_beside(coordinator, 1)
    sealed(lost, KeepLast(1))
    process.kill_all(Purpose.CHECKPOINT)
    slow = process.plan_scrub()
    assert [orphan.path for orphan in slow.orphans] == [f"jobs/{coordinator.job_id}/chk-{lost.checkpoint_id}/_metadata"]
    process.scrub()
    process.checkpoint(process.coordinate(), {"planes": [b"two"]})
    process.scrub(slow)
    assert_catalog_sound(world)


def test_nothing_is_deleted_before_its_condemnation_is_committed() -> None:
    """A commit that dropped checkpoint 1 is visible, and its sync never came. A vacuum dies at its first commit, then the power fails: the
    drop is undone, and checkpoint 1 must have its files."""
    world = World()
    _commit_without_sync(world)
    cleaner = world.process()
    plan = cleaner.plan_vacuum()
    assert plan.unreferenced
    _dies_at(cleaner, "append")
    with suppress(Crash):
        vacuum.run_vacuum(plan, cleaner.transactor, cleaner.storage, cleaner.environment)
    world.lose_power()
    assert world.job().head == 1
    assert_catalog_sound(world)


def test_a_vacuum_syncs_what_another_condemned_before_it_deletes() -> None:
    """As above, but a first vacuum got as far as its condemnation, which is not synced either. The second takes it up, deletes, and
    dies before it commits anything of its own."""
    world = World()
    _commit_without_sync(world)
    first, second = world.process(), world.process()
    _dies_at(first, "make_durable")
    with suppress(Crash):
        first.vacuum()
    assert second.plan_vacuum().condemned
    _dies_at(second, "append")
    with suppress(Crash):
        second.vacuum()
    world.lose_power()
    assert_catalog_sound(world)


def test_a_scrub_syncs_the_end_of_an_attempt_before_it_deletes_its_files() -> None:
    """A kill is visible and not synced. What a scrub deletes because of it must not belong to an open attempt after a power loss."""
    world = World()
    process, operator, scrubber = world.process(), world.process(), world.process()
    writer = process.open_beside(process.coordinate(), None)
    write_states(writer, {"planes": [b"one"]})
    operator.ref(1)
    _dies_at(operator, "make_durable")
    with suppress(Crash):
        operator.kill(writer.attempt)
    _dies_at(scrubber, "append")
    with suppress(Crash):
        scrubber.scrub()
    world.lose_power()
    assert_catalog_sound(world)


def test_what_was_acknowledged_survives_a_power_loss_in_the_next_moment() -> None:
    world = World()
    process = world.process()
    process.checkpoint(process.coordinate(), {"planes": [b"one"]})
    world.lose_power()
    assert_catalog_sound(world)


def test_a_commit_is_read_back_and_synced_before_it_is_told() -> None:
    process = World().process()
    process.coordinate()
    process.arm()
    process.register("another job")
    verbs = [verb for verb, _ in process.faults.log]
    first = verbs.index("append")
    assert verbs[first : first + 3] == ["append", "refresh", "make_durable"]


def test_an_owner_keeps_its_files_when_the_coordinator_is_started_again() -> None:
    """A task has written a log that no checkpoint has yet. The driver dies, another takes the job over, and a scrub comes by."""
    world = World()
    process = world.process()
    process.coordinate()
    process.log(process.own(), b"log 1")
    process.coordinate()
    process.scrub()
    assert_catalog_sound(world)


def test_an_owner_keeps_its_files_when_their_last_checkpoint_goes() -> None:
    """Retention drops the one checkpoint that has the log, and a vacuum comes by. The task may need it for the next."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    logs = process.log(process.own(), b"log 1")
    process.checkpoint(coordinator, {"wal": logs})
    process.checkpoint(coordinator, {"wal": None})
    process.vacuum()
    assert_catalog_sound(world)
    process.checkpoint(coordinator, {"wal": logs})
    assert world.states_of(3) == {"wal": b"log 1"}


def test_a_commit_refers_to_no_file_that_was_released_meanwhile() -> None:
    """The driver has the file's name from the task, which has let go of it since, and a vacuum was there."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    logs = process.log(process.own(), b"log 1")
    with suppress(RefusedError), coordinator.checkpoint() as writer:
        write_states(writer, {"wal": logs})
        process.release_logs(logs)
        process.vacuum()
    assert_catalog_sound(world)


def _commit_without_sync(world: World) -> None:
    """Checkpoint 1, acknowledged; then checkpoint 2, which drops 1, by a process that dies between the commit and its sync."""
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    with suppress(Crash), coordinator.checkpoint() as writer:
        write_states(writer, {"planes": [b"two"]})
        _dies_at(process, "make_durable")
    assert world.job().head == 2


def _dies_at(process: Process, verb: str) -> None:
    """The process dies before its next call of this verb."""
    process.arm(on_call=lambda n, called, path: process.faults.die(n, called, path) if called == verb else None)


# ---- each rule ------------------------------------------------------------------------------------------------------


def test_a_savepoint_keeps_its_files_by_handles_of_its_own() -> None:
    """The job's line has nothing at the savepoint's seq; nothing of the line lives because of it, and nothing on the line ends it."""
    world = World()
    process = world.process()
    coordinator = process.coordinate()
    process.checkpoint(coordinator, {"planes": [b"one"]})
    number = process.savepoint(1, "mine")
    process.checkpoint(coordinator, {"planes": [b"two"]})
    process.vacuum()
    assert world.states_of(number) == {"planes": b"one"}
    assert_catalog_sound(world)


STORIES: dict[str, tuple[Callable[[], None], ...]] = {
    "savepoints_own_their_handles": (test_a_savepoint_keeps_its_files_by_handles_of_its_own,),
    "commit_rule_from_open_handles": (test_after_a_rollback_a_commit_reopens_what_it_carries,),
    "commit_narrowed_after_the_last_only": (test_after_a_rollback_a_commit_reopens_what_it_carries,),
    "layers": (test_what_a_rollback_adds_again_keeps_its_layer,),
    "fork_writes_its_own_handles": (test_a_forks_first_commit_protects_the_files_that_it_shares,),
    "claim_fences": (test_a_claimed_jobs_own_coordinator_commits_no_more,),
    "pins": (test_a_vacuum_spares_what_a_reader_pinned,),
    "commit_needs_open_attempt": (test_a_killed_attempt_cannot_commit_what_scrub_took,),
    "epochs": (test_a_fenced_coordinator_never_moves_the_head,),
    "start_spares_others": (test_a_start_leaves_readers_their_pins,),
    "open_needs_live_parent": (test_no_attempt_opens_on_a_dropped_checkpoint,),
    "compare_and_swap": (test_a_reader_with_an_old_memory_pins_nothing_that_was_dropped,),
    "scrub_spares_open": (test_a_scrub_spares_what_is_being_written,),
    "scrub_takes_gone": (test_a_file_that_came_back_after_gone_is_scrubbed,),
    "reuse_from_pinned_parent": (test_a_commit_takes_nothing_but_its_own_and_its_parents,),
    "owners_outlive_attempts": (test_an_owner_keeps_its_files_when_the_coordinator_is_started_again,),
    "owned_until_released": (test_an_owner_keeps_its_files_when_their_last_checkpoint_goes,),
    "release_checked_at_commit": (test_a_commit_refers_to_no_file_that_was_released_meanwhile,),
    "ids_not_reused": (test_a_scrub_from_long_ago_hits_no_later_checkpoint,),
    "condemn_before_delete": (test_nothing_is_deleted_before_its_condemnation_is_committed,),
    "durable_before_delete": (
        test_a_vacuum_syncs_what_another_condemned_before_it_deletes,
        test_a_scrub_syncs_the_end_of_an_attempt_before_it_deletes_its_files,
    ),
    "durable_before_told": (
        test_what_was_acknowledged_survives_a_power_loss_in_the_next_moment,
        test_a_commit_is_read_back_and_synced_before_it_is_told,
    ),
    "sync_after_append": (
        test_what_was_acknowledged_survives_a_power_loss_in_the_next_moment,
        test_a_commit_is_read_back_and_synced_before_it_is_told,
    ),
}


def test_every_rule_has_its_story() -> None:
    assert STORIES.keys() == MUTANTS.keys()


@pytest.mark.parametrize(("name", "story"), [(name, story) for name, stories in STORIES.items() for story in stories])
def test_without_its_rule_the_story_ends_badly(name: str, story: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    # The driver's look would find some of it as well; but a cleaner that comes after the look it does not see.
    monkeypatch.setattr(attempt, "require_there", lambda *_: None)
    with MUTANTS[name].without(), pytest.raises((AssertionError, DamagedFileError)):
        story()


# The fast suite has their stories.
FOUND_LATE = {"owned_until_released", "durable_before_delete"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in FOUND_LATE else []) for name in MUTANTS])
def test_without_the_rule_the_model_finds_a_violation(name: str) -> None:
    assert explore(BOUND, mutant=name) is not None, f"{BOUND} histories without {name} broke nothing"


def test_a_mutant_leaves_the_code_as_it_was() -> None:
    before = checkpoints.commit_checkpoint
    with MUTANTS["commit_rule_from_open_handles"].without():
        assert checkpoints.commit_checkpoint is not before
    assert checkpoints.commit_checkpoint is before
