"""The adapter of RocksDB, as `rocksdict` (the extra `holdfast[rocksdb]`) opens it: raw bytes, one column family."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from holdfast.catalog.errors import UsageError

BATCH = 10_000  # entries
CONFIG = "rocksdict-config.json"  # what rocksdict itself writes next to a database


@dataclass(frozen=True, slots=True)
class RocksDBAdapter:
    """Turns databases of raw keys and values (`Options(raw_mode=True)`) into rows of a savepoint and back. See `StoreAdapter`."""

    def entries(self, directory: str) -> Iterator[tuple[bytes, bytes]]:
        """Raises UsageError for column families other than the default one, and for values that are not raw: they would be lost."""
        from rocksdict import AccessType, Options, Rdict

        config = Path(directory) / CONFIG
        if config.exists() and not json.loads(config.read_bytes()).get("raw_mode"):
            msg = f"{directory} has Python objects (raw_mode=False): open it with Options(raw_mode=True), or write an adapter of your own"
            raise UsageError(msg)
        others = [name for name in Rdict.list_cf(directory) if name != "default"]
        if others:
            msg = f"{directory} has column families {', '.join(others)}: write an adapter of your own, whose keys state the family"
            raise UsageError(msg)
        database = Rdict(directory, Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            yield from database.items()
        finally:
            database.close()

    def build(self, directory: str, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """In batches; flushed, so that a snapshot of it has sorted runs to share."""
        from rocksdict import Options, Rdict, WriteBatch

        database = Rdict(directory, Options(raw_mode=True))
        try:
            remaining = iter(entries)
            while some := list(islice(remaining, BATCH)):
                batch = WriteBatch(raw_mode=True)
                for key, value in some:
                    batch.put(key, value)
                database.write(batch)
            database.flush()
        finally:
            database.close()
