"""Catalogs of format 1 as 0.1.0 made them, and programs that have one open: this version's own writers, on such a ledger.

What 0.1.0 itself does is in `tests/programs/test_upgrade_beside_0_1_0.py`; what it left, in `tests/golden/catalog-1`.
"""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

import holdfast
from holdfast.catalog import paths
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger import delta_entry, delta_log
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.ledger.memory_history import MemoryHistory, MemoryTold
from holdfast.catalog.marker import Marker
from holdfast.catalog.schema import SCHEMA
from holdfast.catalog.storage.local import LocalStorage
from holdfast.opening import catalog_at
from tests.support.places import ROOT

GOLDEN = ROOT / "tests" / "golden" / "catalog-1"
CATALOG_ID = "0123456789abcdef"
OF_FOLDS = ("last_committed_id", "ancestor_job_id", "ancestor_checkpoint_id", "claims")
SCHEMA_1 = pa.schema([field for field in SCHEMA if field.name not in OF_FOLDS])
CONFIGURATION_1 = {"delta.appendOnly": "true", "delta.enableExpiredLogCleanup": "false", "delta.checkpointInterval": "20"}


def make_ledger(directory: Path, catalog_id: str = CATALOG_ID) -> DeltaLedger:
    """An empty ledger."""
    (directory / "_delta_log").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as aside:
        configuration = CONFIGURATION_1 | {"holdfast.catalogId": catalog_id}
        DeltaTable.create(aside, SCHEMA_1, configuration=configuration, raise_if_key_not_exists=False)
        first = (Path(aside) / "_delta_log" / delta_log.commit_name(0)).read_bytes()
    delta_log.create_commit(directory / "_delta_log", 0, delta_entry.with_digest(0, first))
    return DeltaLedger.open(directory)


def marker_of(root: Path) -> Marker:
    """What the marker of format 1 says."""
    said = json.loads((root / paths.MARKER).read_text())
    assert said.keys() == {"catalog_id", "format_version", "ledger"}
    return Marker(**said, history="")


def make_catalog(root: Path) -> Path:
    """An empty catalog."""
    make_ledger(root / "ledger")
    (root / paths.MARKER).write_text(json.dumps({"catalog_id": CATALOG_ID, "format_version": 1, "ledger": "ledger"}, indent=2) + "\n")
    return root


def open_catalog(root: Path) -> holdfast.Catalog:
    """The catalog as a program of that time has it open; this version's own programs are refused."""
    catalog = catalog_at(LocalStorage(root), marker_of(root), SystemEnvironment())
    catalog._queries = replace(catalog._queries, history_address=None)  # type: ignore[type-var]  # it is SqlQueries
    catalog._open_history = lambda: MemoryHistory(MemoryTold())
    return catalog
