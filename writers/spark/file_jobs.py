"""The step over state files: they are digested and made durable, their footers are read, and the driver acknowledges what was found.

Before a restore they are verified. One Spark job does it for all files, or threads of the driver where they are few (`few_files`): the same
work, the same reports and errors. What it finds is a report, never an exception: a damaged file is an answer, not a failed task to be
tried again.

The driver's sync is worth what an executor's is. A sync makes durable what is in the memory of its host, whichever process wrote that: on
one host they are the same. Across hosts neither task nor driver is where the writer was, and never was meant to be: a shared file system
brings a file's bytes to its server when the writer closes it, and a sync elsewhere asks the server for its word.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import AddressError, CorruptionError, UnsafeSettingsError
from holdfast.catalog.storage import Storage, StoredObject
from holdfast.writers.parquet.checks import Parts, Sizes, require_as_committed
from holdfast.writers.parquet.few_files import are_few, in_threads
from holdfast.writers.parquet.layout import Part
from holdfast.writers.parquet.report import REPORT_SCHEMA, FileReport, digest_parts, report_batch, require_durable, sealed_report
from holdfast.writers.upload import UploadContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, Row, SparkSession
    from pyspark.sql.types import StructType

TASK_BYTES = 32 * 1024 * 1024  # small files share a task: starting one costs as much as digesting some megabytes
TASK_FILES = 64
ASKED = 32  # tasks, of which each executor probably gets one

COUNTED_ROWS = "rows"  # the Observation's metric


def seal(spark: "SparkSession", storage: Storage, files: Sequence[StoredObject], environment: Environment) -> Sequence[FileReport]:
    """Digest, sync and footer of files that Spark's own writer left; the files are durable when it returns.

    Raises:
        UnsafeSettingsError: an executor does not see a file as the driver listed it.
        NotDurableError: a sync failed; it is not tried again.
        CorruptionError: a file is not one that Spark's writer makes.
    """
    reports = _over_files(spark, files, partial(sealed_report, storage, environment))
    sizes = {file.path: file.size_bytes for file in files}
    for report in reports:
        if report.damage is not None:
            msg = f"{report.path} in {storage.address} is {report.damage}: nothing was acknowledged; write in a new attempt"
            raise CorruptionError(msg)
        if report.size_bytes != sizes[report.path]:
            found = "was not there" if report.size_bytes is None else f"had {report.size_bytes} bytes"
            msg = (
                f"{report.path} in {storage.address} has {sizes[report.path]} bytes in the driver's listing and {found} where it was read: "
                "the hosts of this session do not share the catalog's file system: mount it on every host at the same path"
            )
            raise UnsafeSettingsError(msg)
    return reports


def digests(spark: "SparkSession", storage: Storage, parts: Mapping[str, Sequence[Part]]) -> Sequence[FileReport]:
    """Size of each file, and digests of these parts of it; the rest of a file is not read."""
    files = [StoredObject(path=path, size_bytes=sum(part.length_bytes for part in read)) for path, read in parts.items()]
    return _over_files(spark, files, partial(digest_parts, storage, parts))


def require_all_rows(reports: Sequence[FileReport], observation: "Observation", context: UploadContext, brought: int = 0) -> None:
    """Raises CorruptionError unless the rows in the files, and those that came without one, are as many as the action counted."""
    written, found = int(observation.get[COUNTED_ROWS]), sum(report.rows for report in reports) + brought
    if written != found:
        msg = (
            f"{context.label}, attempt {context.attempt}: Spark counted "
            f"{written} rows, and the {len(reports)} files hold {found}: the write is incomplete, and nothing of it was acknowledged: "
            "mount the catalog's file system on every host at the same path, if one lacks it, and write again in a new attempt"
        )
        raise CorruptionError(msg)


def require_root_on_executors(spark: "SparkSession", storage: Storage) -> None:
    """Raises AddressError, which names a host, if an executor that answers does not see the root. To explain why files are missing."""
    answers = spark.range(0, ASKED, 1, ASKED).mapInArrow(partial(_complaints, storage), "complaint string").collect()
    if answers:
        raise AddressError(answers[0].complaint)


def _complaints(storage: Storage, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        try:
            storage.require_root()
        except AddressError as error:
            yield pa.RecordBatch.from_pylist([{"complaint": str(error)}])


def collect_reports(reported: "DataFrame") -> Sequence[FileReport]:
    """Run the DataFrame, of rows in REPORT_SCHEMA, once. Raises NotDurableError."""
    return reports_of(reported.collect())


def reports_of(rows: "Iterable[Row]") -> Sequence[FileReport]:
    """The reports in rows of REPORT_SCHEMA. Raises NotDurableError."""
    told = (row.asDict(recursive=True) for row in rows)
    return require_durable([FileReport(**{**row, "parts": tuple(Part(**part) for part in row["parts"])}) for row in told])


def report_schema() -> "StructType":
    """REPORT_SCHEMA as Spark's type."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(REPORT_SCHEMA)


def _over_files(spark: "SparkSession", files: Sequence[StoredObject], work: Callable[[str], FileReport]) -> Sequence[FileReport]:
    """The reports of the work on each file, by threads of the driver or by executors. Raises NotDurableError."""
    if are_few(files):
        return require_durable(in_threads(work, [file.path for file in files]))
    shares = _shares(files)
    numbers = spark.range(0, len(shares), 1, len(shares))
    return collect_reports(numbers.mapInArrow(partial(_work_on_shares, shares, work), report_schema()))


def _shares(files: Sequence[StoredObject]) -> list[list[str]]:
    """The files' paths, in their order, as the shares of tasks."""
    shares: list[list[str]] = []
    share_bytes = 0
    for file in files:
        if not shares or share_bytes + file.size_bytes > TASK_BYTES or len(shares[-1]) == TASK_FILES:
            shares.append([])
            share_bytes = 0
        shares[-1].append(file.path)
        share_bytes += file.size_bytes
    return shares


def _work_on_shares(
    shares: list[list[str]], work: Callable[[str], FileReport], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield report_batch([work(path) for number in batch.column(0).to_pylist() for path in shares[number]])


def require_digests(spark: "SparkSession", storage: Storage, parts: Parts, sizes: Sizes) -> None:
    """Digest what is read: executors do, or this process where it is little. Raises DamagedFileError unless it is as it was committed."""
    reports = digests(spark, storage, parts)
    require_as_committed(storage, reports, parts, sizes)
