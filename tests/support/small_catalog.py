"""A small real catalog, made without Spark: two jobs whose states are files and small bytes, with garbage, a savepoint and a Delta checkpoint."""

import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import holdfast

STATE_BYTES = 30_000  # too long for a row: a file


@dataclass(frozen=True, slots=True)
class SmallCatalog:
    """Its root, what each live checkpoint's states hold, and the paths of the files that they need."""

    root: Path
    states: dict[tuple[str, int], dict[str, bytes]]
    needed: frozenset[str] = frozenset()

    def copied(self, target: Path) -> "SmallCatalog":
        """A copy whose ledger may be changed: the other files are links."""
        shutil.copytree(self.root, target, copy_function=os.link)
        shutil.rmtree(target / "ledger")
        shutil.copytree(self.root / "ledger", target / "ledger")
        return SmallCatalog(target, self.states, self.needed)

    def ledger_files(self) -> list[Path]:
        """The files that say something: those beside, which no engine looks at, are the digests of Delta checkpoints alone."""
        return sorted(path for path in (self.root / "ledger").rglob("*") if path.is_file())

    def read(self, catalog: holdfast.Catalog) -> dict[tuple[str, int], dict[str, bytes]]:
        """What the catalog says that the live checkpoints hold."""
        found = {}
        for job, number in self.states:
            with catalog.checkpoint(job, number) as checkpoint:
                found[job, number] = {name: checkpoint.read_bytes(name) for name in ("state", "offsets")}
        return found


def make(root: Path, checkpoints: int) -> SmallCatalog:
    """Each job has kept its last two checkpoints; files of the others are unreferenced, and none is deleted."""
    with holdfast.open(root, create=True) as catalog:
        states = {}
        for job in ("alpha", "beta"):
            with catalog.coordinate(job, retention=holdfast.KeepLast(2)) as coordinator:
                for n in range(1, checkpoints + 1):
                    with coordinator.checkpoint(progress={"n": n}) as checkpoint:
                        if n % 2:
                            checkpoint.write_bytes("state", f"{job} {n} ".encode() * (STATE_BYTES // 8))
                        checkpoint.write_bytes("offsets", f"{job} {n}".encode())
                newest = coordinator.latest()
                assert newest is not None
        for job in ("alpha", "beta"):
            for number in sorted(
                row[0]
                for row in catalog.duckdb()
                .execute("SELECT checkpoint_id FROM checkpoints WHERE job = ? AND status = 'live'", [job])
                .fetchall()
            ):
                with catalog.checkpoint(job, number) as checkpoint:
                    states[job, number] = {name: checkpoint.read_bytes(name) for name in ("state", "offsets")}
        needed = catalog.duckdb().execute("SELECT path FROM files WHERE file_id IN (SELECT file_id FROM checkpoint_files)").fetchall()
    return SmallCatalog(root, states, frozenset(path for (path,) in needed))


class SmallCatalogs:
    """Copies of catalogs that `make` makes, each of which is made once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[int, SmallCatalog] = {}

    def copy(self, target: Path, checkpoints: int) -> SmallCatalog:
        if checkpoints not in self._made:
            self._made[checkpoints] = make(self._place / str(checkpoints), checkpoints)
        made = self._made[checkpoints]
        shutil.copytree(made.root, target)
        return replace(made, root=target)
