"""From format 1 to format 2: the facts into a new ledger and the history, then the old ledger is closed, then the marker names the new one.

In this order, so that a crash anywhere loses nothing (design, section 4b, "Closing a ledger"): before the close the old ledger is the
catalog's, and what was copied is nobody's; from the close on no program can commit to it, and the successor that it names has all that it
says; whoever comes next replaces the marker. Writers of format 1 may run all the while: what they were told of is below the close.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

from holdfast.catalog import paths
from holdfast.catalog.creation import open_ledger, open_or_make_history
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import (
    AlreadyExistsError,
    CorruptionError,
    DamagedLedgerError,
    FencedError,
    ReadOnlyError,
    RetryError,
    StorageFullError,
)
from holdfast.catalog.folding import fold, require_equal
from holdfast.catalog.ledger import LedgerConflictError, SnapshotLostError, ToldCommit
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import DeltaHistory
from holdfast.catalog.marker import Marker, read_marker_of_any_format, replace_marker, too_old
from holdfast.catalog.schema import FORMAT_VERSION, Operation
from holdfast.catalog.storage import Storage
from holdfast.catalog.transactions import FULL, READ_ONLY, Transactor

TOLD_ROWS = 50_000  # in one commit to the history, or the commit's own number if that is more
STEPS = 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeReport:
    """What an upgrade came to. `was` is the format that it found; the numbers are of facts, and 0 where there was nothing to do."""

    catalog_id: str
    was: int
    is_now: int
    ledger: str
    history: str
    old_ledger: str
    facts: int = 0
    kept_facts: int = 0


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the catalog at a root, as an upgrade opens and makes them."""

    storage: Storage
    environment: Environment

    def ledger(self, marker: Marker) -> DeltaLedger:
        """A handle on the ledger that a marker names. Raises as `open_ledger`."""
        return open_ledger(self.storage, marker, self.environment)

    def history(self, marker: Marker) -> DeltaHistory:
        """The history, told by this marker's ledger; made where there is none. Raises AlreadyExistsError where it is another's."""
        open_or_make_history(self.storage.address, paths.HISTORY, marker.catalog_id)
        return DeltaHistory.of(f"{self.storage.address}/{paths.HISTORY}", marker.ledger, self.environment)

    def successor(self, catalog_id: str) -> DeltaLedger:
        """An empty ledger in the next directory that nobody has."""
        for n in count(1):
            with suppress(AlreadyExistsError):
                directory = f"{self.storage.address}/{paths.successor_directory(n)}"
                return DeltaLedger.create(directory, catalog_id=catalog_id, environment=self.environment)
        raise AssertionError

    def discard(self, ledger: DeltaLedger) -> None:
        """Delete a ledger that was made here and that nothing names."""
        shutil.rmtree(ledger.directory, ignore_errors=True)


def upgrade(storage: Storage, tables: Tables, environment: Environment, progress: Progress | None = None) -> UpgradeReport:
    """Carry the catalog at this root over to the current format. Safe to interrupt anywhere and to repeat, also two at once.

    Raises:
        NotFoundError, CorruptionError, FormatError: as `read_marker_of_any_format`, and for facts that this version does not know.
        DamagedLedgerError: the old ledger is not what was written, or the history is of another past of it; nothing was closed.
        RetryError: the old log was cleaned meanwhile; nothing was closed.
        ReadOnlyError, StorageFullError: the disk.
    """
    show = progress or _show_nothing
    marker, stored = read_marker_of_any_format(storage)
    if marker.format_version == FORMAT_VERSION:
        return _report(marker, marker, "")
    old = tables.ledger(marker)
    with _disk(storage):
        facts, kept = (0, 0) if old.successor else _carry_over(marker, old, tables, environment, show)
        finished = _finish(storage, tables, marker, stored)
    show(STEPS, STEPS)
    return _report(marker, finished, marker.ledger, facts, kept)


def open_marker(storage: Storage, tables: Tables) -> Marker:
    """The marker of a catalog of the current format. An upgrade that died after it had closed the old ledger is finished.

    Raises as `read_marker`.
    """
    marker, stored = read_marker_of_any_format(storage)
    if marker.format_version == FORMAT_VERSION:
        return marker
    if tables.ledger(marker).successor is None:
        raise too_old(storage, marker)
    with _disk(storage):
        return _finish(storage, tables, marker, stored)


@contextmanager
def _disk(storage: Storage) -> Iterator[None]:
    """Errors of the disk as what the caller can do about them."""
    try:
        yield
    except OSError as error:
        if error.errno in READ_ONLY:
            msg = f"this process may not write to {storage.address} ({error}), where an upgrade is to be finished: use an account that may"
            raise ReadOnlyError(msg) from error
        if error.errno in FULL:
            msg = f"there is no room at {storage.address} for an upgrade ({error}): make some, then call again; nothing was lost"
            raise StorageFullError(msg) from error
        raise


def _report(found: Marker, finished: Marker, old: str, facts: int = 0, kept: int = 0) -> UpgradeReport:
    return UpgradeReport(
        catalog_id=finished.catalog_id,
        was=found.format_version,
        is_now=finished.format_version,
        ledger=finished.ledger,
        history=finished.history,
        old_ledger=old,
        facts=facts,
        kept_facts=kept,
    )


def _show_nothing(_done: int, _total: int) -> None:
    """Nobody watches."""


# ---- until the old ledger is closed ----------------------------------------------------------------------------------


def _carry_over(marker: Marker, old: DeltaLedger, tables: Tables, environment: Environment, show: Progress) -> tuple[int, int]:
    """Fill a successor, and close the old ledger for it; how many facts there were, and how many were kept.

    Where another upgrade closes it first, the successor that was made here is deleted.
    """
    successor = tables.successor(marker.catalog_id)
    try:
        return _fill_and_close(marker, old, successor, tables, environment, show)
    except Exception:
        # Nothing here tries to close it any more, so that what is not named now never will be.
        with suppress(Exception):
            if tables.ledger(marker).successor != successor.directory.name:
                tables.discard(successor)
        if _is_closed(tables, marker):
            return 0, 0  # by another, which has also done what failed here
        raise


def _is_closed(tables: Tables, marker: Marker) -> bool:
    with suppress(Exception):
        return tables.ledger(marker).successor is not None
    return False


def _fill_and_close(
    marker: Marker, old: DeltaLedger, successor: DeltaLedger, tables: Tables, environment: Environment, show: Progress
) -> tuple[int, int]:
    history = tables.history(marker)  # first: what it was told of by then is in the ledger that is read after it
    _settle(old, environment)
    _require_same_past(old, history)
    rows = old.rows()
    show(1, STEPS)
    _tell(old, history)
    show(2, STEPS)
    kept = fold(rows, Operation.new(environment))
    successor.fold(kept, Operation.new(environment))
    successor.refresh()
    require_equal(rows, successor.rows())  # as it was read back
    show(3, STEPS)
    later = _close(old, history, successor, environment)
    show(4, STEPS)
    return len(rows) + later, len(kept) + later


def _settle(old: DeltaLedger, environment: Environment) -> None:
    """To the newest version, with everything up to it durable, and no torn tail above."""
    if old.is_torn:
        Transactor(old, environment).settle()  # which commits why it was mended
    try:
        old.refresh()
    except SnapshotLostError as error:
        raise _cleaned(old) from error
    old.make_durable()


def _cleaned(old: DeltaLedger) -> RetryError:
    return RetryError(f"the log of {old.directory} was cleaned by another program meanwhile: stop that one, then call again")


def _require_same_past(old: DeltaLedger, history: DeltaHistory) -> None:
    """Raises DamagedLedgerError where an earlier upgrade told the history of a ledger that this one is not: it was restored since."""
    told_to = history.told_to
    operation_id = history.operation_at(told_to) if told_to >= 0 else None
    if told_to > old.version or (operation_id is not None and not old.has_operation(operation_id)):
        msg = (
            f"the history in {history.directory} was told of version {told_to} of {old.directory}, which that ledger does not have: it was "
            f"restored from a backup since an upgrade began. Move {history.directory} away, then call again; nothing was closed"
        )
        raise DamagedLedgerError(msg)


def _tell(old: DeltaLedger, history: DeltaHistory) -> None:
    """Tell the history all that the old ledger says at the held version; it may be told by another upgrade at the same time."""
    while history.told_to < old.version:
        for commits, upto in _tellings(_commits(old, history.told_to), old.version):
            try:
                history.tell(commits, upto)
            except LedgerConflictError:
                history.refresh()
                break


def _commits(old: DeltaLedger, above: int) -> Sequence[ToldCommit]:
    """What the old ledger said above a version. Where its log no longer tells one commit from another: all as of the newest version."""
    try:
        return old.commits(above)
    except SnapshotLostError as error:
        if above >= 0:
            raise _cleaned(old) from error
        return [ToldCommit(old.version, tuple(old.rows()))]


def _tellings(commits: Sequence[ToldCommit], version: int) -> Iterator[tuple[list[ToldCommit], int]]:
    """In portions, each with the version up to which everything is told with it."""
    portion: list[ToldCommit] = []
    for n, commit in enumerate(commits):
        portion.append(commit)
        if n + 1 < len(commits) and sum(len(each.rows) for each in portion) >= TOLD_ROWS:
            yield portion, commit.version
            portion = []
    yield portion, version


def _close(old: DeltaLedger, history: DeltaHistory, successor: DeltaLedger, environment: Environment) -> int:
    """Close the old ledger, once the successor has what came meanwhile; how many facts that were.

    Each round carries what came since the last and tries once, so that a crowd of writers makes it longer, and does not starve it.
    """
    later = 0
    while True:
        carried_to = old.version
        with old.turn():
            _settle(old, environment)
            old.require_open()
            came = old.commits(carried_to)
            _tell(old, history)
            if rows := [row for commit in came for row in commit.rows]:
                successor.take_over(rows, Operation.new(environment))
                later += len(rows)
            if old.close(successor.directory.name, Operation.new(environment)):
                return later


# ---- from the close on -----------------------------------------------------------------------------------------------


def _finish(storage: Storage, tables: Tables, marker: Marker, stored: bytes) -> Marker:
    """Let the marker name the successor of the ledger that is closed. Whoever comes to it may do so.

    Raises CorruptionError where the successor is not there, FencedError where the catalog has another ledger by now.
    """
    old = tables.ledger(marker)
    old.make_durable()  # its closing entry too: a loss of power must not open it again
    if old.successor is None or not paths.is_ledger(old.successor):
        msg = f"{old.directory} was closed and names no successor any more: restore the catalog from a copy"
        raise CorruptionError(msg)
    finished = Marker(catalog_id=marker.catalog_id, ledger=old.successor)
    tables.ledger(finished)
    now = replace_marker(storage, finished, stored)
    if now != finished:
        msg = f"the catalog at {storage.address} has the ledger {now.ledger!r} by now: it was replaced. Open it again"
        raise FencedError(msg)
    return finished
