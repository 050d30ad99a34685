"""Holdfast: a transactional checkpoint catalog on Delta Lake.

The facade is imported when it is first used: an executor that imports `holdfast.writers` needs neither deltalake nor DuckDB.
"""

from typing import TYPE_CHECKING, Any

from holdfast.catalog.clock import VERSION
from holdfast.catalog.errors import (
    AddressError,
    AlreadyExistsError,
    AttemptEndedError,
    ConflictError,
    CorruptionError,
    DamagedFileError,
    DamagedLedgerError,
    EngineSetupError,
    FencedError,
    ForeignTokensError,
    FormatError,
    HoldfastError,
    NotFoundError,
    ReadOnlyError,
    RefusedError,
    RetryError,
    StorageFullError,
    TooManyFailuresError,
    UnknownOutcomeError,
    UnsafeSettingsError,
    UsageError,
    WorkingDirectoryError,
)
from holdfast.catalog.key_groups import groups_of
from holdfast.catalog.types import ChainLimit, CheckpointProperties, KeepAll, KeepLast, OnEnd, Outcome, OwnedFile
from holdfast.writers.attempt_content import CheckpointResult
from holdfast.writers.checkpoint_writer import CheckpointWriter
from holdfast.writers.coordinator import Coordinator
from holdfast.writers.directories import DirectoryUpload, DirectoryWriter
from holdfast.writers.directory_reader import DirectoryReader, RestoredDirectory
from holdfast.writers.owners import Owner
from holdfast.writers.restore import Checkpoint
from holdfast.writers.rocksdb import RocksDBAdapter
from holdfast.writers.stores import StoreAdapter, StoreReader
from holdfast.writers.stream import foreach_batch
from holdfast.writers.working_directory import WorkingDirectory, working_directory

if TYPE_CHECKING:
    from holdfast.facade import Catalog, open_manifest, open_savepoint, rekey
    from holdfast.facade import open_catalog as open  # noqa: A004 - the front door is `holdfast.open`
    from holdfast.writers.spark_source import HoldfastDataSource as HoldfastDataSource

__version__ = VERSION

_FACADE = {
    "open": "open_catalog",
    "open_manifest": "open_manifest",
    "open_savepoint": "open_savepoint",
    "rekey": "rekey",
    "Catalog": "Catalog",
}


def __getattr__(name: str) -> Any:
    if name == "HoldfastDataSource":  # needs Spark
        from holdfast.writers.spark_source import HoldfastDataSource

        return HoldfastDataSource
    if name not in _FACADE:
        msg = f"module 'holdfast' has no attribute {name!r}"
        raise AttributeError(msg)
    from holdfast import facade

    return getattr(facade, _FACADE[name])


__all__ = [  # without HoldfastDataSource, which needs Spark
    "open",
    "open_manifest",
    "open_savepoint",
    "rekey",
    "groups_of",
    "working_directory",
    "foreach_batch",
    "Catalog",
    "Coordinator",
    "CheckpointWriter",
    "CheckpointResult",
    "Checkpoint",
    "CheckpointProperties",
    "DirectoryWriter",
    "DirectoryUpload",
    "DirectoryReader",
    "RestoredDirectory",
    "StoreAdapter",
    "StoreReader",
    "RocksDBAdapter",
    "Owner",
    "OwnedFile",
    "WorkingDirectory",
    "KeepLast",
    "KeepAll",
    "ChainLimit",
    "OnEnd",
    "Outcome",
    "HoldfastError",
    "RetryError",
    "ConflictError",
    "UnknownOutcomeError",
    "StorageFullError",
    "UsageError",
    "AddressError",
    "NotFoundError",
    "AlreadyExistsError",
    "FormatError",
    "RefusedError",
    "ReadOnlyError",
    "UnsafeSettingsError",
    "EngineSetupError",
    "FencedError",
    "AttemptEndedError",
    "TooManyFailuresError",
    "CorruptionError",
    "DamagedFileError",
    "DamagedLedgerError",
    "ForeignTokensError",
    "WorkingDirectoryError",
    "__version__",
]
