"""Turns of committers: what waits goes on, whoever holds the turn, and nothing else is touched."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger import turns


class Paces(SystemEnvironment):
    """A second goes by with each pause."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "paused", 0)

    def monotonic_s(self) -> float:
        return float(self.paused)  # type: ignore[attr-defined]

    def pause(self, attempt: int) -> None:
        object.__setattr__(self, "paused", self.paused + 1)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(turns, "_gave_up", {})
    return tmp_path


def test_a_turn_is_had_by_one_and_given_on() -> None:
    first, second = Paces(), Paces()
    with turns.turn("ledger", first, lambda: 1) as had:
        assert had
        with turns.turn("other", second, lambda: 1) as other:
            assert other
    with turns.turn("ledger", second, lambda: 1) as had:
        assert had
    assert second.paused == 0  # type: ignore[attr-defined]


def test_a_holder_that_stands_still_is_not_waited_for() -> None:
    waiting = Paces()
    with turns.turn("ledger", Paces(), lambda: 1), turns.turn("ledger", waiting, lambda: 7) as had:
        assert not had
    assert waiting.paused == turns.PATIENCE_S + 1  # type: ignore[attr-defined]


def test_while_commits_are_made_waiting_goes_on() -> None:
    waiting, versions = Paces(), iter([1, 1, 1, 2, 2, 2, 3, *[4] * 100])
    with turns.turn("ledger", Paces(), lambda: 1), turns.turn("ledger", waiting, lambda: next(versions)) as had:
        assert not had
    assert waiting.paused == 7 + turns.PATIENCE_S + 1  # type: ignore[attr-defined]


def test_a_committer_that_others_always_overtake_goes_without_a_turn() -> None:
    waiting, versions = Paces(), iter(range(1000))
    with turns.turn("ledger", Paces(), lambda: 1), turns.turn("ledger", waiting, lambda: next(versions)) as had:
        assert not had
    assert waiting.paused == turns.AT_MOST_S + 1  # type: ignore[attr-defined]


def test_who_has_given_a_turn_up_does_not_wait_for_the_next() -> None:
    """Six committers beside a holder that stood still waited for each of their commits."""
    waiting = Paces()
    with turns.turn("ledger", Paces(), lambda: 1):
        for _ in range(3):
            with turns.turn("ledger", waiting, lambda: 7) as had:
                assert not had
    assert waiting.paused == turns.PATIENCE_S + 1  # type: ignore[attr-defined]
    with turns.turn("ledger", waiting, lambda: 7) as had:
        assert had


def test_a_child_that_was_forked_in_a_turn_does_not_keep_it() -> None:
    """The lock is of the open file, which the child has as well: every commit took three seconds until it died."""
    reading, writing = os.pipe()
    with turns.turn("ledger", Paces(), lambda: 1):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    os.close(reading)
    waiting = Paces()
    with turns.turn("ledger", waiting, lambda: 1) as had:
        assert had
    os.close(writing)
    os.waitpid(child, 0)
    assert waiting.paused == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("lack", ["locks", "directory"])
def test_where_no_lock_is_to_be_had_nobody_waits(monkeypatch: pytest.MonkeyPatch, lack: str) -> None:
    def fails(*_: object) -> str:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(*((fcntl, "flock") if lack == "locks" else (tempfile, "gettempdir")), fails)
    waiting = Paces()
    with turns.turn("ledger", waiting, lambda: 1) as had:
        assert not had
    assert waiting.paused == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("planted", ["link", "pipe", "directory"])
def test_what_is_planted_at_the_lock_s_place_is_not_touched(temporary: Path, planted: str) -> None:
    with turns.turn("ledger", Paces(), lambda: 1):
        (place,) = temporary.iterdir()
    assert place.stat().st_mode & 0o777 == 0o600
    place.unlink()
    victim = temporary / "victim"
    victim.write_text("mine")
    if planted == "link":
        place.symlink_to(victim)
    elif planted == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    with turns.turn("ledger", Paces(), lambda: 1) as had:
        assert not had
    assert victim.read_text() == "mine"
