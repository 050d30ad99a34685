"""Making a catalog, and opening its ledger: marker and ledger must name the same catalog before anything is written.

The ledger comes first and the marker last, so that a root with a marker is whole. A crash in between leaves an empty ledger without a
marker, which the next `create` takes over with the id that it carries.
"""

from contextlib import suppress

from holdfast.catalog import paths
from holdfast.catalog.clock import Environment
from holdfast.catalog.errors import AlreadyExistsError, DamagedLedgerError, FormatError, NotFoundError
from holdfast.catalog.ledger_delta import DeltaLedger
from holdfast.catalog.marker import Marker, create_marker, read_marker
from holdfast.catalog.storage import Storage


def create_catalog(storage: Storage, environment: Environment) -> Marker:
    """The marker of the catalog at this root, which is made if there is none. Two processes may do so at once: they get the same.

    Raises:
        AlreadyExistsError: the root has files of something else, or a ledger with facts and no marker.
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
    _require_free(storage)
    address = f"{storage.address}/{paths.LEDGER}"
    try:
        ledger = DeltaLedger.create(address, catalog_id=environment.new_id())
    except AlreadyExistsError:  # of a creation that crashed, or that runs beside this one
        ledger = DeltaLedger.open(address)
    if ledger.scan():
        msg = (
            f"{storage.address} has a ledger with facts but no {paths.MARKER}: "
            f"restore the marker from a copy (its catalog id is {ledger.catalog_id})"
        )
        raise AlreadyExistsError(msg)
    try:
        return create_marker(storage, ledger.catalog_id)
    except FileExistsError:
        return read_marker(storage)


def open_ledger(storage: Storage, marker: Marker) -> DeltaLedger:
    """The ledger that a marker names.

    Raises:
        DamagedLedgerError: it is gone or damaged.
        FormatError: it is of another catalog.
    """
    address = f"{storage.address}/{marker.ledger}"
    if not DeltaLedger.exists(address):
        msg = f"the ledger of catalog {marker.catalog_id} is gone: {address} is no Delta table. Restore it from a copy; nothing was changed"
        raise DamagedLedgerError(msg)
    ledger = DeltaLedger.open(address)
    if ledger.catalog_id != marker.catalog_id:
        msg = (
            f"the marker of {storage.address} is of catalog {marker.catalog_id}, its ledger of {ledger.catalog_id}: "
            "they do not belong together; restore the one that was exchanged. Nothing was changed"
        )
        raise FormatError(msg)
    return ledger


def _require_free(storage: Storage) -> None:
    for stored in storage.list(""):
        if not isinstance(paths.parse(stored.path), paths.InternalPath):
            msg = (
                f"{storage.address} has no {paths.MARKER} and is not empty ({stored.path}): give an empty directory, or restore the marker"
            )
            raise AlreadyExistsError(msg)
