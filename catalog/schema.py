"""The columns of the ledger's one table, and the way between facts and Arrow. Columns and types stand here only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from types import NoneType
from typing import Any, get_args, get_type_hints, overload

import pyarrow as pa

from holdfast.catalog import VERSION
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import DamagedLedgerError, FormatError
from holdfast.catalog.facts import KINDS, Fact
from holdfast.catalog.types import Purpose, Role, Scope, Status

FORMAT_VERSION = 2
TIMESTAMP = pa.timestamp("us", tz="UTC")

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("operation_id", pa.string(), nullable=False),
        pa.field("at", TIMESTAMP, nullable=False),
        pa.field("by", pa.string(), nullable=False),
        pa.field("job_id", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("job", pa.string()),
        pa.field("max_parallelism", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("attempt", pa.string()),
        pa.field("checkpoint_id", pa.int64()),
        pa.field("purpose", pa.string()),
        pa.field("parent_job_id", pa.string()),
        pa.field("parent_checkpoint_id", pa.int64()),
        pa.field("claimed_by", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("is_savepoint", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("is_incremental", pa.bool_()),
        pa.field("is_key_group_aware", pa.bool_()),
        pa.field("is_self_contained", pa.bool_()),
        pa.field("parallelism", pa.int32()),
        pa.field("handles", pa.int64()),
        pa.field("new_handles", pa.int64()),
        pa.field("total_bytes", pa.int64()),
        pa.field("new_bytes", pa.int64()),
        pa.field("progress", pa.string()),
        pa.field("path", pa.string()),
        pa.field("sha256", pa.string()),
        pa.field("size_bytes", pa.int64()),
        pa.field("operator", pa.string()),
        pa.field("state", pa.string()),
        pa.field("format", pa.string()),
        pa.field("key_columns", pa.string()),
        pa.field("schema", pa.string()),
        pa.field("layers", pa.int32()),
        pa.field("rows", pa.int64()),
        pa.field("savepoint", pa.string()),
        pa.field("subtask", pa.int32()),
        pa.field("key_group_from", pa.int32()),
        pa.field("key_group_to", pa.int32()),
        pa.field("scope", pa.string()),
        pa.field("layer", pa.int32()),
        pa.field("role", pa.string()),
        pa.field("file_id", pa.string()),
        pa.field("offset_bytes", pa.int64()),
        pa.field("length_bytes", pa.int64()),
        pa.field("from_seq", pa.int64()),
        pa.field("to_seq", pa.int64()),
        pa.field("inline", pa.binary()),
        pa.field("owner", pa.string()),
        pa.field("hold", pa.string()),
        pa.field("note", pa.string()),
        pa.field("bytes_written", pa.int64()),
        pa.field("bytes_reused", pa.int64()),
        pa.field("upload_ms", pa.int64()),
        pa.field("digest_ms", pa.int64()),
        pa.field("sort_ms", pa.int64()),
        pa.field("sync_ms", pa.int64()),
        pa.field("run_id", pa.string()),
        pa.field("what", pa.string()),
        pa.field("started_at", TIMESTAMP),
        pa.field("ended_at", TIMESTAMP),
        pa.field("outcome", pa.string()),
        pa.field("figures", pa.string()),
        pa.field("last_committed_id", pa.int64()),
        pa.field("ancestor_job_id", pa.string()),
        pa.field("ancestor_checkpoint_id", pa.int64()),
        pa.field("claims", pa.string()),
    ]
)

_FIELDS = {kind: tuple(f.name for f in fields(cls)) for kind, cls in KINDS.items()}
_REQUIRED = {
    kind: frozenset(f.name for f in fields(cls) if NoneType not in get_args(get_type_hints(cls)[f.name])) for kind, cls in KINDS.items()
}
_ENUMS: dict[str, Any] = {"purpose": Purpose, "status": Status, "scope": Scope, "role": Role}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One commit to the ledger: its id (found again after any doubt), when and by whom."""

    operation_id: str
    at: datetime
    by: str

    @classmethod
    def new(cls, environment: Environment) -> "Operation":
        """One that begins now, by this process."""
        return cls(operation_id=environment.new_id(), at=environment.now(), by=environment.actor)


class FactColumns(Sequence[Fact]):
    """Facts as columns, of which each is an object only when it is asked for: a vacuum condemns millions of files.

    `to_table` takes the columns as they are, and gives what it would give for the objects.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table  # with the columns that its facts have, none of an operation

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> "FactColumns":
        """These facts, which are objects."""
        nobody = Operation(operation_id="", at=datetime.fromtimestamp(0, UTC), by="")
        said = {"kind"}.union(*(_FIELDS[fact.kind] for fact in facts))
        return cls(to_table(facts, nobody).select([name for name in SCHEMA.names if name in said]))

    @classmethod
    def of_kind(cls, kind: str, **values: pa.Array | pa.ChunkedArray | str) -> "FactColumns":
        """Facts of one kind by the columns of its fields; a text is that of all of them, and one column at least is given.

        Raises ValueError where the kind has other fields, or one that is empty in a fact which has to have it.
        """
        arrays = {name: value for name, value in values.items() if not isinstance(value, str)}
        if set(values) != set(_FIELDS[kind]) or any(arrays[name].null_count for name in _REQUIRED[kind] & arrays.keys()):
            msg = f"the columns {', '.join(values)} are not those of facts of kind {kind!r}, or one is empty that they have to have"
            raise ValueError(msg)
        count = len(next(iter(arrays.values())))
        schema = pa.schema([field for field in SCHEMA if field.name == "kind" or field.name in values])
        return cls(pa.table([_column(field, count, {"kind": kind, **values}) for field in schema], schema=schema))

    def __add__(self, others: "FactColumns") -> "FactColumns":
        return FactColumns(pa.concat_tables([self._table, others._table], promote_options="default"))

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Fact]:
        return from_table(self._table)

    @overload
    def __getitem__(self, at: int) -> Fact: ...

    @overload
    def __getitem__(self, at: slice) -> "FactColumns": ...

    def __getitem__(self, at: int | slice) -> "Fact | FactColumns":
        found = range(len(self))[at]
        if isinstance(found, int):
            return next(from_table(self._table.slice(found, 1)))
        return FactColumns(self._table.take(pa.array(found, pa.int64())))

    def column(self, name: str) -> pa.ChunkedArray:
        """One of the columns that its facts have."""
        return self._table[name]

    def by(self, operation: Operation) -> pa.Table:
        """The rows of the commit that is this operation."""
        said = {f.name: getattr(operation, f.name) for f in fields(operation)} | {n: self._table[n] for n in self._table.column_names}
        return pa.table([_column(field, len(self), said) for field in SCHEMA], schema=SCHEMA)


def _column(field: pa.Field, count: int, values: Mapping[str, Any]) -> pa.Array | pa.ChunkedArray:
    value = values.get(field.name)
    if isinstance(value, pa.Array | pa.ChunkedArray):
        return value.cast(field.type)
    return pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), count)


def to_table(facts: Sequence[Fact], operation: Operation) -> pa.Table:
    """The rows of one commit, in the order given."""
    if isinstance(facts, FactColumns):
        return facts.by(operation)
    columns: dict[str, list[Any]] = {name: [None] * len(facts) for name in SCHEMA.names}
    columns["operation_id"] = [operation.operation_id] * len(facts)
    columns["at"] = [operation.at] * len(facts)
    columns["by"] = [operation.by] * len(facts)
    for i, fact in enumerate(facts):
        columns["kind"][i] = fact.kind
        for name in _FIELDS[fact.kind]:
            columns[name][i] = getattr(fact, name)
    return pa.table([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


def from_table(table: pa.Table) -> Iterator[Fact]:
    """The facts of a table of the ledger, in its order.

    Raises:
        FormatError: a kind, purpose, status, scope or role that this version does not know. To pass over it would be to drop or delete
            without knowing a rule.
        DamagedLedgerError: a row lacks what its kind has to say.
    """
    for batch in table.to_batches():
        columns: dict[str, list[Any]] = {}
        for i, kind in enumerate(batch.column("kind").to_pylist()):
            cls = KINDS.get(kind)
            if cls is None:
                raise _unknown(batch, i, f"facts of kind {kind!r:.60}")
            values = {}
            for name in _FIELDS[kind]:
                if name not in columns:
                    columns[name] = batch.column(name).to_pylist()
                value = columns[name][i]
                if value is None:
                    if name in _REQUIRED[kind]:
                        raise _not_a_fact(kind, name)
                elif name in _ENUMS:
                    try:
                        value = _ENUMS[name](value)
                    except ValueError:
                        raise _unknown(batch, i, f"the {name} {value!r:.60} of a fact of kind {kind!r}") from None
                values[name] = value
            yield cls(**values)


def _unknown(batch: pa.RecordBatch, row: int, what: str) -> FormatError:
    by = f", which {batch.column('by')[row].as_py()!r:.100} wrote" if "by" in batch.schema.names else ""
    msg = (
        f"the ledger has {what}{by}, and Holdfast {VERSION} does not know what that means: use the newer Holdfast that wrote it. Nothing "
        "was changed"
    )
    return FormatError(msg)


def _not_a_fact(kind: str, name: str) -> DamagedLedgerError:
    msg = (
        f"the ledger has a fact of kind {kind!r} whose {name} is missing, which no version of Holdfast writes: restore the ledger "
        "from a copy, and see who writes to it"
    )
    return DamagedLedgerError(msg)
