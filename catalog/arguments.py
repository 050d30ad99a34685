"""What users pass, checked before anything is done with it: a wrong type is named, and does not become an engine's error in the middle."""

import json
import os
from collections.abc import Mapping
from datetime import datetime
from numbers import Integral
from typing import Any, TypeGuard

from holdfast.catalog.errors import AddressError, UsageError

NAME_LIMIT_BYTES = 255  # for each part of a path, on every file system in use
PATH_LIMIT_BYTES = 4096
PROGRESS_LIMIT_BYTES = 1_000_000


def whole_number(given: object, what: str, *, least: int = 0) -> int:
    """A whole number of at least so much. Raises UsageError, which says of `what`."""
    if not is_whole(given, least):
        msg = f"{given!r} is not {what}: pass a whole number, {least} or more"
        raise UsageError(msg)
    return int(given)


def is_whole(given: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether it is a whole number, of whatever type (an analyst's comes out of a DataFrame), within these limits."""
    if isinstance(given, bool) or not isinstance(given, Integral):
        return False
    return (least is None or int(given) >= least) and (most is None or int(given) <= most)


def integer(given: object) -> int | None:
    """The whole number that this is, as an int; None for what is not one."""
    return int(given) if is_whole(given) else None


def checkpoint_number(given: object, job: object) -> int:
    """A checkpoint by its number. Raises UsageError."""
    found = integer(given)
    if found is None:
        number = f"the int {given}" if isinstance(given, str) and given.isdecimal() else "an int; the view checkpoints has it, by name too"
        msg = f"{given!r} is not the number of a checkpoint or savepoint of job {job!r}: pass {number}"
        raise UsageError(msg)
    return found


def text(given: object, what: str) -> str:
    """Any text, such as a name that is looked up. Raises UsageError, which says of `what`."""
    if not isinstance(given, str):
        msg = f"{given!r} is not {what}: pass a text"
        raise UsageError(msg)
    return given


def mapping(given: object, what: str) -> "Mapping[Any, Any]":
    """Raises UsageError, which says of `what`."""
    if not isinstance(given, Mapping):
        msg = f"{given!r} is not {what}: pass a dict"
        raise UsageError(msg)
    return given


def function(given: object, what: str) -> None:
    """A function, or None. Raises UsageError, which says of `what`."""
    if given is not None and not callable(given):
        msg = f"{given!r} is not {what}: pass a function, or nothing"
        raise UsageError(msg)


def aware_time(given: object) -> datetime:
    """A moment. Raises UsageError for what is none, and for one without a time zone, which is another in each place."""
    if not isinstance(given, datetime):
        msg = f"{given!r} is not a time: pass a datetime with a time zone"
        raise UsageError(msg)
    if given.utcoffset() is None:
        msg = f"{given.isoformat()} has no time zone: give one, such as {given.isoformat()}+00:00 or datetime(..., tzinfo=UTC)"
        raise UsageError(msg)
    return given


def spark_session(given: object) -> None:
    """Raises UsageError for what is not a session of Spark, classic or Connect."""
    if not hasattr(given, "createDataFrame"):
        msg = f"{given!r} is not a Spark session: pass the one that the views are for"
        raise UsageError(msg)


def address(given: object) -> str:
    """The text of a path or URL. Raises AddressError for what is neither."""
    found = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(found, str) or not found or "\0" in found:
        msg = f"{given!r} is not the address of a directory: pass a path (str or os.PathLike) or a file: URL"
        raise AddressError(msg)
    return found


def place(path: str) -> str:
    """A whole path that the system, Spark and DuckDB take. Raises AddressError."""
    if any(0xD800 <= ord(character) < 0xE000 for character in path):
        msg = f"{path!r} is not UTF-8, in which Spark and DuckDB are given paths: give another path, or rename the directory"
        raise AddressError(msg)
    for part in path.split("/"):
        size = len(os.fsencode(part))
        if size > NAME_LIMIT_BYTES:
            msg = f"{part[:40]!r}... is a name of {size} bytes, and file systems take {NAME_LIMIT_BYTES}: give a shorter path"
            raise AddressError(msg)
    if len(os.fsencode(path)) >= PATH_LIMIT_BYTES:
        msg = f"{path[:40]!r}... is a path of {len(os.fsencode(path))} bytes, and systems take {PATH_LIMIT_BYTES - 1}: give a shorter one"
        raise AddressError(msg)
    return path


def place_of_ledger(path: str) -> str:
    """A whole path, links resolved, under which Delta finds a table.

    Delta's kernel, which deltalake and DuckDB have in common, resolves links, decodes `%41`, takes a backslash for a slash, and refuses
    control characters: a ledger would be written at one place and looked for at another.
    Raises AddressError.
    """
    wrong = next((c for c in path if c in "%\\" or ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0), None)
    if wrong is not None:
        msg = (
            f"no catalog can be at {path!r}: it has {wrong!r} in it, and deltalake and DuckDB find no Delta table at a path with a percent "
            "sign, a backslash or a control character. Give another path, or move what is there to one: all paths in a catalog are relative"
        )
        raise AddressError(msg)
    return path


def checked_progress(progress: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Raises UsageError for what the ledger cannot keep, or its readers cannot ask for."""
    given: object = progress  # a program without types gives anything
    if progress is None:
        return None
    if not isinstance(given, Mapping):
        msg = f"progress must be a mapping that JSON can hold, not a {type(given).__name__}"
        raise UsageError(msg)
    try:
        text = json.dumps(progress, allow_nan=False)
        plain = dict(json.loads(text))
        json.dumps(plain, ensure_ascii=False).encode()  # half of a surrogate pair, at which every query of the column would stop
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"progress must be a mapping that JSON can hold, and this is not ({type(error).__name__}: {error})"
        raise UsageError(msg) from error
    if len(text) > PROGRESS_LIMIT_BYTES:
        msg = (
            f"progress has {len(text)} bytes as JSON, and may have {PROGRESS_LIMIT_BYTES}: it is stored in the ledger with every "
            "checkpoint, and each start reads it; write the rest as a state, checkpoint.write_bytes"
        )
        raise UsageError(msg)
    return plain
