"""Fixtures that several modules share, and which worker has which tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import holdfast
from tests.support.scheduling import OneSession, mark_tests_of_spark

# No example is too slow: a busy machine is no failure.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

pytest_plugins = ["tests.support.spark_support"]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[holdfast.Catalog]:
    """An empty catalog of its own for each test, at `tmp_path / "catalog"`."""
    with holdfast.open(tmp_path / "catalog", create=True) as opened:
        yield opened


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        mark_tests_of_spark(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSession | None:
    return OneSession(config, log) if config.getoption("dist") == "loadgroup" else None
