"""A commit that replaces the data files of a snapshot by others, without a change of data: a fold's (design, section 4b).

deltalake 1.6.3 cannot remove files in a commit of one's own making (decision 0012), so that this entry is written here. It is exclusive as
every entry is. It conflicts with nothing but another that removes files or changes the table: appends since its snapshot stay.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.catalog.ledger import delta_entry, delta_log
from holdfast.catalog.ledger.delta_commit import read_whole

FOLD_KEY = "holdfast/fold"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A data file that is there, and in no snapshot yet."""

    name: str
    size_bytes: int
    statistics: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """What the entry of a fold says: instead of these files of version `of` are those."""

    of: int
    removed: Sequence[tuple[str, int]]  # name, size
    added: Sequence[NewFile]
    operation_id: str
    at_ms: int

    def entry(self, version: int) -> bytes:
        """The bytes of it, as the entry of this version. Every entry below is durable."""
        return delta_entry.own_entry(version, "FOLD", {"version": str(self.of)}, self.operation_id, self.at_ms, self._actions())

    def _actions(self) -> list[tuple[str, dict[str, Any]]]:
        # "}}" stands at the end of a line and nowhere else (`delta_entry`): what has braces comes before the last field.
        removes = [
            {
                "path": name,
                "partitionValues": {},
                "dataChange": False,
                "extendedFileMetadata": True,
                "deletionTimestamp": self.at_ms,
                "size": size_bytes,
            }
            for name, size_bytes in self.removed
        ]
        adds = [
            {
                "path": file.name,
                "partitionValues": {},
                "size": file.size_bytes,
                "modificationTime": self.at_ms,
                "dataChange": False,
                "stats": file.statistics,
            }
            for file in self.added
        ]
        return [
            *(("remove", body) for body in removes),
            ("txn", {"appId": FOLD_KEY, "version": self.of, "lastUpdated": self.at_ms}),
            *(("add", body) for body in adds),
        ]


def commit(log: Path, replacement: Replacement, pause: Callable[[int], None]) -> int | None:
    """Create the entry at the next free version; that version, or None where one since `of` removes files or changes the table.

    Each entry that it comes to is synced first: a durable entry above one that is not would be damage after a loss of power.
    """
    version = replacement.of + 1
    for tries in count():
        while (log / delta_log.commit_name(version)).exists():
            met = read_whole(log, version)
            if met.removed or met.changes_table:
                return None
            delta_log.sync(log / delta_log.commit_name(version))
            version += 1
        try:
            delta_log.create_commit(log, version, replacement.entry(version))
        except FileExistsError:
            pause(min(tries, 3))
            continue
        return version
    raise AssertionError
