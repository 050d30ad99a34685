"""Run by test_cluster: both uploaders on a standalone cluster of two workers that does everything to them that a real one does.

Prints a line of JSON for each scenario. After each, the catalog is sound, and vacuum and scrub leave exactly the referenced files.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

import holdfast
from holdfast.catalog.creation import create_catalog
from holdfast.catalog.environment import SystemEnvironment
from holdfast.catalog.storage.local import LocalStorage
from holdfast.demo.sessions import link_spark_home
from holdfast.facade import Catalog
from holdfast.opening import catalog_at
from holdfast.writers.parquet import few_files
from tests.support.invariants import assert_catalog_sound, assert_clean
from tests.support.places import ROOT
from tests.support.spark_support import build_session, row_texts, session_settings

HOSTS = ("127.0.0.2", "127.0.0.3")  # Spark speculates on another host only
ROWS = 20_000
PARTITIONS = 4
PATIENCE_S = 60.0
GAVE_UP = "gave-up"  # a task that waited for the commit was not overtaken
SETTINGS = {
    "spark.executor.cores": "2",
    "spark.cores.max": "4",
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.python.task.killTimeout": "60s",  # a loser is let go on, as one of a stalled host would
    "spark.stage.maxConsecutiveAttempts": "8",
}
STAGE_AGAIN = "an executor dies with what it has shuffled, and a stage runs again"
REPARTITIONED = {"spark.sql.shuffle.partitions": "6", "spark.sql.adaptive.enabled": "true"}


class Mischief:
    """What is to happen once, armed by a file that all processes see. Whoever takes it does it."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def arm(self, name: str) -> None:
        (self.place / name).touch()

    def take(self, name: str) -> bool:
        try:
            (self.place / name).rename(self.place / f"{name}.done")
        except FileNotFoundError:
            return False
        return True

    def is_done(self, name: str) -> bool:
        return (self.place / f"{name}.done").exists()

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (self.place / name).exists():
            if time.monotonic() > deadline:
                self.arm(GAVE_UP)
                raise TimeoutError(f"{name} has not come in {PATIENCE_S} s")
            time.sleep(0.05)


def kill_executor() -> None:
    """From a Python worker: SIGKILL to the executor, whose daemon is this process's parent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    time.sleep(PATIENCE_S)  # until the executor's end takes this process with it


def counting(mischief: Mischief, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leaves a file for each run of a partition."""
    mischief.arm(f"run-{os.urandom(8).hex()}")
    yield from batches


def mischievous(mischief: Mischief, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows as they are; half-way through a partition what is armed may happen."""
    from pyspark import TaskContext

    for batch in batches:
        half = batch.num_rows // 2
        yield batch.slice(0, half)
        if mischief.take("fail"):
            raise RuntimeError("a task fails half-way")
        if mischief.take("kill-input"):
            kill_executor()
        if TaskContext.get().partitionId() == 0 and mischief.take("stall-input"):
            mischief.wait_for("committed")
        yield batch.slice(half)


class HostileStorage(LocalStorage):
    """On executors, an upload or a sync may take the executor with it, or end long after its checkpoint was committed."""

    __slots__ = ()

    @property
    def mischief(self) -> Mischief:
        return Mischief(self.root.parent / "mischief")

    @contextmanager
    def create_stream(self, path: str) -> Iterator[BinaryIO]:
        with LocalStorage.create_stream(self, path) as stream:
            yield stream
            if self._in_task() and self.mischief.take("kill-upload"):
                stream.flush()
                kill_executor()
            if self._in_task() and self.mischief.take("stall-upload"):
                self.mischief.wait_for("committed")
        if self._in_task() and self.mischief.is_done("stall-upload") and self.mischief.take("committed"):
            self.mischief.arm("landed")

    def make_durable(self, path: str) -> None:
        if self._in_task() and self.mischief.take("kill-sync"):
            kill_executor()
        LocalStorage.make_durable(self, path)

    @staticmethod
    def _in_task() -> bool:
        from pyspark import TaskContext

        return TaskContext.get() is not None


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """A standalone master with two workers; its address. Everything is of this process's session, and is killed with it."""
    home = link_spark_home(directory)
    os.environ |= {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_DIRS": str(directory / "local")}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    log = (directory / "cluster.log").open("ab")

    def start(role: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--host", host, "--webui-port", "0", *arguments]
        return subprocess.Popen(command, env={**os.environ, "SPARK_LOCAL_IP": host}, stdout=log, stderr=log)

    started = [start("master.Master", "127.0.0.1", "--port", str(port))]
    for host in HOSTS:
        work = str(directory / f"work-{host}")
        started.append(start("worker.Worker", host, "--cores", "2", "--memory", "1g", "--work-dir", work, address))
    try:
        yield address
    finally:
        for process in started:
            process.kill()
            process.wait()


def open_hostile(root: Path) -> Catalog:
    environment, storage = SystemEnvironment(), HostileStorage(root)
    marker = create_catalog(storage, environment)
    return catalog_at(storage, marker, environment)


def scenarios(spark: Any, mischief: Mischief) -> dict[str, tuple[Any, tuple[str, ...]]]:
    """The DataFrame to write, and what is armed before."""
    plain = spark.range(0, ROWS, 1, PARTITIONS).selectExpr("id", "concat('name ', id) AS name")

    def passing(df: Any) -> Any:
        return df.mapInArrow(partial(mischievous, mischief), "id bigint, name string")

    shuffled = plain.mapInArrow(partial(counting, mischief), plain.schema).repartition(4, "name")
    skewed = plain.selectExpr("id", "if(id % 10 < 9, 'same', name) AS name").repartition("name")
    return {
        "a task fails": (passing(plain), ("fail",)),
        "an executor dies half-way": (passing(plain), ("kill-input",)),
        STAGE_AGAIN: (passing(shuffled), ("kill-input",)),
        "an executor dies while it uploads": (plain, ("kill-upload",)),
        "an executor dies while it syncs": (plain, ("kill-sync",)),
        "partitions are put together as they come": (skewed, ()),
        "there are no rows": (plain.where("id < 0").repartition(3), ()),
        "a slow task is overtaken": (passing(plain), ("stall-input",)),
        "a loser uploads late": (plain, ("stall-upload",)),
    }


USED_BY = {"kill-upload": "streamed", "stall-upload": "streamed", "kill-sync": "native"}  # the others by both


def run_scenario(spark: Any, catalog: Catalog, mischief: Mischief, name: str, upload: Any) -> dict[str, Any]:
    df, armed = scenarios(spark, mischief)[name]
    expected = row_texts(df)
    for left in mischief.place.iterdir():
        left.unlink()
    for each in armed:
        mischief.arm(each)
    with catalog.coordinate(upload, max_parallelism=16, upload=upload, retention=holdfast.KeepLast(1)) as job:
        with job.checkpoint() as cp:
            cp.write("rows", df, key=["id"])
        mischief.arm("committed")
        if "stall-upload" in armed:
            mischief.wait_for("landed")
        with catalog.checkpoint(upload) as checkpoint:
            equal = row_texts(checkpoint.read(spark, "rows")) == expected
    happened = all(map(mischief.is_done, armed)) and not (mischief.place / GAVE_UP).exists()
    if name == STAGE_AGAIN:
        happened &= len([*mischief.place.glob("run-*")]) > PARTITIONS
    catalog.vacuum()
    orphans = catalog.scrub().deleted_files
    assert_catalog_sound(catalog)
    assert_clean(catalog)
    return {"upload": upload, "scenario": name, "equal": equal, "happened": happened, "orphans": orphans}


def main(directory: Path) -> None:
    mischief = Mischief(directory / "mischief")
    mischief.place.mkdir()
    few_files.HERE_FILES = -1  # executors do here what the driver does of few files
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with cluster(directory) as master:
        spark = build_session(master, {**SETTINGS, "spark.executorEnv.PYTHONPATH": str(ROOT)})
        with open_hostile(directory / "catalog") as catalog, session_settings(spark, REPARTITIONED):
            for name, (_, armed) in scenarios(spark, mischief).items():
                for upload in ("native", "streamed"):
                    if all(USED_BY.get(each, upload) == upload for each in armed):
                        print(json.dumps(run_scenario(spark, catalog, mischief, name, upload)), flush=True)
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
