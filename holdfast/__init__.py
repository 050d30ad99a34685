"""Holdfast: a transactional checkpoint catalog on Delta Lake.

All but errors and policies is imported when it is first used: an executor that imports `holdfast.writers` needs neither deltalake nor
DuckDB, and `holdfast --version` waits for neither.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.catalog import VERSION
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
    NotDurableError,
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
from holdfast.catalog.types import ChainLimit, CheckpointProperties, KeepAll, KeepLast, OnEnd, Outcome, OwnedFile

if TYPE_CHECKING:
    from holdfast.catalog.key_groups import groups_of
    from holdfast.data_source import HoldfastDataSource as HoldfastDataSource
    from holdfast.facade import Catalog
    from holdfast.opening import open_catalog as open  # noqa: A004 - the front door is `holdfast.open`
    from holdfast.opening import open_manifest, open_savepoint, rekey, upgrade
    from holdfast.past import PastCatalog
    from holdfast.streaming import foreach_batch
    from holdfast.writers.checkpoint import Checkpoint
    from holdfast.writers.checkpoint_writer import CheckpointResult, CheckpointWriter
    from holdfast.writers.coordinator import Coordinator
    from holdfast.writers.local.local_state import LocalSlot
    from holdfast.writers.local.working_directory import WorkingDirectory, working_directory
    from holdfast.writers.stores.canonical import StoreAdapter, StoreReader
    from holdfast.writers.stores.reader import DirectoryReader, RestoredDirectory
    from holdfast.writers.stores.rocksdb import RocksDBAdapter
    from holdfast.writers.stores.writer import DirectoryUpload, DirectoryWriter
    from holdfast.writers.task_owned import Owner

__version__ = VERSION

_HOMES = {  # where the names are that are not imported above
    "groups_of": "catalog.key_groups",
    "open": "opening",
    "open_manifest": "opening",
    "open_savepoint": "opening",
    "rekey": "opening",
    "upgrade": "opening",
    "Catalog": "facade",
    "PastCatalog": "past",
    "CheckpointResult": "writers.checkpoint_writer",
    "CheckpointWriter": "writers.checkpoint_writer",
    "Coordinator": "writers.coordinator",
    "DirectoryUpload": "writers.stores.writer",
    "DirectoryWriter": "writers.stores.writer",
    "DirectoryReader": "writers.stores.reader",
    "RestoredDirectory": "writers.stores.reader",
    "LocalSlot": "writers.local.local_state",
    "Owner": "writers.task_owned",
    "Checkpoint": "writers.checkpoint",
    "RocksDBAdapter": "writers.stores.rocksdb",
    "HoldfastDataSource": "data_source",  # needs Spark
    "StoreAdapter": "writers.stores.canonical",
    "StoreReader": "writers.stores.canonical",
    "foreach_batch": "streaming",
    "WorkingDirectory": "writers.local.working_directory",
    "working_directory": "writers.local.working_directory",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'holdfast' has no attribute {name!r}"
        raise AttributeError(msg)
    found = getattr(import_module(f"holdfast.{_HOMES[name]}"), "open_catalog" if name == "open" else name)
    globals()[name] = found  # asked for once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


__all__ = [  # without HoldfastDataSource, which needs Spark
    "open",
    "open_manifest",
    "open_savepoint",
    "rekey",
    "upgrade",
    "groups_of",
    "working_directory",
    "foreach_batch",
    "Catalog",
    "PastCatalog",
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
    "LocalSlot",
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
    "NotDurableError",
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
