"""The native uploader: Spark's own Parquet writer, then a step over the files that it made: the default where all hosts share them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.catalog.environment import Environment, SystemEnvironment
from holdfast.catalog.errors import AlreadyExistsError, CorruptionError
from holdfast.catalog.paths import native_directory
from holdfast.catalog.storage import Storage, StoredObject
from holdfast.catalog.types import Ack
from holdfast.writers.parquet.report import acks_for, milliseconds
from holdfast.writers.spark.file_jobs import require_all_rows, require_root_on_executors, seal
from holdfast.writers.spark.frames import counted, keyed
from holdfast.writers.spark.partitioning import arranged
from holdfast.writers.spark.session import STOCK_COMMIT, refuse_own_committer, settings, spark_url
from holdfast.writers.spark.sort_time import timed_sort_of_savepoint
from holdfast.writers.upload import SAVEPOINT_ROW_GROUP_BYTES, UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Per write, so that no setting of the session or the cluster matters.
WRITE_OPTIONS = {
    # Version 2 moves each task's files at once: a failed write leaves them next to its retry's.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "parquet.summary.metadata.level": "NONE",
    # Hadoop's other local file system leaves a .crc next to every file.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
# Only the session can set these. Other readers than Spark's must find the same values, so that a file says all that it means.
WRITE_SETTINGS = {
    # Spark's default, INT96, wraps around in readers that count nanoseconds and has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Old dates in the old calendar are told by a note in the footer, which no other reader knows; EXCEPTION would refuse them.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    # Lists and decimals as Spark 1 and Hive wrote them.
    "spark.sql.parquet.writeLegacyFormat": "false",
}
CODEC = "spark.sql.parquet.compression.codec"  # the user's own, but for Hadoop's framing of LZ4, which DuckDB does not read


@dataclass(frozen=True, slots=True)
class NativeUploader:
    """Writes with `df.write.parquet` into the write call's own directory: near Spark's own speed."""

    environment: Environment = field(default_factory=SystemEnvironment)

    def write(self, df: "DataFrame", context: UploadContext) -> list[Ack]:
        """Upload every row once; see `Uploader`. One ack for each file.

        Raises:
            UsageError: the DataFrame cannot be a state.
            UnsafeSettingsError: the session cannot be made to commit files in Spark's stock way, or its hosts do not share the file system.
            AlreadyExistsError: the write call's directory is there already.
            AddressError: a host does not see the catalog.
            CorruptionError: the files are not the whole of what Spark wrote.
        """
        frame, observation = counted(arranged(keyed(df, context), context))
        refuse_own_committer(df.sparkSession)
        context.storage.require_root()  # Spark would make a missing one
        directory = _directory(context)
        started = self.environment.monotonic_s()
        with timed_sort_of_savepoint(df.sparkSession, context, self.environment) as sort:
            _write_parquet(frame, context, directory)
        upload_ms = milliseconds(started, self.environment)
        reports = seal(df.sparkSession, context.storage, _part_files(context.storage, directory), self.environment)
        try:
            require_all_rows(reports, observation, context)
        except CorruptionError:
            require_root_on_executors(df.sparkSession, context.storage)
            raise
        return acks_for(reports, context, upload_ms=upload_ms, sort_ms=sort.ms)


def _directory(context: UploadContext) -> str:
    if context.directory is not None:
        return f"{context.directory}/{context.call}"
    return native_directory(context.job_id, context.metadata.checkpoint_id, context.attempt, context.call)


def _write_parquet(frame: "DataFrame", context: UploadContext, directory: str) -> None:
    from pyspark.errors import AnalysisException

    writer = frame.write.mode("error").options(**WRITE_OPTIONS)
    if str(frame.sparkSession.conf.get(CODEC, None)).lower() == "lz4":
        writer = writer.option("compression", "lz4_raw")
    if context.metadata.is_savepoint:
        writer = writer.option("parquet.block.size", SAVEPOINT_ROW_GROUP_BYTES)
    try:
        with settings(frame.sparkSession, {**WRITE_SETTINGS, **STOCK_COMMIT}):
            writer.parquet(spark_url(context.storage, directory))
    except AnalysisException as error:
        if error.getCondition() != "PATH_ALREADY_EXISTS":
            raise
        msg = (
            f"{directory} in {context.storage.address} exists already: a write call has a directory of its own, and this one is left over "
            "from an earlier write of the same attempt; abort the attempt and write in a new one"
        )
        raise AlreadyExistsError(msg) from error


def _part_files(storage: Storage, directory: str) -> list[StoredObject]:
    """The files of the tasks that won: the committer moved them, and nothing else, to the top of the directory.

    What is below `_temporary` belongs to tasks that lost and may still be writing: it is never acknowledged, and scrub's business.

    Raises:
        CorruptionError: something else is there: nobody but this write call writes into its directory.
    """
    parts = []
    for found in sorted(storage.list(directory), key=lambda found: found.path):
        name = found.path.removeprefix(f"{directory}/")
        if name.startswith("_temporary/"):
            continue
        if "/" in name or not (name.startswith("part-") and name.endswith(".parquet")):
            msg = (
                f"{found.path} in {storage.address} is not a file that Spark's writer makes: nothing of this write was acknowledged; "
                "write in a new attempt"
            )
            raise CorruptionError(msg)
        parts.append(found)
    return parts
