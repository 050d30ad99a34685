"""State given as bytes: what counts as bytes, and that it is counted in bytes."""

from array import array
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.catalog.errors import UsageError
from holdfast.catalog.types import INLINE_LIMIT_BYTES


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
