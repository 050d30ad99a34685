"""A Delta log on a local file system, looked at before a ledger is opened: what of it is believed, and what must be mended.

Why it needs that: delta-rs syncs nothing. It makes an entry under another name and links it (`<version>.json#1`, then `link`), so an
entry that is visible to a running machine is whole, but after a loss of power the newest may be empty, cut or zeroed. delta-rs
takes an empty one for an empty commit, silently, and cannot open a table with a cut one.

**Torn entries** (design, section 4c). A torn entry v was never acknowledged, nor was anything above it: a caller hears of success only
after every entry up to its own is synced. So v and all above it become void. Unless v was whole once and is rotten now: of that, an
entry above v is the proof whose writer had synced v before it sent it, and says so (`durable_to`). Then it is damage. Each void entry
keeps its version, because another process may already count on it; a hole would be damage. The old bytes are kept alongside. A process that
only reads stands below v and mends nothing.
"""

import errno
import os
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.catalog.errors import DamagedLedgerError
from holdfast.catalog.ledger.delta_checkpoint import LAST_CHECKPOINT, Hint, read_digests, read_hint, tear_of
from holdfast.catalog.ledger.delta_entry import DamagedCommitError, DataFile, LogCommit, TornCommitError, parse_commit, void_entry
from holdfast.catalog.ledger.delta_log import (
    checkpoint_name,
    checkpoint_versions,
    commit_name,
    commit_versions,
    keep_beside,
    read_commit,
    replace_durably,
    sync,
)


class LedgerRepairWarning(UserWarning):
    """A log was mended, or has a torn tail that the next commit mends; nothing that was acknowledged is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPlan:
    """What is believed of a log: everything up to `version`, from the Delta checkpoint `base` on (-1: none; `is_synced`: made by us, above
    synced entries only).

    `caches` are not what was made, and are taken away before the table is opened. `void` are torn, or stand on a torn one: they are
    replaced, in this order, before anything is committed. `undigested` is the lowest entry above `base` that has no digest.
    """

    version: int
    base: int = -1
    is_synced: bool = False
    caches: tuple[str, ...] = ()
    void: tuple[int, ...] = ()
    stale: tuple[str, ...] = ()  # Delta checkpoints that contain a void entry
    cache_reasons: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    undigested: int | None = None


def examine(log: Path, *, is_digested: bool = False) -> LogPlan:
    """Look at the log; changes nothing. Of a table in which all `is_digested`, a Delta checkpoint without a digest is somebody else's.

    Raises:
        DamagedLedgerError: it is gone, has a hole, an entry that is not what was written, or a data file that is missing.
    """
    hint = read_hint(log)  # before the listing: a live writer makes a Delta checkpoint first and its hint last
    commits, checkpoints = commit_versions(log), checkpoint_versions(log)
    if not commits and not checkpoints:
        msg = f"the ledger is gone: {log} holds no commit; restore the directory from a backup"
        raise DamagedLedgerError(msg)
    torn_tail = _torn_tail(log, commits)
    base, is_synced, caches, stale, cache_reasons = _usable_checkpoint(
        log, hint, checkpoints, min(torn_tail, default=None), is_digested=is_digested
    )
    last = max([*commits, base])
    torn, above = _read_above(log, commits, base, last, [*caches, *stale])
    undigested = min((v for v, commit in above.items() if not commit.is_digested), default=None)
    if not torn:
        return LogPlan(
            version=last,
            base=base,
            is_synced=is_synced,
            caches=tuple(caches),
            cache_reasons=tuple(cache_reasons),
            undigested=undigested,
        )
    lowest = min(torn)
    _require_never_whole(log, lowest, torn[lowest], [above[v] for v in sorted(above) if v > lowest])
    void = [v for v in range(last, lowest - 1, -1) if v in torn or not above[v].is_void]
    return LogPlan(
        version=lowest - 1,
        base=base,
        is_synced=is_synced,
        caches=tuple(caches),
        void=tuple(void),
        stale=tuple(stale),
        cache_reasons=tuple(cache_reasons),
        reasons=tuple(_why_void(log, v, lowest, torn) for v in sorted(void)),
        undigested=undigested,
    )


def take_caches_away(log: Path, plan: LogPlan) -> None:
    """Keep Delta checkpoints and hints that are not what was made under other names: engines read the log in their place.

    Each is also reported as a LedgerRepairWarning. Raises DamagedLedgerError where this process may not write there.
    """
    try:
        _take_away(log, plan.caches)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        msg = (
            f"{plan.cache_reasons[0]}; but this process may not write there ({error}): open the catalog once with an account that may, and "
            "the log is read instead"
        )
        raise DamagedLedgerError(msg) from error
    for reason in plan.cache_reasons:
        warnings.warn(reason, LedgerRepairWarning, stacklevel=4)


def mend(log: Path, plan: LogPlan) -> None:
    """Make void what is void; each step durable before the next. May run alongside live writers, and another that mends.

    From the top down: a mending that dies leaves the lowest torn, and with it the verdict on all above.
    """
    _take_away(log, plan.stale)  # first: a Delta checkpoint that contains a torn commit must not outlive it
    lowest = min(plan.void)
    for version in plan.void:
        if not _is_torn(log, lowest):
            return  # another process has mended it, and may have gone on
        _make_void(log, version, lowest)


def _take_away(log: Path, names: Collection[str]) -> None:
    for name in names:
        try:
            keep_beside(log, name, (log / name).read_bytes())
            os.unlink(log / name)
        except FileNotFoundError:
            continue  # another process did
    if names:
        sync(log)


def _torn_tail(log: Path, commits: list[int]) -> list[int]:
    """The torn entries that end the log."""
    torn: list[int] = []
    for version in reversed(commits):
        if not _is_torn(log, version) or (torn and version + 1 != torn[-1]):
            break
        torn.append(version)
    return torn


def _is_torn(log: Path, version: int) -> bool:
    try:
        read_commit(log, version)
    except TornCommitError:
        return True
    except (OSError, DamagedCommitError):
        return False
    return False


def _usable_checkpoint(
    log: Path, hint: Hint, checkpoints: list[int], torn: int | None, *, is_digested: bool
) -> tuple[int, bool, list[str], list[str], list[str]]:
    """The newest Delta checkpoint that engines may start from (-1: none), whether it was made above synced entries only, the names to
    take away at once and those that are removed with the torn entry that they contain, and why."""
    caches, stale, reasons, base, is_synced = [], [], [], -1, False
    for version in reversed(checkpoints):
        name = checkpoint_name(version)
        tear, is_synced = tear_of(log, version, hint), read_digests(log, version) is not None
        if tear is None and is_digested and not is_synced:
            tear = "has no digest, so that Holdfast did not make it"
        if tear is None and (is_synced or torn is None or version < torn):
            base = version
            break
        if tear is None:
            stale.append(name)
        else:
            caches.append(name)
            reasons.append(f"{log / name} {tear}: taken away together with {LAST_CHECKPOINT}; the commits below it hold the same")
    hint_tear = hint.tear
    if hint.version is not None and hint.version not in checkpoints:
        hint_tear = f"names Delta checkpoint {hint.version}, which is not there"
    if hint_tear:
        reasons.append(f"{log / LAST_CHECKPOINT} {hint_tear}: taken away; it is only a hint")
    if (caches or hint_tear) and (log / LAST_CHECKPOINT).exists():
        caches.append(LAST_CHECKPOINT)
    if stale and (log / LAST_CHECKPOINT).exists():
        stale.append(LAST_CHECKPOINT)
    return base, is_synced and base >= 0, caches, stale, reasons


def _read_above(log: Path, commits: list[int], base: int, last: int, missing: list[str]) -> tuple[dict[int, str], dict[int, LogCommit]]:
    """How the torn entries above `base` are torn, and what the whole ones say.

    Raises DamagedLedgerError for anything else, and for a data file that is missing of what lies below the lowest torn one.
    """
    present: Collection[int] = set(commits)
    torn: dict[int, str] = {}
    whole: dict[int, LogCommit] = {}
    files: dict[str, DataFile] = {}
    for version in range(base + 1, last + 1):
        path = log / commit_name(version)
        if version not in present:
            instead = f", and {log / missing[0]} cannot stand in for it" if missing else ""
            msg = f"the ledger's log has a hole: {path} is missing{instead}; nothing was changed; restore it from a backup"
            raise DamagedLedgerError(msg)
        try:
            commit = whole[version] = read_commit(log, version)
        except TornCommitError as error:
            torn[version] = str(error)
        except (DamagedCommitError, OSError) as error:
            msg = f"the ledger's log is damaged: {path} {error}; nothing was changed; restore it from a backup"
            raise DamagedLedgerError(msg) from error
        if not torn:
            files.update((file.path, file) for file in commit.added)
            for name in commit.removed:
                files.pop(name, None)
    if 0 in torn:
        msg = f"{log / commit_name(0)} {torn[0]}: the commit that made the ledger is lost; restore it from a backup"
        raise DamagedLedgerError(msg)
    for file in files.values():
        _require_data(log.parent / file.path, file.size_bytes)
    return torn, whole


def _require_never_whole(log: Path, lowest: int, tear: str, above: list[LogCommit]) -> None:
    """Raises DamagedLedgerError if an entry above a torn one says that it was synced before, or does not say (of before entries did)."""
    for commit in above:
        if not commit.is_void and (commit.durable_to is None or commit.durable_to >= lowest):
            msg = (
                f"{log / commit_name(lowest)} {tear}, and later commits stand on it: it was whole when "
                f"{commit_name(commit.version)} was made; nothing was changed; restore it from a backup"
            )
            raise DamagedLedgerError(msg)


def _why_void(log: Path, version: int, lowest: int, torn: Mapping[int, str]) -> str:
    what = torn.get(version, f"stands on {commit_name(lowest)}, which is torn")
    return (
        f"{log / commit_name(version)} {what}: its writer, or the machine, died before it was synced, so that it was never "
        "acknowledged to anybody. It counts for nothing: the next commit replaces it by a void one, and what it held is kept alongside; "
        "a caller that sent it finds that it did not happen and may send it again"
    )


def _require_data(path: Path, size_bytes: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError as error:
        msg = f"the ledger's data file {path} is missing; nothing was changed; restore it from a backup"
        raise DamagedLedgerError(msg) from error
    if found != size_bytes:
        msg = f"the ledger's data file {path} has {found} bytes and was committed with {size_bytes}; restore it from a backup"
        raise DamagedLedgerError(msg)


def _make_void(log: Path, version: int, lowest: int) -> None:
    """Replace an entry, durably and by rename, with one that only says that it is void."""
    name = commit_name(version)
    with open(log / name, "rb") as stream:
        data, written_ms = stream.read(), int(os.fstat(stream.fileno()).st_mtime * 1000)
    try:
        commit = parse_commit(version, data)
    except TornCommitError as error:
        reason = f"the commit {error}; it was never acknowledged"
    except DamagedCommitError as error:
        msg = f"the ledger's log is damaged: {log / name} {error}; restore it from a backup"
        raise DamagedLedgerError(msg) from error
    else:
        if commit.is_void:
            return
        reason = f"the commit stands on {commit_name(lowest)}, which is torn; it was never acknowledged"
    keep_beside(log, name, data)
    # The old file's time and not the clock's: two processes that mend it write the same bytes.
    replace_durably(log, name, void_entry(version, written_ms, reason))
