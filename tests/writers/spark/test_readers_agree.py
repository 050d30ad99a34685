"""Every reader gives the same rows: Spark with vectors and without, DuckDB, `format("holdfast")`, and pyarrow over the bare files.

Over all types of a state, whatever settings of the session change what Spark's own Parquet writer or reader means. A few wide frames, and
not a Spark job for each type: a batch of settings is one write, and a reading of it by each reader.
"""

from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import data_source
from holdfast.catalog.errors import RefusedError
from holdfast.catalog.file_checks import rows_of
from holdfast.catalog.murmur3 import key_group_of
from holdfast.catalog.types import Role
from holdfast.compaction.verify import run_verify
from holdfast.writers.parquet.duckdb_read import read_duckdb
from holdfast.writers.parquet.report import state_info
from holdfast.writers.spark import native
from holdfast.writers.spark.frames import widened
from holdfast.writers.spark.native import NativeUploader
from holdfast.writers.spark.read import read_state, state_schema
from holdfast.writers.spark.streamed import StreamedUploader
from holdfast.writers.upload import chunks_of
from tests.support.spark_support import context_for, file_rows, new_storage, session_settings

pytestmark = pytest.mark.usefixtures("keeps_change_sets")

M = 16
DIGITS = (1, 9, 10, 18, 19, 28, 29, 37, 38)
TIMES = (  # around what calendars, zones and clocks tell apart; in UTC
    "0001-01-01 00:00:00", "0004-02-29 12:00:00", "1000-01-01 00:00:00", "1200-02-29 23:59:59.999999", "1500-06-01 00:00:00",
    "1582-10-04 23:59:59", "1582-10-15 00:00:00", "1850-01-01 00:00:00.000001", "1883-11-18 12:03:58", "1899-12-31 23:59:59.999999",
    "1900-01-01 00:00:00", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2013-03-31 02:30:00", "2262-04-12 00:00:00",
    "9999-12-31 00:00:00",
)  # fmt: skip
SAME = {"spark.sql.session.timeZone": "UTC"}
OLD = {f"spark.sql.parquet.{name}RebaseModeIn{way}": "LEGACY" for name in ("datetime", "int96") for way in ("Read", "Write")}
ODD = {
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.writeLegacyFormat": "true",
    "spark.sql.parquet.compression.codec": "lz4",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.fieldId.write.enabled": "true",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "true",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.parquet.recordLevelFilter.enabled": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.caseSensitive": "true",
    "spark.sql.ansi.enabled": "false",
}
SESSIONS = {
    "plain": SAME,
    "old calendar": {**OLD, "spark.sql.session.timeZone": "Europe/Paris"},
    "odd": {**ODD, **OLD},
    "millis": {**SAME, "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS", "spark.sql.parquet.compression.codec": "zstd"},
    "exceptions": {**SAME, **dict.fromkeys(OLD, "EXCEPTION")},
}


def wide_frame(spark, ids=range(len(TIMES))):
    """A column for each type, with rows at its edges and a null in each; names that somebody's parser trips over."""
    from pyspark.sql import functions as F

    at = F.element_at(F.array(*map(F.lit, TIMES)), (F.col("id") % len(TIMES) + 1).cast("int"))
    instant = F.concat(at, F.lit("+00:00")).cast("timestamp_ltz")
    number = F.when(F.col("id") % 2 == 0, F.lit(-1)).otherwise(F.lit(1))
    decimals = [
        F.when(
            F.col("id") % 5 != 4,
            F.concat(F.when(number < 0, "-").otherwise(""), F.repeat(F.lit("9"), digits - 1), (F.col("id") % 10).cast("string")),
        )
        .cast(f"decimal({digits},0)")
        .alias(f"decimal {digits}")
        for digits in DIGITS
    ]
    frame = spark.createDataFrame([(i,) for i in ids], "id long")
    columns = [
        F.col("id"),
        instant.alias("Größe, ;{}()= at"),
        F.to_date(F.substring(at, 1, 10)).alias("d.a`te"),
        at.cast("timestamp_ntz").alias('n"tz'),
        *decimals,
        (F.col("id") * number).cast("byte").alias("byte"),
        (F.col("id") * number * 1000).cast("short").alias("short"),
        (F.col("id") * number * 100_000).cast("int").alias("int"),
        F.when(F.col("id") % 4 == 0, F.lit(float("nan")))
        .when(F.col("id") % 4 == 1, F.lit(-0.0))
        .otherwise(F.col("id") / 3)
        .alias("double"),
        F.when(F.col("id") % 4 == 0, F.lit(float("-inf"))).otherwise(F.col("id") / 3).cast("float").alias("float"),
        (F.col("id") % 3 == 0).alias("boolean"),
        F.when(F.col("id") % 3 != 0, F.concat(F.lit("é\n\x00'"), F.col("id"))).alias("string"),
        F.when(F.col("id") % 3 != 0, F.unhex(F.lit("00ff27"))).alias("binary"),
        F.expr("make_dt_interval(id, 1, 2, 3.000005) * if(id % 2 = 0, -1, 1)").alias("interval"),
        F.struct(instant.alias("t"), F.to_date(F.substring(at, 1, 10)).alias("d"), decimals[-1].alias("n")).alias("struct"),
        F.array(instant, F.lit(None)).alias("times"),
        F.create_map(F.lit("k"), F.array(F.struct(decimals[4].alias("n"), F.lit(None).cast("string").alias("x")))).alias("map"),
    ]
    return frame.select(*columns)


KEY = ("decimal 38", "decimal 29", "d.a`te", "Größe, ;{}()= at", 'n"tz', "struct", "interval", "float", "double", "binary", "string", "id")


class Kept:
    """A state that a uploader wrote, in layers, and the rows of it by each reader; as Arrow tables in one schema."""

    def __init__(self, spark, storage):
        self.spark, self.storage, self.acks, self.info = spark, storage, [], None

    def write(self, uploader, df, layer=0, role=Role.BASE):
        context = context_for(self.storage, key=KEY, call=layer, layer=layer, role=role, max_parallelism=M)
        acks = uploader.write(df, context)
        self.acks += acks
        if self.info is None:
            self.info = state_info(df, context, acks)
        else:
            self.info = replace(self.info, schema=widened(self.info.schema, df), rows=None)
        self.chunks, self.files = chunks_of(self.acks), file_rows(self.acks)

    @property
    def schema(self):
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(state_schema(self.info), timezone="UTC")

    def by_spark(self, **settings):
        with session_settings(self.spark, settings):
            frame = read_state(self.spark, self.storage, self.info, self.chunks, self.files, max_parallelism=M)
            return frame.toArrow()

    def by_duckdb(self):
        return read_duckdb(self.storage, self.info, self.chunks, self.files, max_parallelism=M).to_arrow_table()

    def by_format(self, monkeypatch, partitions):
        monkeypatch.setattr(data_source, "PARTITION_BYTES", sum(size for _, size, _ in self.files.values()) // partitions)
        found = data_source.FoundState(
            catalog=self.storage, storage=self.storage, what="the state", ref=None, info=self.info, schema=state_schema(self.info),
            chunks=tuple(self.chunks), files=self.files, max_parallelism=M,
        )  # fmt: skip
        reader = data_source.SourceReader(found, found.schema)
        return pa.Table.from_batches([batch for share in reader.partitions() for batch in reader.read(share)], self.schema)

    def by_pyarrow(self):
        """The bare files: of a base alone."""
        tables = [pq.read_table(f"{self.storage.address}/{path}", partitioning=None) for path, _, _ in self.files.values()]
        return pa.concat_tables(tables)

    def texts(self, table):
        """Each row as text, exact; in the state's own types."""
        rows = pa.table(
            [column.cast(kind) for column, kind in zip((table[name] for name in self.schema.names), self.schema.types, strict=True)],
            self.schema,
        )
        return sorted(map(repr, rows.to_pylist()))


@contextmanager
def written(spark, tmp_path, session, native=True, ids=range(len(TIMES))):
    kept = Kept(spark, new_storage(tmp_path / "catalog"))
    uploader = NativeUploader() if native else StreamedUploader()
    with session_settings(spark, SESSIONS[session]):
        kept.write(uploader, wide_frame(spark, ids).coalesce(1))
        yield kept


@pytest.mark.parametrize(
    ("session", "native"),
    [
        ("odd", True),
        *[
            pytest.param(name, native, marks=pytest.mark.slow)
            for name in SESSIONS
            for native in (True, False)
            if (name, native) != ("odd", True)
        ],
    ],
)
def test_all_readers_give_the_rows_that_were_written(spark, tmp_path, monkeypatch, session, native):
    with session_settings(spark, SAME):
        expected = wide_frame(spark).toArrow()
    with written(spark, tmp_path, session, native) as kept:
        right = kept.texts(expected)
        found = {
            "vectors": kept.by_spark(),
            "no vectors": kept.by_spark(**{"spark.sql.parquet.enableVectorizedReader": "false"}),
            "duckdb": kept.by_duckdb(),
            "format": kept.by_format(monkeypatch, 1),
            "pyarrow": kept.by_pyarrow(),
        }
        for name, table in found.items():
            assert kept.texts(table) == right, name
        groups = kept.by_pyarrow()
        assert key_group_of([groups[name] for name in KEY], M).to_pylist() == groups["_key_group"].to_pylist()
    with session_settings(spark, SAME):
        assert kept.texts(kept.by_spark()) == right, "nor does the session that reads matter"


@pytest.mark.parametrize("session", ["odd", pytest.param("plain", marks=pytest.mark.slow)])
def test_all_readers_agree_over_change_sets_that_widen_the_state(spark, tmp_path, monkeypatch, session):
    """A default of a table's column is not put into rows from before the column; nor is one missing where no row is changed."""
    from pyspark.sql import functions as F

    notes = {
        "EXISTS_DEFAULT": "7",
        "CURRENT_DEFAULT": "7",
        "parquet.field.id": 9,
        "__CHAR_VARCHAR_TYPE_STRING": "char(9)",
        "comment": "mine",
    }
    with written(spark, tmp_path, session) as kept:
        changed = wide_frame(spark, [3]).select("*", F.lit("new").alias("more", metadata=notes))
        kept.write(StreamedUploader(), changed, layer=1, role=Role.UPSERTS)
        assert '"metadata":{"comment":"mine"}' in kept.info.schema
        kept.info = replace(kept.info, schema=changed.schema.json())  # as Holdfast 0.1.0 left it
        assert state_schema(kept.info)["more"].metadata == {"comment": "mine"}
        right = kept.texts(kept.by_duckdb())
        assert sum("'more': 'new'" in row for row in right) == 1
        assert sum("'more': None" in row for row in right) == len(TIMES) - 1
        for vectors in ("true", "false"):
            assert kept.texts(kept.by_spark(**{"spark.sql.parquet.enableVectorizedReader": vectors})) == right
        for partitions in (1, 5):
            assert kept.texts(kept.by_format(monkeypatch, partitions)) == right


def test_files_in_the_old_calendar_are_refused_by_all_but_spark(spark, tmp_path, monkeypatch):
    """And found by verify. Holdfast 0.1.0 wrote so in a session with LEGACY; DuckDB and format("holdfast") gave other days."""
    for name in ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite"):
        monkeypatch.delitem(native.WRITE_SETTINGS, name)
    ids = [i for i, time in enumerate(TIMES) if not time.startswith("1582-10-04")]  # a day that the old calendar does not have
    with written(spark, tmp_path, "old calendar", ids=ids) as kept:
        with session_settings(spark, SAME):
            expected = kept.texts(wide_frame(spark, ids).toArrow())
        assert kept.texts(kept.by_spark()) == expected
        for read in (kept.by_duckdb, lambda: kept.by_format(monkeypatch, 1)):
            with pytest.raises(RefusedError, match=r"datetimeRebaseModeInWrite=LEGACY.*write it in full: checkpoint.write\("):
                read()
        rows = {path: rows_of(kept.info, M, "the state") for path, _, _ in kept.files.values()}
        report = run_verify(1, [file for ack in kept.acks for file in ack.files], kept.storage, rows=rows)
        assert ["LEGACY" in damage.what for damage in report.damages] == [True]
