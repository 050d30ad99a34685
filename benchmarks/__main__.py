"""`python -m benchmarks [NAME] [--json]`: run benchmarks and print each figure with its goal.

It exits 0 whether or not a goal holds; anything else means that a benchmark crashed, or that two sides disagreed on an answer.
"""

import argparse
import importlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Result

ABOUT = {
    "commit": "a checkpoint's commit to the ledger, against one Parquet file and one Delta commit with the same syncs; and how it grows",
    "long_life": "a catalog after 10,000 commits with upkeep, against one after its first hundred: commits, opening, memory",
    "many_jobs": "commits of 16 processes with a job each, against delta-rs appends; one job beside 1,000 others, against one alone",
    "thousand_jobs": "1,000 jobs with a checkpoint a minute each, by 16 processes: what lands of what is due",
    "vacuum_beside_writers": "8 processes that commit twice a second each, with and without a vacuum, a scrub and folds that never stop",
    "full_checkpoint": "a checkpoint of 10 million rows, against df.write.parquet",
    "restore": "reading it back, verified and not, against spark.read.parquet of the same files",
    "incremental_checkpoint": "a change set of 1 % of 10 million rows, against df.write.parquet of everything",
    "changed_groups": "10 million rows with changes in 1 % of the key groups, against df.write.parquet of everything",
    "restore_chain": "a base with one and with ten change sets of 1 %, against spark.read.parquet of the merged state",
    "commit_handles": "1 % of 100,000 handles changed: rows and time of the ledger's commit",
    "rescale": "half of the key groups of a savepoint, against the whole: bytes and time",
    "savepoint": "a savepoint of 10 million rows, against df.write.parquet of them repartitioned and sorted by key group",
    "embedded_store": "RocksDB of 1 GB with 1 % of its keys changed: bytes, against copying it and against its new sorted runs",
    "local_recovery": "restoring a store of 1 GB from local copies, against reading it from the catalog, both verified",
    "streaming": "what a checkpoint adds to a micro-batch, against a bare ledger commit and df.write.parquet of the same rows",
    "state_store": "bytes of checkpoints of RocksDB inside Spark tasks, against Spark's own RocksDB state store, for the same updates",
    "small_states": "checkpoints and readings of a few thousand rows, against df.write.parquet and spark.read.parquet of the same",
    "garbage": "the cleanup query over a million references, against hand-written DuckDB over the same files",
    "garbage_10m": "a vacuum of 4 million files among 10 million references, but for their deletion, against DuckDB and Parquet by hand",
    "delete": "20,000 files by vacuum's deletion, against a bare loop of unlinks on 8 threads with the same syncs of directories",
    "verify": "the digests of 745 MB of live files, against bare SHA-256 of the same files on as many threads",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for; the exit code."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    names = list(ABOUT) if chosen.name == "all" else [chosen.name]
    crashed = []
    for name in names:
        try:
            with tempfile.TemporaryDirectory(prefix=f"holdfast-{name}-") as scratch:
                run_one(name, _load(name), Path(scratch), as_json=chosen.json)
        except Exception:  # noqa: BLE001 - the others are still worth running; the exit code tells
            traceback.print_exc()
            crashed.append(name)
    if crashed:
        print(f"crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def run_one(name: str, run: Callable[[Path], list[Result]], scratch: Path, *, as_json: bool) -> None:
    """One benchmark in a directory of its own; a line for each goal, or a few for people."""
    machine = harness.machine(str(scratch))
    if not as_json:
        versions = ", ".join(f"{package} {number}" for package, number in machine["versions"].items())
        print(f"== {name}: {ABOUT.get(name, '')}")
        print(
            f"   {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['filesystem']}, load {machine['load_1m']}"
        )
        print(f"   python {machine['python']}, {versions}")
    for result in run(scratch):
        print(result.as_json(machine) if as_json else result.as_text(), flush=True)


def _load(name: str) -> Callable[[Path], list[Result]]:
    """The benchmark's `run`. Imported only now: some need no Spark."""
    run: Callable[[Path], list[Result]] = importlib.import_module(f"benchmarks.{name}").run
    return run


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, ABOUT))
    listing = "\n".join(f"  {name:{width}}  {about}" for name, about in ABOUT.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Holdfast against the least that the same work can cost, in interleaved runs, and say whether the goals hold.",
        epilog=(
            f"benchmarks:\n{listing}\n\n"
            "Each takes up to five minutes on two cores and works in a temporary directory (TMPDIR chooses the disk; mind that\n"
            "on tmpfs a sync costs nothing). The exit code is 0 whether or not a goal holds, and 1 if a benchmark crashed."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", default="all", choices=["all", *ABOUT], help="which one (default: all)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each goal, and nothing else, on standard output")
    return parser


if __name__ == "__main__":
    sys.exit(main())
