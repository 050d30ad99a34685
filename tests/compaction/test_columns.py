"""A vacuum of many files is columns from the query to the commits, and says what objects would say."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.catalog import facts as f
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.ledger.delta import DeltaLedger
from holdfast.catalog.schema import FactColumns, Operation
from holdfast.catalog.storage.memory import MemoryStorage
from holdfast.catalog.transactions import Transactor
from holdfast.catalog.types import Scope, StoredFile
from holdfast.compaction.columns import PAGE, StoredFiles
from holdfast.compaction.evidence import require_unneeded
from holdfast.compaction.garbage import GarbageFile, GarbageFiles
from holdfast.compaction.queries import SqlQueries
from holdfast.compaction.vacuum import plan_vacuum, run_vacuum
from tests.support.history import T0

FILES = 20_000
JOB = "job-00000000"


def garbage(count: int) -> GarbageFiles:
    return GarbageFiles.of(GarbageFile(file_id=f"f{n}", job_id="j", path=f"jobs/j/{n:06}", size_bytes=n) for n in range(count))


# ---- rows -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 7, PAGE, PAGE + 1])
def test_rows_are_their_objects_in_order(count: int) -> None:
    files = garbage(count)
    objects = list(files)
    assert [file.size_bytes for file in objects] == list(range(count))
    assert (len(files), bool(files), files.size_bytes) == (count, count > 0, sum(range(count)))
    assert GarbageFiles.of(objects) == files
    if count:
        assert (files[0], files[-1]) == (objects[0], objects[-1])
    with pytest.raises(IndexError):
        files[count]


@pytest.mark.parametrize("cut", [slice(2, 5), slice(0), slice(3, None), slice(-2, None), slice(5, 2), slice(90, 99)])
def test_slices_of_rows_are_rows(cut: slice) -> None:
    files = garbage(7) + garbage(3)  # of more chunks than one
    assert list(files[cut]) == list(files)[cut]
    assert isinstance(files[cut], GarbageFiles)
    with pytest.raises(ValueError, match="every 2th row"):
        files[::2]


def test_rows_are_equal_where_their_objects_are() -> None:
    assert garbage(3) + garbage(2)[:0] == garbage(3)
    assert garbage(3) != garbage(2)
    assert garbage(0) != ()


def test_files_without_some_paths_are_the_others_in_order() -> None:
    files = garbage(5)
    assert files.without([]) is files
    assert [file.file_id for file in files.without({"jobs/j/000001", "jobs/j/000003", "elsewhere"})] == ["f0", "f2", "f4"]


@pytest.mark.parametrize("owner", [None, "wal"])
def test_stored_files_come_back_as_they_were(owner: str | None) -> None:
    file = StoredFile(file_id="f", path="p", size_bytes=1, sha256="5a", scope=Scope.TASKOWNED, owner=owner)
    assert list(StoredFiles.of([file])) == [file]
    assert isinstance(StoredFiles.of([file])[0].scope, Scope)


# ---- a vacuum ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many objects of each of these classes were made."""
    counts: Counter[str] = Counter()
    for cls in (GarbageFile, f.Condemned, f.Gone, f.FileWritten, f.RunEnded):

        def counted(self: object, *given: object, _made=cls.__init__, _name: str = cls.__name__, **named: object) -> None:
            counts[_name] += 1
            _made(self, *given, **named)

        monkeypatch.setattr(cls, "__init__", counted)
    return counts


def with_files(directory: Path, *, of_condemned: int) -> DeltaLedger:
    """A ledger with files that nothing refers to, of which some were condemned."""
    ledger = DeltaLedger.create(directory, catalog_id="c")
    ids = pa.array([f"{n % 7}-{n}" for n in range(FILES)])
    paths = pa.array([f"jobs/{JOB}/shared/{n % 7}-{n:016x}-1/part-{n}.parquet" for n in range(FILES)])
    sizes = pa.array(range(FILES), pa.int64())
    seqs, tokens = pa.array([2] * FILES, pa.int64()), pa.array([f"{n:016x}" for n in range(FILES)])
    owners = pa.nulls(FILES, pa.string())
    files = FactColumns.of_kind(
        "file", job_id=JOB, seq=seqs, file_id=ids, attempt=tokens, path=paths, size_bytes=sizes, sha256="5a", scope="SHARED", owner=owners
    )
    said = FactColumns.of([f.JobRegistered(job_id=JOB, seq=1, job="job", max_parallelism=1)]) + files
    if of_condemned:
        said += FactColumns.of_kind("condemned", job_id=JOB, file_id=ids[:of_condemned], run_id="before")
    ledger.append(said, keys={}, operation=Operation(operation_id="op", at=T0, by="ann@host"))
    ledger.refresh()
    return ledger


SLOWER = [pytest.param(count, marks=pytest.mark.slow) for count in (0, 1, 999, 1000, FILES)]


@pytest.mark.parametrize("of_condemned", [2500, *SLOWER])
def test_a_vacuum_makes_no_object_for_a_file(tmp_path: Path, made: Counter[str], of_condemned: int) -> None:
    ledger = with_files(tmp_path / "ledger", of_condemned=of_condemned)
    transactor, storage = Transactor(ledger, SystemEnvironment()), MemoryStorage()
    transactor.fresh().job_named("job")  # it is held: what is committed to it would be replayed
    told: list[tuple[int, int]] = []
    before = ledger.version
    plan = require_unneeded(plan_vacuum(SqlQueries.at(str(tmp_path / "ledger")).garbage()), transactor, storage)
    report = run_vacuum(plan, transactor, storage, SystemEnvironment(), lambda done, of: told.append((done, of)))
    assert made == {"RunEnded": 1}
    assert (report.deleted_files, report.deleted_bytes, report.failed) == (FILES, sum(range(FILES)), ())
    assert told == [(done, FILES) for done in range(1000, FILES + 1, 1000)]
    assert ledger.version - before == 20 + (of_condemned < 1000), "each batch's, which the first does not need if all of it was condemned"
    _require_what_objects_say(ledger, of_condemned)


def _require_what_objects_say(ledger: DeltaLedger, of_condemned: int) -> None:
    """Each file is condemned once and gone once, in this order."""
    rows = [row for row in ledger.rows() if isinstance(row.fact, f.Condemned | f.Gone) and row.fact.run_id != "before"]
    assert len({row.fact.run_id for row in rows}) == 1
    assert Counter(row.fact.kind for row in rows) == +Counter(condemned=FILES - of_condemned, gone=FILES)
    condemned: set[str] = {f"{n % 7}-{n}" for n in range(of_condemned)}
    for row in rows:
        assert row.fact.job_id == JOB
        if isinstance(row.fact, f.Condemned):
            assert row.fact.file_id not in condemned
            condemned.add(row.fact.file_id)
        else:
            condemned.remove(row.fact.file_id)
    assert condemned == set()
