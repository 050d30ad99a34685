"""`holdfast.json`: what makes a directory a catalog. Read before anything else, and before anything is written."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.catalog import VERSION, paths
from holdfast.catalog.errors import CorruptionError, FencedError, FormatError, NotFoundError
from holdfast.catalog.schema import FORMAT_VERSION
from holdfast.catalog.storage import Storage, StorageConflictError

FEATURES: frozenset[str] = frozenset()  # what a program must understand beyond the format; a catalog names those that it uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A catalog's id, its format with the features beyond that, and the directories of its ledger and history, relative to the root.

    `history` is empty in format 1, which had none.
    """

    catalog_id: str
    format_version: int = FORMAT_VERSION
    features: tuple[str, ...] = ()
    ledger: str = paths.LEDGER
    history: str = paths.HISTORY

    @property
    def data(self) -> bytes:
        """The bytes of it, as they are stored."""
        return json.dumps(asdict(self), indent=2).encode() + b"\n"


def read_marker(storage: Storage) -> Marker:
    """The marker of the catalog at this root.

    Raises:
        NotFoundError: there is none, so this is no catalog.
        FormatError: the catalog has a format or a feature of a newer version, or a format that has to be upgraded.
        CorruptionError: it does not read as one.
    """
    marker, _ = read_marker_of_any_format(storage)
    if marker.format_version < FORMAT_VERSION:
        raise too_old(storage, marker)
    return marker


def read_marker_of_any_format(storage: Storage) -> tuple[Marker, bytes]:
    """As `read_marker`, for what upgrades older formats; with the bytes that are stored."""
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
        _require_known(storage, fields)
        return _marker(fields), data
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        msg = f"{storage.address}/{paths.MARKER} does not read as a marker ({error!r}): restore it from a copy of the catalog"
        raise CorruptionError(msg) from error


def _require_known(storage: Storage, fields: dict[str, Any]) -> None:
    """Raises FormatError for what a newer version wrote, whose fields may be others; ValueError, TypeError, KeyError for what none did."""
    version, features = fields["format_version"], fields.get("features", [])
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        msg = "the format version is not a number from 1"
        raise ValueError(msg)
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        msg = "the features are not a list of names"
        raise ValueError(msg)
    unknown = sorted(set(features) - FEATURES)
    if version > FORMAT_VERSION or unknown:
        what = f"format {version}" if version > FORMAT_VERSION else f"the feature {', '.join(map(repr, unknown)):.200}"
        msg = (
            f"catalog {fields['catalog_id']!r:.60} at {storage.address} has {what}, and Holdfast {VERSION} knows format {FORMAT_VERSION} "
            f"with {', '.join(sorted(FEATURES)) or 'no features'}: use the newer Holdfast that wrote it; nothing was changed"
        )
        raise FormatError(msg)


def _marker(fields: dict[str, Any]) -> Marker:
    """Raises ValueError for what no catalog has: ledger and history are the catalog's own, wherever the marker comes from."""
    marker = Marker(
        catalog_id=fields["catalog_id"],
        format_version=fields["format_version"],
        features=tuple(fields.get("features", ())),
        ledger=fields["ledger"],
        history=fields["history"] if fields["format_version"] > 1 else "",
    )
    catalog_id: object = marker.catalog_id
    if not isinstance(catalog_id, str) or not catalog_id or not catalog_id.isprintable():  # empty as of a table that is no ledger
        msg = "the catalog id is empty, or is not a line of text"
        raise ValueError(msg)
    if not paths.is_ledger(marker.ledger) or (marker.format_version > 1 and not paths.is_history(marker.history)):
        msg = "the directory of the ledger or of the history is not the name of one"
        raise ValueError(msg)
    return marker


def too_old(storage: Storage, marker: Marker) -> FormatError:
    """The error of a catalog that has to be upgraded."""
    msg = (
        f"catalog {marker.catalog_id} at {storage.address} has format {marker.format_version}, and Holdfast {VERSION} works on format "
        f"{FORMAT_VERSION}: run `holdfast upgrade {storage.address}`; programs of the older version are refused from then on. Nothing was "
        "changed"
    )
    return FormatError(msg)


def create_marker(storage: Storage, catalog_id: str) -> Marker:
    """Write the marker of a new catalog. Raises FileExistsError if the root has one."""
    marker = Marker(catalog_id=catalog_id)
    storage.create(paths.MARKER, marker.data)
    return marker


def replace_marker(storage: Storage, marker: Marker, stored: bytes) -> Marker:
    """Put this marker in the place of the one with the stored bytes, durably; the one that is there then, which another may have put."""
    try:
        storage.replace(paths.MARKER, marker.data, expected=stored)
    except StorageConflictError:
        return read_marker(storage)
    return marker


def require_ledger(storage: Storage, marker: Marker) -> None:
    """Whether the catalog still has the ledger that this marker names, asked between a commit and its acknowledgement.

    A root without a marker is no answer: that the ledger's own directory is gone is seen by the ledger.
    Raises:
        FencedError: it has another: it was upgraded or rebuilt.
        FormatError: it has a format or a feature since, which this version does not know.
    """
    try:
        found, _ = read_marker_of_any_format(storage)
    except NotFoundError:
        return
    if (found.catalog_id, found.format_version, found.ledger) != (marker.catalog_id, marker.format_version, marker.ledger):
        msg = (
            f"the catalog at {storage.address} has the ledger {found.ledger!r} (of catalog {found.catalog_id}) by now, and this process "
            f"opened {marker.ledger!r} (of {marker.catalog_id}): it was upgraded, rebuilt or replaced, and what this process commits does "
            "not count. Stop it, and open the catalog again"
        )
        raise FencedError(msg)
