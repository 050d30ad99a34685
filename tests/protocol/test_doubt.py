"""A commit whose answer is lost: the same coordinator finds out what became of it, goes on from there, and leaves no attempt open."""

from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from holdfast.catalog.errors import AttemptEndedError, HoldfastError, UnknownOutcomeError
from holdfast.catalog.facts import Fact
from holdfast.catalog.ledger import Ledger, LoggedCommit
from holdfast.catalog.schema import Operation
from holdfast.catalog.transactions import READ_TRIES
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.start import StartPoint, StateMapping
from tests.support.invariants import assert_catalog_sound
from tests.support.world import KEEP_ONE, World

OTHER = "what-if"
STATES = {"planes": [b"p1"], "old": b"o" * 30_000}


class DeafLedger:
    """From `shut` on the next commit is not answered, and cannot be read back; it lands or it does not."""

    def __init__(self, inner: Ledger) -> None:
        self._inner = inner
        self._lands: bool | None = None
        self._unread = 0

    def shut(self, *, lands: bool) -> None:
        self._lands = lands

    @property
    def version(self) -> int:
        return self._inner.version

    def append(self, facts: Sequence[Fact], *, keys: Mapping[str, int], operation: Operation) -> None:
        lands, self._lands = self._lands, None
        if lands is None or lands:
            self._inner.append(facts, keys=keys, operation=operation)
        if lands is not None:
            self._unread = READ_TRIES
            raise OSError(5, "the file system hangs for a moment")

    def refresh(self) -> Sequence[LoggedCommit]:
        if self._unread:
            self._unread -= 1
            raise OSError(5, "the file system hangs for a moment")
        return self._inner.refresh()

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@pytest.fixture
def world() -> World:
    return World()


def coordinator_of(world: World, kind: str) -> tuple[Coordinator, DeafLedger, str]:
    """Of a job with a checkpoint, or one that begins from it; its ledger, and the job's name."""
    process = world.process()
    coordinator = process.coordinate()
    number = process.checkpoint(coordinator, STATES)
    if kind != "own":
        coordinator.close()
        begin = StartPoint(
            find=partial(lambda ref, _: ref, process.ref(number)),
            mapping=StateMapping(states=["planes"], allow_non_restored=["old"]) if kind.endswith("leaving") else StateMapping(),
            claim=kind.startswith("claim"),
        )
        coordinator = process._coordinator(OTHER, KEEP_ONE, begin)
    deaf = DeafLedger(coordinator._transactor.ledger)
    coordinator._transactor._ledger = deaf  # type: ignore[assignment]
    return coordinator, deaf, "flights" if kind == "own" else OTHER


def in_doubt(coordinator: Coordinator, deaf: DeafLedger, *, lands: bool) -> int:
    with pytest.raises(UnknownOutcomeError, match="it may have landed"), coordinator.checkpoint() as writer:
        writer.write_bytes("planes2", b"p2")
        deaf.shut(lands=lands)
    return writer.checkpoint_id


KINDS = pytest.mark.parametrize("kind", ["own", "fork", "fork, leaving", "claim", "claim, leaving"])
LANDS = pytest.mark.parametrize("lands", [True, False], ids=["landed", "lost"])


@KINDS
@LANDS
def test_the_next_checkpoints_go_on_whether_it_landed_or_not(world: World, kind: str, lands: bool) -> None:
    """Seen: a first commit that had landed and left a state out made each later checkpoint fail, with an attempt left open."""
    coordinator, deaf, name = coordinator_of(world, kind)
    number = in_doubt(coordinator, deaf, lands=lands)
    for data in (b"3", b"4"):
        with coordinator.checkpoint() as writer:
            writer.write_bytes("planes2", data)
        assert writer.result is not None
    left = set() if kind.endswith("leaving") else {"old"}
    assert set(world.states_of(writer.result.checkpoint_id, name)) == {"planes", "planes2"} | left
    assert (number in world.job(name).checkpoints) == lands
    coordinator.close()
    assert not world.job(name).open_attempts
    assert not world.job().open_attempts
    assert_catalog_sound(world)


@KINDS
@LANDS
def test_a_coordinator_that_is_closed_in_doubt_leaves_no_attempt_open(world: World, kind: str, lands: bool) -> None:
    coordinator, deaf, name = coordinator_of(world, kind)
    in_doubt(coordinator, deaf, lands=lands)
    coordinator.close()
    assert not world.job(name).open_attempts
    assert not world.job().open_attempts
    assert_catalog_sound(world)


def test_a_fork_goes_on_from_what_its_lost_attempt_alone_still_pinned(world: World) -> None:
    """The first job's retention has dropped it meanwhile, and nothing opens on a dropped checkpoint: its pin is taken over."""
    coordinator, deaf, name = coordinator_of(world, "fork")
    first = world.process()
    line = first.coordinate()
    in_doubt(coordinator, deaf, lands=False)
    first.checkpoint(line, {"planes": [b"p9"]})
    with coordinator.checkpoint() as writer:
        writer.write_bytes("planes2", b"p3")
    assert writer.result is not None
    assert world.states_of(writer.result.checkpoint_id, name) == {"planes": b"p1", "old": STATES["old"], "planes2": b"p3"}
    coordinator.close()
    line.close()
    assert_catalog_sound(world)


def test_an_attempt_that_fails_to_begin_serves_the_next_call(world: World) -> None:
    coordinator, _, _ = coordinator_of(world, "own")
    opened = set(world.job().open_attempts)
    with pytest.raises(HoldfastError, match="progress must be a mapping"), coordinator.checkpoint({"no": object()}):
        pass
    assert set(world.job().open_attempts) == opened
    with coordinator.checkpoint() as writer:
        writer.write_bytes("planes2", b"2")
    assert opened == {writer.attempt}


def test_a_lost_commit_whose_attempt_was_killed_is_not_ended_twice(world: World) -> None:
    coordinator, deaf, _ = coordinator_of(world, "own")
    in_doubt(coordinator, deaf, lands=False)
    (token,) = world.job().open_attempts
    world.process().kill(token)
    with coordinator.checkpoint() as writer:
        writer.write_bytes("planes2", b"2")
    assert writer.result is not None
    with pytest.raises(AttemptEndedError):
        coordinator._line.require_open(token)
