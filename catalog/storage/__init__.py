"""Storage: its port, and the adapters that keep files."""

from holdfast.catalog.storage.port import (
    COPY_BYTES,
    Digest,
    PassingStorage,
    Storage,
    StorageConflictError,
    StoredDirectory,
    StoredObject,
    copy_stream,
    read_committed,
)

__all__ = [
    "COPY_BYTES",
    "Digest",
    "PassingStorage",
    "Storage",
    "StorageConflictError",
    "StoredDirectory",
    "StoredObject",
    "copy_stream",
    "read_committed",
]
