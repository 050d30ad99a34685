"""Making a catalog, and opening its ledger: marker and ledger must name the same catalog before anything is written.

The ledger comes first, then the history, and the marker last, so that a root with a marker is whole. A crash in between leaves empty
tables without a marker, which the next `create` takes over with the id that they carry. Nothing else is taken over: not a table that
somebody else made at their places, nor a place inside another catalog, whose scrub and copies would meet files that are none of its own.
"""

import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from holdfast.catalog import arguments, paths
from holdfast.catalog.environment import Environment
from holdfast.catalog.errors import AddressError, AlreadyExistsError, DamagedLedgerError, FormatError, NotFoundError
from holdfast.catalog.ledger import delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.delta_handle import CATALOG_ID
from holdfast.catalog.ledger.delta_history import HISTORY_SCHEMA, DeltaHistory
from holdfast.catalog.ledger.delta_table import OurTable
from holdfast.catalog.marker import Marker, create_marker, read_marker, require_ledger
from holdfast.catalog.schema import SCHEMA
from holdfast.catalog.storage import Storage
from holdfast.catalog.storage.local import enclosing, make_root
from holdfast.catalog.transactions import Transactor

_LOG = "_delta_log"

_Table = TypeVar("_Table", bound=OurTable)


def create_catalog(storage: Storage, environment: Environment) -> Marker:
    """The marker of the catalog at this root, which is made if there is none. Two processes may do so at once: they get the same.

    Raises:
        AlreadyExistsError: the root has files of something else, or a ledger with facts and no marker, or lies in another catalog.
        AddressError: no directory can be made there, or no Delta table would be found in it.
    """
    with suppress(NotFoundError):
        return read_marker(storage)
    try:
        return _create(storage, environment)
    except AlreadyExistsError:
        # Another process may have made it since, and gone on to fill it.
        with suppress(NotFoundError):
            return read_marker(storage)
        raise


def _create(storage: Storage, environment: Environment) -> Marker:
    arguments.place_of_ledger(os.path.realpath(storage.address))
    _require_outermost(storage)
    _require_free(storage)
    try:
        make_root(storage.address)
        ledger = made_or_taken_over(DeltaLedger, f"{storage.address}/{paths.LEDGER}", SCHEMA, environment.new_id())
        if ledger.scan():
            msg = (
                f"{storage.address} has a ledger with facts but no {paths.MARKER}: "
                f"restore the marker from a copy (its catalog id is {ledger.catalog_id})"
            )
            raise AlreadyExistsError(msg)
        open_or_make_history(storage.address, paths.HISTORY, ledger.catalog_id)
    except AlreadyExistsError:
        raise
    except OSError as error:
        msg = f"no catalog can be made at {storage.address} ({error}): give a directory, or a path at which one can be made"
        raise AddressError(msg) from error
    try:
        return create_marker(storage, ledger.catalog_id)
    except FileExistsError:
        return read_marker(storage)


def open_or_make_history(root: str, name: str, catalog_id: str) -> DeltaHistory:
    """The history in this directory of the root, made where there is none. Raises AlreadyExistsError where it is not this catalog's."""
    history = made_or_taken_over(DeltaHistory, f"{root}/{name}", HISTORY_SCHEMA, catalog_id)
    if history.catalog_id != catalog_id:
        msg = f"{root}/{name} is the history of catalog {history.catalog_id!r}, and not of {catalog_id!r}: move it away, then call again"
        raise AlreadyExistsError(msg)
    return history


def made_or_taken_over(kind: type[_Table], address: str, schema: pa.Schema, catalog_id: str) -> _Table:
    """A new and empty table of ours, or the one of a creation that crashed, or that runs alongside this one.

    It is recognised by its first commit, before it is opened: opening may mend a log, and a stranger's table is not ours to change.
    """
    try:
        return kind.make(address, schema, catalog_id=catalog_id)
    except AlreadyExistsError:
        found = delta_log.read_metadata(Path(address) / _LOG)
    with tempfile.TemporaryDirectory() as aside:  # what a creation writes, asked of itself: columns and properties stand in one place
        kind.make(aside, schema, catalog_id="any")
        ours = delta_log.read_metadata(Path(aside) / _LOG)
    assert ours is not None
    same = found is not None and _without_id(found) == _without_id(ours)
    if found is None or not same or not all(found.properties.values()):
        what = "a ledger" if schema is SCHEMA else "a history"
        msg = f"{address} holds a Delta table that is not {what} of Holdfast: give an empty directory, or move the table away"
        raise AlreadyExistsError(msg)
    return kind.open(address)


def _without_id(metadata: delta_log.TableMetadata) -> tuple[object, dict[str, str | None]]:
    """What is the same of all tables of a kind."""
    return metadata.columns, {**metadata.properties, CATALOG_ID: None} if CATALOG_ID in metadata.properties else dict(metadata.properties)


def open_transactor(storage: Storage, environment: Environment) -> Transactor:
    """The ledger of the catalog that is there, opened by a caller that has only the storage: a task, an owner, a process of Spark's.

    Raises as `read_marker` and `open_ledger` do, and as the guard of a storage that is of one catalog only.
    """
    marker = read_marker(storage)
    storage.require_root()
    return Transactor(open_ledger(storage, marker, environment), environment, history=partial(open_history, storage, marker, environment))


def open_history(storage: Storage, marker: Marker, environment: Environment | None = None) -> DeltaHistory:
    """The history that a marker names, as the ledger that it names tells it.

    Raises:
        DamagedLedgerError: it is gone or damaged.
        FormatError: it is of another catalog.
    """
    address = f"{storage.address}/{marker.history}"
    if not DeltaHistory.exists(address):
        msg = (
            f"the history of catalog {marker.catalog_id} is gone: {address} is not a Delta table. What is live is in the ledger, and "
            "checkpoints go on; restore the history from a copy. Nothing was changed"
        )
        raise DamagedLedgerError(msg)
    history = DeltaHistory.of(address, marker.ledger, environment)
    if history.catalog_id != marker.catalog_id:
        msg = (
            f"the marker of {storage.address} is of catalog {marker.catalog_id!r}, its history of {history.catalog_id!r}: they do not "
            "belong together; restore the one that was exchanged. Nothing was changed"
        )
        raise FormatError(msg)
    return history


def open_ledger(storage: Storage, marker: Marker, environment: Environment | None = None) -> DeltaLedger:
    """The ledger that a marker names.

    Raises:
        AddressError: the catalog was brought to a path at which no Delta table is found.
        DamagedLedgerError: it is gone or damaged.
        FormatError: it is of another catalog, of another format, or of none.
    """
    arguments.place_of_ledger(os.path.realpath(storage.address))
    address = f"{storage.address}/{marker.ledger}"
    if not DeltaLedger.exists(address):
        msg = (
            f"the ledger of catalog {marker.catalog_id} is gone: {address} is not a Delta table. Restore it from a copy; nothing was "
            "changed"
        )
        raise DamagedLedgerError(msg)
    ledger = DeltaLedger.open(address, environment)
    if not ledger.catalog_id or (ledger.catalog_id, ledger.format_version) != (marker.catalog_id, marker.format_version):
        msg = (
            f"the marker of {storage.address} is of catalog {marker.catalog_id!r} in format {marker.format_version}, its ledger of "
            f"{ledger.catalog_id!r} in format {ledger.format_version}: they do not belong together; restore the one that was exchanged. "
            "Nothing was changed"
        )
        raise FormatError(msg)
    ledger.require_named = partial(require_ledger, storage, marker)
    return ledger


def _require_outermost(storage: Storage) -> None:
    for outer in enclosing(storage.address):
        try:
            outer.size(paths.MARKER)
        except OSError:
            continue  # nothing there, or nothing that we may see
        msg = f"{storage.address} lies in the catalog at {outer.address}: give a directory outside of it"
        raise AlreadyExistsError(msg)


def _require_free(storage: Storage) -> None:
    for stored in storage.list(""):
        if not paths.is_left_by_a_creation(stored.path):
            msg = (
                f"{storage.address} has no {paths.MARKER} and is not empty ({stored.path}): give an empty directory, or restore the marker"
            )
            raise AlreadyExistsError(msg)
