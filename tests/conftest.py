"""Fixtures that several modules share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

pytest_plugins = ["tests.support.spark_support"]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[holdfast.Catalog]:
    """An empty catalog of its own for each test, at `tmp_path / "catalog"`."""
    with holdfast.open(tmp_path / "catalog", create=True) as opened:
        yield opened
