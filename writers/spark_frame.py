"""What both vehicles ask of a DataFrame and add to it: its key groups and its row count."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.catalog.errors import UsageError
from holdfast.writers.spark_files import COUNTED_ROWS
from holdfast.writers.upload import KEY_GROUP_COLUMN, UploadContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import DataType, StructType

# What both vehicles bring back unchanged (their contract's test). Everything else is refused before a byte is written.
SUPPORTED_TYPES = frozenset(
    {"string", "char", "varchar", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "date"}
    | {"timestamp", "timestamp_ntz", "daytimeinterval"}
)

BINARY_COLLATION = "UTF8_BINARY"


def keyed(df: "DataFrame", context: UploadContext) -> "DataFrame":
    """The DataFrame with each row's key group in its last column, int32, computed by the JVM; without key columns every row is in group 0.

    Raises:
        UsageError: the DataFrame cannot be a state; says which column and why.
    """
    from pyspark.sql import functions

    _check_frame(df, context)
    group: Column = functions.lit(0)
    if context.key_columns:
        keys = [functions.col(_quoted(name)) for name in context.key_columns]
        group = functions.pmod(functions.hash(*keys), functions.lit(context.max_parallelism))
    return df.withColumn(KEY_GROUP_COLUMN, group.cast("int"))


def counted(frame: "DataFrame") -> "tuple[DataFrame, Observation]":
    """The DataFrame with a row count that the JVM takes in the very action that runs it, of the tasks that won."""
    from pyspark.sql import Observation, functions

    observation = Observation()
    return frame.observe(observation, functions.count(functions.lit(1)).alias(COUNTED_ROWS)), observation


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _check_frame(df: "DataFrame", context: UploadContext) -> None:
    if problems := [*_frame_problems(df, context.key_columns)]:
        msg = f"state {context.state!r}: {'; '.join(problems)}"
        raise UsageError(msg)


def _frame_problems(df: "DataFrame", key_columns: Sequence[str]) -> Iterator[str]:
    if df.isStreaming:
        yield "a streaming DataFrame cannot be a state: write from foreachBatch"
    if not df.columns:
        yield "a DataFrame without columns cannot be a state"
    for name in df.columns:
        if name.lower() == KEY_GROUP_COLUMN:
            yield f"the column name {name!r} is Holdfast's own: rename the column"
    yield from _problems("", df.schema)
    if len(set(key_columns)) < len(key_columns):
        yield f"a key column is named twice in {', '.join(map(repr, key_columns))}"
    for name in key_columns:
        if name not in df.columns:
            yield f"there is no key column {name!r} among {', '.join(map(repr, df.columns))} (names are compared exactly)"
        elif df.columns.count(name) == 1 and (why := _unhashable(df.schema[name].dataType)):
            yield f"key column {name!r} has the type {df.schema[name].dataType.simpleString()}, and {why}"


def _problems(name: str, dtype: "DataType") -> Iterator[str]:
    """Why the types within a column cannot be written or read back."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(dtype, StructType):
        yield from _struct_problems(name, dtype)
    elif isinstance(dtype, ArrayType):
        yield from _problems(f"{name}.element", dtype.elementType)
    elif isinstance(dtype, MapType):
        yield from _problems(f"{name}.key", dtype.keyType)
        yield from _problems(f"{name}.value", dtype.valueType)
    elif dtype.typeName() not in SUPPORTED_TYPES:
        yield f"column {name!r} has the type {dtype.simpleString()}, which a state cannot hold: cast it"


def _struct_problems(name: str, struct: "StructType") -> Iterator[str]:
    if name and not struct.fields:
        yield f"column {name!r} is a struct without fields, which Parquet does not have"
    seen = set()
    for field in struct.fields:
        inner = f"{name}.{field.name}" if name else field.name
        if field.name.lower() in seen:
            yield f"column {inner!r} is there twice (case does not tell columns apart)"
        seen.add(field.name.lower())
        yield from _problems(inner, field.dataType)


def _unhashable(dtype: "DataType") -> str | None:
    """Why values of the type that are equal may have different hashes, or none."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructType

    if isinstance(dtype, StructType):
        return next((why for field in dtype.fields if (why := _unhashable(field.dataType))), None)
    if isinstance(dtype, ArrayType):
        return _unhashable(dtype.elementType)
    if isinstance(dtype, MapType):
        return "a map has no hash"
    if isinstance(dtype, StringType) and dtype.collation != BINARY_COLLATION:
        return f"equal texts of the collation {dtype.collation} have different hashes: use {BINARY_COLLATION}"
    return None
