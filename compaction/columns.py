"""Rows of an Arrow table as a sequence of objects, of which each is made when it is asked for: of millions of files none need be."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar, overload

import pyarrow as pa

from holdfast.catalog.types import FileId, Scope, StoredFile

PAGE = 10_000  # objects that an iteration makes at a time

T = TypeVar("T")


class Rows(Sequence[T]):
    """The rows of a table whose columns are the fields of the objects. Equal to those of a table with the same rows in the same order."""

    SCHEMA: ClassVar[pa.Schema]

    def __init__(self, table: pa.Table) -> None:
        self.table = table if table.schema.equals(self.SCHEMA) else table.select(self.SCHEMA.names).cast(self.SCHEMA)

    @classmethod
    def of(cls, objects: Iterable[T]) -> Self:
        """Those objects, in their order."""
        given = list(objects)
        columns = [pa.array([getattr(each, field.name) for each in given], field.type) for field in cls.SCHEMA]
        return cls(pa.table(columns, schema=cls.SCHEMA))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> Self: ...

    def __getitem__(self, at: int | slice) -> T | Self:
        found = range(len(self))[at]
        if isinstance(found, int):
            return next(iter(self[found : found + 1]))
        if found.step != 1:
            msg = f"every {found.step}th row was asked for: slices are of rows that follow each other"
            raise ValueError(msg)
        return type(self)(self.table.slice(found.start, len(found)))

    def __iter__(self) -> Iterator[T]:
        for batch in self.table.to_batches(max_chunksize=PAGE):
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield self._made(*values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and bool(self.table.equals(other.table))

    __hash__ = None  # type: ignore[assignment]  # it would go over millions of rows

    def _made(self, *values: Any) -> T:
        """The object with these fields, in the order of the columns."""
        raise NotImplementedError


class StoredFiles(Rows[StoredFile]):
    """Files as they were committed."""

    SCHEMA = pa.schema(
        [
            pa.field("file_id", pa.string()),
            pa.field("path", pa.string()),
            pa.field("size_bytes", pa.int64()),
            pa.field("sha256", pa.string()),
            pa.field("scope", pa.string()),
            pa.field("owner", pa.string()),
        ]
    )

    def _made(self, *values: Any) -> StoredFile:
        file_id, path, size_bytes, sha256, scope, owner = values
        return StoredFile(file_id=FileId(file_id), path=path, size_bytes=size_bytes, sha256=sha256, scope=Scope(scope), owner=owner)
