"""Where savepoints and copies go outside the catalog, and how they are disposed of there.

A savepoint's own directory carries its attempt's token in its name; below it, `data/` and `_metadata` are ours and nothing else is.
"""

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from holdfast.catalog import paths
from holdfast.catalog.errors import AddressError, DamagedFileError, RefusedError
from holdfast.catalog.facts import CheckpointCommitted
from holdfast.catalog.manifest import decode
from holdfast.catalog.manifest_store import load_committed, place_of
from holdfast.catalog.rules import savepoints
from holdfast.catalog.state import CatalogState, Ref
from holdfast.catalog.storage import Storage, StoredDirectory
from holdfast.catalog.storage.local import enclosing, make_root, open_storage
from holdfast.catalog.transactions import Transactor

DATA = paths.SAVEPOINT_DATA


class Found(StrEnum):
    """What `dispose` found of a savepoint."""

    IN_CATALOG = "in the catalog"  # its files are deleted by the next vacuum, once nobody reads them
    WHOLE = "whole"  # outside; what its manifest names was deleted
    DAMAGED = "damaged"  # outside; its manifest is lost or damaged, so all that lay under its own names was deleted
    ABSENT = "absent"  # outside, and nothing is there: it was deleted or moved away, and a moved one is not found by anybody


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposal:
    """What `dispose` found and did: `path` is the savepoint's directory. It is no longer live, whatever was found."""

    name: str
    path: str
    found: Found
    deleted_files: int


def require_outside_catalogs(target: Storage) -> None:
    """Raises RefusedError if the target is a catalog or lies in one, this or another: its scrub would delete what is put there."""
    for place in (open_storage(os.path.realpath(target.address)), *enclosing(target.address)):
        try:
            place.size(paths.MARKER)
        except OSError:
            continue  # nothing there, or nothing that we may see
        msg = f"the target {target.address} is in the catalog at {place.address}, whose cleanup would take it: give a directory outside"
        raise RefusedError(msg)


def require_writable(target: Storage, fresh: str) -> None:
    """Make the target, and a file of a fresh name in it that is deleted at once. Raises AddressError where that fails."""
    probe = f".holdfast-{fresh}.tmp"
    try:
        make_root(target.address)
        target.create(probe, b"")
        _delete(target, [probe])
    except OSError as error:
        msg = (
            f"nothing can be written to the target {target.address} ({error}): give a directory that this process may write to, "
            "or a path at which one can be made. Nothing was begun"
        )
        raise AddressError(msg) from error


def dispose(storage: Storage, transactor: Transactor, find: Callable[[CatalogState], tuple[Ref, CheckpointCommitted]]) -> Disposal:
    """Drop a savepoint, then delete it if it lies outside the catalog. A second call deletes what the first left. See `Catalog.dispose`."""
    ref, fact = transactor.look(find)
    place, _ = place_of(storage, fact)
    found, names = _examine(storage, fact, place)
    deletes = bool(names)
    transactor.run(lambda state: savepoints.dispose(state, ref, deletes_now=deletes))
    if found is not Found.IN_CATALOG:
        delete_own(place, names)
    return Disposal(name=str(fact.name), path=place.address, found=found, deleted_files=len(names))


def own_files(place: Storage) -> list[str]:
    """What lies under a savepoint's own names in its directory, the manifest last. Links are not followed."""
    found = sorted(stored.path for stored in place.list(""))
    return [*(path for path in found if path.startswith(f"{DATA}/")), *(path for path in found if path == paths.MANIFEST_NAME)]


def delete_own(place: Storage, names: Collection[str]) -> None:
    """Delete these files of a savepoint's directory, and its directories if nothing else is in them."""
    _delete(place, [name for name in names if name != paths.MANIFEST_NAME])
    _delete(place, [name for name in names if name == paths.MANIFEST_NAME])  # while it is there, a second call finds the others by it
    directories = [found.path for found in place.walk("") if isinstance(found, StoredDirectory) and found.path.split("/")[0] == DATA]
    _raise_first(place.remove_empty_directories(directories))
    above, _, name = place.address.rpartition("/")
    with suppress(AddressError):  # it went with what it was in
        _raise_first(open_storage(above or "/").remove_empty_directories([name]))


def _delete(place: Storage, names: Collection[str]) -> None:
    _raise_first(place.delete_many(names))


def _raise_first(errors: Mapping[str, OSError]) -> None:
    for _, error in sorted(errors.items()):
        raise error


def _examine(storage: Storage, fact: CheckpointCommitted, place: Storage) -> tuple[Found, list[str]]:
    """What is there, and the files to delete now."""
    if not paths.is_address(fact.path):
        return Found.IN_CATALOG, []
    try:
        manifest = load_committed(storage, fact)
    except DamagedFileError:
        _require_no_other(place, fact)
        names = own_files(place)
        return (Found.DAMAGED if names else Found.ABSENT), names
    return Found.WHOLE, [*sorted(file.path for file in manifest.files.values()), paths.MANIFEST_NAME]


def _require_no_other(place: Storage, fact: CheckpointCommitted) -> None:
    """Raises RefusedError if a whole savepoint of another attempt lies where this one did: somebody has put it there."""
    try:
        found = decode(place.read(paths.MANIFEST_NAME), fact.path)
    except (FileNotFoundError, DamagedFileError):
        return
    if found.attempt != fact.attempt:
        msg = (
            f"{place.address} holds another savepoint (attempt {found.attempt} of job {found.job!r}), not savepoint {fact.name!r} (attempt "
            f"{fact.attempt}): nothing was deleted. Move it away, then dispose again"
        )
        raise RefusedError(msg)
