"""The soak, as long as the suite can afford; `make soak ROUNDS=1000` goes on from there."""

from pathlib import Path

import pytest

from tests.protocol.soak import soak


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_and_nothing_is_left_by_random_kills(tmp_path: Path) -> None:
    """Writer and vacuum are killed."""
    tally = soak(rounds=30, seed=2013, directory=tmp_path)
    assert tally.rounds == 30
    assert tally.acknowledged > 15, "the writers must get somewhere"
    assert tally.orphans > 0, "the killed must leave something, or this tests nothing"
