"""A commit to the ledger's table: one compare-and-swap on the log at a time, until it lands or meets a conflict (decision 0010).

delta-rs writes each entry, and tries once: its own loop of 15 tries ends in an error that is not a conflict, and an entry that is sent
again cannot say its own version. What a lost race passed over is read here for one's own keys.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedLedgerError, FencedError, FormatError
from holdfast.catalog.ledger import delta_boundary, delta_entry, delta_log
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, LogCommit, TornCommitError
from holdfast.catalog.ledger.port import LedgerConflictError, SnapshotLostError

COMMIT_WITHIN_S = 60.0  # how long a transaction that conflicts with nobody keeps trying
FLIGHT = 100  # how far above the version that its writer had seen a data file may land: cleaning leaves younger ones alone

_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_LONGEST_PAUSE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one append says, whichever version it becomes: a data file, keys with their versions, and up to where its writer has synced."""

    name: str
    size_bytes: int
    modified_ms: int
    statistics: str
    keys: Mapping[str, int]
    operation_id: str
    durable_to: int

    @property
    def add(self) -> AddAction:
        return AddAction(self.name, self.size_bytes, {}, self.modified_ms, True, self.statistics)

    @property
    def actions(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The lines of it but commitInfo, as delta-rs writes them."""
        add = {
            "path": self.name,
            "partitionValues": {},
            "size": self.size_bytes,
            "modificationTime": self.modified_ms,
            "dataChange": True,
            "stats": self.statistics,
        }
        return [("add", add), *(("txn", {"appId": key, "version": version}) for key, version in self.keys.items())]


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits to the table in a directory. Handles are moved by nobody here: where one is stale, another is made."""

    directory: Path
    schema: Schema
    environment: Environment

    @property
    def log(self) -> Path:
        return self.directory / "_delta_log"

    def commit(self, handle: DeltaTable, entry: Entry, require_same_table: Callable[[], None]) -> int | None:
        """Send the entry at the newest version until it lands, or until a commit that it meets has one of its keys; its version.

        None: it had landed before its response was lost. `require_same_table` raises unless the handle's table is still the one that stands
        there; it is asked directly before each try.
        Raises:
            LedgerConflictError: a commit above the handle's version has one of the keys, or every race was lost for COMMIT_WITHIN_S.
            FencedError: one of them has closed the table.
            FormatError, DamagedLedgerError: the log above the handle holds what no ledger has.
        """
        racing, started, sent = handle, self.environment.monotonic_s(), set[int]()
        for tries in count():
            version = int(racing.version()) + 1
            if version - int(handle.version()) > FLIGHT:
                msg = f"{version - int(handle.version())} commits to {self.directory} came first: look at them, then try again"
                raise LedgerConflictError(msg)
            if not self._is_taken(version):
                require_same_table()
                sent.add(version)
                if self._send(racing, version, entry):
                    return version
            newest = self._pass_over(version, entry, sent)
            if newest is None:
                return None
            if self.environment.monotonic_s() - started > COMMIT_WITHIN_S:
                msg = f"{tries + 1} races for the next version of {self.directory} were lost in {COMMIT_WITHIN_S:.0f} s"
                raise LedgerConflictError(msg)
            if tries:
                self.environment.pause(min(tries, _LONGEST_PAUSE))
            racing = load(self.directory, newest)
        raise AssertionError

    def _send(self, handle: DeltaTable, version: int, entry: Entry) -> bool:
        """One compare-and-swap; whether it landed, or another commit has the version."""
        actions = entry.actions
        said = delta_entry.promises(version, entry.durable_to, entry.operation_id, actions)
        properties = CommitProperties(
            app_transactions=[Transaction(key, v) for key, v in entry.keys.items()], custom_metadata=said, max_commit_retries=0
        )
        try:
            handle.create_write_transaction(
                [entry.add],
                mode="append",
                schema=self.schema,
                partition_by=[],
                commit_properties=properties,
                post_commithook_properties=_NO_HOOKS,
            )
        except DeltaError as error:
            if self._is_taken(version):
                return False
            if version < delta_boundary.newest(self.directory):
                msg = f"the log of {self.directory} was cleaned above version {version} since it was seen"
                raise SnapshotLostError(msg) from error
            if found := _OS_ERROR.search(str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1])), str(self.log)) from error
            raise
        return True

    def _pass_over(self, version: int, entry: Entry, sent: set[int]) -> int | None:
        """Look at the commits from `version` on; the newest, or None if one that was sent here is this very entry."""
        while True:
            try:
                commit = read_whole(self.log, version)
            except FileNotFoundError as error:
                msg = f"version {version} of {self.directory} was cleaned away since it was seen"
                raise SnapshotLostError(msg) from error
            if version in sent and commit.operation_id == entry.operation_id:
                return None
            if met := commit.keys & entry.keys.keys():
                msg = f"{', '.join(sorted(met))} was committed by version {version} of {self.directory}"
                raise LedgerConflictError(msg)
            if commit.successor is not None:
                msg = (
                    f"version {version} has closed {self.directory}: {commit.successor} next to it has its facts since the catalog was "
                    "upgraded. Nothing was committed; stop this process, and open the catalog again"
                )
                raise FencedError(msg)
            if commit.changes_table:
                msg = f"version {version} of {self.directory} changes the table itself: another program made it; nothing was committed"
                raise FormatError(msg)
            if not self._is_taken(version + 1):
                return version
            version += 1

    def _is_taken(self, version: int) -> bool:
        return (self.log / delta_log.commit_name(version)).exists()


def read_whole(log: Path, version: int) -> LogCommit:
    """A commit that a handle comes to. Raises FileNotFoundError, and DamagedLedgerError if it is not whole."""
    try:
        return delta_log.read_commit(log, version)
    except (TornCommitError, DamagedCommitError) as error:
        msg = f"{log / delta_log.commit_name(version)} {error}: open the catalog again"
        raise DamagedLedgerError(msg) from error


def load(directory: Path, version: int | None = None) -> DeltaTable:
    """A handle on the table at a version (None: the newest). Raises DamagedLedgerError."""
    try:
        return DeltaTable(directory, version=version)
    except DeltaError as error:
        msg = f"the ledger {directory} cannot be read: {error}; restore it from a backup"
        raise DamagedLedgerError(msg) from error
