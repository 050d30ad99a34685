"""The parts of a Parquet file: its row groups, which are read and verified one by one, and what holds them together."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, BinaryIO

import pyarrow.parquet as pq

from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.storage import Digest, Storage

_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a file: a row group, or, without rows, what follows the last one. Key groups inclusive, None where it does not tell."""

    offset_bytes: int
    length_bytes: int
    sha256: str | None = None
    rows: int | None = None
    key_group_from: int | None = None
    key_group_to: int | None = None

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.length_bytes


def footer_of(storage: Storage, path: str) -> Any:
    """The footer of a Parquet file under the storage's root (pyarrow's FileMetaData)."""
    with storage.open_stream(path) as stream:
        return pq.read_metadata(stream)


def parts_of(footer: Any, size_bytes: int) -> list[Part]:
    """The parts of a file of this size, not digested yet; they tile it from its first byte to its last.

    A file of one row group (or none) is one part. So is one whose row groups do not lie one behind the other, as no writer known leaves it.
    """
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    if len(groups) > 1:
        extents = [_extent(group) for group in groups]
        edges = [0, *(start for start, _ in extents[1:]), extents[-1][1], size_bytes]
        if all(before < after for before, after in pairwise(edges)):
            stretches = [Part(offset_bytes=start, length_bytes=end - start) for start, end in pairwise(edges)]
            return [*(_described(part, [group]) for part, group in zip(stretches, groups, strict=False)), stretches[-1]]
    return [_described(Part(offset_bytes=0, length_bytes=size_bytes), groups)]


def digest_all(storage: Storage, path: str, parts: Sequence[Part]) -> tuple[Digest, tuple[Part, ...]]:
    """The digest of a file and of each of its parts, which tile it, in one pass over its bytes."""
    if len(parts) == 1:
        digest = storage.digest(path)
        return digest, (replace(parts[0], sha256=digest.sha256),)
    digests, size_bytes = PartDigests(), 0
    with storage.open_stream(path) as stream:
        for part in parts:
            for block in _blocks(stream, part.length_bytes):
                digests.update(block)
                size_bytes += len(block)
            digests.cut()
    digested = tuple(replace(part, sha256=sha256) for part, sha256 in zip(parts, digests.parts, strict=True))
    return Digest(size_bytes=size_bytes, sha256=digests.whole), digested


def digest_some(storage: Storage, path: str, parts: Sequence[Part]) -> tuple[Part, ...]:
    """The parts with their digests and lengths as storage has them; nothing else of the file is read."""
    found = []
    with storage.open_stream(path) as stream:
        for part in parts:
            stream.seek(part.offset_bytes)
            sha256, length_bytes = hashlib.sha256(), 0
            for block in _blocks(stream, part.length_bytes):
                sha256.update(block)
                length_bytes += len(block)
            found.append(replace(part, length_bytes=length_bytes, sha256=sha256.hexdigest()))
    return tuple(found)


class PartDigests:
    """SHA-256 of bytes as they come, as a whole and in parts. What has one part only is digested once."""

    def __init__(self) -> None:
        self._whole = hashlib.sha256()
        self._part: Any = None  # the digest of the first part: the whole so far
        self.parts: list[str] = []

    def update(self, data: Any) -> None:
        self._whole.update(data)
        if self._part is not None:
            self._part.update(data)

    def cut(self) -> None:
        """A part ends here, and the next begins."""
        self.parts.append((self._whole if self._part is None else self._part).hexdigest())
        self._part = hashlib.sha256()

    @property
    def whole(self) -> str:
        return self._whole.hexdigest()


def _extent(group: Any) -> tuple[int, int]:
    """First byte and end of a row group's pages."""
    columns = [group.column(i) for i in range(group.num_columns)]
    # The dictionary comes first, where there is one; some writers say 0 where there is none.
    starts = [column.dictionary_page_offset or column.data_page_offset for column in columns]
    return min(starts), max(start + column.total_compressed_size for start, column in zip(starts, columns, strict=True))


def _described(part: Part, groups: Sequence[Any]) -> Part:
    ranges = [_key_groups(group) for group in groups]
    known = [bounds for bounds in ranges if bounds is not None]
    tells = bool(known) and len(known) == len(ranges)
    return replace(
        part,
        rows=sum(group.num_rows for group in groups),
        key_group_from=min(low for low, _ in known) if tells else None,
        key_group_to=max(high for _, high in known) if tells else None,
    )


def _key_groups(group: Any) -> tuple[int, int] | None:
    """Lowest and highest key group in a row group, by its statistics."""
    columns = (group.column(c) for c in reversed(range(group.num_columns)))  # it is the last one
    column = next((c for c in columns if c.path_in_schema == KEY_GROUP_COLUMN), None)
    if column is None or column.statistics is None or not column.statistics.has_min_max:
        return None
    return int(column.statistics.min), int(column.statistics.max)


def _blocks(stream: BinaryIO, length_bytes: int) -> Iterator[bytes]:
    """The next bytes of a stream: fewer than asked for where it ends."""
    while length_bytes > 0 and (block := stream.read(min(length_bytes, _BLOCK_BYTES))):
        yield block
        length_bytes -= len(block)
