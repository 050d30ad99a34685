"""The layout of a catalog: the only module that builds paths or takes them apart (design, section 2).

Whatever is built here is recognised by `parse`, so that nothing an attempt writes can be taken for a stranger's file, and
nothing of a stranger's for an attempt's. Numbers are never padded: two spellings of one id would be two places.
"""

import os
import re
import unicodedata
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.catalog import arguments
from holdfast.catalog.errors import AddressError, UsageError
from holdfast.catalog.types import AttemptToken, CheckpointId, FileId, JobId

MARKER = "holdfast.json"
MARKER_LIMIT_BYTES = 65536
LEDGER = "ledger"
HISTORY = "history"
JOBS = "jobs"
MANIFEST_NAME = "_metadata"
SAVEPOINT_DATA = "data"  # the directory of a savepoint's files, in its own
OWNED_EXTENSION = "bin"
NO_CHECKPOINT = CheckpointId(0)
SLUG_LIMIT = 48  # with "-<8 hex digits>" a job's directory stays far below the 255 bytes of a file name

_NO_NAMES = frozenset({"", ".", ".."})
_DRAFT = r"\.[0-9a-f]{8}\.tmp"
_NUMBER = r"0|[1-9][0-9]{0,17}"  # at most 18 digits: every id fits the ledger's int64
_JOB = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*-[0-9a-f]{8}")
_TOKEN = re.compile(r"[0-9a-f]{16}")
_CHECKPOINT_NUMBER = re.compile(_NUMBER)
_LABEL = re.compile(r"[0-9A-Za-z_]+")
_EXTENSION = re.compile(rf"parquet|bytes|{OWNED_EXTENSION}")
_OF_CALL = re.compile(rf"({_NUMBER})-([0-9a-f]{{16}})-(?:{_NUMBER})")
_OF_FILE = re.compile(rf"({_NUMBER})-([0-9a-f]{{16}})-{_LABEL.pattern}-(?:{_NUMBER})\.(?:{_EXTENSION.pattern})(?:{_DRAFT})?")
_SAVEPOINT = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)-([0-9a-f]{16})")
_CHECKPOINT = re.compile(rf"chk-({_NUMBER})")
_LEDGER = re.compile(rf"{LEDGER}(?:-[0-9]+)?")  # a ledger that succeeds another needs a directory of its own
_DRAFT_SUFFIX = re.compile(_DRAFT)
_IN_CHECKPOINT = re.compile(rf"{MANIFEST_NAME}(?:{_DRAFT})?")
_OF_CREATION = re.compile(rf"(?:{LEDGER}|{HISTORY})/_delta_log/.+|{re.escape(MARKER)}{_DRAFT}", re.DOTALL)
_FILE_ID = re.compile(r"[0-9a-f]{16}-[0-9A-Za-z_]+-[0-9A-Za-z_]+")
# Engines take paths as patterns, URLs and SQL: of a state's file, each part has letters and digits, with what Spark's names have between.
_PART = r"[0-9A-Za-z_][0-9A-Za-z._=-]{0,254}"
_STATE_FILE = re.compile(rf"(?:{_PART}/){{1,16}}{_PART}\.(?:{_EXTENSION.pattern})")
_CHECKPOINT_ADDRESS = re.compile(rf"(.*/|){JOBS}/+([^/]+)/+chk-({_NUMBER})(?:/+{MANIFEST_NAME})?/*", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPath:
    """Carries the token of an attempt, to which it belongs if the rest is the attempt's too (`OrphanRule`): people copy and rename.

    `checkpoint_id` is None in a savepoint's directory, whose name has none, and 0 of what an owner writes. `name` is the slug of the
    savepoint or of the owner; None of what a checkpoint's attempt writes.
    """

    job_id: JobId
    checkpoint_id: CheckpointId | None
    attempt: AttemptToken
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChkPath:
    """A `chk-<n>` directory, its manifest, or a draft of that: belongs to the one attempt that has the job's checkpoint id n.

    Nothing else in the directory does: it carries no token, and people leave notes and copies next to a manifest.
    """

    job_id: JobId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalPath:
    """The marker, a ledger or the history: never any cleaner's business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignPath:
    """Nothing that Holdfast writes: reported, never deleted."""


ParsedPath = AttemptPath | ChkPath | InternalPath | ForeignPath


class CheckpointAddress(NamedTuple):
    """What a user's path of a `chk-<n>` directory says."""

    root: str
    job_id: JobId
    checkpoint_id: CheckpointId


def require_name(name: object, what: str) -> None:
    """Raises UsageError for what cannot be the name of a savepoint, an owner or a file of one (`what` says which)."""
    if not isinstance(name, str) or not name or not name.isprintable() or name != name.strip():
        msg = f"{name!r} cannot be the name of {what}: give printable characters, and no space at either end"
        raise UsageError(msg)


def slug(name: str) -> str:
    """A job's name as lower-case ASCII letters, digits and single hyphens: never empty, at most SLUG_LIMIT long. Names may share one."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:SLUG_LIMIT].rstrip("-") or "job"


def new_job_id(name: str, fresh_id: str) -> JobId:
    """The id of a new job: its slug and the first 8 digits of a fresh id, which make it its own."""
    return _job(JobId(f"{slug(name)}-{fresh_id[:8]}"))


def job_directory(job_id: JobId) -> str:
    return f"{JOBS}/{_job(job_id)}"


def native_directory(job_id: JobId, checkpoint_id: CheckpointId, attempt: AttemptToken, call: int) -> str:
    """The directory of one write call, for an engine's own writer. Everything below it belongs to the attempt."""
    return f"{job_directory(job_id)}/shared/{_prefix(checkpoint_id, attempt)}-{_index(call)}"


def streamed_file(job_id: JobId, checkpoint_id: CheckpointId, attempt: AttemptToken, task: int | str, i: int) -> str:
    """A segment that one task of one write call uploads; (task, i) must be unique in the attempt."""
    return f"{job_directory(job_id)}/shared/{_prefix(checkpoint_id, attempt)}-{_label(task)}-{_index(i)}.parquet"


def exclusive_file(job_id: JobId, checkpoint_id: CheckpointId, attempt: AttemptToken, call: int | str, ext: str) -> str:
    """A file of exactly one checkpoint."""
    return f"{job_directory(job_id)}/exclusive/{_prefix(checkpoint_id, attempt)}-{_label(call)}-0.{_extension(ext)}"


def shared_file(job_id: JobId, checkpoint_id: CheckpointId, attempt: AttemptToken, call: int | str, ext: str) -> str:
    """A whole file that checkpoints may share."""
    return f"{job_directory(job_id)}/shared/{_prefix(checkpoint_id, attempt)}-{_label(call)}-0.{_extension(ext)}"


def owned_file(job_id: JobId, owner: str, attempt: AttemptToken, fresh_id: str) -> str:
    """A file that its owner alone may release. It is of no checkpoint: 0 stands where others have theirs."""
    return f"{job_directory(job_id)}/taskowned/{slug(owner)}/{_prefix(NO_CHECKPOINT, attempt)}-{_label(fresh_id)}-0.{OWNED_EXTENSION}"


def checkpoint_directory(job_id: JobId, n: CheckpointId) -> str:
    return f"{job_directory(job_id)}/chk-{_number(n)}"


def manifest_path(job_id: JobId, n: CheckpointId) -> str:
    return f"{checkpoint_directory(job_id, n)}/{MANIFEST_NAME}"


def savepoint_directory(job_id: JobId, name: str, attempt: AttemptToken) -> str:
    """A savepoint's own directory in the catalog."""
    return f"{job_directory(job_id)}/savepoints/{savepoint_name(name, attempt)}"


def savepoint_name(name: str, attempt: AttemptToken) -> str:
    """What a savepoint's directory is called, in the catalog and anywhere else."""
    return f"{slug(name)}-{_token(attempt)}"


def is_address(path: str) -> bool:
    """Whether a path is no path relative to a catalog's root, but the address of something outside of it."""
    return path.startswith("/") or "://" in path


def parent(path: str) -> str:
    """The directory that an object is in."""
    return path.rpartition("/")[0]


def draft_name(name: str, fresh: str) -> str:
    """What an adapter calls an object of this name until it is whole, with 8 fresh hex digits; recognised as whose the object would be."""
    return f"{name}{_matching(_DRAFT_SUFFIX, f'.{fresh}.tmp', 'the end of a draft (8 lower-case hex digits)')}"


def file_id(attempt: AttemptToken, call: int | str, index: int | str) -> FileId:
    """The id of a file's row; (call, index) must be unique in the attempt."""
    return FileId(f"{_token(attempt)}-{_label(call)}-{_label(index)}")


def is_of(attempt: AttemptToken, file_id: FileId) -> bool:
    """Whether this attempt gave the id."""
    return file_id.startswith(f"{attempt}-")


def token_of(file_id: FileId) -> AttemptToken:
    """The attempt that gave the id."""
    return AttemptToken(file_id.partition("-")[0])


def manifest_file_id(attempt: AttemptToken) -> FileId:
    return file_id(attempt, "metadata", 0)


def parse(path: str) -> ParsedPath:
    """Whose an object or directory of a catalog is. Any text has an answer; what is not built here is foreign."""
    try:
        parts = require_relative(path).split("/")
    except ValueError:
        return ForeignPath()
    if parts[0] == HISTORY or _LEDGER.fullmatch(parts[0]):
        return InternalPath()
    # A draft of it, and whatever copies of it people keep next to it.
    if len(parts) == 1 and (parts[0] == MARKER or parts[0].startswith(f"{MARKER}.")):
        return InternalPath()
    if parts[0] != JOBS or len(parts) < 3 or not _JOB.fullmatch(parts[1]):
        return ForeignPath()
    return _parse_in_job(JobId(parts[1]), parts[2:])


def _parse_in_job(job_id: JobId, parts: list[str]) -> ParsedPath:
    if chk := _CHECKPOINT.fullmatch(parts[0]):
        ours = len(parts) == 1 or (len(parts) == 2 and _IN_CHECKPOINT.fullmatch(parts[1]))
        return ChkPath(job_id=job_id, checkpoint_id=CheckpointId(int(chk[1]))) if ours else ForeignPath()
    match parts:
        case ["shared", name, *_] if found := _OF_CALL.fullmatch(name):
            return _of_attempt(job_id, found, None)
        case ["shared" | "exclusive", name] if found := _OF_FILE.fullmatch(name):
            return _of_attempt(job_id, found, None)
        case ["taskowned", owner, name] if found := _OF_FILE.fullmatch(name):
            return _of_attempt(job_id, found, owner)
        case ["savepoints", name, *below] if (found := _SAVEPOINT.fullmatch(name)) and _is_in_savepoint(below):
            return AttemptPath(job_id=job_id, checkpoint_id=None, attempt=AttemptToken(found[2]), name=found[1])
    return ForeignPath()


def _of_attempt(job_id: JobId, found: re.Match[str], name: str | None) -> AttemptPath:
    return AttemptPath(job_id=job_id, checkpoint_id=CheckpointId(int(found[1])), attempt=AttemptToken(found[2]), name=name)


def _is_in_savepoint(below: list[str]) -> bool:
    """Whether a savepoint's attempt writes this in its directory, or is it: notes that people keep in there are theirs."""
    return not below or below[0] == SAVEPOINT_DATA or (len(below) == 1 and _IN_CHECKPOINT.fullmatch(below[0]) is not None)


def is_left_by_a_creation(path: str) -> bool:
    """Whether an object in a root without a marker may be of a creation that crashed, or that runs at this moment."""
    return path == MARKER or _OF_CREATION.fullmatch(path) is not None


def attempt_directory(path: str) -> str | None:
    """The directory of the same attempt that this file is in, which may be removed when it is empty; None where it is in none."""
    directory = path.rpartition("/")[0]
    return directory if isinstance(parse(directory), AttemptPath | ChkPath) else None


def parse_checkpoint_directory(address: str | os.PathLike[str]) -> CheckpointAddress:
    """Root, job and checkpoint of `<root>/jobs/<job>/chk-<n>`, with or without `/_metadata` or a slash at its end.

    Raises:
        AddressError: the address does not have this form.
    """
    text = arguments.address(address)
    found = _CHECKPOINT_ADDRESS.fullmatch(text)
    if found is None or not _JOB.fullmatch(found[2]):
        msg = (
            f"{text!r} is not the directory of a checkpoint: give <catalog>/{JOBS}/<job id>/chk-<n>, or the checkpoint's number; "
            "a savepoint is opened by holdfast.open_savepoint(path)"
        )
        raise AddressError(msg)
    root = found[1].rstrip("/")
    if not root:
        root = "/" if found[1] else "."
    elif root.endswith(":"):
        root = found[1]  # "file:///" is a root as well
    return CheckpointAddress(root, JobId(found[2]), CheckpointId(int(found[3])))


def is_state_file(path: str, *, of_savepoint: bool) -> bool:
    """Whether a manifest may give this as the path of a file of state: the one pattern for every reader.

    Of a checkpoint it is that of an attempt's file in a catalog, of a savepoint it lies in the directory of its data.
    """
    if not _STATE_FILE.fullmatch(path) or max(len(part) for part in path.split("/")) > 255:
        return False
    if of_savepoint:
        return path.startswith(f"{SAVEPOINT_DATA}/")
    parsed = parse(path)
    return isinstance(parsed, AttemptPath) and parsed.checkpoint_id is not None


def attempt_of(path: str) -> AttemptToken | None:
    """The attempt whose token a path carries; None of any other path."""
    parsed = parse(path)
    return parsed.attempt if isinstance(parsed, AttemptPath) else None


def is_file_id(text: str) -> bool:
    """Whether this is the id of a file's row, as `file_id` makes it."""
    return _FILE_ID.fullmatch(text) is not None


def is_ledger(given: object) -> bool:
    """Whether this is the name of a ledger's directory."""
    return isinstance(given, str) and _LEDGER.fullmatch(given) is not None


def is_history(given: object) -> bool:
    """Whether this is the name of the history's directory."""
    return given == HISTORY


def successor_directory(n: int) -> str:
    """The directory of a ledger that succeeds another, by a number that was never given."""
    return f"{LEDGER}-{_index(n)}"


def is_token(given: object) -> bool:
    """Whether this is an attempt's token."""
    return isinstance(given, str) and _TOKEN.fullmatch(given) is not None


def is_job_id(given: object) -> bool:
    """Whether this is the id of a job, which is its directory."""
    return isinstance(given, str) and len(given) <= 255 and _JOB.fullmatch(given) is not None


def require_relative(path: str) -> str:
    """The path itself, if it cannot lead out of a root and has one spelling only.

    Raises:
        ValueError: it is empty or absolute, has a backslash, a NUL, or a part that is empty, "." or "..", or is no name of a file at all.
    """
    if not path.isascii():
        os.fsencode(path)  # a UnicodeEncodeError is a ValueError
    if "\\" in path or "\0" in path or not _NO_NAMES.isdisjoint(path.split("/")):
        msg = f"{path!r} is not a path relative to a catalog's root"
        raise ValueError(msg)
    return path


def _prefix(checkpoint_id: CheckpointId, attempt: AttemptToken) -> str:
    return f"{_number(checkpoint_id)}-{_token(attempt)}"


def _job(job_id: JobId) -> JobId:
    return JobId(_matching(_JOB, job_id, "a job id (<slug>-<8 hex digits>)"))


def _token(attempt: AttemptToken) -> AttemptToken:
    return AttemptToken(_matching(_TOKEN, attempt, "an attempt's token (16 lower-case hex digits)"))


def _label(value: int | str) -> str:
    return _matching(_LABEL, str(value), "a part of a file's name (letters, digits, underscores)")


def _index(value: int) -> str:
    return _matching(_CHECKPOINT_NUMBER, str(value), "a number of a file (0 or more, at most 18 digits)")


def _extension(value: str) -> str:
    return _matching(_EXTENSION, value, "the end of a file's name (parquet, bytes or bin)")


def _number(checkpoint_id: CheckpointId) -> str:
    return _matching(_CHECKPOINT_NUMBER, str(checkpoint_id), "a checkpoint id (0 or more, at most 18 digits)")


def _matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        msg = f"{text!r} is not {what}: a path made of it would not be recognised again"
        raise ValueError(msg)
    return text
