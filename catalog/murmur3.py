"""Spark's Murmur3 hash over Arrow arrays, vectorised: what `hash(...)` gives in Spark SQL, for writers that have no Spark.

Spark's own variant (`org.apache.spark.sql.catalyst.expressions.Murmur3HashFunction`): seed 42, the hash of a column is the seed of the
next, a null leaves it as it is, and the bytes that fill no word are mixed in one by one, each as a signed int.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog.errors import UsageError

SEED = 42
_DIGITS_OF_A_LONG, _DIGITS_OF_A_DECIMAL = 18, 38  # as Spark's decimals have them

Hashes = npt.NDArray[np.uint32]

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)


def key_group_of(columns: Sequence[pa.Array | pa.ChunkedArray], max_parallelism: int) -> pa.Array:
    """The key group (int32) of each row of these key columns: `pmod(hash(columns), max_parallelism)`, as Spark computes it.

    Raises UsageError for a type that no key may have.
    """
    signed = hash_columns(columns).view(np.int32).astype(np.int64)
    return pa.array((signed % max_parallelism).astype(np.int32))


def hash_columns(columns: Sequence[pa.Array | pa.ChunkedArray]) -> Hashes:
    """The hash of each row, as unsigned 32 bits. The columns are of equal length, at least one.

    Raises UsageError for a type that no key may have.
    """
    if not columns:
        msg = "there is no key column to hash: name one"
        raise UsageError(msg)
    hashes = np.full(len(columns[0]), SEED, np.uint32)
    for column in columns:
        hashes = _hash_array(_whole(column), hashes)
    return hashes


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # it may have no chunk, or more than one array can hold
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _hash_array(array: pa.Array, seeds: Hashes) -> Hashes:
    if pa.types.is_struct(array.type):
        return _hash_struct(array, seeds)
    hashed = _hasher(array.type)(array, seeds)
    return np.where(_valid(array), hashed, seeds)


def _hash_struct(array: pa.StructArray, seeds: Hashes) -> Hashes:
    """Fields chain like columns; a null struct counts as a null, whatever its fields say."""
    hashes = seeds
    for i in range(array.type.num_fields):
        hashes = _hash_array(_whole(array.field(i)), hashes)
    return np.where(_valid(array), hashes, seeds)


def _hasher(dtype: pa.DataType) -> Callable[[pa.Array, Hashes], Hashes]:
    for fits, hasher in _HASHERS:
        if fits(dtype):
            return hasher
    msg = f"a key column cannot have the Arrow type {dtype}: cast it to a type that Spark hashes as well"
    raise UsageError(msg)


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.is_valid(array).to_numpy(zero_copy_only=False), dtype=bool)


def _filled(array: pa.Array, null: Any) -> npt.NDArray[Any]:
    """The values, with some value where there is none."""
    return np.asarray(array.fill_null(null).to_numpy(zero_copy_only=False))


def _hash_ints(array: pa.Array, seeds: Hashes) -> Hashes:
    return _mix_int(_filled(array.cast(pa.int32()), 0).view(np.uint32), seeds)


def _hash_longs(array: pa.Array, seeds: Hashes) -> Hashes:
    return _mix_long(_filled(array, 0).view(np.uint64), seeds)


def _float_bits(array: pa.Array, dtype: type[np.floating[Any]]) -> npt.NDArray[Any]:
    """With one zero and one NaN, as Java's floatToIntBits gives and Spark's hash wants."""
    values = _filled(array, 0.0).astype(dtype)
    values[values == 0] = 0.0
    values[np.isnan(values)] = np.nan
    return values


def _hash_times(array: pa.Array, seeds: Hashes) -> Hashes:
    """Timestamps and intervals as microseconds."""
    micros = pa.timestamp("us", array.type.tz) if pa.types.is_timestamp(array.type) else pa.duration("us")
    return _hash_longs(array.cast(micros).cast(pa.int64()), seeds)


def _hash_floats(array: pa.Array, seeds: Hashes) -> Hashes:
    return _mix_int(_float_bits(array, np.float32).view(np.uint32), seeds)


def _hash_doubles(array: pa.Array, seeds: Hashes) -> Hashes:
    return _mix_long(_float_bits(array, np.float64).view(np.uint64), seeds)


def _hash_decimals(array: pa.Array, seeds: Hashes) -> Hashes:
    """Up to 18 digits as a long; more as the fewest big-endian bytes that hold the unscaled number (Java's `BigInteger.toByteArray`)."""
    if not pa.types.is_decimal128(array.type):
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    words = np.frombuffer(array.buffers()[1] or b"", np.uint64).reshape(-1, 2)[array.offset : array.offset + len(array)]
    words = np.where(_valid(array)[:, None], words, np.uint64(0))
    if array.type.precision <= _DIGITS_OF_A_LONG:
        return _mix_long(words[:, 0], seeds)
    return _hash_bytes(_shortest(words), seeds)


def _shortest(words: npt.NDArray[np.uint64]) -> pa.Array:
    """Signed numbers of 16 little-endian bytes as the fewest big-endian bytes. Never by way of Python's decimals, which round."""
    octets = np.ascontiguousarray(np.ascontiguousarray(words).view(np.uint8).reshape(-1, 16)[:, ::-1])
    magnitude = octets ^ np.where(octets[:, :1] >= 128, np.uint8(255), np.uint8(0))  # zeros in front, of negative numbers too
    first = np.where(magnitude.any(axis=1), (magnitude != 0).argmax(axis=1), 15)
    needs_sign = magnitude[np.arange(len(magnitude)), first] >= 128  # the sign takes a bit of its own
    lengths = 16 - first + needs_sign
    kept = octets[np.arange(16) >= 16 - lengths[:, None]]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return pa.Array.from_buffers(pa.large_binary(), len(words), [None, pa.py_buffer(bounds), pa.py_buffer(kept)])


def _hash_bytes(array: pa.Array, seeds: Hashes) -> Hashes:
    large = array.cast(pa.large_binary())
    bounds = np.frombuffer(large.buffers()[1], np.int64)[large.offset : large.offset + len(large) + 1]
    data = np.frombuffer(large.buffers()[2] or b"", np.uint8)
    starts, lengths = bounds[:-1], np.where(_valid(array), np.diff(bounds), 0)
    hashes, words = seeds.copy(), lengths // 4
    rows = np.flatnonzero(words > 0)
    for i in range(int(words.max(initial=0))):
        rows = rows[words[rows] > i]
        at = starts[rows] + 4 * i
        word = sum(data[at + byte].astype(np.uint32) << np.uint32(8 * byte) for byte in range(4))
        hashes[rows] = _mix(np.asarray(word, np.uint32), hashes[rows])
    for i in range(3):
        rows = np.flatnonzero(lengths % 4 > i)
        tail = data[starts[rows] + 4 * words[rows] + i].view(np.int8).astype(np.int32)
        hashes[rows] = _mix(tail.view(np.uint32), hashes[rows])
    return _finish(hashes, lengths.astype(np.uint32))


def _is_small(dtype: pa.DataType) -> bool:
    return dtype in (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())


def _is_time(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(dtype) or pa.types.is_duration(dtype))


def _is_decimal(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(dtype) and dtype.precision <= _DIGITS_OF_A_DECIMAL)


def _is_bytes(dtype: pa.DataType) -> bool:
    return dtype in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


_HASHERS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, Hashes], Hashes]]] = (
    (_is_small, _hash_ints),
    (pa.types.is_int64, _hash_longs),
    (_is_time, _hash_times),
    (pa.types.is_float32, _hash_floats),
    (pa.types.is_float64, _hash_doubles),
    (_is_decimal, _hash_decimals),
    (_is_bytes, _hash_bytes),
)


def _mix_int(values: Hashes, seeds: Hashes) -> Hashes:
    return _finish(_mix(values, seeds), np.uint32(4))


def _mix_long(values: npt.NDArray[np.uint64], seeds: Hashes) -> Hashes:
    low = (values & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (values >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(high, _mix(low, seeds)), np.uint32(8))


def _mix(words: Hashes, hashes: Hashes) -> Hashes:
    with np.errstate(over="ignore"):
        k = _rotated(words * _C1, 15) * _C2
        return _rotated(hashes ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashes: Hashes, length: Any) -> Hashes:
    with np.errstate(over="ignore"):
        h: Hashes = hashes ^ length
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return np.asarray(h ^ (h >> np.uint32(16)), np.uint32)


def _rotated(values: Hashes, by: int) -> Hashes:
    return (values << np.uint32(by)) | (values >> np.uint32(32 - by))
