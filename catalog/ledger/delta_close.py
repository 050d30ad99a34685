"""The commit that closes a table of ours: it names its successor, and takes no other commit above it (design, section 4b; decision 0012).

Two actions do it together. `metaData` (the table's own, with the successor among its properties) fails an append that is in flight: the
table was changed since its snapshot. `protocol`, with a feature of writers that no program knows, refuses a commit of every handle that has
seen it. What reads needs no feature: delta-rs, DuckDB and Spark read a closed table as before.
"""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from holdfast.catalog.ledger import delta_entry, delta_log
from holdfast.catalog.schema import Operation

_FEATURE = "holdfastClosed"
_IN_FORCE = ("appendOnly", "invariants")  # of writer version 2, which a list of features has to name


def successor_of(table: DeltaTable) -> str | None:
    """The directory of the table that succeeds this one; None for one that is open."""
    return table.metadata().configuration.get(delta_entry.SUCCESSOR)


def close(log: Path, table: DeltaTable, successor: str, operation: Operation) -> bool:
    """Create the closing entry directly above the handle's version, below which all is durable; durable on return.

    False: another commit came first, and nothing was changed.
    """
    version = int(table.version()) + 1
    try:
        delta_log.create_commit(log, version, _entry(table, version, successor, operation))
    except FileExistsError:
        return False
    return True


def _entry(table: DeltaTable, version: int, successor: str, operation: Operation) -> bytes:
    metadata = table.metadata()
    actions: list[tuple[str, dict[str, Any]]] = [
        (
            "metaData",
            {
                "id": str(metadata.id),
                "format": {"options": {}, "provider": "parquet"},
                "schemaString": table.schema().to_json(),
                "partitionColumns": [],
                "configuration": {**metadata.configuration, delta_entry.SUCCESSOR: successor},
                "createdTime": metadata.created_time,
            },
        ),
        ("protocol", {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [*_IN_FORCE, _FEATURE]}),
    ]
    at_ms = int(operation.at.timestamp() * 1000)
    return delta_entry.own_entry(version, "CLOSE", {"successor": successor}, operation.operation_id, at_ms, actions)
