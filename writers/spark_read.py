"""Reading a state of a checkpoint: its files are checked, then handed to Spark's own Parquet reader."""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.catalog.errors import CorruptionError, DamagedFileError, FormatError, UsageError
from holdfast.catalog.storage import Digest, Storage, StoredObject
from holdfast.catalog.types import Chunk, FileId, Role, StateInfo
from holdfast.writers.spark_files import PARQUET, FileReport, digests, footer_of
from holdfast.writers.spark_session import spark_pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of the reader, so that no setting of the session can drop a file, or shift old dates of files that pyarrow wrote.
READ_OPTIONS = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
FIELD_ID = "parquet.field.id"
_FOOTER_READERS = 8


def read_state(
    spark: "SparkSession",
    storage: Storage,
    info: StateInfo,
    chunks: Sequence[Chunk],
    paths: Mapping[FileId, tuple[str, int, str]],
    *,
    verify: bool = True,
) -> "DataFrame":
    """The rows of a state, without their key groups; every file was checked before it returns.

    With `verify`, executors digest all bytes. Without, sizes, footers and row counts are checked, and damage inside a file may go unseen.
    `paths` gives path, size in bytes and SHA-256 of each file that the chunks name.

    Raises:
        DamagedFileError: a file is missing or is not what was committed; names it, with what was expected and found.
        CorruptionError: the chunks are not the whole state.
        FormatError: the state needs a newer Holdfast.
    """
    from pyspark.sql.types import StructType

    _require_readable(info, chunks, paths)
    if info.schema is None:
        msg = f"state {info.state!r} has no schema: it was not written as a DataFrame"
        raise FormatError(msg)
    files = {path: Digest(size_bytes=size_bytes, sha256=sha256) for path, size_bytes, sha256 in (paths[chunk.file_id] for chunk in chunks)}
    if verify:
        _require_digests(spark, storage, files)
    else:
        _require_footers(storage, {paths[chunk.file_id][0]: chunk for chunk in chunks})
    # Only the user's columns are asked for: `_key_group` stays in the files.
    schema = StructType.fromJson(_without_field_ids(json.loads(info.schema)))
    return spark.read.schema(schema).options(**READ_OPTIONS).parquet(*(spark_pattern(storage, path) for path in files))


def _without_field_ids(schema: Any) -> Any:
    """Columns are found by name: a session may ask for Parquet's field ids first, which the file need not have."""
    if isinstance(schema, list):
        return [_without_field_ids(item) for item in schema]
    if isinstance(schema, dict):
        return {name: _without_field_ids(value) for name, value in schema.items() if name != FIELD_ID}
    return schema


def _require_readable(info: StateInfo, chunks: Sequence[Chunk], paths: Mapping[FileId, tuple[str, int, str]]) -> None:
    where = f"state {info.state!r} of operator {info.operator!r}"
    if info.format != PARQUET:
        msg = f"{where} is kept as {info.format!r}, not as a DataFrame: read its bytes"
        raise UsageError(msg)
    if len({chunk.layer for chunk in chunks}) > 1 or any(chunk.role is not Role.BASE for chunk in chunks):
        msg = f"{where} has change sets above its base, which this version cannot merge: read it with a newer Holdfast"
        raise FormatError(msg)
    unknown = [chunk.file_id for chunk in chunks if chunk.file_id not in paths]
    if unknown:
        msg = f"{where}: its file {unknown[0]} has no file row: the content of the checkpoint is incomplete"
        raise CorruptionError(msg)
    if any((chunk.offset_bytes, chunk.length_bytes) != (0, paths[chunk.file_id][1]) for chunk in chunks):
        msg = f"{where} has chunks within larger files, which this version cannot read: read it with a newer Holdfast"
        raise FormatError(msg)
    found = sum(chunk.rows or 0 for chunk in chunks)
    if info.rows is not None and info.rows != found:
        msg = f"{where} has {info.rows} rows, and its {len(chunks)} chunks have {found}: the content of the checkpoint is incomplete"
        raise CorruptionError(msg)


def _require_digests(spark: "SparkSession", storage: Storage, files: Mapping[str, Digest]) -> None:
    reports = digests(spark, storage, [StoredObject(path=path, size_bytes=digest.size_bytes) for path, digest in files.items()])
    _refuse(storage, [problem for report in reports for problem in _digest_problems(report, files[report.path])])


def _digest_problems(report: FileReport, expected: Digest) -> Iterator[str]:
    wanted = f"expected {expected.size_bytes} bytes with SHA-256 {expected.sha256}"
    if report.size_bytes is None:
        yield f"{report.path} is missing: {wanted}"
    elif (report.size_bytes, report.sha256) != (expected.size_bytes, expected.sha256):
        yield f"{report.path} is damaged: {wanted}, found {report.size_bytes} bytes with SHA-256 {report.sha256}"


def _require_footers(storage: Storage, chunks: Mapping[str, Chunk]) -> None:
    """Footers are small and few: threads of the driver read them in less time than a job takes to start."""
    with ThreadPoolExecutor(_FOOTER_READERS) as readers:
        problems = readers.map(lambda item: _footer_problem(storage, *item), chunks.items())
        _refuse(storage, [problem for problem in problems if problem])


def _footer_problem(storage: Storage, path: str, chunk: Chunk) -> str | None:
    try:
        size_bytes = storage.size(path)
        if size_bytes != chunk.length_bytes:
            return f"{path} is damaged: expected {chunk.length_bytes} bytes, found {size_bytes}"
        rows = footer_of(storage, path).num_rows
    except FileNotFoundError:
        return f"{path} is missing: expected {chunk.length_bytes} bytes"
    except (pa.ArrowException, OSError) as error:  # pyarrow tells damage of the thrift as OSError
        return f"{path} is damaged: expected a Parquet footer, found none ({error})"
    return f"{path} is damaged: expected {chunk.rows} rows, found {rows}" if rows != chunk.rows else None


def _refuse(storage: Storage, problems: Sequence[str]) -> None:
    if problems:
        more = f" ({len(problems) - 1} more files of this state are damaged)" if problems[1:] else ""
        msg = f"{problems[0]}{more}, in {storage.address}: nothing was read; bring the file back from a copy, or read another checkpoint"
        raise DamagedFileError(msg)
