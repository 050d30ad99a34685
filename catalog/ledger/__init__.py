"""The ledger: its port, and the adapters over a Delta table and in memory."""

from holdfast.catalog.ledger.port import Ledger, LedgerConflictError, LoggedCommit, SnapshotLostError

__all__ = ["Ledger", "LedgerConflictError", "LoggedCommit", "SnapshotLostError"]
