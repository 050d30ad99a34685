"""Digests of rows, taken by Spark in the JVM: of each key group in one pass, and of all that an action writes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.catalog.errors import UsageError
from holdfast.catalog.key_groups import KEY_GROUP_COLUMN
from holdfast.writers.spark.file_jobs import COUNTED_ROWS
from holdfast.writers.spark.frames import BINARY_COLLATION, quoted, with_word_names
from holdfast.writers.spark.group_digests import GroupDigest, signed, total
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import StructField

MARKS_IN_A_LONG = 31  # each has two bits
_NULL, _NEGATIVE_ZERO = 1, 2


def group_digests(frame: "DataFrame") -> dict[int, GroupDigest]:
    """The digest of each key group that has rows, of a frame as `keyed` gives it. Runs its plan once."""
    named = with_word_names(frame)
    hashed = named.selectExpr(f"{named.columns[-1]} AS {KEY_GROUP_COLUMN}", f"{_user_hash(named, frame)} AS hash")
    found = hashed.groupBy(KEY_GROUP_COLUMN).agg(*_aggregates("hash")).collect()
    return {row[KEY_GROUP_COLUMN]: _digest(row) for row in found}


def digested(frame: "DataFrame") -> "tuple[DataFrame, Observation]":
    """The frame, with the digest (and so the count) of its rows taken in the very action that runs it, of the tasks that won."""
    from pyspark.sql import Observation

    observation = Observation()
    named = with_word_names(frame)
    observed = named.observe(observation, *_aggregates(_user_hash(named, frame)))
    return observed if named is frame else observed.toDF(*frame.columns), observation


def _user_hash(named: "DataFrame", frame: "DataFrame") -> str:
    return row_hash([field for field, name in zip(named.schema.fields, frame.columns, strict=True) if name != KEY_GROUP_COLUMN])


def require_same_rows(observation: "Observation", expected: Iterable[GroupDigest], context: UploadContext) -> None:
    """Raises UsageError unless what was written are the rows whose digests were taken before."""
    written, before = _digest(observation.get), total(expected)
    if written != before:
        msg = (
            f"{context.label}: its DataFrame gave {before.rows} rows to digest "
            f"and, run again, {written.rows} rows to write, and they are not the same: nothing was acknowledged. Random values, the "
            "current time and ties make a plan say one thing now and another then: cache it first, or write it to a table"
        )
        raise UsageError(msg)


def refuse_nested(df: "DataFrame", context: UploadContext) -> None:
    """Raises UsageError, which names them, if there are columns of which no digest tells all."""
    nested = [f"{field.name!r} ({field.dataType.simpleString()})" for field in df.schema.fields if field.dataType.typeName() in _NESTED]
    if nested:
        msg = (
            f"state {context.state!r} cannot be written by mode='changed-groups': Spark's hash does not tell all values of the nested "
            f"columns {', '.join(nested)} apart; write it with mode='full', or its changes with write_changes"
        )
        raise UsageError(msg)


_NESTED = frozenset({"array", "map", "struct"})


def row_hash(fields: Sequence["StructField"]) -> str:
    """A 64-bit hash of these columns of a row, whose names are words, as an expression: it tells all values apart that are written.

    Spark's hash passes over nulls, takes -0.0 for 0.0, and texts that are equal in a collation for the same. So a mark is hashed for
    each column as well, and texts of collations as their bytes. A text for Spark's parser, since a Column for each part is some calls to
    the JVM, which are a sixth of the time of ten million rows.
    """
    marks = (_marks(fields[i : i + MARKS_IN_A_LONG]) for i in range(0, len(fields), MARKS_IN_A_LONG))
    return f"xxhash64({', '.join([*map(_value, fields), *marks])})"


def _value(field: "StructField") -> str:
    from pyspark.sql.types import StringType

    is_collated = isinstance(field.dataType, StringType) and field.dataType.collation != BINARY_COLLATION
    return f"CAST({quoted(field.name)} AS BINARY)" if is_collated else quoted(field.name)


def _marks(fields: Sequence["StructField"]) -> str:
    """What the hash does not tell of these values, two bits of each in one long: one value to hash in place of many.

    Of most rows there is nothing to tell, which is asked first: a quarter of the whole digest's time.
    """
    packed = " | ".join(_mark(field, 2 * i) for i, field in enumerate(fields))
    return f"CASE WHEN {' AND '.join(map(_is_told, fields))} THEN 0L ELSE {packed} END"


def _is_told(field: "StructField") -> str:
    """Whether the hash tells all of the value. Null, where it is not known: then the mark says."""
    name = quoted(field.name)
    return f"{name} != 0.0D" if _is_floating(field) else f"{name} IS NOT NULL"


def _mark(field: "StructField", shift: int) -> str:
    """Whether the schema allows nulls does not matter: it differs between plans."""
    name = quoted(field.name)
    # Equality first: it is asked of zeros only whether their text has a sign.
    negative = f"WHEN {name} = 0.0D AND CAST({name} AS STRING) = '-0.0' THEN {_NEGATIVE_ZERO << shift}L " if _is_floating(field) else ""
    return f"CASE WHEN {name} IS NULL THEN {_NULL << shift}L {negative}ELSE 0L END"


def _is_floating(field: "StructField") -> bool:
    return field.dataType.typeName() in ("float", "double")


def _aggregates(hashed: str) -> list["Column"]:
    """Count, sum and xor; the sum in two halves, which cannot overflow: in ANSI mode that is an error."""
    from pyspark.sql import functions

    texts = {
        COUNTED_ROWS: "count(1)",
        "high": f"sum(shiftright({hashed}, 32))",
        "low": f"sum({hashed} & {0xFFFFFFFF}L)",
        "xor": f"bit_xor({hashed})",
    }
    return [functions.expr(text).alias(name) for name, text in texts.items()]


def _digest(found: Any) -> GroupDigest:
    """From a row, or an observation, of the aggregates; all but the count of no rows are null."""
    return GroupDigest(int(found[COUNTED_ROWS]), signed(((found["high"] or 0) << 32) + (found["low"] or 0)), found["xor"] or 0)
