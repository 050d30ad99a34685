"""Embedded stores in the canonical format of savepoints: keys and values as rows by key group, which any number of subtasks can take up.

The directory of a store is not key-group aware (FLINK-5053). An adapter of a few lines, which iterates keys and puts keys, turns it into
rows when a savepoint is taken, and the rows of some key groups into a store again. A key's group is that of its bytes in the store:
`pmod(hash(key), max_parallelism)` of a binary column in Spark, and a program that spreads keys over subtasks has to spread them by that.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.catalog import arguments
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import RefusedError, UsageError
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN, require_groups
from holdfast.catalog.manifest import Manifest
from holdfast.catalog.murmur3 import key_group_of
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import Chunk, FileId, Format, StateInfo
from holdfast.writers.local.working_directory import WorkingDirectory
from holdfast.writers.parquet.checks import require_digests_here
from holdfast.writers.parquet.plan import FileRow, Scan, file_rows, plan_reading, require_readable
from holdfast.writers.stores.reader import DirectoryReader, RestoredDirectory, new_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY, VALUE = "key", "value"
ENTRIES = pa.schema([(KEY, pa.binary()), (VALUE, pa.binary())])
SPARK_ENTRIES = f"{KEY} binary, {VALUE} binary"
BATCH_BYTES = 4 * 1024 * 1024


class StoreAdapter(Protocol):
    """How to get at the entries of one kind of store. Picklable: it is sent to tasks."""

    def entries(self, directory: str) -> Iterable[tuple[bytes, bytes]]:
        """Every key with its value, in any order, of the store in this directory, which is a copy of its own."""

    def build(self, directory: str, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Make a store in this directory, which does not exist, with these keys and values and no others; closed when this returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreReader:
    """What `checkpoint.directories(state, adapter=...)` gives of a state in the canonical format. Picklable, as `DirectoryReader` is."""

    storage: Storage
    environment: Environment
    what: str
    max_parallelism: int
    chunks: tuple[Chunk, ...]
    files: dict[FileId, FileRow]
    adapter: StoreAdapter

    def __repr__(self) -> str:
        return f"<stores of {self.what}>"

    def restore(
        self,
        to: str | os.PathLike[str],
        *,
        subtask: int = 0,
        key_groups: range | None = None,
        working_directory: WorkingDirectory | None = None,
    ) -> RestoredDirectory:
        """Build the store of these key groups at `to`, which must not exist, or be empty: all of it, verified, or nothing.

        `subtask` and `working_directory` say nothing here: they are of the directories that the state has once a job wrote it.
        Raises AlreadyExistsError, DamagedFileError, UsageError (no key groups are given, or there are no such).
        """
        del subtask, working_directory
        if key_groups is None:  # or each of several subtasks would have all keys
            msg = (
                f"{self.what} is in the canonical format, of which a store has the keys of its key groups: give "
                f"key_groups=holdfast.groups_of(subtask, parallelism, {self.max_parallelism}), or range({self.max_parallelism}) for all"
            )
            raise UsageError(msg)
        groups = require_groups(key_groups, self.max_parallelism)
        plan = plan_reading(self.chunks, self.files, self.max_parallelism, groups)
        with new_directory(to, self.environment) as draft:
            require_digests_here(self.storage, plan.parts, {path: size_bytes for path, size_bytes, _ in self.files.values()})
            draft.rmdir()  # stores make their directories themselves
            self.adapter.build(str(draft), self._entries(plan.base, groups))
            files = [path for path in draft.rglob("*") if path.is_file()]
        return RestoredDirectory(files=len(files), remote_bytes=plan.size_bytes)

    def _entries(self, scans: Iterable[Scan], groups: range) -> Iterator[tuple[bytes, bytes]]:
        """Of each scan the rows of the groups that no higher layer hides."""
        import pyarrow.dataset as ds

        for scan in scans:
            places = [f"{self.storage.address}/{path}" for path in scan.paths]
            found = np.concatenate([np.arange(each.start, each.stop) for each in (scan.groups or [groups])])
            wanted = pc.field(KEY_GROUP_COLUMN).isin(pa.array(found, pa.int32()))
            for batch in ds.dataset(places, format="parquet").to_batches(columns=[KEY, VALUE], filter=wanted):
                yield from zip(batch.column(KEY).to_pylist(), batch.column(VALUE).to_pylist(), strict=True)


def store_reader(manifest: Manifest, info: StateInfo, storage: Storage, environment: Environment, adapter: StoreAdapter) -> StoreReader:
    """The reader of a state that a savepoint has in the canonical format. Raises RefusedError for rows that are no entries of a store."""
    what = f"state {info.state!r} of checkpoint {manifest.checkpoint_id} of job {manifest.job!r}"
    chunks, files = tuple(manifest.chunks_of(info)), file_rows(manifest.files.values())
    require_readable(info, chunks, files, manifest.max_parallelism)
    columns = [(field["name"], field["type"]) for field in json.loads(info.schema or "{}")["fields"]]
    changes = plan_reading(chunks, files, manifest.max_parallelism).has_changes
    if columns != [(KEY, "binary"), (VALUE, "binary")] or info.key_columns != (KEY,) or changes:
        msg = f"{what} is a DataFrame, and not the keys and values of a store: read it with read(spark, {info.state!r})"
        raise RefusedError(msg)
    return StoreReader(
        storage=storage,
        environment=environment,
        what=what,
        max_parallelism=manifest.max_parallelism,
        chunks=chunks,
        files={chunk.file_id: files[chunk.file_id] for chunk in chunks if chunk.inline is None},
        adapter=adapter,
    )


def entries_frame(spark: "SparkSession", reader: DirectoryReader, adapter: StoreAdapter, max_parallelism: int) -> "DataFrame":
    """The entries of all subtasks' stores, a partition for each, which its task restores to a directory of its own. Lazy."""
    numbers = spark.range(0, reader.subtasks, 1, reader.subtasks)
    return numbers.mapInArrow(partial(_read_entries, reader, adapter, max_parallelism), SPARK_ENTRIES)


def require_stores(stores: Mapping[str, StoreAdapter], manifest: Manifest) -> None:
    """Raises UsageError, which names it, for an adapter that is none or is of a state without directories; RefusedError for stores of
    several subtasks that do not say which key groups each has: a key in two of them would be there twice."""
    formats = {info.state: info.format for info in manifest.states}
    for state, adapter in arguments.mapping(stores, "a choice of adapters by their states (stores=...)").items():
        if formats.get(state) != Format.DIRECTORY:
            there = ", ".join(repr(name) for name, kind in formats.items() if kind == Format.DIRECTORY) or "none"
            msg = f"stores={{{state!r}: ...}}: the checkpoint has no directories of a state {state!r}; it has such of: {there}"
            raise UsageError(msg)
        is_made = not isinstance(adapter, type)  # the class itself is given easily
        if not (is_made and callable(getattr(adapter, "entries", None)) and callable(getattr(adapter, "build", None))):
            msg = (
                f"{adapter!r} is not an adapter of the store of state {state!r}: it needs methods entries and build (holdfast.StoreAdapter)"
            )
            raise UsageError(msg)
        shares = {(chunk.subtask, chunk.key_group_from) for chunk in manifest.chunks if chunk.state == state}
        if len(shares) > 1 and any(first is None for _, first in shares):
            msg = (
                f"state {state!r} of checkpoint {manifest.checkpoint_id} of job {manifest.job!r} was written by {len(shares)} subtasks "
                "without key_groups, so that nobody knows which of them a key belongs to: write it with "
                "key_groups=holdfast.groups_of(subtask, ...), or take the savepoint without an adapter"
            )
            raise RefusedError(msg)


def _read_entries(
    reader: DirectoryReader, adapter: StoreAdapter, max_parallelism: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for subtask in batch.column(0).to_pylist():
            place = Path(tempfile.mkdtemp(prefix="holdfast-store-"))
            try:
                reader.restore(place / "store", subtask=subtask)
                for entries in _batches(adapter.entries(str(place / "store"))):
                    _require_own(entries, reader, subtask, max_parallelism)
                    yield entries
            finally:
                shutil.rmtree(place, ignore_errors=True)


def _require_own(entries: pa.RecordBatch, reader: DirectoryReader, subtask: int, max_parallelism: int) -> None:
    """Raises UsageError for a key of another subtask's groups: it would be found there, or twice."""
    groups = reader.key_groups(subtask)
    if groups is None:
        return
    found = key_group_of([entries.column(0)], max_parallelism)
    strange = entries.filter(pc.invert(pc.and_(pc.greater_equal(found, groups.start), pc.less(found, groups.stop))))
    if strange.num_rows:
        msg = (
            f"the store of subtask {subtask} of {reader!r} has {strange.num_rows} keys that are not of its key groups {groups.start} to "
            f"{groups.stop - 1}, {strange.column(0)[0].as_py()!r} for one: spread keys by pmod(hash(key), {max_parallelism}), "
            "and keep what belongs to a subtask and no key in a state of its own"
        )
        raise UsageError(msg)


def _batches(entries: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    keys: list[bytes] = []
    values: list[bytes] = []
    held = 0
    for key, value in entries:
        keys.append(key)
        values.append(value)
        held += len(key) + len(value)
        if held >= BATCH_BYTES:
            yield _batch(keys, values)
            keys, values, held = [], [], 0
    yield _batch(keys, values)


def _batch(*columns: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(column, pa.binary()) for column in columns], schema=ENTRIES)
