"""What a failed write or reading means, explained without Spark: a job of bytes alone needs no pyspark.

What goes wrong in a task comes to the driver as text: of Java, or of a Python traceback. Here are the few texts whose remedy is known; any
other error comes out as it is.
"""

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.catalog.errors import (
    AddressError,
    AttemptEndedError,
    CorruptionError,
    EngineSetupError,
    FencedError,
    HoldfastError,
    NotDurableError,
    ReadOnlyError,
    RefusedError,
    RetryError,
    StorageFullError,
)
from holdfast.catalog.texts import escaped

# The query is wrong, or met a value that it cannot take: it fails again whatever becomes of its tasks.
WRONG_QUERY = frozenset(
    {"AnalysisException", "ParseException", "ArithmeticException", "ArrayIndexOutOfBoundsException", "DateTimeException"}
    | {"IllegalArgumentException", "NumberFormatException", "UnsupportedOperationException", "SparkNoSuchElementException"}
    | {"PySparkTypeError", "PySparkValueError", "PySparkAttributeError", "PySparkNotImplementedError"}
)
PYTHON_FAILED = "PythonException"
# Frames of what Holdfast itself runs in tasks, decided by folder. Any other Python there is the user's.
OWN_FRAMES = re.compile(r'File "(?:[^"]*/)?holdfast/writers/(?:spark|stores)/\w+\.py"')
_FRAME = re.compile(r'File "([^"<]+)", line')
_MACHINERY = re.compile(
    r"(?:^|/)(?:holdfast/(?:catalog|writers)/|pyspark/(?:cloudpickle/|sql/|(?:daemon|worker\w*|serializers|util|shuffle)\.py))"
)
# Older tasks name the module that defines an error, newer ones say `holdfast.X`.
_OWN_ERROR = re.compile(r"(?:^|PythonException: )holdfast\.(?:catalog\.errors\.)?([A-Z]\w*Error): (.*)", re.MULTILINE)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A text, one line of which states the case, and what it means."""

    text: re.Pattern[str]
    kind: type[HoldfastError]
    what: str
    remedy: str
    is_setup: bool = False  # a failure of Python counts only where the machinery failed, not a function that it ran
    only_of_catalog: bool = False  # for other paths it means something else: the plan may read what it may not read


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_FULL = _Meaning(
    re.compile("No space left on device|Disk quota exceeded"),
    StorageFullError,
    "a disk is full",
    "Make room on that disk (the catalog's, or an executor's own, which Spark spills to: spark.local.dir), but never by deleting files of "
    "the catalog: `holdfast vacuum` deletes what nobody needs. Then write the next checkpoint",
)
_NOT_WRITABLE = _Meaning(
    re.compile("Read-only file system|Permission denied|AccessDeniedException|Mkdirs failed to create"),
    ReadOnlyError,
    "a process may not write there",
    "Mount it for writing, and give the account that Spark's executors run under (not the driver's alone) the right to write below the "
    "catalog's root",
    only_of_catalog=True,
)
_MEANINGS = (
    _Meaning(
        re.compile(r"No module named|Cannot run program|PYTHON_VERSION_MISMATCH|PACKAGE_NOT_INSTALLED|must be installed; however"),
        EngineSetupError,
        "the Python that the executors start cannot run the tasks",
        f"Install holdfast, with its extra 'spark', in one Python {_PYTHON} on every host, and name that interpreter before the session "
        "starts: the environment variable PYSPARK_PYTHON, or the setting spark.pyspark.python; for a local session, sys.executable",
        is_setup=True,
    ),
    _Meaning(
        re.compile(r"ClassNotFoundException|NoClassDefFoundError|DATA_SOURCE_NOT_FOUND|No FileSystem for|UnsupportedClassVersionError"),
        EngineSetupError,
        "a Java class is not on the executors or the driver",
        "Give the session the JAR that has it, of the version that fits its Spark, before it starts: spark.jars.packages or spark.jars; "
        "for Delta Lake, delta.configure_spark_with_delta_pip of the package delta-spark",
        is_setup=True,
    ),
    _FULL,
    _NOT_WRITABLE,
)


def explained(error: Exception, what: str, address: str) -> Exception:
    """The error that says what to do, where that is known; else the error itself. `what` failed, in the storage at `address`."""
    failed = f"{what}, in {address}, failed and had no effect"
    if (own := _told_in_task(error)) is not None:
        return type(own)(f"{failed}: {own}")
    if isinstance(error, NotDurableError) and error.errno not in FULL | NOT_WRITABLE:
        return NotDurableError(f"{failed}: {error}")
    for meaning, line in _meanings(error):
        if not meaning.only_of_catalog or address in line:
            return meaning.kind(f"{failed}: {meaning.what} ({line}). {_module_first(line)}{meaning.remedy}")
    return error


def is_failed_sync(error: BaseException | None) -> bool:
    """Whether this is a failed sync, or was raised for one."""
    return error is not None and (isinstance(error, NotDurableError) or is_failed_sync(error.__cause__))


@contextmanager
def explaining(what: str, address: str) -> Iterator[None]:
    """Raises what the block raises as `explained`, with the original as its cause."""
    try:
        yield
    except Exception as error:
        told = explained(error, what, address)
        if told is error:
            raise
        raise told from error


def is_of_spark(error: BaseException) -> bool:
    """Whether an action of Spark failed by its machinery, or in Holdfast's own work in a task: not by the user's query or functions."""
    if not _is_sparks(error) or _is_wrong_query(error):
        return False
    text = _text(error)
    if not _is_of_python(error, text):
        return True
    told = _OWN_ERROR.search(text)  # ours says by its kind whether it may be tolerated
    may_pass = told is None or told[1] in {kind.__name__ for kind in (RetryError, NotDurableError, StorageFullError, AttemptEndedError)}
    return may_pass and OWN_FRAMES.search(text) is not None


def _is_wrong_query(error: BaseException) -> bool:
    return any(kind.__name__ in WRONG_QUERY for kind in type(error).__mro__)


def _is_of_python(error: BaseException, text: str) -> bool:
    return PYTHON_FAILED in text or any(kind.__name__ == PYTHON_FAILED for kind in type(error).__mro__)


def _is_sparks(error: BaseException) -> bool:
    return bool({kind.__module__.partition(".")[0] for kind in type(error).__mro__} & {"pyspark", "py4j"})


def _meanings(error: Exception) -> Iterator[tuple[_Meaning, str]]:
    """What the error may mean, each with the line that says so."""
    if isinstance(error, HoldfastError) and not isinstance(error, NotDurableError):
        return
    if isinstance(error, OSError):
        if error.errno in FULL or error.errno in NOT_WRITABLE:
            yield _FULL if error.errno in FULL else _NOT_WRITABLE, str(error)
    elif _is_sparks(error) and not _is_wrong_query(error):  # its text may have any value of the user's
        text = _text(error)
        for meaning in _MEANINGS:
            if not _is_of_python(error, text) or _may_mean(meaning, text):
                yield from ((meaning, line.strip()) for line in text.splitlines() if meaning.text.search(line))


def _may_mean(meaning: _Meaning, text: str) -> bool:
    """Whether a failure of Python may have this meaning: the machinery raised it, or, but for the set-up, ran it. Else it is the user's."""
    frames = _FRAME.findall(text)
    if frames and _MACHINERY.search(frames[-1]):
        return True
    return not meaning.is_setup and OWN_FRAMES.search(text) is not None


def _told_in_task(error: Exception) -> HoldfastError | None:
    """What Holdfast itself raised in a task about the place that it wrote to, remedy and all."""
    if not _is_sparks(error):
        return None
    told = _OWN_ERROR.search(_text(error))
    kinds = {kind.__name__: kind for kind in (AddressError, NotDurableError, StorageFullError, ReadOnlyError)}
    return kinds[told[1]](told[2]) if told is not None and told[1] in kinds else None


def _module_first(line: str) -> str:
    """That the module which the line misses is to be installed, if it misses one."""
    missing = re.search(r"No module named ['\"]?([\w.]+)", line)
    return "" if missing is None else f"The executors' Python lacks the module {missing[1]!r}: install it there. "


def _text(error: BaseException) -> str:
    """What it says, if it can: an error of Java asks the JVM, which may be gone."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - of whatever kind: there is no text
        return type(failure).__name__


def reason_of(error: BaseException) -> str:
    """Why an attempt failed, for the ledger, which never forgets: the text of an error of the program or an engine may have secrets.

    What Holdfast itself decided is said in full.
    """
    kind = type(error).__name__
    decided = isinstance(error, RefusedError | FencedError | AttemptEndedError | RetryError | CorruptionError) and error.__cause__ is None
    return escaped(f"{kind}: {error}"[:500]) if decided else kind
