"""`state_store`: what checkpoints of a keyed state in RocksDB write, against Spark's own RocksDB state store, for the same updates.

Both have 200,000 keys of 8 bytes with values of 100 that do not compress, in two partitions; each batch changes 1 % of the keys. Ours is
a RocksDB within each Spark task, with an incremental checkpoint after each batch. Spark's is the state of `groupBy(key).agg(max(value))`,
with each of its two ways to checkpoint: new sorted runs with every batch, and a log of changes with a snapshot after every ten.

Counted is every byte of every file in the checkpoints' directory, books included: our ledger and manifests, Spark's offsets and commits. Not
the first batch, which writes all keys, and not the checksums that Hadoop's local file system adds. Neither side removes a file meanwhile.
RocksDB compresses with LZ4 in both; its other options are its own in ours, and Spark's in Spark's. The ratio is of the bytes of all
batches, for a compaction or a snapshot comes with some of them only.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast
from benchmarks.harness import Result, tell
from benchmarks.spark_support import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rocksdict import Rdict

KEYS, VALUE_BYTES = 200_000, 100
BATCHES = 20
CHANGED = 0.01  # of the keys, with each batch
PARTITIONS, GROUPS = 2, 128
AT_MOST = 1.0

STATE = "rocks"
SCHEMA = "key bigint, value binary"
WAIT_S = 0.01
STORE = "spark.sql.streaming.stateStore"
CHANGELOG = f"{STORE}.rocksdb.changelogCheckpointing.enabled"
SETTINGS = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    f"{STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    # Snapshots between changes are uploaded by maintenance. At its default, a minute, batches as quick as these would leave some out.
    f"{STORE}.maintenanceInterval": "200ms",
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}

Entries = dict[int, bytes]


def run(scratch: Path, keys: int = KEYS, batches: int = BATCHES) -> list[Result]:
    """`snapshots`: the bytes of ours against those of Spark's sorted runs; the figures tell of its logs of changes too."""
    files = [_file(scratch / "batches", n, keys) for n in range(batches + 1)]
    with session() as spark:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        written, states = {}, {}
        written["holdfast"], states["holdfast"], state_bytes = _ours(spark, scratch / "holdfast", files)
        for side, changelog in {"snapshots": "false", "changelog": "true"}.items():
            tell(f"state_store: Spark's own, {side}")
            spark.conf.set(CHANGELOG, changelog)
            written[side], states[side] = _sparks(spark, scratch / side, scratch / "batches")
        tell("")
    if not states["holdfast"] == states["snapshots"] == states["changelog"] or len(states["holdfast"]) != keys:
        msg = "the sides do not have the same keys and values in the end"
        raise AssertionError(msg)
    figures = {
        "bytes_per_batch": {side: total // batches for side, total in written.items()},
        "of_it_state": state_bytes // batches,
        "changed_bytes_per_batch": int(keys * CHANGED) * (8 + VALUE_BYTES),
        "against_changelog": round(written["holdfast"] / written["changelog"], 3),
        "changelog_snapshots": len([*(scratch / "changelog" / "location").rglob("*.zip")]),
        "batches": batches,
        "keys": keys,
    }
    ratio = round(written["holdfast"] / written["snapshots"], 3)
    return [Result(benchmark="state_store", measures="snapshots", ratio=ratio, at_most=AT_MOST, figures=figures)]


def _file(directory: Path, n: int, keys: int) -> Path:
    """A batch: all keys in the first, then some; a value is above those before it, so that max takes it."""
    random = np.random.default_rng(n)
    changed = np.arange(keys) if n == 0 else random.choice(keys, int(keys * CHANGED), replace=False)
    values = [n.to_bytes(4, "big") + random.bytes(VALUE_BYTES - 4) for _ in changed]
    directory.mkdir(exist_ok=True)
    file = directory / f"{n:05}.parquet"
    pq.write_table(pa.table({"key": pa.array(changed, pa.int64()), "value": pa.array(values, pa.binary())}), file)
    return file


# ---- ours -----------------------------------------------------------------------------------------------------------------


def _ours(spark: "SparkSession", directory: Path, files: list[Path]) -> tuple[int, Entries, int]:
    """The bytes of all batches but the first, the entries in the end, and how many of the bytes are the stores' own files."""
    options = {"max_parallelism": GROUPS, "retention": holdfast.KeepAll()}
    state_bytes: list[int] = []
    with holdfast.open(directory / "catalog", create=True) as catalog, catalog.coordinate("stores", **options) as job:  # type: ignore[arg-type]
        for n, file in enumerate(files):
            tell(f"state_store: batch {n} of {len(files) - 1}")
            state_bytes.append(_checkpoint(spark, job, file, directory / "stores"))
            if n == 0:
                before = _bytes_in(directory / "catalog")
        written = _bytes_in(directory / "catalog") - before
        latest = job.latest()
        assert latest is not None
        entries: Entries = {}
        for subtask in range(PARTITIONS):
            groups, place = holdfast.groups_of(subtask, PARTITIONS, GROUPS), directory / "restored" / str(subtask)
            latest.restore_directory(STATE, place, subtask=subtask, key_groups=groups)
            entries.update({int.from_bytes(key, "big"): value for key, value in holdfast.RocksDBAdapter().entries(str(place))})
    return written, entries, sum(state_bytes[1:])


def _checkpoint(spark: "SparkSession", job: holdfast.Coordinator, file: Path, stores: Path) -> int:
    """A batch into the stores, each within the task of its key groups, and a checkpoint of them; its bytes of state."""
    from pyspark.sql import functions as F

    group = f"pmod(hash(key), {GROUPS})"
    with job.checkpoint() as checkpoint:
        step = partial(_step, checkpoint.directories(STATE, subtasks=PARTITIONS), stores)
        rows = spark.read.parquet(str(file)).repartitionById(PARTITIONS, F.expr(f"cast({group} * {PARTITIONS} div {GROUPS} AS int)"))
        checkpoint.acknowledge(STATE, [bytes(row.ack) for row in rows.mapInArrow(step, "ack binary").collect()])
    assert checkpoint.result is not None
    return checkpoint.result.new_bytes


def _step(uploads: holdfast.DirectoryWriter, stores: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: put its rows into its store, and begin an upload of what that is then."""
    from pyspark import TaskContext
    from rocksdict import Checkpoint, WriteBatch

    task = TaskContext.get()
    assert task is not None
    subtask = task.partitionId()
    database = _opened(stores / str(subtask))
    for batch in batches:
        changes = WriteBatch(raw_mode=True)
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
            changes.put(key.to_bytes(8, "big"), value)
        database.write(changes)
    groups = holdfast.groups_of(subtask, PARTITIONS, GROUPS)
    ack = uploads.write(Checkpoint(database).create_checkpoint, subtask=subtask, key_groups=groups).ack()
    _close(database)
    yield pa.RecordBatch.from_pydict({"ack": pa.array([ack], pa.binary())})


def _opened(directory: Path) -> "Rdict":
    from rocksdict import DBCompressionType, Options, Rdict

    options = Options(raw_mode=True)
    options.set_compression_type(DBCompressionType.lz4())
    return Rdict(str(directory), options)


def _close(database: "Rdict") -> None:
    """Not before the compactions that have begun are over, as they would be in a store that stays open between batches, like Spark's."""
    while any(database.property_int_value(f"rocksdb.{name}") for name in ("compaction-pending", "num-running-compactions")):
        time.sleep(WAIT_S)
    database.close()


# ---- Spark's --------------------------------------------------------------------------------------------------------------


def _sparks(spark: "SparkSession", directory: Path, batches: Path) -> tuple[int, Entries]:
    """The bytes of all batches but the first, and the entries in the end."""
    from pyspark.sql import functions as F

    location = directory / "location"
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(batches))
    state = stream.groupBy("key").agg(F.max("value").alias("value")).writeStream.outputMode("update").format("noop")
    state.option("checkpointLocation", str(location)).trigger(availableNow=True).start().awaitTermination()
    written = _bytes_in(location, after_ns=(location / "commits" / "0").stat().st_mtime_ns)
    rows = spark.read.format("statestore").load(str(location)).select("key.key", "value.*").collect()
    return written, {key: bytes(value) for key, value in rows}


def _bytes_in(directory: Path, after_ns: int = 0) -> int:
    """Of all files that were written after this moment; without those that Hadoop's local file system adds to each."""
    found = [path.stat() for path in directory.rglob("*") if path.is_file() and path.suffix != ".crc"]
    return sum(each.st_size for each in found if each.st_mtime_ns > after_ns)
