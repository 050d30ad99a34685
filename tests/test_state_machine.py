"""The catalog beside a model of plain dicts, in sequences that nobody would write down (`tests/support/machine.py`)."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.catalog.errors import DamagedFileError
from tests.support.machine import CatalogMachine
from tests.support.mutants import MUTANTS

MACHINE = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip


def test_the_catalog_does_what_the_plain_model_does() -> None:
    run_state_machine_as_test(CatalogMachine, settings=MACHINE)


@pytest.mark.slow
def test_the_catalog_does_what_the_plain_model_does_at_length() -> None:
    """Other histories at each run."""
    run_state_machine_as_test(CatalogMachine, settings=settings(MACHINE, max_examples=1500, stateful_step_count=60, derandomize=False))


def test_with_the_parent_in_place_of_the_open_handles_the_machine_finds_the_loss() -> None:
    """The commit rule compares with what is open in the ledger. By comparing with the parent it loses data, and this finds it."""
    bounded = settings(MACHINE, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    with MUTANTS["commit_rule_from_open_handles"].without(), pytest.raises((AssertionError, DamagedFileError)):
        run_state_machine_as_test(CatalogMachine, settings=bounded)
