"""A commit that fails after its manifest was written: the abort names the manifest, so that vacuum finds it by query and scrub need not."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import holdfast
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.marker import read_marker
from holdfast.catalog.storage import PassingStorage
from holdfast.catalog.storage.local import LocalStorage
from holdfast.facade import Catalog
from holdfast.opening import catalog_at
from tests.support.front_door import LARGE, ask
from tests.support.invariants import assert_catalog_sound, assert_clean


@dataclass(frozen=True, slots=True)
class Blind(PassingStorage):
    """The driver's last look fails: everything has been written by then, and nothing is committed."""

    def size(self, path: str) -> int:
        if path.endswith(".bytes"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self.inner.size(path)


def checkpoint(catalog: Catalog) -> None:
    with catalog.coordinate("j") as job, job.checkpoint() as cp:
        cp.write_bytes("bytes", LARGE)


def savepoint(catalog: Catalog) -> None:
    catalog.savepoint("j", "s")


@pytest.mark.parametrize("write", [checkpoint, savepoint])
def test_the_abort_of_a_failed_commit_names_the_manifest(tmp_path: Path, write: Callable[[Catalog], None]) -> None:
    root = tmp_path / "catalog"
    with holdfast.open(root, create=True) as healthy:
        checkpoint(healthy)
    storage, marker = LocalStorage(root), read_marker(LocalStorage(root))
    with catalog_at(Blind(storage), marker, SystemEnvironment()) as catalog:
        with pytest.raises(OSError, match="Input/output error"):
            write(catalog)
    with holdfast.open(root) as catalog:
        left = [path for (path,) in ask(catalog, "SELECT path FROM unreferenced_files ORDER BY path")]
        assert [path.rpartition("/")[2] == "_metadata" for path in left].count(True) == 1
        assert len(left) == 2
        assert all((root / path).is_file() for path in left)
        assert catalog.vacuum().deleted_files == 2
        assert catalog.scrub().deleted_files == 0
        assert_catalog_sound(catalog)
        assert_clean(catalog)
