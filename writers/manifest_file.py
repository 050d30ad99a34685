"""The `_metadata` of a checkpoint or savepoint, created once: whoever finds its place taken is told by whom."""

import hashlib

from holdfast.catalog import paths
from holdfast.catalog.errors import AttemptEndedError, ForeignTokensError, HoldfastError
from holdfast.catalog.manifest import Manifest, encode
from holdfast.catalog.storage import Storage
from holdfast.catalog.types import Scope, StoredFile
from holdfast.writers.restore import load_manifest

MANIFEST_SCOPE = Scope.EXCLUSIVE


def store_manifest(storage: Storage, manifest: Manifest) -> StoredFile:
    """Write the manifest to its place in the catalog or in the savepoint's directory, durable when this returns.

    Raises:
        AttemptEndedError: its own attempt has one there already: another process commits it.
        ForeignTokensError: an attempt that the ledger never knew has one there.
    """
    data = encode(manifest)
    try:
        storage.create(manifest.path, data)
    except FileExistsError as error:
        raise _taken(storage, manifest) from error
    return StoredFile(
        file_id=paths.manifest_file_id(manifest.attempt),
        path=manifest.path,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        scope=MANIFEST_SCOPE,
    )


def _taken(storage: Storage, manifest: Manifest) -> HoldfastError:
    if load_manifest(storage, manifest.path).attempt == manifest.attempt:
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
