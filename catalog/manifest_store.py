"""The `_metadata` of a checkpoint or savepoint: created once, and a writer whose place is taken learns by whom; verified when read."""

import hashlib
from collections.abc import Collection

from holdfast.catalog import paths
from holdfast.catalog.errors import AttemptEndedError, DamagedFileError, ForeignTokensError, FormatError, HoldfastError, RefusedError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.manifest import Manifest, decode, encode, require_sound
from holdfast.catalog.storage import Storage, read_committed
from holdfast.catalog.storage.local import open_storage
from holdfast.catalog.storage.prefix import PrefixStorage
from holdfast.catalog.types import Identity, Scope, StoredFile

MANIFEST_SCOPE = Scope.EXCLUSIVE
MANIFEST_LIMIT_BYTES = 1024**3  # where no ledger says how large it is: a million handles take 40 MB


def store_manifest(storage: Storage, manifest: Manifest, inherited: Collection[Identity] = ()) -> StoredFile:
    """Write the manifest to its place in the catalog or in the savepoint's directory, durable when this returns.

    Raises:
        RefusedError: no reader would take it; of the chunks that are `inherited`, its parent's readers have seen that.
        AttemptEndedError: its own attempt has one there already: another process commits it.
        ForeignTokensError: an attempt that the ledger never knew has one there, or a stranger has something else.
    """
    try:
        require_sound(manifest, inherited)
    except ValueError as error:
        msg = (
            f"checkpoint {manifest.checkpoint_id} of job {manifest.job!r} could not be read again: {error}. Nothing was committed; give "
            "its states as this version's writers and tasks make them"
        )
        raise RefusedError(msg) from error
    data = encode(manifest)
    try:
        storage.create(manifest.path, data)
    except FileExistsError as error:
        raise _taken(storage, manifest) from error
    return _file_of(manifest, data)


def left_manifest(storage: Storage, manifest: Manifest) -> StoredFile | None:
    """What a `store_manifest` that failed has left at its place, if that is whole and the attempt's own: a sync or a response was lost."""
    try:
        data = read_committed(storage, manifest.path, MANIFEST_LIMIT_BYTES)
        found = decode(data, manifest.path)
    except (OSError, HoldfastError):
        return None  # nothing, or another's: scrub looks at it again once the attempt has ended
    return _file_of(manifest, data) if found.attempt == manifest.attempt else None


def _file_of(manifest: Manifest, data: bytes) -> StoredFile:
    return StoredFile(
        file_id=paths.manifest_file_id(manifest.attempt),
        path=manifest.path,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        scope=MANIFEST_SCOPE,
    )


def load_manifest(storage: Storage, path: str) -> Manifest:
    """The verified manifest at a path. Raises DamagedFileError if it is missing or any byte is wrong."""
    try:
        data = read_committed(storage, path, MANIFEST_LIMIT_BYTES)
    except FileNotFoundError as error:
        msg = f"the manifest {path} is missing: the checkpoint was dropped and cleaned, or the file was lost; see the view checkpoints"
        raise DamagedFileError(msg) from error
    return decode(data, path)


def place_of(storage: Storage, fact: CheckpointCommitted) -> tuple[Storage, str]:
    """Where a committed checkpoint's paths begin, and its manifest's path from there.

    A checkpoint's begin at the catalog's root, a savepoint's in its own directory, in the catalog or anywhere else.
    """
    if not fact.is_savepoint:
        return storage, fact.path
    directory = paths.parent(fact.path)
    place = open_storage(directory) if paths.is_address(fact.path) else PrefixStorage(storage, directory)
    return place, paths.MANIFEST_NAME


def load_committed(storage: Storage, fact: CheckpointCommitted) -> Manifest:
    """The manifest of a committed checkpoint: it must be the very bytes that the commit confirmed."""
    place, path = place_of(storage, fact)
    what = f"the manifest {fact.path} of {'savepoint' if fact.is_savepoint else 'checkpoint'} {fact.checkpoint_id}"
    try:
        data = read_committed(place, path, fact.size_bytes)
    except FileNotFoundError as error:
        msg = (
            f"{what} is missing: the checkpoint was dropped meanwhile (see the view checkpoints), or it was lost or moved: "
            "then bring it back from a copy"
        )
        raise DamagedFileError(msg) from error
    found = hashlib.sha256(data).hexdigest()
    if found != fact.sha256:
        msg = (
            f"{what} is not the one that was committed "
            f"(sha256 {found}, committed {fact.sha256}): restore it from a copy, or use another checkpoint"
        )
        raise DamagedFileError(msg)
    return decode(data, fact.path)


def _taken(storage: Storage, manifest: Manifest) -> HoldfastError:
    try:
        found: str | None = load_manifest(storage, manifest.path).attempt
    except (DamagedFileError, FormatError):
        found = None
    if found is None:
        msg = (
            f"{manifest.path} is taken by something that is not a manifest: a process that may write to storage put it there. Nothing was "
            f"replaced or committed; remove it, and find out which process did. The next checkpoint of job {manifest.job!r} has a place of "
            "its own"
        )
        return ForeignTokensError(msg)
    if found == manifest.attempt:
        msg = (
            f"attempt {manifest.attempt} of checkpoint {manifest.checkpoint_id} of job {manifest.job!r} has a manifest already: "
            "another process commits the same attempt; stop one of them"
        )
        return AttemptEndedError(msg)
    msg = (
        f"{manifest.path} exists, and this ledger has never given checkpoint {manifest.checkpoint_id} to another attempt: it was "
        "probably restored from a backup. Nothing was replaced; scrub with dry_run lists what the ledger does not know"
    )
    return ForeignTokensError(msg)
