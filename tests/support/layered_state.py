"""States of several layers for tests: written with pyarrow, chunk by chunk, as the uploaders and other writers would leave them."""

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.catalog.murmur3 import key_group_of
from holdfast.catalog.types import Chunk, FileId, Role, Scope, StateInfo
from holdfast.writers.parquet.layout import digest_all, footer_of, parts_of
from holdfast.writers.spark.read import read_state


class LayeredState:
    """The chunks and files of one state, of which layers are added from below."""

    def __init__(self, storage, schema, json, key, max_parallelism):
        self.storage, self.schema, self.key, self.max_parallelism = storage, schema, key, max_parallelism
        self.info = StateInfo(operator="main", state="s", format="parquet", key_columns=tuple(key), schema=json)
        self.chunks, self.files = [], {}

    def groups(self, rows):
        table = pa.Table.from_pylist(rows, self.schema)
        return key_group_of([table[name] for name in self.key], self.max_parallelism).to_pylist() if rows else []

    def add(self, layer, role, rows, *, bounds=None, row_groups=1):
        """A file of these rows, sorted by key group. `bounds` are the key groups that it speaks for, if more than it has."""
        fields = [self.schema.field(name) for name in self.key] if role is Role.DELETES else [*self.schema]
        schema = pa.schema(fields)
        table = pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema)
        table = table.append_column("_key_group", pa.array(self.groups(rows), pa.int32())).sort_by("_key_group")
        file_id = FileId(f"0123456789abcdef-{len(self.files)}-0")
        name = f"part-{len(self.files) if len(self.files) % 4 else 0}.parquet"  # some files have one name, in directories of their own
        path = f"jobs/j-1a2b3c4d/shared/7-0123456789abcdef-{len(self.files)}/{name}"
        place = self.storage.root / path
        place.parent.mkdir(parents=True)
        pq.write_table(table, place, store_schema=False, row_group_size=max(1, -(-len(rows) // row_groups)))
        size_bytes = place.stat().st_size
        digest, parts = digest_all(self.storage, path, parts_of(footer_of(self.storage, path), size_bytes))
        self.files[file_id] = (path, size_bytes, digest.sha256)
        whole = bounds if len(parts) == 1 else None
        for part in parts:
            low, high = (whole.start, whole.stop - 1) if whole else (part.key_group_from, part.key_group_to)
            of_part = Role.FOOTER if part.rows is None else role
            self._add(file_id, of_part, layer, part.offset_bytes, part.length_bytes, part.sha256, part.rows, low, high, None)

    def add_empty(self, layer, groups):
        """A base that says that these groups are empty."""
        self._add(FileId(f"empty-{layer}-{groups.start}"), Role.BASE, layer, 0, 0, "0" * 64, 0, groups.start, groups.stop - 1, b"")

    def _add(self, file_id, role, layer, offset, length, sha256, rows, low, high, inline):
        self.chunks.append(
            Chunk(
                operator="main",
                state="s",
                file_id=file_id,
                scope=Scope.SHARED,
                role=role,
                layer=layer,
                offset_bytes=offset,
                length_bytes=length,
                sha256=sha256,
                rows=rows,
                key_group_from=low,
                key_group_to=high,
                inline=inline,
            )
        )

    def read(self, spark, **how):
        return read_state(spark, self.storage, self.info, self.chunks, self.files, max_parallelism=self.max_parallelism, **how)
