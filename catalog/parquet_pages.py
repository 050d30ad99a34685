"""What the pages of a Parquet file say that they unpack to, read from their own headers: a footer may say less. Pure.

The headers are Thrift's compact protocol (parquet.thrift, PageHeader): of each, its type (1), its size unpacked (2) and packed (3).
"""

from collections.abc import Iterator
from typing import Any

_BOOLEANS, _VARINTS = (1, 2), (4, 5, 6)
_BYTE, _DOUBLE, _BINARY, _LISTS, _STRUCT = 3, 7, 8, (9, 10), 12
_MAX_NESTING = 8


def unpacked_bytes(data: bytes, footer: Any) -> int:
    """Of all pages of a file together (`footer` is pyarrow's FileMetaData). Raises ValueError, IndexError for what are not pages."""
    total = 0
    for i in range(footer.num_row_groups):
        group = footer.row_group(i)
        for c in range(group.num_columns):
            column = group.column(c)
            starts = (column.dictionary_page_offset if column.has_dictionary_page else 0, column.data_page_offset)
            start = min(filter(None, starts), default=0)  # 0 where there is no such page
            total += sum(_sizes(data, start, start + column.total_compressed_size))
    return total


def _sizes(data: bytes, at: int, end: int) -> Iterator[int]:
    if not 0 <= at <= end <= len(data):
        msg = "its pages are not within it"
        raise ValueError(msg)
    while at < end:
        fields, at = _struct(data, at, 0)
        unpacked, packed = fields.get(2, -1), fields.get(3, -1)
        if unpacked < 0 or packed < 0:
            msg = "a page of it does not say its size"
            raise ValueError(msg)
        yield unpacked
        at += packed


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, int], int]:
    """The numbers among the fields, and where the struct ends."""
    if depth > _MAX_NESTING:
        msg = "a page's header is nested too deeply"
        raise ValueError(msg)
    numbers: dict[int, int] = {}
    field = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _zigzag(data, at)
        kind = head & 15
        if kind in _VARINTS:
            numbers[field], at = _zigzag(data, at)
        elif kind not in _BOOLEANS:
            at = _after(data, at, kind, depth)
    return numbers, at + 1


def _after(data: bytes, at: int, kind: int, depth: int) -> int:
    """Where a value of this kind ends."""
    if kind == _BYTE or kind in _BOOLEANS:  # a boolean within a list is a byte
        return at + 1
    if kind in _VARINTS:
        return _varint(data, at)[1]
    if kind == _DOUBLE:
        return at + 8
    if kind == _BINARY:
        length, at = _varint(data, at)
        return at + length
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)[1]
    if kind in _LISTS:
        return _after_list(data, at, depth)
    msg = f"a page's header has a field of kind {kind}, which no version of the format has"
    raise ValueError(msg)


def _after_list(data: bytes, at: int, depth: int) -> int:
    head = data[at]
    count, at = (head >> 4, at + 1) if head >> 4 < 15 else _varint(data, at + 1)
    for _ in range(count):
        at = _after(data, at, head & 15, depth)
        if at >= len(data):  # however many there are said to be
            msg = "a list of a page's header ends beyond it"
            raise ValueError(msg)
    return at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
        if shift > 63:
            msg = "a number of a page's header has more than 64 bits"
            raise ValueError(msg)
