"""What nobody needs any more of a Delta table of ours: entries below the log's boundary, old Delta checkpoints, replaced data files.

Entries are bounded by their number: a handle that is further behind reads the snapshot again. Data files that were replaced stay for a
time, so that a query that began before loses none under it; no safety depends on that, nor on any clock.

A data file goes only when no snapshot from the boundary up has it, never because an entry removes it: the entry of a fold that stood still
may be in no snapshot. What is not in a snapshot yet stays: its name says what version its writer had seen, and who is that far behind does
not commit it (`delta_commit.FLIGHT`).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from holdfast.catalog.ledger import delta_boundary, delta_checkpoint, delta_data, delta_entry, delta_log
from holdfast.catalog.ledger.delta_commit import load, read_whole
from holdfast.catalog.ledger.port import Tidied

KEEP_ENTRIES = 300
KEEP_REPLACED = timedelta(hours=2)

_REPLACED = "_replaced"  # entries that removed data files, by version, until those are deleted; engines pass over names with an underscore


def clean(table: Path, told_to: int, now: datetime) -> Tidied:
    """Delete what is below the boundary, which is raised first. Safe to interrupt anywhere and to repeat, beside whoever works.

    `told_to` is the version up to which the history has the facts: its entry stays. Raises OSError, DamagedLedgerError.
    """
    log = table / "_delta_log"
    below = _safe_below(log, told_to)
    if below > 0:
        delta_boundary.raise_to(table, below)
    boundary = delta_boundary.newest(table)
    entries = _clean_log(table, boundary) if boundary else 0
    return Tidied(entries=entries, data_files=_clean_data(table, boundary, now))


def _safe_below(log: Path, told_to: int) -> int:
    """Below which version entries may go: there is a Delta checkpoint above, and another in case that one rots."""
    whole = [v for v in delta_log.checkpoint_versions(log) if delta_checkpoint.is_what_was_made(log, v)]
    newest = max(delta_log.commit_versions(log), default=0)
    return min(whole[-2], told_to, newest - KEEP_ENTRIES) if len(whole) > 1 else 0


def _clean_log(table: Path, boundary: int) -> int:
    log = table / "_delta_log"
    old = [v for v in delta_log.commit_versions(log) if v < boundary]
    for version in old:  # ascending
        with suppress(FileNotFoundError):  # another process cleans as well
            if read_whole(log, version).removed:
                _keep_aside(table, version)
            os.unlink(log / delta_log.commit_name(version))
    checkpoints = [v for v in delta_log.checkpoint_versions(log) if v <= boundary]
    for version in checkpoints[:-1]:
        for name in (delta_log.checkpoint_name(version), delta_checkpoint.digest_name(version)):
            with suppress(FileNotFoundError):
                os.unlink(log / name)
    return len(old)


def _keep_aside(table: Path, version: int) -> None:
    directory, name = table / _REPLACED, delta_log.commit_name(version)
    if not directory.is_dir():
        directory.mkdir(exist_ok=True)
        delta_log.sync(table)
    with suppress(FileExistsError):
        os.link(table / "_delta_log" / name, directory / name)
    delta_log.sync(directory)


def _clean_data(table: Path, boundary: int, now: datetime) -> int:
    """Delete the data files that are in no snapshot from the boundary up, were not replaced lately and are not about to be committed."""
    log = table / "_delta_log"
    before = (now - KEEP_REPLACED).timestamp()
    names = [name for name in os.listdir(table) if _may_go(table, name, boundary, before)]
    if not names:
        return 0
    lately, expired = _replaced_since(table, before)
    needed = lately | set(_in_snapshots(table, log, boundary))
    gone = 0
    for name in names:
        if name not in needed:
            with suppress(FileNotFoundError):
                os.unlink(table / name)
                gone += 1
    for path in expired:
        path.unlink(missing_ok=True)
    return gone


def _may_go(table: Path, name: str, boundary: int, before: float) -> bool:
    seen = delta_data.seen_by_writer(name)
    # Of a fold that had seen the version just below the boundary, the next entry is there to be met: it may still land.
    if seen is None or seen + 1 >= boundary:
        return False
    try:
        return os.stat(table / name).st_mtime < before
    except FileNotFoundError:
        return False


def _in_snapshots(table: Path, log: Path, boundary: int) -> Iterator[str]:
    """The data files of every snapshot from the boundary up: of the newest, and what entries from there on have taken out of it."""
    yield from pa.table(load(table).get_add_actions(flatten=True))["path"].to_pylist()
    for version in delta_log.commit_versions(log):
        if version >= boundary:
            commit = read_whole(log, version)
            yield from (file.path for file in commit.added)
            yield from commit.removed


def _replaced_since(table: Path, before: float) -> tuple[set[str], list[Path]]:
    """What entries below the boundary have removed since then, and those that are older."""
    lately: set[str] = set()
    expired: list[Path] = []
    try:
        kept = sorted((table / _REPLACED).iterdir())
    except FileNotFoundError:
        return lately, expired
    for path in kept:
        if os.stat(path).st_mtime < before:
            expired.append(path)
        else:
            lately.update(delta_entry.parse_commit(int(path.stem), path.read_bytes()).removed)
    return lately, expired
