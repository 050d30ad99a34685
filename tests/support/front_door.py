"""What tests ask of a catalog by its front door."""

from typing import Any
from weakref import WeakKeyDictionary

import duckdb

import holdfast
from holdfast.past import PastCatalog

LARGE = b"x" * 50_000  # a file of its own; what is smaller is inline


_connections: WeakKeyDictionary[holdfast.Catalog | PastCatalog, duckdb.DuckDBPyConnection] = WeakKeyDictionary()


def ask(catalog: holdfast.Catalog | PastCatalog, sql: str) -> list[tuple[Any, ...]]:
    """The rows that the views give now: each statement sees the newest version, so that a catalog is connected to once."""
    connection = _connections.get(catalog)
    if connection is None:
        connection = _connections[catalog] = catalog.duckdb()
    return connection.execute(sql).fetchall()


def contents(checkpoint: holdfast.Checkpoint | None) -> dict[str, bytes]:
    """The bytes of every state."""
    assert checkpoint is not None
    return {state: checkpoint.read_bytes(state) for state in checkpoint.states}
