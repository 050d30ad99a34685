"""State given as bytes: what counts as bytes, that it is counted in bytes, and how often the ledger has them."""

from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import INLINE_LIMIT_BYTES, INLINE_OF_CHECKPOINT_BYTES, Ack, CheckpointId, KeepAll, Scope
from holdfast.writers import checkpoint_writer
from holdfast.writers.bytes_state import write_bytes
from tests.support.invariants import assert_catalog_sound
from tests.support.world import JOB, World


@pytest.mark.parametrize("count", [4, INLINE_LIMIT_BYTES // 8 + 1], ids=["inline", "file"])
def test_a_view_of_wider_items_is_counted_in_bytes_and_reads_back(catalog: holdfast.Catalog, count: int) -> None:
    """Seen: four numbers of eight bytes were recorded as a state of 4 bytes."""
    numbers = array("q", range(count))
    view: Any = memoryview(numbers)
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", view)
        latest = job.latest()
    assert latest is not None
    assert latest.read_bytes("offsets") == numbers.tobytes()
    assert catalog.duckdb().sql("SELECT total_bytes FROM states").fetchall() == [(8 * count,)]


@pytest.mark.parametrize("data", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"a-b-c")[::2]])
def test_what_changes_after_the_call_is_not_what_was_written(catalog: holdfast.Catalog, data: Any) -> None:
    with catalog.coordinate("flights") as job:
        with job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", data)
            if isinstance(data, bytearray):
                data[:] = b"xyz"
        latest = job.latest()
    assert latest is not None
    assert latest.read_bytes("offsets") == b"abc"


@pytest.mark.parametrize("data", [5, [1, 2], "text", None, {"a": 1}, array("q", [1])], ids=lambda data: type(data).__name__)
def test_what_is_no_bytes_is_refused_before_anything_is_written(catalog: holdfast.Catalog, data: Any) -> None:
    """`bytes` takes a list of small numbers, and makes five NULs of a 5."""
    with catalog.coordinate("flights") as job:
        before = {*Path(catalog.address).glob("jobs/**/*")}
        with pytest.raises(UsageError, match=rf"state 'offsets' is given as {type(data).__name__}: "), job.checkpoint() as checkpoint:
            checkpoint.write_bytes("offsets", data)
        assert {*Path(catalog.address).glob("jobs/**/*")} == before


# ---- carried ---------------------------------------------------------------------------------------------------------------


class Line:
    """A job in memory whose checkpoints have a small state `a`, and one `b` that is written each time."""

    def __init__(self) -> None:
        self.world = World()
        self.process = self.world.process()
        self.job = self.process.coordinate(retention=KeepAll())

    def commit(self, **states: Any) -> None:
        self.process.checkpoint(self.job, {"b": b"each time", **states})

    def again(self, start: int | str) -> None:
        self.job = self.process.coordinate(retention=KeepAll(), start=start)

    def handles(self, job: str = JOB) -> list[tuple[str | None, Scope, int, int | None]]:
        """Of `a`, on the job's line and in its savepoints: (savepoint, scope, from_seq, to_seq)."""
        references = self.world.references()
        job_id = references.state.job_named(job).job_id
        rows = [row for rows in references.handles.values() for row in rows if row.state == "a" and row.job_id == job_id]
        return [(row.savepoint and "savepoint", row.scope, row.from_seq, references.to_seq(row)) for row in rows]

    def seq(self, number: int, job: str = JOB) -> int:
        return self.world.job(job).checkpoints[CheckpointId(number)].fact.seq


def _carried(line: Line) -> list[Any]:
    line.commit(a=b"1")
    for _ in range(5):
        line.commit()
    return [(None, Scope.SHARED, line.seq(1), None)]


def _written_again(line: Line) -> list[Any]:
    line.commit(a=b"1")
    line.commit()
    line.commit(a=b"2")
    line.commit()
    return [(None, Scope.SHARED, line.seq(1), line.seq(3)), (None, Scope.SHARED, line.seq(3), None)]


def _removed(line: Line) -> list[Any]:
    line.commit(a=b"1")
    line.commit()
    line.commit(a=None)
    line.commit()
    return [(None, Scope.SHARED, line.seq(1), line.seq(3))]


def _rolled_back(line: Line) -> list[Any]:
    """Over a later one: the old bytes are open anew from there, in a row of their own, once."""
    line.commit(a=b"1")
    line.commit(a=b"2")
    line.commit()
    line.again(1)
    line.commit()
    line.commit()
    begins = [line.seq(n) for n in (*line.world.job().live,)]
    return [
        (None, Scope.SHARED, begins[0], begins[1]),
        (None, Scope.SHARED, begins[3], None),
        (None, Scope.SHARED, begins[1], begins[3]),
    ]


def _rolled_back_to_where_it_was_carried(line: Line) -> list[Any]:
    """Nothing was said of it since: its row goes on."""
    line.commit(a=b"1")
    line.commit()
    line.commit()
    line.again(2)
    line.commit()
    return [(None, Scope.SHARED, line.seq(1), None)]


def _begun_from_nothing(line: Line) -> list[Any]:
    line.commit(a=b"1")
    line.again("nothing")
    line.commit()
    return [(None, Scope.SHARED, line.seq(1), line.seq(max(line.world.job().live)))]


def _saved(line: Line) -> list[Any]:
    """A savepoint has its own, and the line's row goes on alongside."""
    line.commit(a=b"1")
    number = line.process.savepoint(1, "s")
    line.commit()
    seq = line.seq(number)
    return [(None, Scope.SHARED, line.seq(1), None), ("savepoint", Scope.EXCLUSIVE, seq, seq + 1)]


PATHS: dict[str, Callable[[Line], list[Any]]] = {
    function.__name__.lstrip("_"): function
    for function in (
        _carried, _written_again, _removed, _rolled_back, _rolled_back_to_where_it_was_carried, _begun_from_nothing, _saved
    )
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_bytes_are_in_the_ledger_once_for_each_run_of_checkpoints(path: str) -> None:
    line = Line()
    expected = PATHS[path](line)
    assert line.handles() == expected
    assert_catalog_sound(line.world)


@pytest.mark.parametrize(("mode", "begins"), [("fork", 1), ("claim", 1), ("no-claim", 1)])
def test_another_job_that_starts_from_it_has_a_row_of_its_own(mode: Any, begins: int) -> None:
    line = Line()
    line.commit(a=b"1")
    other = line.process.coordinate_from(1, "other", mode)
    for _ in range(3):
        line.process.checkpoint(other, {"b": b"each time"})
    first = min(line.world.job("other").checkpoints)
    assert line.handles("other") == [(None, Scope.SHARED, line.seq(first, "other"), None)]
    assert len(line.handles()) == begins
    assert line.world.states_of(max(line.world.job("other").live), "other")["a"] == b"1"
    assert_catalog_sound(line.world)


def test_what_an_older_version_wrote_stays_until_it_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_before(*given: Any) -> Ack:
        ack = write_bytes(*given)
        return replace(ack, chunks=tuple(replace(chunk, scope=Scope.EXCLUSIVE) for chunk in ack.chunks))

    line = Line()
    monkeypatch.setattr(checkpoint_writer, "write_bytes", of_before)
    line.commit(a=b"1")
    monkeypatch.undo()
    line.commit()
    line.commit(a=b"2")
    line.commit()
    old = [(None, Scope.EXCLUSIVE, line.seq(n), line.seq(n) + 1) for n in (1, 2)]
    assert line.handles() == [*old, (None, Scope.SHARED, line.seq(3), None)]
    assert_catalog_sound(line.world)


# ---- together ----------------------------------------------------------------------------------------------------------------


def test_what_a_checkpoint_inlines_as_a_whole_is_bounded() -> None:
    """Carried states count, those that were removed or are written again do not; what finds no room is a file, and reads as well."""
    line, many = Line(), INLINE_OF_CHECKPOINT_BYTES // INLINE_LIMIT_BYTES
    line.job = line.process.coordinate()
    line.process.checkpoint(line.job, {f"s{n}": bytes([n]) * INLINE_LIMIT_BYTES for n in range(many - 1)})
    line.process.checkpoint(line.job, {"x": b"x" * INLINE_LIMIT_BYTES, "y": b"y", "z": b""})
    line.process.checkpoint(line.job, {"s0": None})
    line.process.checkpoint(line.job, {"s1": b"again" * 4000, "y": b"y", "w": b"w" * INLINE_LIMIT_BYTES})
    latest = line.job.latest()
    assert latest is not None
    inline = {chunk.state for chunk in latest.manifest.chunks if chunk.inline is not None}
    assert {info.state for info in latest.manifest.states} - inline == {"w"}
    assert sum(len(chunk.inline or b"") for chunk in latest.manifest.chunks) <= INLINE_OF_CHECKPOINT_BYTES
    assert latest.read_bytes("w") == b"w" * INLINE_LIMIT_BYTES
    assert latest.read_bytes("s1") == b"again" * 4000
    assert_catalog_sound(line.world)
