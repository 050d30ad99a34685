"""The ledger: its ports, and the adapters over Delta tables and in memory."""

from holdfast.catalog.ledger.port import History, Ledger, LedgerConflictError, LoggedCommit, Row, SnapshotLostError, Tidied, ToldCommit

__all__ = ["History", "Ledger", "LedgerConflictError", "LoggedCommit", "Row", "SnapshotLostError", "Tidied", "ToldCommit"]
