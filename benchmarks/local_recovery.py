"""`local_recovery`: restoring a RocksDB store of 1 GB with its local copies in place, against reading it from the catalog.

Both verify every byte, and both are on one disk here: what is saved is the writing, and on a real cluster the network.
"""

import os
import shutil
from pathlib import Path

import holdfast
from benchmarks.embedded_store import KEYS, STATE, filled
from benchmarks.harness import Result, interleave, ratio, seconds, spread, tell

ROUNDS = 7
AT_MOST = 0.8


def run(scratch: Path, keys: int = KEYS, rounds: int = ROUNDS) -> list[Result]:
    """`bytes`: those read of the catalog, at most 0; `time`."""
    database = filled(scratch / "db", keys)
    found: dict[str, holdfast.RestoredDirectory] = {}
    with holdfast.open(scratch / "catalog", create=True) as catalog, catalog.coordinate("store") as job:
        tell("local_recovery: writing the checkpoint")
        with process(scratch) as working, job.checkpoint() as checkpoint:
            checkpoint.write_directory(STATE, snapshot_of(database, working.tmp), working_directory=working)
        database.close()
        latest = job.latest()
        assert latest is not None
        reader = latest.directories(STATE)

        def local(_: int) -> float:
            with process(scratch) as working:  # a process that was started again
                return restore("local", working)

        def remote(_: int) -> float:
            return restore("remote", None)

        def restore(side: str, working: holdfast.WorkingDirectory | None) -> float:
            to = scratch / side
            shutil.rmtree(to, ignore_errors=True)
            os.sync()
            return seconds(lambda: found.update({side: reader.restore(to, subtask=0, working_directory=working)}))

        for side in (local, remote):
            side(-1)
        taken = interleave({"local": local, "remote": remote}, rounds, what="local_recovery")
    if {path.name: path.stat().st_size for path in (scratch / "local").iterdir()} != {
        path.name: path.stat().st_size for path in (scratch / "remote").iterdir()
    }:
        msg = "the two sides restored other files"
        raise AssertionError(msg)
    sizes = {"remote_bytes": found["local"].remote_bytes, "local_bytes": found["local"].local_bytes}
    figures = {"local": spread(taken["local"]), "remote": spread(taken["remote"]), "store_bytes": found["remote"].remote_bytes}
    return [
        Result(benchmark="local_recovery", measures="bytes", ratio=found["local"].remote_bytes, at_most=0, figures=sizes),
        Result(benchmark="local_recovery", measures="time", ratio=ratio(taken["local"], taken["remote"]), at_most=AT_MOST, figures=figures),
    ]


def process(scratch: Path) -> holdfast.WorkingDirectory:
    """A process with the id of the one before."""
    return holdfast.working_directory("taskmanager", "store-0", base=scratch / "volume")


def snapshot_of(database, tmp: Path) -> Path:  # type: ignore[no-untyped-def]
    """A snapshot on the volume of the local copies, where a store lives."""
    from rocksdict import Checkpoint

    Checkpoint(database).create_checkpoint(str(tmp / "snapshot"))
    return tmp / "snapshot"
