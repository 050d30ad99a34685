"""Write the golden files of the current manifest format, once: `python -m tests.golden.make`. What is there is never written again.

`format-<n>/` has a savepoint and an exported checkpoint of one job, and in `expected.json` what both must give: rows that were put
together here from what the job was given, and are not what Holdfast read back.
"""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import holdfast
from holdfast.catalog.manifest import MANIFEST_FORMAT
from holdfast.catalog.types import INLINE_LIMIT_BYTES
from tests.support.spark_support import build_session, session_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = Path(__file__).parent
JOB = NAME = "golden"
EVERY_TYPE, KEY = "every_type", ("name", "number")
NO_LIMIT = holdfast.ChainLimit(change_sets=1000, share_of_base=1e9)

# In the savepoint, row groups of a few rows and files of half the key groups each, as large states have them.
LIKE_LARGE = {
    "parquet.block.row.count.limit": "6",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

ROWS = """
    SELECT 'N' || id % 5 AS name, id AS number, {text} AS text, cast(id % 2 = 0 AS boolean) AS boolean, cast(id AS byte) AS byte,
        cast(-id AS short) AS short, cast(id * 1000 AS int) AS integer, cast(id / 3 AS float) AS float, id / 7 AS double,
        cast(cast(id AS string) AS binary) AS binary, cast(id * 1.25 AS decimal(9, 2)) AS decimal,
        cast(id * 12345678901234567890.123 AS decimal(38, 3)) AS wide, date_add(DATE'2013-01-01', cast(id AS int)) AS date,
        timestamp_micros(1356998400000001 + id * 3600000000) AS timestamp, TIMESTAMP_NTZ'2013-01-01 05:15:00.25' + INTERVAL '1' DAY * id AS ntz,
        INTERVAL '1 02:03:04.000005' DAY TO SECOND * id AS duration, array(id, null, -id) AS array,
        named_struct('a', cast(id AS int), 'at', timestamp_micros(id)) AS struct, map('k', array(id), 'n', null) AS map
    FROM range({first}, {end})
"""
EDGES = """
    UNION ALL SELECT null, 100, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
    UNION ALL SELECT 'é''"', null, '', true, 127Y, 32767S, 2147483647, float('NaN'), double('-0.0'), X'', 9999999.99BD,
        cast('99999999999999999999999999999999999.999' AS decimal(38, 3)), DATE'0001-01-01', TIMESTAMP'1500-03-01 12:34:56.789012',
        TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', INTERVAL '0' DAY, array(), named_struct('a', null, 'at', null), map()
    UNION ALL SELECT '', -9223372036854775808L, 'a\\nb', false, -128Y, -32768S, -2147483648, float('-Infinity'), 4.9E-324D, X'00ff', -0.01BD,
        cast('-99999999999999999999999999999999999.999' AS decimal(38, 3)), DATE'9999-12-31', TIMESTAMP'2262-04-12 00:00:00',
        TIMESTAMP_NTZ'0001-01-01 00:00:00', INTERVAL '-1' DAY, array(null), named_struct('a', -1, 'at', TIMESTAMP'1969-12-31 23:59:59.999999'),
        map('', array())
"""
GROUPED = "SELECT 'A' || id AS code, CASE id WHEN {old} THEN null WHEN {new} THEN -1 ELSE id END AS flights FROM range(24)"


def main() -> None:
    """Raises FileExistsError where the current format has its golden files."""
    target = GOLDEN / f"format-{MANIFEST_FORMAT}"
    if target.exists():
        msg = f"{target} is there, and golden files are never written again: they are what that version wrote"
        raise FileExistsError(msg)
    spark = build_session("local[2]")
    with tempfile.TemporaryDirectory() as directory, session_settings(spark, {"spark.sql.session.timeZone": "UTC"}):
        expected = write(spark, Path(directory))
        made = Path(directory) / "made"
        (made / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")
        shutil.copytree(made, target)
    spark.stop()
    print(f"{target}: {sum(path.stat().st_size for path in target.rglob('*') if path.is_file())} bytes")


def write(spark: "SparkSession", directory: Path) -> dict[str, Any]:
    """Write `made/savepoint` and `made/export` in the directory; what both must give."""
    model: dict[str, Any] = {}
    with holdfast.open(directory / "catalog", create=True) as catalog:
        with _job(catalog, "native") as job, job.checkpoint({"week": 1}) as checkpoint:
            _first(spark, checkpoint, model)
        with _job(catalog, "streamed") as job:
            with job.checkpoint({"week": 2}) as checkpoint:
                _second(spark, checkpoint, model)
            with job.checkpoint({"week": 3, "sources": ["a", None, 1.5]}) as checkpoint:
                _third(spark, checkpoint, model)
        exported = catalog.checkpoint(JOB)
        catalog.export(exported, directory / "made" / "export")
        with session_settings(spark, LIKE_LARGE):
            savepoint = catalog.savepoint(JOB, NAME, target=directory / "savepoints", spark=spark)
        shutil.copytree(savepoint.path, directory / "made" / "savepoint")
        expected = {"job": JOB, "max_parallelism": 16, "progress": {"week": 3, "sources": ["a", None, 1.5]}, "states": _states(model)}
        for kept in (exported, savepoint):
            assert facts_of(kept) == expected, f"what Holdfast reads of {kept!r} is not what was written"
    return expected


def _job(catalog: holdfast.Catalog, upload: Any) -> holdfast.Coordinator:
    return catalog.coordinate(JOB, max_parallelism=16, chain=NO_LIMIT, upload=upload)


def _first(spark: "SparkSession", checkpoint: holdfast.CheckpointWriter, model: dict[str, Any]) -> None:
    """A base of every state, by Spark's own writer."""
    base = spark.sql(ROWS.format(text="'first'", first=0, end=20) + EDGES).coalesce(1)
    checkpoint.write(EVERY_TYPE, base, key=KEY)
    model[EVERY_TYPE] = _by_key(base, KEY)
    _write_groups(checkpoint, spark.sql(GROUPED.format(old=-1, new=-1)), model)
    checkpoint.write_bytes("small", b"\x00offsets\xff")
    large = bytes(range(256)) * (INLINE_LIMIT_BYTES // 256 + 1)
    checkpoint.write_bytes("large", large)
    model["small"], model["large"] = b"\x00offsets\xff", large


def _second(spark: "SparkSession", checkpoint: holdfast.CheckpointWriter, model: dict[str, Any]) -> None:
    """A change set, key groups that differ, and a state without a key by streams."""
    upserts = spark.sql(ROWS.format(text="'second'", first=18, end=23)).coalesce(1)
    _write_changes(spark, checkpoint, upserts, "('N0', 0L), ('N1', 1L), (null, 100L), ('none', 7L)", model)
    _write_groups(checkpoint, spark.sql(GROUPED.format(old=3, new=9)), model)
    log = spark.sql("SELECT id % 3 AS n, 'line' AS text FROM range(0, 7, 1, 2)")
    checkpoint.write("no_key", log)
    model["no_key"] = rows_of(log.toArrow())


def _third(spark: "SparkSession", checkpoint: holdfast.CheckpointWriter, model: dict[str, Any]) -> None:
    """A change set that brings a deleted key back and changes what the last one changed; key groups that lose all their rows."""
    upserts = spark.sql(ROWS.format(text="'third'", first=0, end=1) + " UNION ALL " + ROWS.format(text="null", first=22, end=23)).coalesce(
        1
    )
    _write_changes(spark, checkpoint, upserts, "('N4', 19L), ('N2', 2L), (null, 5L)", model)
    left = "id NOT IN (7, 17)"  # all of a key group
    _write_groups(checkpoint, spark.sql(f"{GROUPED.format(old=3, new=-1)} WHERE {left}"), model)


def _write_changes(
    spark: "SparkSession", checkpoint: holdfast.CheckpointWriter, upserts: "DataFrame", gone: str, model: dict[str, Any]
) -> None:
    deletes = spark.sql(f"SELECT * FROM VALUES {gone} AS t({', '.join(KEY)})")
    checkpoint.write_changes(EVERY_TYPE, upserts, deletes, key=KEY)
    lost = _by_key(deletes, KEY)
    kept = {key: row for key, row in model[EVERY_TYPE].items() if key not in lost}
    model[EVERY_TYPE] = kept | _by_key(upserts, KEY)


def _write_groups(checkpoint: holdfast.CheckpointWriter, rows: "DataFrame", model: dict[str, Any]) -> None:
    checkpoint.write("by_groups", rows, key=["code"], mode="changed-groups")
    model["by_groups"] = _by_key(rows, ["code"])


def _by_key(rows: "DataFrame", key: Sequence[str]) -> dict[tuple, Any]:
    return {tuple(row[name] for name in key): row for row in rows_of(rows.toArrow())}


def _states(model: Mapping[str, Any]) -> dict[str, Any]:
    """The states as `facts_of` says them, from what the job was given."""
    keys = {EVERY_TYPE: [*KEY], "by_groups": ["code"]}
    states = {}
    for name, given in sorted(model.items()):
        if isinstance(given, bytes):
            states[name] = {"format": "bytes", "key_columns": [], "content": plain_bytes(given)}
        else:
            rows = in_order(given.values() if isinstance(given, dict) else given)
            states[name] = {"format": "parquet", "key_columns": keys.get(name, []), "content": rows}
    return states


# ---- content as plain values, from whatever read it ------------------------------------------------------------------------


def facts_of(checkpoint: holdfast.Checkpoint) -> dict[str, Any]:
    """What `expected.json` says, of a checkpoint as Holdfast opens it; no Spark is needed."""
    manifest = checkpoint.manifest
    states = {}
    for info in sorted(manifest.states, key=lambda info: info.state):
        is_bytes = info.format == "bytes"
        content: Any = plain_bytes(checkpoint.read_bytes(info.state)) if is_bytes else duckdb_rows(checkpoint, info.state)
        states[info.state] = {"format": info.format, "key_columns": [*info.key_columns], "content": content}
    return {"job": checkpoint.job, "max_parallelism": manifest.max_parallelism, "progress": checkpoint.progress, "states": states}


def duckdb_rows(checkpoint: holdfast.Checkpoint, state: str) -> list[dict[str, Any]]:
    """A state's rows by DuckDB, in order."""
    return rows_of(checkpoint.duckdb(state).to_arrow_table())


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as JSON holds them, in order."""
    return in_order({name: _plain(value) for name, value in row.items()} for row in table.to_pylist())


def in_order(rows: Any) -> list[dict[str, Any]]:
    """Rows sorted by their text."""
    return sorted(rows, key=json.dumps)


def plain_bytes(data: bytes) -> dict[str, Any]:
    """Bytes by their digest, and themselves if they are few."""
    return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), "hex": data.hex() if len(data) < 100 else None}


def _plain(value: Any) -> Any:
    """Numbers that JSON lacks and times as text, durations in microseconds, maps as sorted pairs."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return sorted(items) if value and isinstance(value[0], tuple) else items
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    return value.isoformat() if isinstance(value, date) else value


if __name__ == "__main__":
    try:
        main()
    except FileExistsError as error:
        sys.exit(str(error))
