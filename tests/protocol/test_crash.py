"""Crash at every call: each operation with its n-th call to storage or ledger failing before its effect, after it, or unheard, for every n.

After each crash a new process reopens, resumes, vacuums and scrubs: the catalog is sound, holds nothing that nobody needs, and nothing
that was acknowledged is lost. A crash may take the power with it: whatever was not made durable is gone as well.
"""

from collections.abc import Callable

import pytest

from holdfast.catalog.errors import HoldfastError, UnknownOutcomeError
from tests.support.faults import Crash, Hook, LostResponseError, Mode
from tests.support.scenes import SCENES, Boom, Scene, abort, checkpoint_after_others, first_checkpoint, later_checkpoint, resume

EVERY_SCENE = pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)


def calls_of(prepare: Callable[[], Scene]) -> list[tuple[str, str]]:
    """The calls that an unbroken run makes."""
    scene = prepare()
    scene.actor.arm()
    scene.act()
    calls = list(scene.actor.faults.log)
    assert len(calls) >= 3, f"only {calls}: is the scene wired to its faults?"
    resume(scene.world)
    return calls


def refuse(n: int) -> Hook:
    """The n-th call fails without effect."""

    def on_call(call: int, verb: str, path: str) -> None:
        if call == n:
            raise PermissionError(f"{verb} {path}")

    return on_call


def with_call(n: int, calls: list[tuple[str, str]], mode: str, check: Callable[[], object]) -> None:
    try:
        check()
    except BaseException as error:
        error.add_note(f"call {n} of {len(calls)} {mode}: {' '.join(calls[n - 1])}")
        raise


@EVERY_SCENE
@pytest.mark.parametrize("mode", ["before", "after"])
def test_a_crash_at_any_call_loses_nothing_and_leaves_nothing(scene: Callable[[], Scene], mode: Mode) -> None:
    calls = calls_of(scene)
    for n in range(1, len(calls) + 1):

        def check(n: int = n) -> None:
            crashed = scene()
            crashed.actor.arm({n: mode})
            with pytest.raises(Crash):
                crashed.act()
            resume(crashed.world)

        with_call(n, calls, mode, check)


@EVERY_SCENE
def test_power_lost_at_any_call_takes_nothing_that_was_acknowledged(scene: Callable[[], Scene]) -> None:
    """A commit that nobody synced is gone with the power. What callers were told, what was written and what was deleted relies on none."""
    calls = calls_of(scene)
    for n in range(1, len(calls) + 1):

        def check(n: int = n) -> None:
            crashed = scene()
            crashed.actor.arm({n: "after"})
            with pytest.raises(Crash):
                crashed.act()
            crashed.world.lose_power()
            resume(crashed.world)

        with_call(n, calls, "after, without power", check)


@EVERY_SCENE
def test_a_lost_response_at_any_call_is_success_or_a_clear_error(scene: Callable[[], Scene]) -> None:
    """The call had its effect and its caller did not hear of it. Nothing is told twice, nothing is deleted on its account."""
    calls = calls_of(scene)
    for n in range(1, len(calls) + 1):

        def check(n: int = n) -> None:
            shaken = scene()
            told = len(shaken.world.acknowledged)
            shaken.actor.arm({n: "lost"})
            try:
                shaken.act()
            except (HoldfastError, LostResponseError, Boom):
                assert len(shaken.world.acknowledged) == told
            resume(shaken.world)

        with_call(n, calls, "lost", check)


@EVERY_SCENE
def test_a_call_that_is_refused_is_survived(scene: Callable[[], Scene]) -> None:
    """The n-th call fails without its effect, and the process lives to tell: no disk space, no permission, no network."""
    calls = calls_of(scene)
    for n in range(1, len(calls) + 1):

        def check(n: int = n) -> None:
            shaken = scene()
            told = len(shaken.world.acknowledged)
            shaken.actor.arm(on_call=refuse(n))
            try:
                shaken.act()
            except (HoldfastError, OSError, Boom):
                assert len(shaken.world.acknowledged) == told
            resume(shaken.world)

        with_call(n, calls, "refused", check)


@pytest.mark.parametrize("lost", [1, 12], ids=lambda lost: f"{lost} lost")
@pytest.mark.parametrize("scene", [first_checkpoint, later_checkpoint, checkpoint_after_others, abort], ids=lambda scene: scene.__name__)
def test_after_lost_responses_the_same_coordinator_goes_on(scene: Callable[[], Scene], lost: int) -> None:
    """It goes on from what the ledger says, whether the checkpoint landed or not, and `latest()` shows the same."""
    calls = calls_of(scene)
    for n in range(1, len(calls) + 1):

        def check(n: int = n) -> None:
            shaken = scene()
            assert shaken.coordinator is not None
            shaken.actor.arm(dict.fromkeys(range(n, n + lost), "lost"))
            try:
                shaken.act()
            except (HoldfastError, LostResponseError, Boom):
                pass
            shaken.actor.arm()
            if shaken.coordinator._transactor._undurable is not None:  # only a new process goes on
                with pytest.raises(UnknownOutcomeError, match="examine the disk"):
                    shaken.actor.checkpoint(shaken.coordinator, {"offsets": b"went on"})
                resume(shaken.world)
                return
            head = shaken.world.job().head
            latest = shaken.coordinator.latest()
            assert (latest.checkpoint_id if latest else None) == head
            shaken.actor.checkpoint(shaken.coordinator, {"offsets": b"went on"})
            resume(shaken.world)

        with_call(n, calls, "lost", check)


def test_after_a_failed_sync_nothing_more_is_committed_or_deleted() -> None:
    """And the sync is not tried again. After a failed fsync Linux calls the pages clean: the second one succeeds, and the data is lost with
    the power."""
    calls = calls_of(later_checkpoint)
    syncs = [n for n, (verb, _) in enumerate(calls, 1) if verb == "make_durable"]
    assert syncs
    for n in syncs:
        scene = later_checkpoint()
        told = len(scene.world.acknowledged)
        scene.actor.arm(on_call=refuse(n))
        with pytest.raises(UnknownOutcomeError, match="examine the disk"):
            scene.act()
        assert scene.actor.faults.log[-1] == calls[n - 1]
        assert scene.coordinator is not None
        with pytest.raises(UnknownOutcomeError, match="examine the disk"), scene.coordinator.checkpoint():
            pass
        with pytest.raises(UnknownOutcomeError, match="examine the disk"):
            scene.coordinator._transactor.settle()
        scene.world.lose_power()
        assert len(scene.world.acknowledged) == told
        resume(scene.world)


def test_two_lost_responses_in_a_row_at_any_call_of_a_commit_are_survived() -> None:
    """The reading back after a lost answer may fail as well."""
    calls = calls_of(later_checkpoint)
    for n in range(1, len(calls)):

        def check(n: int = n) -> None:
            shaken = later_checkpoint()
            shaken.actor.arm({n: "lost", n + 1: "lost"})
            try:
                shaken.act()
            except (HoldfastError, LostResponseError):
                pass
            resume(shaken.world)

        with_call(n, calls, "lost twice", check)


def test_a_ledger_that_is_silent_after_a_commit_is_an_unknown_outcome() -> None:
    """Everything after the append fails: the caller hears that the outcome is unknown, and the catalog has the checkpoint or has not."""
    calls = calls_of(later_checkpoint)
    last_append = max(n for n, (verb, _) in enumerate(calls, 1) if verb == "append")
    scene = later_checkpoint()
    scene.actor.arm(dict.fromkeys(range(last_append, last_append + 50), "lost"))
    with pytest.raises(HoldfastError, match="may have landed"):
        scene.act()
    assert scene.world.job().head == 5
    resume(scene.world)
