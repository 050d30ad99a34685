"""Delta checkpoints of the ledger's log, made in one place and with a digest alongside (design, section 4c).

A Delta checkpoint says again what the entries up to its version say, so that opening the table reads one file in place of all of them. The
hook of delta-rs makes it without a sync, in place, and twice if two commits meet; so that hook is off. Here it is made in a
directory of its own from the newest checkpoint and the entries above it, each looked at; its digest is made durable before it appears,
whole, under its name, which is never given twice; and last the hint `_last_checkpoint`, by which engines find it.

It is a cache: where it is not what was made, it is taken out of the way, if the log below it still says the same.
"""

import hashlib
import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from holdfast.catalog.ledger.delta_entry import parse_commit
from holdfast.catalog.ledger.delta_log import checkpoint_name, checkpoint_versions, commit_name, create_durably, replace_durably

LAST_CHECKPOINT = "_last_checkpoint"
EVERY_COMMITS = 20  # by upkeep alone, every hundred, a commit cost twice as much (decision 0013)

_LOG = "_delta_log"


class Hint(NamedTuple):
    """Version and number of actions that `_last_checkpoint` names, or what is wrong with it; nothing where there is none."""

    version: int | None = None
    rows: int | None = None
    tear: str | None = None


def digest_name(version: int) -> str:
    """The name of the file next to a Delta checkpoint that holds the SHA-256 of it and of its hint, under which no engine looks."""
    return f".{version:020d}.checkpoint.sha256"


def make(log: Path, version: int) -> bool:
    """Make the Delta checkpoint of a version, whose entries are all durable; whether it is made now and not before.

    Raises:
        TornCommitError, DamagedCommitError, ValueError: what it would be made of is not whole.
        OSError: the disk.
    """
    if (log / checkpoint_name(version)).exists():
        return False
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / _LOG
        copy.mkdir()
        _copy_below(log, copy, version)
        DeltaTable(scratch, version=version).create_checkpoint()
        data, hint = (copy / checkpoint_name(version)).read_bytes(), (copy / LAST_CHECKPOINT).read_bytes()
    digests = {"checkpoint": hashlib.sha256(data).hexdigest(), "hint": hashlib.sha256(hint).hexdigest()}
    with suppress(FileExistsError):
        create_durably(log, digest_name(version), json.dumps(digests).encode())
    if read_digests(log, version) != digests:
        return False  # another process makes it, or died over it
    try:
        create_durably(log, checkpoint_name(version), data)
    except FileExistsError:
        return False
    replace_durably(log, LAST_CHECKPOINT, hint)
    return True


def _copy_below(log: Path, copy: Path, version: int) -> None:
    """What a table at this version is read from: the newest Delta checkpoint with a digest below it, and the entries above that."""
    base = max((v for v in checkpoint_versions(log) if v < version and read_digests(log, v) is not None), default=-1)
    if base >= 0:
        data, digests = (log / checkpoint_name(base)).read_bytes(), read_digests(log, base)
        if digests is None or digests["checkpoint"] != hashlib.sha256(data).hexdigest():
            msg = f"{log / checkpoint_name(base)} is not what was made"
            raise ValueError(msg)
        (copy / checkpoint_name(base)).write_bytes(data)
    for above in range(base + 1, version + 1):
        entry = (log / commit_name(above)).read_bytes()
        parse_commit(above, entry)  # the very bytes that are copied
        (copy / commit_name(above)).write_bytes(entry)


def read_digests(log: Path, version: int) -> dict[str, str] | None:
    """What stands next to a Delta checkpoint; None if it was made before there were digests. Damage in it is a digest of nothing."""
    try:
        data = (log / digest_name(version)).read_bytes()
    except FileNotFoundError:
        return None
    try:
        digests = json.loads(data)
        return {"checkpoint": str(digests["checkpoint"]), "hint": str(digests["hint"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"checkpoint": "", "hint": ""}


def is_what_was_made(log: Path, version: int) -> bool:
    """Whether a Delta checkpoint has a digest, and holds it: then it was made here, above synced entries only."""
    return read_digests(log, version) is not None and tear_of(log, version, Hint()) is None


def tear_of(log: Path, version: int, hint: Hint) -> str | None:
    """What is wrong with a Delta checkpoint, or None. One without a digest is read to its end, and counted."""
    path, digests = log / checkpoint_name(version), read_digests(log, version)
    try:
        if digests is not None:
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            return None if found == digests["checkpoint"] else "does not have the digest that it was made with"
        with pq.ParquetFile(path) as file:
            rows = sum(batch.num_rows for batch in file.iter_batches())
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"does not open ({str(error).splitlines()[0] if str(error) else error!r})"
    if version == hint.version and hint.rows is not None and hint.rows != rows:
        return f"holds {rows} actions, and {LAST_CHECKPOINT} says {hint.rows}"
    return None


def read_hint(log: Path) -> Hint:
    """What `_last_checkpoint` says, and whether it is what was made."""
    try:
        data = (log / LAST_CHECKPOINT).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Hint()
    except OSError as error:
        return Hint(tear=f"cannot be read ({error})")
    try:
        parsed = json.loads(data)
        hint = Hint(int(parsed["version"]), int(parsed["size"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return Hint(tear="does not parse")
    assert hint.version is not None
    digests = read_digests(log, hint.version) if 0 <= hint.version < 10**18 else {"hint": ""}
    if digests is not None and hashlib.sha256(data).hexdigest() != digests["hint"]:
        return Hint(tear="does not have the digest that it was made with")
    return hint
