"""The commit that closes a table of ours: it names its successor, and takes no other commit above it (design, section 4b; decision 0012).

Two actions do it together. `metaData` (the table's own, with the successor among its properties) fails an append that is in flight: the
table was changed since its snapshot. `protocol`, with a feature of writers that no program knows, refuses a commit of every handle that has
seen it. What reads needs no feature: delta-rs, DuckDB and Spark read a closed table as before.
"""

import json
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
    said = {
        "timestamp": int(operation.at.timestamp() * 1000),
        "operation": "CLOSE",
        "operationParameters": {"successor": successor},
        "isBlindAppend": False,
        delta_entry.OPERATION_ID: operation.operation_id,
        delta_entry.ACTIONS: len(actions),
        delta_entry.VERSION: version,
        delta_entry.DURABLE_TO: version - 1,
        delta_entry.DIGEST: delta_entry.digest_of(version, version - 1, operation.operation_id, actions),
    }
    return b"".join(_line(name, body) for name, body in [("commitInfo", said), *actions])


def _line(name: str, body: dict[str, Any]) -> bytes:
    """An action as a line that has "}}" at its end and nowhere else (`delta_entry`): a schema has it in its text, as another spelling."""
    text = json.dumps({name: body})
    inside = text[:-2]
    while "}}" in inside:
        inside = inside.replace("}}", "}\\u007d")
    return (inside + text[-2:]).encode() + b"\n"
