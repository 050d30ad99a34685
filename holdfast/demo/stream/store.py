"""The state of the streaming demo: RocksDB inside Spark's tasks, a store for each subtask, with the aircraft and routes of its key groups.

A step restores its store (by hard links where this machine has it), adds a micro-batch, and uploads the store's own snapshot.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.catalog.errors import RefusedError
from holdfast.catalog.key_groups import groups_of
from holdfast.demo.states import STATES, StateOf, aggregate
from holdfast.writers.local.working_directory import WorkingDirectory, working_directory
from holdfast.writers.stores.reader import DirectoryReader
from holdfast.writers.stores.writer import DirectoryWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from rocksdict import Rdict

STORE = "rocks"
SUBTASKS, GROUPS = 4, 128
SEPARATOR = "|"  # in no tail number and no airport
SUMS = ("flights", "distance", "arrivals", "delay_minutes")
LAST_SEEN = ("hour_utc", "minute", "carrier", "flight", "airport")  # the first is microseconds since 1970; in the order of comparison
VALUE = (
    "flights long, distance long, arrivals long, delay_minutes long, "
    "last_seen struct<hour_utc: long, minute: long, carrier: string, flight: long, airport: string>"
)
STEPPED = "subtask int, ack binary, local_bytes long, cached_bytes long, remote_bytes long"


@dataclass(frozen=True, slots=True)
class Step:
    """What a task takes along: where its store comes from (None: it is new), where it goes, and its machine's own disk."""

    reader: DirectoryReader | None
    writer: DirectoryWriter
    base: str

    def __call__(self, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa
        from pyspark import TaskContext
        from rocksdict import Checkpoint, Options, Rdict

        context = TaskContext.get()
        assert context is not None
        subtask = context.partitionId()
        with own_directory(self.base, subtask) as working:
            store = working.tmp / STORE
            found = None if self.reader is None else self.reader.restore(store, subtask=subtask, working_directory=working)
            database = Rdict(str(store), Options(raw_mode=True))
            for batch in batches:
                add_all(database, zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))
            upload = self.writer.write(
                Checkpoint(database).create_checkpoint,
                subtask=subtask,
                key_groups=groups_of(subtask, SUBTASKS, GROUPS),
                working_directory=working,
            )
            database.close()  # the upload continues alongside
            ack = upload.ack()
        sources = {"local_bytes": 0, "cached_bytes": 0, "remote_bytes": 0}
        if found is not None:
            sources = {name: getattr(found, name) for name in sources}
        row = {"subtask": pa.scalar(subtask, pa.int32()), "ack": pa.scalar(ack, pa.binary())} | {
            name: pa.scalar(size, pa.int64()) for name, size in sources.items()
        }
        yield pa.RecordBatch.from_pydict({name: pa.array([value.as_py()], value.type) for name, value in row.items()})


def own_directory(base: str, subtask: int) -> WorkingDirectory:
    """The working directory that this machine has for a subtask. While another try of its task lives, one that is empty."""
    try:
        return working_directory("taskmanager", f"flights-{subtask}", base=base)
    except RefusedError:
        return working_directory("taskmanager", base=base)


def news_of(flights: "DataFrame") -> "DataFrame":
    """What a micro-batch adds, as keys and values of the stores, in one partition for each subtask."""
    from pyspark.sql import functions as sf

    news = None
    for state in STATES:
        rows = aggregate(flights, state).select(key_of(state).alias("key"), sf.to_json(sf.struct(*value_of(state))).alias("value"))
        news = rows if news is None else news.unionByName(rows)
    assert news is not None
    group = sf.pmod(sf.hash("key"), sf.lit(GROUPS))
    return news.repartitionById(SUBTASKS, (group * sf.lit(SUBTASKS) / sf.lit(GROUPS)).cast("int"))


def key_of(state: StateOf) -> "Column":
    """A row's key in the store: the state's name and the key columns."""
    from pyspark.sql import functions as sf

    return sf.concat_ws(SEPARATOR, sf.lit(state.name), *state.key).cast("binary")


def value_of(state: StateOf) -> "list[Column]":
    """What the store has of a row of `aggregate`, columns of VALUE."""
    from pyspark.sql import functions as sf

    sums = [sf.col(name) for name in SUMS]
    if not state.has_last_seen:
        return sums
    last = [sf.unix_micros("last_seen.hour_utc").alias("hour_utc"), *(sf.col(f"last_seen.{name}") for name in LAST_SEEN[1:])]
    return [*sums, sf.struct(*last).alias("last_seen")]


def add_all(database: "Rdict", news: "Iterator[tuple[bytes, str]]") -> None:
    """Add the news to what the store has: the same whatever the order of micro-batches."""
    for key, text in news:
        new, old = json.loads(text), database.get(key)
        database[key] = json.dumps(new if old is None else added(json.loads(old), new)).encode()


def added(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Both values as one: sums, and the later of two sightings."""
    both: dict[str, Any] = {name: old[name] + new[name] for name in SUMS}
    if "last_seen" in new:
        both["last_seen"] = max(old["last_seen"], new["last_seen"], key=lambda seen: [seen[name] for name in LAST_SEEN])
    return both


def rows_of(entries: "DataFrame", state: StateOf) -> "DataFrame":
    """The rows of a state among the keys and values of all stores, with the columns of `comparable`."""
    from pyspark.sql import functions as sf

    keys = sf.split(sf.col("key").cast("string"), f"[{SEPARATOR}]")
    own = entries.where(sf.element_at(keys, 1) == state.name)
    found = own.select(
        *(sf.element_at(keys, i).alias(name) for i, name in enumerate(state.key, start=2)),
        sf.from_json(sf.col("value").cast("string"), VALUE).alias("value"),
    )
    return found.select(*state.key, *(f"value.{name}" for name in (*SUMS, *(["last_seen"] if state.has_last_seen else []))))


def comparable(plain: "DataFrame", state: StateOf) -> "DataFrame":
    """The rows of a plain `aggregate` with the columns and types that `rows_of` gives."""
    from pyspark.sql import functions as sf

    values = sf.from_json(sf.to_json(sf.struct(*value_of(state))), VALUE)
    names = (*SUMS, *(["last_seen"] if state.has_last_seen else []))
    return plain.select(*state.key, values.alias("value")).select(*state.key, *(f"value.{name}" for name in names))


def store_base(root: Path) -> str:
    """The base of all working directories of the demo: of one machine's disk."""
    return str((root / "volume").absolute())
