"""The tail of a Delta log on a local file system, checked and mended before a ledger is opened.

Why the tail needs it: delta-rs syncs nothing. It makes a commit under another name and links it (`<version>.json#1`, then
`link`), so a commit that is visible to a running machine is whole, but after a loss of power the newest may be empty, cut or
zeroed. delta-rs takes an empty one for an empty commit, without a word, and cannot open a table with a cut one.

Such a commit was never acknowledged: a caller hears of success only after every commit file up to its own, and the directory,
are synced. Several writers may each have left one, so that all torn commits at the end count, down to the first whole one. Each is
replaced by a void one, because another process may already count on the version; a hole would be damage.
"""

import json
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.delta_log import (
    OPERATION_ID,
    DataFile,
    TornCommitError,
    checkpoint_versions,
    commit_name,
    commit_versions,
    read_commit,
    sync,
    write_aside,
)
from holdfast.catalog.errors import DamagedLedgerError

LAST_CHECKPOINT = "_last_checkpoint"


class LedgerRepairWarning(UserWarning):
    """Opening a ledger mended the tail of its log; nothing that was acknowledged is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What must change before the table may be opened: names to remove from the log, then versions to make void, in this order."""

    remove: tuple[str, ...] = ()
    void: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()


class _Hint(NamedTuple):
    """Version and number of actions that `_last_checkpoint` names, or what is wrong with it; nothing where there is none."""

    version: int | None = None
    rows: int | None = None
    tear: str | None = None


def check_tail(log: Path) -> list[str]:
    """Mend what a loss of power may have left at the end of the log; returns what was done, each also told as a LedgerRepairWarning.

    May run beside live writers and other checkers: it does nothing to a whole file.
    Raises:
        DamagedLedgerError: a hole, or a torn commit below a whole one, or a data file that is missing; nothing was changed.
    """
    plan = plan_repair(log)
    for name in plan.remove:
        (log / name).unlink(missing_ok=True)
    if plan.remove:
        sync(log)  # first: a Delta checkpoint that contains a torn commit must not outlive it
    for version in plan.void:
        _make_void(log, version)
    for reason in plan.reasons:
        warnings.warn(reason, LedgerRepairWarning, stacklevel=3)
    return list(plan.reasons)


def plan_repair(log: Path) -> RepairPlan:
    """What `check_tail` would do; changes nothing."""
    hint = _read_hint(log)  # before the listing: a live writer makes a Delta checkpoint first and its hint last
    commits = commit_versions(log)
    checkpoints = checkpoint_versions(log)
    if not commits and not checkpoints:
        msg = f"the ledger is gone: {log} holds no commit; restore the directory from a backup"
        raise DamagedLedgerError(msg)
    torn = _torn_tail(log, commits)
    lowest = min(torn, default=None)
    base, remove, reasons = _usable_checkpoint(log, hint, checkpoints, lowest)
    _require_whole(log, commits, base, remove, max(commits, default=-1) if lowest is None else lowest - 1)
    if lowest == 0:
        msg = f"{log / commit_name(0)} {torn[0]}: the commit that made the ledger is lost; restore it from a backup"
        raise DamagedLedgerError(msg)
    reasons += [
        f"{log / commit_name(version)} {tear}: its writer, or the machine, died before the commit was synced, so that it was never "
        "acknowledged to anybody. It was replaced by a void commit; whoever sent it finds that it did not happen and may send it again"
        for version, tear in torn.items()
    ]
    return RepairPlan(remove=tuple(remove), void=tuple(torn), reasons=tuple(reasons))


def _torn_tail(log: Path, commits: list[int]) -> dict[int, str]:
    """The torn commits that end the log, without a gap or a whole one between them, and how each is torn.

    Ascending, and they must become void in this order: a crash in between then leaves whole commits below torn ones, which the next
    opening mends. The other way round it would leave a torn commit below a void one, and that is damage.
    """
    torn: dict[int, str] = {}
    for version in reversed(commits):
        tear = _tear(log, version)
        if tear is None or (torn and version + 1 not in torn):
            break
        torn[version] = tear
    return dict(sorted(torn.items()))


def _usable_checkpoint(log: Path, hint: _Hint, checkpoints: list[int], torn: int | None) -> tuple[int, list[str], list[str]]:
    """The newest Delta checkpoint that engines may start from (-1: none), the names to remove, and why."""
    hint_tear = hint.tear
    if hint.version is not None and hint.version not in checkpoints:
        hint_tear = f"names Delta checkpoint {hint.version}, which is not there"
    remove, reasons, base = [], [], -1
    for version in reversed(checkpoints):
        name = f"{version:020d}.checkpoint.parquet"
        tear = _checkpoint_tear(log / name, hint.rows if version == hint.version else None)
        if tear is None and torn is not None and version >= torn:
            tear = f"contains commit {torn}, which is torn"
        if tear is None:
            base = version
            break
        remove.append(name)
        reasons.append(f"{log / name} {tear}: removed together with {LAST_CHECKPOINT}; the commits below it hold the same")
    if hint_tear:
        reasons.append(f"{log / LAST_CHECKPOINT} {hint_tear}: removed; it is only a hint")
    if (remove or hint_tear) and (log / LAST_CHECKPOINT).exists():
        remove.append(LAST_CHECKPOINT)
    return base, remove, reasons


def _require_whole(log: Path, commits: list[int], base: int, remove: list[str], last: int) -> None:
    """Every commit above `base` up to `last` is there and whole, and so is every data file that they leave in the table."""
    present: Collection[int] = set(commits)
    files: dict[str, DataFile] = {}
    for version in range(base + 1, last + 1):
        if version not in present:
            torn = f", and {log / remove[0]} cannot stand in for it" if remove else ""
            msg = (
                f"the ledger's log has a hole: {log / commit_name(version)} is missing{torn}; nothing was changed; restore it from a backup"
            )
            raise DamagedLedgerError(msg)
        try:
            commit = read_commit(log, version)
        except TornCommitError as error:
            msg = f"{log / commit_name(version)} {error}, and later commits stand on it; nothing was changed; restore it from a backup"
            raise DamagedLedgerError(msg) from error
        files.update((file.path, file) for file in commit.added)
        for path in commit.removed:
            files.pop(path, None)
    for file in files.values():
        _require_data(log.parent / file.path, file.size_bytes)


def _require_data(path: Path, size_bytes: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError as error:
        msg = f"the ledger's data file {path} is missing; nothing was changed; restore it from a backup"
        raise DamagedLedgerError(msg) from error
    if found != size_bytes:
        msg = f"the ledger's data file {path} has {found} bytes and was committed with {size_bytes}; restore it from a backup"
        raise DamagedLedgerError(msg)


def _tear(log: Path, version: int) -> str | None:
    try:
        read_commit(log, version)
    except TornCommitError as error:
        return str(error)
    return None


def _checkpoint_tear(path: Path, rows: int | None) -> str | None:
    """What is wrong with a Delta checkpoint, read to its end, or None."""
    try:
        with pq.ParquetFile(path) as file:
            found = sum(batch.num_rows for batch in file.iter_batches())
    except (pa.ArrowException, OSError) as error:
        return f"does not open ({str(error).splitlines()[0]})"
    if rows is not None and rows != found:
        return f"holds {found} actions, and {LAST_CHECKPOINT} says {rows}"
    return None


def _read_hint(log: Path) -> _Hint:
    try:
        data = (log / LAST_CHECKPOINT).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return _Hint()
    try:
        hint = json.loads(data)
        return _Hint(int(hint["version"]), int(hint["size"]))
    except (ValueError, KeyError, TypeError):
        return _Hint(tear="does not parse")


def _make_void(log: Path, version: int) -> None:
    """Replace a torn commit, durably and by rename, with one that only says that it is void."""
    path = log / commit_name(version)
    try:
        tear = _tear(log, version)  # again, just before: another process may have mended it and gone on
    except FileNotFoundError:
        tear = "is missing"
    if tear is None:
        return
    # The torn file's time and not the clock's: two processes that mend it write the same bytes.
    timestamp_ms = int(path.stat().st_mtime * 1000)
    info = {"timestamp": timestamp_ms, "operation": "VOID", OPERATION_ID: None, "reason": f"the commit {tear}; it was never acknowledged"}
    temporary = write_aside(log, json.dumps({"commitInfo": info}).encode() + b"\n")
    temporary.replace(path)
    sync(log)
