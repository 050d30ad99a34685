"""The catalog as it was at a version of its ledger: every fact up to there, of the history, and of the ledger what that was not told yet.

A ledger that was closed has a successor with a name of a higher number, and versions of its own: what came before is all of the older ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from holdfast.catalog import paths
from holdfast.catalog.errors import UsageError
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_history import DeltaHistory
from holdfast.catalog.ledger.port import ToldCommit
from holdfast.catalog.sql_text import literal
from holdfast.catalog.views import duckdb_engine
from holdfast.catalog.views.duckdb_engine import Table

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class Past:
    """A version of a ledger; the rows of the history up to it are those for which `condition` holds, and `tail` has the others."""

    ledger: str
    version: int
    history: Table
    condition: str
    tail: pa.Table

    def connect(self, root: str) -> "duckdb.DuckDBPyConnection":
        """A connection with the views of the catalog at this root, as they were. Raises as `duckdb_engine.connect` does."""
        return duckdb_engine.connect_past(self.history, self.condition, self.tail, root)


def at_version(ledger: DeltaLedger, history: DeltaHistory, version: int, name: str | None = None) -> Past:
    """The catalog at this version of its ledger, or of the earlier one of this name.

    Raises:
        UsageError: there was no such ledger or version.
        SnapshotLostError: the log has been cleaned since the history was read.
    """
    name = history.ledger if name is None else name
    told = history.told_of(name) if paths.is_ledger(name) else -1
    newest = ledger.version if name == history.ledger else told
    if not 0 <= version <= newest:
        known = ", ".join(f"{each!r} to {history.told_of(each)}" for each in _told_before(history))
        earlier = f"; of ledgers before it, in which it was carried over: {known}" if known else ""
        msg = f"there is no version {version} of {name!r}: the versions of {history.ledger!r} are 0 to {ledger.version}{earlier}"
        raise UsageError(msg)
    tail = ledger.commits(history.told_to) if name == history.ledger and version > history.told_to else []
    return _past(history, name, version, tail)


def at_time(ledger: DeltaLedger, history: DeltaHistory, time: datetime) -> Past:
    """The catalog at the newest version up to which no fact was written later than this, by the clocks of its writers.

    Raises:
        UsageError: the first fact is later.
        SnapshotLostError: as `at_version`.
    """
    tail = ledger.commits(history.told_to)
    spans = _spans(history, tail, time)
    if not spans or spans[0].first == spans[0].later:
        msg = f"nothing had been committed to the catalog by {time.isoformat()}, by the clocks of its writers: give a later time"
        raise UsageError(msg)
    for span in spans:
        if span.later is not None:
            own = tail if span.ledger == history.ledger else []
            return _past(history, span.ledger, span.later - 1, own)
    return _past(history, history.ledger, ledger.version, tail)


class _Span(NamedTuple):
    """A ledger, its first version with a fact, and the first of those with a fact of after some time."""

    ledger: str
    first: int
    later: int | None


def _spans(history: DeltaHistory, tail: Sequence[ToldCommit], time: datetime) -> list[_Span]:
    """Of every ledger, oldest first."""
    spans = {span.ledger: span for span in map(_Span._make, duckdb_engine.first_versions(_pinned(history), time))}
    if tail:
        late = next((commit.version for commit in tail if commit.rows[0].operation.at > time), None)
        told = spans.get(history.ledger, _Span(history.ledger, tail[0].version, None))
        spans[history.ledger] = told if told.later is not None else told._replace(later=late)
    return sorted(spans.values(), key=lambda span: _number(span.ledger))


def _past(history: DeltaHistory, name: str, version: int, tail: Sequence[ToldCommit]) -> Past:
    """`tail` are commits of this ledger that the history has not been told, also later ones."""
    earlier = [f"ledger = {literal(each)}" for each in _told_before(history) if _number(each) < _number(name)]
    condition = " OR ".join([f"(ledger = {literal(name)} AND version <= {version})", *earlier])
    return Past(name, version, _pinned(history), condition, history.table_of([commit for commit in tail if commit.version <= version]))


def _pinned(history: DeltaHistory) -> Table:
    return Table(history.address, history.version)


def _told_before(history: DeltaHistory) -> list[str]:
    """The ledgers before today's of which the history was told."""
    names = [paths.LEDGER, *(f"{paths.LEDGER}-{n}" for n in range(1, _number(history.ledger)))]
    return [name for name in names if name != history.ledger and history.told_of(name) >= 0]


def _number(ledger: str) -> int:
    return int(ledger.rpartition("-")[2]) if "-" in ledger else 0
