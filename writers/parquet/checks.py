"""Files are checked before a row of them is returned: by their digests, or at least by their sizes and footers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from holdfast.catalog.errors import DamagedFileError
from holdfast.catalog.storage import Storage
from holdfast.writers.parquet.few_files import in_threads
from holdfast.writers.parquet.layout import Part, footer_of, parts_of
from holdfast.writers.parquet.report import FileReport, digest_parts

Parts = Mapping[str, Sequence[Part]]  # what is read of each file, by path, as it was committed
Sizes = Mapping[str, int]  # the sizes of whole files


def require_digests_here(storage: Storage, parts: Parts, sizes: Sizes) -> None:
    """Digest what is read, in threads of this process. Raises DamagedFileError unless it is as it was committed."""
    _in_threads(storage, parts, lambda path: next(_digest_problems(digest_parts(storage, parts, path), parts[path], sizes[path]), None))


def require_as_committed(storage: Storage, reports: Iterable[FileReport], parts: Parts, sizes: Sizes) -> None:
    """Raises DamagedFileError unless what was found of each file is what was committed."""
    _refuse(storage, [problem for report in reports for problem in _digest_problems(report, parts[report.path], sizes[report.path])])


def refuse_damaged(storage: Storage, found: Mapping[str, Part | None], parts: Parts) -> None:
    """Raises DamagedFileError unless what was read of each file (None: it is missing) is the whole of what was committed."""
    problems: list[str] = []
    for path, whole in found.items():
        size_bytes = parts[path][0].length_bytes
        report = FileReport(path=path) if whole is None else FileReport(path=path, size_bytes=whole.length_bytes, parts=(whole,))
        problems += _digest_problems(report, parts[path], size_bytes)
    _refuse(storage, problems)


def require_footers(storage: Storage, parts: Parts, sizes: Sizes) -> None:
    """Footers are small and few: threads of the driver read them in less time than a job takes to start.

    Raises DamagedFileError unless sizes and numbers of rows are as they were committed; other damage is not seen.
    """
    _in_threads(storage, parts, lambda path: _footer_problem(storage, path, parts[path], sizes[path]))


def _digest_problems(report: FileReport, expected: Sequence[Part], size_bytes: int) -> Iterator[str]:
    is_whole = expected[0].length_bytes == size_bytes
    wanted = f"expected {size_bytes} bytes" + (f" with SHA-256 {expected[0].sha256}" if is_whole else "")
    if report.size_bytes is None:
        yield f"{report.path} is missing: {wanted}"
    elif report.size_bytes != size_bytes:
        yield f"{report.path} is damaged: {wanted}, found {report.size_bytes} bytes"
    else:
        for part, found in zip(expected, report.parts, strict=True):
            if part.sha256 != found.sha256:
                of_part = wanted if is_whole else f"expected bytes {part.offset_bytes} to {part.end_bytes} with SHA-256 {part.sha256}"
                yield f"{report.path} is damaged: {of_part}, found SHA-256 {found.sha256}"


def _footer_problem(storage: Storage, path: str, expected: Sequence[Part], size_bytes: int) -> str | None:
    try:
        found_bytes = storage.size(path)
        if found_bytes != size_bytes:
            return f"{path} is damaged: expected {size_bytes} bytes, found {found_bytes}"
        footer = footer_of(storage, path)
    except FileNotFoundError:
        return f"{path} is missing: expected {size_bytes} bytes"
    except (pa.ArrowException, OSError) as error:  # pyarrow tells damage of the thrift as OSError
        return f"{path} is damaged: expected a Parquet footer, found none ({error})"
    rows = {(0, size_bytes): footer.num_rows} | {(part.offset_bytes, part.length_bytes): part.rows for part in parts_of(footer, size_bytes)}
    for part in expected:
        found = rows.get((part.offset_bytes, part.length_bytes))
        if found != part.rows:
            return f"{path} is damaged: expected {part.rows} rows, found {found}"
    return None


def _in_threads(storage: Storage, parts: Parts, problem_of: Callable[[str], str | None]) -> None:
    _refuse(storage, [problem for problem in in_threads(problem_of, parts) if problem])


def _refuse(storage: Storage, problems: Sequence[str]) -> None:
    if problems:
        more = f" ({len(problems) - 1} more files of this state are damaged)" if problems[1:] else ""
        msg = f"{problems[0]}{more}, in {storage.address}: nothing was read; bring the file back from a copy, or read another checkpoint"
        raise DamagedFileError(msg)
