"""What both uploaders ask of a DataFrame and add to it: its key groups and its row count."""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.catalog.errors import UsageError
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.catalog.state_schema import for_engine, parse_schema
from holdfast.writers.spark.file_jobs import COUNTED_ROWS
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.types import DataType, StructType

# What both uploaders bring back unchanged (their contract's test). Everything else is refused before a byte is written; so are char(n) and
# varchar(n), which Spark writes in some sessions and reads in none.
SUPPORTED_TYPES = frozenset(
    {"string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "date"}
    | {"timestamp", "timestamp_ntz", "daytimeinterval"}
)


BINARY_COLLATION = "UTF8_BINARY"
IS_WORD = re.compile("[A-Za-z0-9_]+").fullmatch
ROW_INDEX = "_tmp_metadata_row_index"  # Spark's Parquet reader without vectors fills a column of this name with numbers of rows


def require_frames(context: UploadContext, **given: object) -> None:
    """Raises UsageError for what is neither a DataFrame of Spark (Connect's are such) nor left out; says which argument."""
    from pyspark.sql import DataFrame

    for name, df in given.items():
        if not (isinstance(df, DataFrame) or (df is None and name in ("upserts", "deletes"))):
            kind = f"{type(df).__module__}.{type(df).__qualname__}".removeprefix("builtins.")
            msg = f"state {context.state!r}: {name} is a {kind}, not a DataFrame of Spark: give one, as spark.createDataFrame makes"
            raise UsageError(msg)


def keyed(df: "DataFrame", context: UploadContext) -> "DataFrame":
    """The DataFrame with each row's key group in its last column, int32, computed by the JVM; without key columns every row is in group 0.

    Raises:
        UsageError: the DataFrame cannot be a state; says which column and why.
    """
    from pyspark.sql import functions

    check_schema(df.schema, context.state, context.key_columns, is_streaming=df.isStreaming)
    if all(map(IS_WORD, context.key_columns)):  # as a text, since each part of a Column is some calls to the JVM
        hashed = f"pmod(hash({', '.join(map(quoted, context.key_columns))}), {context.max_parallelism})"
        return df.withColumn(KEY_GROUP_COLUMN, functions.expr(f"CAST({hashed if context.key_columns else 0} AS INT)"))
    keys = [functions.col(quoted(name)) for name in context.key_columns]
    group = functions.pmod(functions.hash(*keys), functions.lit(context.max_parallelism))
    return df.withColumn(KEY_GROUP_COLUMN, group.cast("int"))


def counted(frame: "DataFrame") -> "tuple[DataFrame, Observation]":
    """The DataFrame with a row count that the JVM takes in the very action that runs it, of the tasks that won."""
    from pyspark.sql import Observation, functions

    observation = Observation()
    return frame.observe(observation, functions.expr(f"count(1) AS {COUNTED_ROWS}")), observation


def with_word_names(frame: "DataFrame") -> "DataFrame":
    """The frame with names that mean themselves in the text of an expression, and to Arrow: its own, if all are words."""
    return frame if all(map(IS_WORD, frame.columns)) else with_plain_names(frame)


def with_plain_names(frame: "DataFrame") -> "DataFrame":
    """Columns named c0, c1, ...: Arrow's way out of Spark, and expressions that are a text, stumble over what may be in a user's names."""
    return frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])


def quoted(name: str) -> str:
    """A column's name as `functions.col` and `select` take it: the whole of it a name, whatever is in it.

    Not so in the text of an expression: Spark puts values in place of `${...}` before it parses that, and a setting
    (`spark.sql.parser.quotedRegexColumnNames`) makes such names patterns.
    """
    return "`" + name.replace("`", "``") + "`"


def has_columns_of(df: "DataFrame", schema: str) -> bool:
    """Whether the DataFrame has the columns of a state's schema: names, types and order; whether they allow nulls does not matter."""
    return [*_columns(df.schema).items()] == [*_columns(_parsed(schema)).items()]


def column_problems(df: "DataFrame", schema: str, only: Sequence[str] | None = None) -> Iterator[str]:
    """What keeps the DataFrame from having the columns of a state's schema, in any order, along with others; with `only`, just these."""
    wanted = {name: kind for name, kind in _columns(_parsed(schema)).items() if only is None or name in only}
    found = _columns(df.schema)
    for name, kind in wanted.items():
        if name not in found:
            yield f"there is no column {name!r} (the state has it, with type {kind})"
        elif df.columns.count(name) > 1:
            yield f"column {name!r} appears twice"
        elif found[name] != kind:
            yield f"column {name!r} has the type {found[name]}, and in the state {kind}: cast it"
    names = [name.lower() for name in df.columns]
    for name in found if only is None else ():
        if name not in wanted and names.count(name.lower()) > 1:
            yield f"column {name!r} appears twice (case does not tell columns apart)"


def widened(schema: str, df: "DataFrame") -> str:
    """A state's schema with the columns that the DataFrame has in addition; they may be null, as they are in all older rows."""
    from pyspark.sql.types import StructField, StructType

    fields = _parsed(schema).fields
    known = {field.name for field in fields}
    plain = StructType.fromJson(for_engine(df.schema.json()))
    added = [StructField(field.name, field.dataType, True, field.metadata) for field in plain.fields if field.name not in known]
    return StructType([*fields, *added]).json() if added else schema


def column_names(schema: str) -> list[str]:
    """The names of the columns of a state's schema, in their order."""
    return [*_columns(_parsed(schema))]


def _parsed(schema: str) -> "StructType":
    from pyspark.sql.types import StructType

    return StructType.fromJson(for_engine(schema))


def _columns(schema: "StructType") -> dict[str, str]:
    """The types by name; as text, for that says neither whether nulls are allowed nor what users note of a column."""
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def check_schema(schema: "StructType", state: str, key_columns: Sequence[str], *, is_streaming: bool = False) -> None:
    """Raises UsageError for a DataFrame of these columns that cannot be a state; says which column and why."""
    problems = ["a streaming DataFrame cannot be a state: write from foreachBatch"] if is_streaming else []
    problems += _schema_problems(schema, key_columns)
    if problems:
        msg = f"state {state!r}: {'; '.join(problems)}"
        raise UsageError(msg)


def _schema_problems(schema: "StructType", key_columns: Sequence[str]) -> Iterator[str]:
    columns = schema.names
    if not columns:
        yield "a DataFrame without columns cannot be a state"
    for name in columns:
        if name.lower() == KEY_GROUP_COLUMN:
            yield f"the column name {name!r} is Holdfast's own: rename the column"
        if name.lower() == ROW_INDEX:
            yield f"the column name {name!r} is Spark's own, and some of its readers put row numbers there: rename the column"
    yield from (problems := [*_problems("", schema)])
    if not problems and columns:
        try:
            parse_schema(schema.json())  # what is not refused here has to be read again
        except ValueError as error:
            yield str(error)
    if len(set(key_columns)) < len(key_columns):
        yield f"a key column is named twice in {', '.join(map(repr, key_columns))}"
    for name in key_columns:
        if name not in columns:
            yield f"there is no key column {name!r} among {', '.join(map(repr, columns))} (names are compared exactly)"
        elif columns.count(name) == 1 and (why := _unhashable(schema[name].dataType)):
            yield f"key column {name!r} has the type {schema[name].dataType.simpleString()}, and {why}"


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
        if not field.name:
            yield (
                f"column {inner!r} has a field without a name, to which other readers than Spark's give one: rename it"
                if name
                else ("a column has no name, and other readers than Spark's give it one: rename it")
            )
        if field.name.lower() in seen:
            yield f"column {inner!r} appears twice (case does not tell columns apart)"
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
