"""The ledger: its ports, and the adapters over Delta tables and in memory."""

from holdfast.catalog.ledger.port import (
    FILE_ROWS,
    Alike,
    BigFile,
    History,
    Ledger,
    LedgerConflictError,
    LoggedCommit,
    Row,
    SnapshotLostError,
    Tidied,
    ToldCommit,
)

__all__ = [
    "FILE_ROWS",
    "Alike",
    "BigFile",
    "History",
    "Ledger",
    "LedgerConflictError",
    "LoggedCommit",
    "Row",
    "SnapshotLostError",
    "Tidied",
    "ToldCommit",
]
