"""A Spark write under which its expired attempt's files go: the attempt fails, and the application goes on."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep

import pyarrow as pa
import pytest

import holdfast
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.marker import read_marker
from holdfast.catalog.storage.local import open_storage
from holdfast.opening import catalog_at
from tests.support.invariants import assert_catalog_sound, assert_clean, evidence_of

FIRST_ROWS = 200_000  # more than lies in the buffers between a task's Python and its file


@dataclass(frozen=True, kw_only=True)
class RingsAtFile(SystemEnvironment):
    """Its alarms ring when a task has made this file, however long that takes."""

    file: Path

    def alarm(self, after_s: float, ring: Callable[[], None]) -> Callable[[], None]:
        off = threading.Event()

        def wait() -> None:
            while not off.is_set() and not self.file.exists():
                off.wait(0.01)
            if not off.is_set():
                ring()

        threading.Thread(target=wait, daemon=True).start()
        return off.set


def overtaken(address: str, file: str):
    """A task that writes rows, sees that its attempt has ended, has scrub take what it wrote, and writes more."""

    def run(batches):
        for batch in batches:
            if Path(file).exists():  # another try of the task
                return
            yield pa.RecordBatch.from_arrays([pa.array(range(FIRST_ROWS), pa.int64())], schema=batch.schema)
            Path(file).touch()
            with holdfast.open(address) as catalog:
                while catalog._transactor.look(lambda state: bool(state.job_named("flights").open_attempts)):
                    sleep(0.01)
                catalog.scrub()
            yield batch

    return run


@pytest.mark.parametrize("upload", ["native", pytest.param("streamed", marks=pytest.mark.slow)])
def test_a_write_whose_expired_attempts_files_go_fails_the_attempt_alone(spark, tmp_path: Path, upload) -> None:
    """The application does not fail."""
    holdfast.open(tmp_path / "catalog", create=True)
    late, storage = tmp_path / "late", open_storage(tmp_path / "catalog")
    catalog = catalog_at(storage, read_marker(storage), RingsAtFile(file=late))
    rows = spark.range(10, numPartitions=1)
    with catalog.coordinate("flights", upload=upload, checkpoint_timeout_s=600, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as cp:
            cp.write("planes", rows, key=["id"])
        with pytest.raises(holdfast.AttemptEndedError, match="expired: not committed within 600 s.*begin another") as raised:
            with job.checkpoint() as cp:
                cp.write("planes", rows.mapInArrow(overtaken(catalog.address, str(late)), "id long"), key=["id"])
        cause = raised.value.__cause__
        if upload == "native":  # the streamed one buffers the rows, and makes its file when scrub has gone
            assert cause is not None
            assert type(cause).__module__.startswith(("py4j.", "pyspark.")), repr(cause)
        late.unlink()
        with job.checkpoint() as cp:
            cp.write("planes", rows, key=["id"])
        assert job.latest().checkpoint_id == 3
        assert job.latest().read(spark, "planes").count() == 10
    catalog.vacuum()
    catalog.scrub()
    assert_catalog_sound(evidence_of(catalog))
    assert_clean(evidence_of(catalog))
