"""Key groups: Flink's ranges by golden vectors, and Spark's hash, held equal to Spark's own on random values of every key type."""

import itertools
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.catalog.errors import UsageError
from holdfast.catalog.key_groups import default_max_parallelism, groups_of, require_groups
from holdfast.catalog.murmur3 import hash_columns, key_group_of


@pytest.mark.parametrize(
    ("max_parallelism", "parallelism", "expected"),
    [
        (128, 1, [(0, 127)]),
        (128, 3, [(0, 42), (43, 85), (86, 127)]),
        (10, 4, [(0, 2), (3, 4), (5, 7), (8, 9)]),
        (7, 7, [(n, n) for n in range(7)]),
    ],
)
def test_ranges_are_flinks(max_parallelism: int, parallelism: int, expected: list[tuple[int, int]]) -> None:
    ranges = [groups_of(i, parallelism, max_parallelism) for i in range(parallelism)]
    assert [(r.start, r.stop - 1) for r in ranges] == expected


@given(st.integers(1, 32_768), st.data())
def test_every_group_has_one_subtask_and_every_subtask_a_group(max_parallelism: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, min(max_parallelism, 500)))
    ranges = [groups_of(i, parallelism, max_parallelism) for i in range(parallelism)]
    assert ranges[0].start == 0
    assert ranges[-1].stop == max_parallelism
    assert all(a.stop == b.start for a, b in itertools.pairwise(ranges))
    assert all(len(r) > 0 for r in ranges)
    group = data.draw(st.integers(0, max_parallelism - 1))
    assert group in ranges[group * parallelism // max_parallelism]  # Flink's rule the other way round


@pytest.mark.parametrize(("parallelism", "expected"), [(1, 128), (85, 128), (86, 256), (128, 256), (4096, 8192), (30_000, 32_768)])
def test_the_default_maximum_is_flinks(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize("parallelism", [0, -1, 129])
def test_a_parallelism_without_a_group_for_each_subtask_is_refused(parallelism: int) -> None:
    """The refusal names the way out."""
    with pytest.raises(UsageError, match="rekey"):
        groups_of(0, parallelism, 128)


@pytest.mark.parametrize(("subtask", "parallelism"), [(5, 2), (2, 2), (-1, 2), ("0", 2), (True, 2), (0, "2"), (0.0, 2)])
def test_the_groups_of_a_subtask_that_is_none_are_refused(subtask: object, parallelism: object) -> None:
    with pytest.raises(UsageError, match="is not one of 2|is not a number"):
        groups_of(subtask, parallelism, 8)  # type: ignore[arg-type]


@pytest.mark.parametrize("groups", [range(0), range(-1, 3), range(129), range(0, 10, 2), range(5, 5)])
def test_what_is_no_range_of_groups_is_refused(groups: range) -> None:
    with pytest.raises(UsageError, match="is not a range within"):
        require_groups(groups, 128)


TEXTS = st.text(max_size=40) | st.sampled_from(["", "é", "a\0b", "日本語", "x" * 1000])
MICROSECONDS = st.integers(-(10**14), 10**14)


def unscaled(digits: int, scale: int = 0) -> st.SearchStrategy[Decimal]:
    """Numbers of up to so many digits, exact: arithmetic of decimals rounds to 28."""
    return st.integers(1 - 10**digits, 10**digits - 1).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


TYPES = {
    "boolean": (pa.bool_(), st.booleans()),
    "byte": (pa.int8(), st.integers(-128, 127)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32) | st.sampled_from([-0.0, math.nan, math.inf])),
    "double": (pa.float64(), st.floats() | st.sampled_from([-0.0, math.nan, -math.inf])),
    "decimal(18,3)": (pa.decimal128(18, 3), unscaled(18, 3)),
    "decimal(38,10)": (pa.decimal128(38, 10), unscaled(38, 10) | unscaled(20, 10)),
    "string": (pa.string(), TEXTS),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "date": (pa.date32(), st.dates(date(1, 1, 2), date(9999, 12, 30))),
    "timestamp": (pa.timestamp("us", "UTC"), MICROSECONDS.map(lambda n: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=n))),
    "timestamp_ntz": (pa.timestamp("us"), MICROSECONDS.map(lambda n: datetime(2000, 1, 1) + timedelta(microseconds=n))),
    "interval day to second": (pa.duration("us"), MICROSECONDS.map(lambda n: timedelta(microseconds=n))),
    "struct<a:int,b:string>": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(-5, 5), "b": st.none() | TEXTS}),
    ),
}  # fmt: skip


def values_of(name: str, count: int = 60) -> list:
    """Many values, the same in every run, with nulls among them."""
    drawn: list = []

    @given(st.lists(st.none() | TYPES[name][1], min_size=count, max_size=count))
    def draw(values: list) -> None:
        if not drawn:
            drawn.extend(values)

    settings(max_examples=8, derandomize=True, database=None, deadline=None)(draw)()
    rng = np.random.default_rng(1)
    simple = [None, *drawn]
    rng.shuffle(simple)
    return simple


@pytest.mark.parametrize("name", TYPES)
def test_the_hash_is_sparks_for_every_type_of_a_key(spark, name: str) -> None:
    """Alone and after another column, whose hash is its seed; sliced, so that offsets count."""
    dtype = TYPES[name][0]
    values = values_of(name)
    first = list(range(len(values)))
    table = pa.table({"i": pa.array(first, pa.int32()), "v": pa.array(values, dtype)})
    frame = spark.createDataFrame(table)
    rows = frame.selectExpr("i", "hash(v) as alone", "hash(i, v) as composite", "pmod(hash(v), 128) as key_group").orderBy("i").collect()
    column = pa.concat_arrays([pa.array(values[:1], dtype), pa.array(values, dtype)])[1:]
    assert hash_columns([column]).view(np.int32).tolist() == [row.alone for row in rows]
    assert hash_columns([table["i"], table["v"]]).view(np.int32).tolist() == [row.composite for row in rows]
    assert key_group_of([pa.chunked_array([column[:7], column[7:]])], 128).to_pylist() == [row.key_group for row in rows]


def test_golden_hashes_of_spark() -> None:
    """Values that stay when Spark is not there to ask."""
    assert hash_columns([pa.array([0, 1, -1], pa.int32())]).view(np.int32).tolist() == [933211791, -559580957, -1604776387]
    assert hash_columns([pa.array(["", "Spark", "日本"])]).view(np.int32).tolist() == [142593372, 228093765, -336983209]


EDGES = [
    None,
    0,
    1,
    -1,
    127,
    128,
    -128,
    -129,
    255,
    2**63 - 1,
    2**63,
    -(2**63),
    -(2**63) - 1,
    2**64,
    2**126,
    -(2**126),
    10**38 - 1,
    1 - 10**38,
]


def test_long_decimals_are_hashed_by_their_fewest_bytes_and_never_rounded() -> None:
    """Seen: by way of Python's decimals, which round to 28 digits, 199 of 200 keys of decimal(38,0) were in other groups than Spark's."""
    numbers = [*EDGES, *(10**digits - 1 for digits in range(20, 39)), *(-(10**digits) for digits in range(20, 38))]
    shortest = [None if n is None else n.to_bytes((n if n >= 0 else ~n).bit_length() // 8 + 1, "big", signed=True) for n in numbers]
    expected = hash_columns([pa.array(shortest, pa.binary())]).tolist()
    for scale in (0, 7, 38):
        values = [None if n is None else Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) for n in numbers]
        column = pa.array([*values[:5], *values], pa.decimal128(38, scale))
        assert hash_columns([column[5:]]).tolist() == expected
        assert hash_columns([pa.chunked_array([column[5:9], column[9:9], column[9:]])]).tolist() == expected


@pytest.mark.parametrize("digits", [7, 18, 19, 28, 29, 38])
def test_decimals_of_every_width_in_arrow_have_one_hash(digits: int) -> None:
    values = [None, Decimal(0), Decimal((1, (9,) * digits, -2)), Decimal((0, (1,) * digits, -2))]
    expected = hash_columns([pa.array(values, pa.decimal128(digits, 2))]).tolist()
    narrow = [pa.decimal32(digits, 2)] if digits <= 9 else [pa.decimal64(digits, 2)] if digits <= 18 else []
    for dtype in [*narrow, pa.decimal256(digits, 2)]:
        assert hash_columns([pa.array(values, dtype)]).tolist() == expected
    assert hash_columns([pa.array([], pa.decimal128(digits, 2))]).tolist() == []
    assert hash_columns([pa.nulls(2, pa.decimal128(digits, 2))]).tolist() == [42, 42]


def test_dictionaries_and_empty_columns_are_hashed_as_their_values() -> None:
    plain = pa.array(["a", "b", None, "a"])
    assert hash_columns([plain.dictionary_encode()]).tolist() == hash_columns([plain]).tolist()
    assert hash_columns([pa.chunked_array([], pa.string())]).tolist() == []


@pytest.mark.parametrize(
    "dtype", [pa.list_(pa.int32()), pa.map_(pa.string(), pa.int32()), pa.time32("s"), pa.uint8(), pa.decimal256(39, 0)]
)
def test_a_type_that_no_key_may_have_is_refused_by_name(dtype: pa.DataType) -> None:
    with pytest.raises(UsageError, match="cannot have the Arrow type"):
        hash_columns([pa.array([None], dtype)])


def test_a_hash_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no key column"):
        hash_columns([])
