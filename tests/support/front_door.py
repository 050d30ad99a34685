"""What tests ask of a catalog by its front door."""

from typing import Any

import holdfast
from holdfast.past import PastCatalog

LARGE = b"x" * 50_000  # a file of its own; what is smaller is inline


def ask(catalog: holdfast.Catalog | PastCatalog, sql: str) -> list[tuple[Any, ...]]:
    """The rows that the views give."""
    with catalog.duckdb() as connection:
        return connection.execute(sql).fetchall()


def contents(checkpoint: holdfast.Checkpoint | None) -> dict[str, bytes]:
    """The bytes of every state."""
    assert checkpoint is not None
    return {state: checkpoint.read_bytes(state) for state in checkpoint.states}
