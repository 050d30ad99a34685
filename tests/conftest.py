"""Fixtures that several modules share, and which worker has which tests."""

import gc
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import holdfast
from tests.support import scratch
from tests.support.scheduling import OneSession, mark_tests_of_spark
from tests.support.small_catalog import SmallCatalogs

# No example is too slow: a busy machine is no failure.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")

SCRATCH = pytest.StashKey[Path | None]()
FAILED = pytest.StashKey[bool]()

pytest_plugins = ["tests.support.spark_support"]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[holdfast.Catalog]:
    """An empty catalog of its own for each test, at `tmp_path / "catalog"`."""
    with holdfast.open(tmp_path / "catalog", create=True) as opened:
        yield opened


@pytest.fixture(scope="session")
def small_catalogs(tmp_path_factory: pytest.TempPathFactory) -> SmallCatalogs:
    return SmallCatalogs(tmp_path_factory.mktemp("small"))


def pytest_configure(config: pytest.Config) -> None:
    """Before pytest makes its own directory, which the workers' lie in."""
    if not hasattr(config, "workerinput") and config.option.basetemp is None and config.option.markexpr == "not slow":
        config.option.basetemp = config.stash[SCRATCH] = scratch.in_memory()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Memory is given back, unless something failed and its files are wanted."""
    place = config.stash.get(SCRATCH, None)
    if place is not None and not config.stash.get(FAILED, True):
        shutil.rmtree(place, ignore_errors=True)


def pytest_collection_finish() -> None:
    """What was collected lives as long as the process: the garbage collector, a seventh of the time in tests in memory, leaves it alone."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[FAILED] = exitstatus != 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        mark_tests_of_spark(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSession | None:
    return OneSession(config, log) if config.getoption("dist") == "loadgroup" else None
