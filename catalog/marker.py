"""`holdfast.json`: what makes a directory a catalog. Read before anything else, and before anything is written."""

import json
from dataclasses import asdict, dataclass

from holdfast.catalog import paths
from holdfast.catalog.errors import CorruptionError, FormatError, NotFoundError
from holdfast.catalog.schema import FORMAT_VERSION
from holdfast.catalog.storage import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A catalog's id, the version of its format, and the directory of its ledger, relative to the root."""

    catalog_id: str
    format_version: int
    ledger: str


def read_marker(storage: Storage) -> Marker:
    """The marker of the catalog at this root.

    Raises:
        NotFoundError: there is none, so this is no catalog.
        FormatError: a newer version wrote it.
        CorruptionError: it does not read as one.
    """
    try:
        with storage.open_stream(paths.MARKER) as stream:
            data = stream.read(paths.MARKER_LIMIT_BYTES)
    except FileNotFoundError as error:
        msg = (
            f"{storage.address} is not a catalog, it has no {paths.MARKER}: check the path, or make one with holdfast.open(path, "
            "create=True)"
        )
        raise NotFoundError(msg) from error
    try:
        fields = json.loads(data)
        marker = Marker(catalog_id=fields["catalog_id"], format_version=fields["format_version"], ledger=fields["ledger"])
        _require_marker(marker)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = f"{storage.address}/{paths.MARKER} does not read as a marker ({error!r}): restore it from a copy of the catalog"
        raise CorruptionError(msg) from error
    if marker.format_version > FORMAT_VERSION:
        msg = (
            f"catalog {marker.catalog_id} at {storage.address} has format {marker.format_version}, "
            f"this version reads up to {FORMAT_VERSION}: use the newer Holdfast that wrote it; nothing was changed"
        )
        raise FormatError(msg)
    return marker


def _require_marker(marker: Marker) -> None:
    """Raises ValueError for what no catalog has: the ledger is in a directory of the catalog's own, wherever the marker comes from."""
    catalog_id: object = marker.catalog_id
    version: object = marker.format_version
    if not isinstance(catalog_id, str) or not catalog_id or not catalog_id.isprintable():  # empty as of a table that is no ledger
        msg = "the catalog id is empty, or is not a line of text"
        raise ValueError(msg)
    if isinstance(version, bool) or not isinstance(version, int) or not paths.is_ledger(marker.ledger):
        msg = "the format version is not a number, or the ledger's directory is not the name of one"
        raise ValueError(msg)


def create_marker(storage: Storage, catalog_id: str) -> Marker:
    """Write the marker of a new catalog. Raises FileExistsError if the root has one."""
    marker = Marker(catalog_id=catalog_id, format_version=FORMAT_VERSION, ledger=paths.LEDGER)
    storage.create(paths.MARKER, json.dumps(asdict(marker), indent=2).encode() + b"\n")
    return marker
