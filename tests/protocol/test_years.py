"""A short life of a catalog; `make years` is a long one."""

from pathlib import Path

import pytest

from tests.protocol.years import live, simulate
from tests.support.mutants import MUTANTS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_catalog_that_has_lived_at_the_ports_is_as_on_its_first_day() -> None:
    tally = simulate(checkpoints=1_200, seed=2013, windows=4)
    assert tally.checkpoints >= 1_200
    assert tally.events["windows judged"] == 5, "and the end"
    assert tally.events["upkeeps"] > 20
    assert tally.events["checkpoints ended by Crash"] > 0, "somebody must die, or this tests little"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_catalog_that_was_lived_in_is_small_and_shows_its_days(tmp_path: Path) -> None:
    """Ten processes and a cleaner, killed at random."""
    tally = live(checkpoints=120, seed=2013, directory=tmp_path, days=3, rounds=1)
    assert tally.checkpoints >= 120
    assert len(tally.days) == 3
    assert tally.kills > 0
    assert tally.runs["upkeep done"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["pins", "layers"])
def test_a_life_without_a_rule_ends_early(rule: str) -> None:
    with MUTANTS[rule].without(), pytest.raises((AssertionError, KeyError)):  # a pinned checkpoint changes, or is gone
        simulate(checkpoints=400, seed=3, windows=10)
