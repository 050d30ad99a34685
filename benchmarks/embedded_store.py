"""`embedded_store`: RocksDB of 1 GB, 1 % of whose keys change between checkpoints.

`bytes`: how many times fewer bytes than a copy of the directory. `floor`: against the sizes of the sorted runs that are new in the
snapshot, which no incremental checkpoint can do without. What RocksDB rewrites by compaction is in both.
"""

import os
import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import holdfast
from benchmarks.harness import Result, seconds, spread, tell

if TYPE_CHECKING:
    from rocksdict import Rdict

KEYS, VALUE_BYTES = 1_000_000, 1_000
ROUNDS = 8
CHANGED = 0.01  # of the keys, between two checkpoints
BATCH = 10_000
STATE = "rocks"


def run(scratch: Path, keys: int = KEYS, rounds: int = ROUNDS) -> list[Result]:
    """The medians of `rounds` incremental checkpoints."""
    from rocksdict import Checkpoint

    database = filled(scratch / "db", keys)
    written: list[int] = []
    floor: list[int] = []
    copied: list[int] = []
    sync_s: list[float] = []
    taken: list[float] = []
    with holdfast.open(scratch / "catalog", create=True) as catalog, catalog.coordinate("store", retention=holdfast.KeepAll()) as job:
        before: dict[str, int] = {}
        for n in range(-1, rounds):  # the first one writes everything
            tell(f"embedded_store: round {n + 1} of {rounds}")
            if n >= 0:
                change(database, keys, n)
            snapshot = scratch / f"snapshot{n}"
            sync_s.append(seconds(lambda: Checkpoint(database).create_checkpoint(str(snapshot))))  # noqa: B023 - called here
            os.sync()
            taken.append(seconds(lambda: written.append(checkpoint(job, snapshot))))  # noqa: B023 - called here
            now = {path.name: path.stat().st_size for path in snapshot.iterdir()}
            floor.append(sum(size for name, size in now.items() if name.endswith(".sst") and name not in before))
            copied.append(sum(now.values()))
            before = now
    tell("")
    database.close()
    figures = {
        "written_bytes": int(statistics.median(written[1:])),
        "new_sorted_run_bytes": int(statistics.median(floor[1:])),
        "directory_bytes": int(statistics.median(copied[1:])),
        "snapshot": spread(sync_s[1:], "ms"),
        "upload": spread(taken[1:]),
        "first_upload_s": round(taken[0], 3),
        "keys": keys,
    }
    fewer = round(statistics.median(all_ / ours for all_, ours in zip(copied[1:], written[1:], strict=True)), 2)
    above = round(sum(written[1:]) / sum(floor[1:]), 4)
    return [
        Result(benchmark="embedded_store", measures="bytes", ratio=fewer, at_least=10, figures=figures),
        Result(benchmark="embedded_store", measures="floor", ratio=above, at_most=1.05, figures=figures),
    ]


def filled(directory: Path, keys: int = KEYS) -> "Rdict":
    """A store of about 1 GB: random values, which no compression makes smaller. RocksDB's own options."""
    from rocksdict import Options, Rdict

    database = Rdict(str(directory), Options(raw_mode=True))
    random.seed(keys)
    for first in range(0, keys, BATCH):
        tell(f"filling the store: {first:,} of {keys:,} keys")
        put(database, range(first, min(first + BATCH, keys)))
    database.flush()
    database.compact_range(None, None)
    return database


def change(database: "Rdict", keys: int, n: int) -> None:
    """New values for 1 % of the keys, others each time."""
    put(database, random.Random(n).sample(range(keys), int(keys * CHANGED)))


def put(database: "Rdict", numbers: "range | list[int]") -> None:
    """New values for the keys of these numbers, in batches."""
    from rocksdict import WriteBatch

    for first in range(0, len(numbers), BATCH):
        batch = WriteBatch(raw_mode=True)
        for number in numbers[first : first + BATCH]:
            batch.put(f"key {number:012}".encode(), random.randbytes(VALUE_BYTES))
        database.write(batch)


def checkpoint(job: holdfast.Coordinator, snapshot: Path) -> int:
    """The bytes that a checkpoint of the snapshot wrote."""
    with job.checkpoint() as writing:
        writing.write_directory(STATE, snapshot)
    assert writing.result is not None
    return writing.result.new_bytes
