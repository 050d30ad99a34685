"""The catalog beside a model of plain dicts, in sequences that nobody would write down (`tests/support/machine.py`)."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.catalog import manifest_store
from holdfast.catalog.errors import DamagedFileError
from tests.support.invariants import assert_catalog_sound
from tests.support.machine import CatalogMachine
from tests.support.machine_parts import Boom
from tests.support.mutants import MUTANTS, OF_COORDINATORS
from tests.support.store_mutants import OF_STORES
from tests.support.world import World

MACHINE = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip


def test_the_catalog_does_what_the_plain_model_does() -> None:
    run_state_machine_as_test(CatalogMachine, settings=MACHINE)


@pytest.mark.slow
def test_the_catalog_does_what_the_plain_model_does_at_length() -> None:
    """Other histories at each run."""
    run_state_machine_as_test(CatalogMachine, settings=settings(MACHINE, max_examples=1500, stateful_step_count=60, derandomize=False))


# Two subtasks with one name and the same bytes are too rare in random histories: the story of test_directory_races finds it alone.
BY_ITS_STORY = {"reuse_within_a_subtask"}


@pytest.mark.parametrize(
    "name",
    [
        "commit_rule_from_open_handles", "commit_narrowed_after_the_last_only", "layers", "claim_fences", "no_claim_refers_to_nothing",
        pytest.param("fork_writes_its_own_handles", marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(OF_STORES.keys() - BY_ITS_STORY)),
    ],
)  # fmt: skip
def test_without_the_rule_the_machine_finds_the_loss(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of how content, forks, claims and the directories of stores are committed. The others need crashes, which the machine has not: they are the model's."""
    # What a manifest may say is looked at before it is written as well.
    monkeypatch.setattr(manifest_store, "require_sound", lambda *_: None)
    monkeypatch.setattr(CatalogMachine, "folds", False)
    bounded = settings(MACHINE, max_examples=2000, phases=[Phase.generate], report_multiple_bugs=False)
    with {**MUTANTS, **OF_COORDINATORS, **OF_STORES}[name].without(), pytest.raises((AssertionError, DamagedFileError)):
        run_state_machine_as_test(CatalogMachine, settings=bounded)


def test_a_fork_whose_origin_was_dropped_goes_on_after_a_failure() -> None:
    """Found by the machine. The first job went on while the fork was writing its first checkpoint, and retention dropped what the fork
    began with. Then the fork's block raised: its attempt could not be replaced, for nothing opens on a dropped checkpoint, and stayed
    open for ever, with its pin. The next attempt takes the pin over: at no version is the origin without one."""
    world = World()
    process = world.process()
    first = process.coordinate()
    process.checkpoint(first, {"planes": [b"one"]})
    fork = process.coordinate_from(1, "what if", "fork")
    process.checkpoint(first, {"planes": [b"two"]})
    with pytest.raises(Boom), fork.checkpoint() as writer:
        writer.write("routes", [b"three"])  # type: ignore[arg-type]
        raise Boom
    process.vacuum()
    process.checkpoint(fork, {"routes": [b"four"]})
    assert world.states_of(world.job("what if").head, "what if") == {"planes": b"one", "routes": b"four"}
    process.scrub()
    assert_catalog_sound(world)
