"""Every file of a ledger on a local file system, read back: what is not what was written."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.forks import require_own_process
from holdfast.catalog.ledger import delta_checkpoint, delta_data, delta_entry, delta_log
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, TornCommitError
from holdfast.catalog.ledger.delta_handle import FORMAT

NOT_OURS = "it has no digest, so that Holdfast did not write it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFile:
    """A file of the ledger: its path below it, its size, and what is wrong with it, if anything."""

    path: str
    size_bytes: int
    what: str | None


def check_files(ledger_address: str) -> Iterator[LedgerFile]:
    """Every entry, Delta checkpoint and data file of a ledger, those that the newest version no longer needs included.

    A file of format 1 without a digest (written before there were any) is only opened; of a later format, that is damage. What is torn at
    the end of the log counts as damage here: it was never acknowledged, and the next commit mends it. Raises UsageError in a forked child.
    """
    require_own_process()
    directory = Path(ledger_address)
    log = directory / "_delta_log"
    is_digested, in_newest = _newest(directory)
    data: dict[str, int] = {}
    for version in delta_log.commit_versions(log):
        path, what = log / delta_log.commit_name(version), None
        try:
            commit = delta_log.read_commit(log, version)
            data.update((file.path, file.size_bytes) for file in commit.added)
            for name in commit.removed:
                data.pop(name, None)
            what = NOT_OURS if is_digested and not commit.is_digested else None
        except (TornCommitError, DamagedCommitError, OSError) as error:
            what = str(error)
        yield _file(directory, path, what)
    hint = delta_checkpoint.read_hint(log)
    for version in delta_log.checkpoint_versions(log):
        yield _file(directory, log / delta_log.checkpoint_name(version), delta_checkpoint.tear_of(log, version, hint))
    if (log / delta_checkpoint.LAST_CHECKPOINT).exists():
        yield _file(directory, log / delta_checkpoint.LAST_CHECKPOINT, hint.tear)
    data.update(in_newest)
    for name in sorted(data):
        yield _file(directory, directory / name, _wrong_with(directory, name, data[name], is_digested=is_digested))


def _newest(directory: Path) -> tuple[bool, dict[str, int]]:
    """Whether every file must have a digest, and the data files of the newest version, also of entries that were cleaned away.

    Neither where that cannot be read, as is reported then.
    """
    try:
        table = DeltaTable(directory)
        actions = pa.table(table.get_add_actions(flatten=True))
    except DeltaError:
        return False, {}
    is_digested = table.metadata().configuration.get(FORMAT, "1") != "1"
    return is_digested, dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))


def _wrong_with(directory: Path, name: str, size_bytes: int, *, is_digested: bool) -> str | None:
    try:
        found = (directory / name).read_bytes()
    except OSError as error:
        return f"unreadable: {error}"
    wanted = delta_entry.digest_in_name(name)
    if len(found) != size_bytes:
        return f"{len(found)} bytes, committed {size_bytes}"
    if wanted is None:
        return NOT_OURS if is_digested else _opened(directory, name)
    digest = hashlib.sha256(found).hexdigest()
    return None if digest == wanted else f"sha256 {digest}, committed {wanted}"


def _opened(directory: Path, name: str) -> str | None:
    try:
        delta_data.read_facts(directory, name)
    except DamagedLedgerError as error:
        return str(error)
    return None


def _file(directory: Path, path: Path, what: str | None) -> LedgerFile:
    try:
        size_bytes = path.stat().st_size
    except OSError:
        size_bytes = 0
    return LedgerFile(path=str(path.relative_to(directory)), size_bytes=size_bytes, what=what)
